//! Results of one instruction as a function of its operands' bits, written from the PTX ISA alone: wide integers and exact numbers, one
//! element at a time. The reference machine and the tests of single instructions use this model.

mod approximate;
mod bits;
mod compare;
mod convert;
mod float;
mod integer;
pub mod matrix;
mod video;

use crate::exact::Format;
use crate::kind::{Class, Kind};

/// Results of an instruction in order, and the carry if it writes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Results. Those beyond the model's number of targets are unused.
    pub values: [u64; 2],
    /// The carry flag (PTX ISA §9.7.2).
    pub carry: Option<bool>,
}

impl From<u64> for Outcome {
    fn from(value: u64) -> Self {
        Self {
            values: [value, 0],
            carry: None,
        }
    }
}

type Function = Box<dyn Fn(&[u64], bool) -> Outcome + Send + Sync>;
type Accept = Box<dyn Fn(&[u64], u64) -> bool + Send + Sync>;

/// Criterion for correct results.
pub enum Judge {
    /// Exactly the expected bits.
    Bits,
    /// Exactly the expected bits, or any NaN if an element is a NaN of the format. Every element is judged separately.
    AnyNan(Format),
    /// Results that the function accepts.
    Within(Accept),
}

/// Model of one instruction form.
pub struct Model {
    /// Types of the results, in order.
    pub targets: Vec<Kind>,
    /// Types of the operands read, in order.
    pub sources: Vec<Kind>,
    /// Sources that must be immediates, with the largest value.
    pub immediates: Vec<(usize, u64)>,
    /// Sources that must not be zero.
    pub nonzero: Option<usize>,
    /// Criterion for correct results.
    pub judge: Judge,
    function: Function,
}

impl Model {
    fn new(targets: &[Kind], sources: &[Kind], function: impl Fn(&[u64], bool) -> Outcome + Send + Sync + 'static) -> Self {
        let format = targets.first().and_then(|kind| kind.format());
        Self {
            targets: targets.to_vec(),
            sources: sources.to_vec(),
            immediates: Vec::new(),
            nonzero: None,
            judge: format.map_or(Judge::Bits, Judge::AnyNan),
            function: Box::new(function),
        }
    }

    /// Model with one result, which depends on the sources only.
    fn plain(target: Kind, sources: &[Kind], function: impl Fn(&[u64]) -> u64 + Send + Sync + 'static) -> Self {
        Self::new(&[target], sources, move |inputs, _| function(inputs).into())
    }

    /// Model that applies the function to each element of packed operands of one type.
    fn elementwise(kind: Kind, sources: usize, function: impl Fn(&[u64]) -> u64 + Send + Sync + 'static) -> Self {
        Self::plain(kind, &vec![kind; sources], move |inputs| {
            let mut result = 0;
            for lane in 0..kind.lanes {
                let shift = lane * kind.bits;
                let mut elements = [0; 4];
                for (element, input) in elements.iter_mut().zip(inputs) {
                    *element = input >> shift & kind.mask();
                }
                result |= (function(&elements[..inputs.len()]) & kind.mask()) << shift;
            }
            result
        })
    }

    /// Whether results must have exactly the expected bits, except for the choice of NaN.
    pub fn is_exact(&self) -> bool {
        !matches!(self.judge, Judge::Within(_))
    }

    pub fn apply(&self, inputs: &[u64], carry: bool) -> Outcome {
        (self.function)(inputs, carry)
    }

    /// Whether `found` is a correct first result for `inputs`; `expected` is one.
    pub fn accepts(&self, inputs: &[u64], expected: u64, found: u64) -> bool {
        match &self.judge {
            Judge::Bits => expected == found,
            Judge::AnyNan(format) => {
                let kind = self.targets[0];
                (0..kind.lanes).all(|lane| {
                    let element = |bits: u64| bits >> (lane * kind.bits) & kind.mask();
                    let (expected, found) = (element(expected), element(found));
                    expected == found || (format.is_nan(expected) && format.is_nan(found))
                })
            }
            Judge::Within(accept) => accept(inputs, found),
        }
    }

    /// Returns the model of an instruction form such as `add.rn.ftz.f32`, if the form exists and is a function of only its operands (and
    /// the carry).
    pub fn of(form: &str) -> Option<Self> {
        let mut words = form.split('.');
        let opcode = words.next()?;
        let words: Vec<&str> = words.collect();
        // CUDA's headers write `max.s16x2.relu`, although the ISA has the type last.
        if let ("min" | "max", [kind, "relu"]) = (opcode, words.as_slice()) {
            return Self::of(&format!("{opcode}.relu.{kind}"));
        }
        // The types are the last words; `cvt`, `set` and `slct` have two.
        let kind = Kind::from_name(words.last()?);
        // A mixed-precision instruction has two types, of which the first is that of the result.
        if let [flags @ .., "f32", "f16" | "bf16"] = words.as_slice()
            && matches!(opcode, "add" | "sub" | "fma")
        {
            return float::mixed(opcode, flags, kind?);
        }
        match opcode {
            "cvt" => convert::model(&words),
            "setp" | "set" | "selp" | "slct" | "testp" | "copysign" => compare::model(opcode, &words, kind?),
            "and" | "or" | "xor" | "not" | "cnot" | "shl" | "shr" | "shf" | "popc" | "clz" | "brev" | "bfe" | "bfi" | "bfind" | "prmt"
            | "lop3" | "fns" | "bmsk" | "szext" => bits::model(opcode, &words, kind),
            "vadd2" | "vsub2" | "vavrg2" | "vabsdiff2" | "vmin2" | "vmax2" | "vset2" | "vadd4" | "vsub4" | "vavrg4" | "vabsdiff4"
            | "vmin4" | "vmax4" | "vset4" => video::model(opcode, &words),
            "dp4a" | "dp2a" => integer::dot(opcode, &words),
            "sin" | "cos" | "ex2" | "lg2" | "tanh" => approximate::model(opcode, &words, kind?),
            "rsqrt" => approximate::model(opcode, &words, kind?),
            "rcp" | "sqrt" if words.first() == Some(&"approx") => approximate::model(opcode, &words, kind?),
            "div" if matches!(words.first(), Some(&("approx" | "full"))) => approximate::model(opcode, &words, kind?),
            "add" | "sub" | "mul" | "mad" | "fma" | "div" | "rem" | "abs" | "neg" | "min" | "max" | "sad" | "mul24" | "mad24" | "rcp"
            | "sqrt" | "addc" | "subc" | "madc" => match kind?.class {
                Class::Float(format) => float::model(opcode, &words[..words.len() - 1], kind?, format),
                Class::Unsigned | Class::Signed => integer::model(opcode, &words[..words.len() - 1], kind?),
                _ => None,
            },
            _ => None,
        }
    }
}
