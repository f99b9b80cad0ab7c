//! Scalar video instructions (PTX ISA §9.7.18.1).

use super::{At, Lowering};
use crate::compile::ir::{RegisterId, Width};
use crate::lanes::integer as int;
use crate::lanes::video::scalar::{self, How, Part, Scalar};
use crate::lanes::{LaneFunction, binary, ternary};
use sahasra_ptx_syntax::error::LoadError;
use sahasra_ptx_syntax::syntax::Operand;
use sahasra_ptx_syntax::types::ScalarType as T;

fn function(operation: &str) -> Option<LaneFunction> {
    Some(match operation {
        "vadd" => ternary::<Scalar<scalar::Add>>(),
        "vsub" => ternary::<Scalar<scalar::Subtract>>(),
        "vabsdiff" => ternary::<Scalar<scalar::Difference>>(),
        "vmin" => ternary::<Scalar<scalar::Minimum>>(),
        "vmax" => ternary::<Scalar<scalar::Maximum>>(),
        "vshl" => ternary::<Scalar<scalar::ShiftLeft>>(),
        "vshr" => ternary::<Scalar<scalar::ShiftRight>>(),
        "eq" => ternary::<Scalar<scalar::Equal>>(),
        "ne" => ternary::<Scalar<scalar::NotEqual>>(),
        "lt" => ternary::<Scalar<scalar::Less>>(),
        "le" => ternary::<Scalar<scalar::LessOrEqual>>(),
        "gt" => ternary::<Scalar<scalar::Greater>>(),
        "ge" => ternary::<Scalar<scalar::GreaterOrEqual>>(),
        _ => return None,
    })
}

/// Function that combines a result with the third operand.
fn secondary(operation: &str, signed: bool) -> Option<LaneFunction> {
    Some(match (operation, signed) {
        ("add", _) => binary::<int::Add<u32>>(),
        ("min", false) => binary::<int::Minimum<u32>>(),
        ("min", true) => binary::<int::Minimum<i32>>(),
        ("max", false) => binary::<int::Maximum<u32>>(),
        ("max", true) => binary::<int::Maximum<i32>>(),
        _ => return None,
    })
}

/// Returns an operand without its part, and the part.
fn part<'o, 'a>(at: At<'a, '_>, operand: &'o Operand<'a>) -> Result<(std::borrow::Cow<'o, Operand<'a>>, Part), LoadError> {
    use std::borrow::Cow;
    match operand {
        Operand::Component(name, part) => match Part::of(part) {
            Some(part) => Ok((Cow::Owned(Operand::Name(name, 0)), part)),
            None => Err(at.invalid(format!("{name} has no part .{part} here"))),
        },
        _ => Ok((Cow::Borrowed(operand), Part::WHOLE)),
    }
}

impl<'a> Lowering<'a> {
    fn part_source(&mut self, at: At<'a, '_>, operand: &Operand<'a>) -> Result<(RegisterId, Part), LoadError> {
        let (operand, part) = part(at, operand)?;
        Ok((self.source(at, &operand, T::B32)?, part))
    }

    pub(super) fn scalar_video(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let opcode = at.instruction.opcode;
        if opcode == "vmad" {
            return self.video_multiply(at);
        }
        let words = at.modifiers();
        // `vset` has no type of the result, which is 0 or 1.
        let (types, operation, rest) = match (opcode, words) {
            ("vset", [a, b, comparison, rest @ ..]) => (["u32", a, b], *comparison, rest),
            (_, [d, a, b, rest @ ..]) => ([*d, *a, *b], opcode, rest),
            _ => return Err(at.form()),
        };
        let signed = types.map(|scalar| scalar == "s32");
        let function = function(operation).ok_or_else(|| at.form())?;
        let combine = rest.iter().find_map(|word| secondary(word, signed[0]));
        let (target, a, b, c) = match at.all_operands() {
            [target, a, b] => (target, a, b, None),
            [target, a, b, c] => (target, a, b, Some(c)),
            _ => return Err(at.invalid("expected 3 or 4 operands")),
        };
        let (target, written) = part(at, target)?;
        if c.is_some() != (combine.is_some() || written != Part::WHOLE) || (combine.is_some() && written != Part::WHOLE) {
            return Err(at.invalid("a third source needs a second operation or a part of the destination, not both"));
        }
        let ((a, a_part), (b, b_part)) = (self.part_source(at, a)?, self.part_source(at, b)?);
        let how = How {
            parts: [(written, signed[0]), (a_part, signed[1]), (b_part, signed[2])],
            saturates: rest.contains(&"sat"),
            wraps: rest.contains(&"wrap"),
        };
        let how = self.constant(Width::W32, u64::from(how.word()));
        let c = match c {
            Some(c) => Some(self.source(at, c, T::B32)?),
            None => None,
        };
        let target = self.target(at, &target, Width::W32)?;
        let Some(c) = c else {
            self.lane(function, target, &[a, b, how]);
            return Ok(());
        };
        let value = self.new_register(Width::W32);
        let guard = self.guard.take();
        self.lane(function, value, &[a, b, how]);
        self.guard = guard;
        match combine {
            Some(combine) => self.lane(combine, target, &[value, c]),
            None => self.lane(ternary::<scalar::Merge>(), target, &[value, c, how]),
        }
        Ok(())
    }

    /// `vmad` (PTX ISA §9.7.18.1.6).
    fn video_multiply(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let [_, a_type, b_type, rest @ ..] = at.modifiers() else {
            return Err(at.form());
        };
        let sign = |operand: &'_ Operand<'a>| match operand {
            Operand::Minus(inner) => ((**inner).clone(), true),
            other => (other.clone(), false),
        };
        let [target, a, b, c] = at.operands()?;
        let ((a, negative_a), (b, negative_b), (c, negative_c)) = (sign(a), sign(b), sign(c));
        let negative_product = negative_a != negative_b;
        if negative_product && negative_c {
            return Err(at.invalid("the product and the addend cannot both be negative"));
        }
        let plus_one = rest.contains(&"po");
        if plus_one && (negative_a || negative_b || negative_c) {
            return Err(at.invalid("with .po no operand can be negative"));
        }
        let ((a, a_part), (b, b_part)) = (self.part_source(at, &a)?, self.part_source(at, &b)?);
        let c = self.source(at, &c, T::B32)?;
        let parts = [(a_part, *a_type == "s32"), (b_part, *b_type == "s32")];
        let how = How {
            parts: [(Part::WHOLE, false), parts[0], parts[1]],
            saturates: false,
            wraps: false,
        };
        let signed_product = parts.iter().any(|(_, signed)| *signed);
        let signed = signed_product || negative_product || negative_c;
        let flags = [
            (negative_product, scalar::NEGATE_PRODUCT),
            (negative_c, scalar::NEGATE_ADDEND),
            (plus_one, scalar::PLUS_ONE),
            (rest.contains(&"sat"), scalar::SATURATE),
            (signed, scalar::SIGNED),
            (signed_product, scalar::SIGNED_PRODUCT),
            (rest.contains(&"shr7"), 7 << scalar::SHIFT),
            (rest.contains(&"shr15"), 15 << scalar::SHIFT),
        ];
        let flags = flags.iter().fold(0, |word, (set, flag)| if *set { word | flag } else { word });
        let how = self.constant(Width::W32, u64::from(how.word()));
        let flags = self.constant(Width::W32, u64::from(flags));
        let target = self.target(at, target, Width::W32)?;
        let product = self.new_register(Width::W64);
        let guard = self.guard.take();
        self.lane(ternary::<scalar::Product>(), product, &[a, b, how]);
        self.guard = guard;
        self.lane(ternary::<scalar::Finish>(), target, &[product, c, flags]);
        Ok(())
    }
}
