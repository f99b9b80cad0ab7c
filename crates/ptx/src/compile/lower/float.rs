//! Floating point arithmetic and functions (PTX ISA §9.7.3).

use super::convert_narrow::widen;
use super::{At, Lowering};
use crate::compile::ir::Width;
use crate::lanes::float as fl;
use crate::lanes::half::{Both, Brain, Half, Relu, Through};
use crate::lanes::rounding::{self, Down, TowardZero, Up, double};
use crate::lanes::transcendental as function;
use crate::lanes::{LaneFunction, binary, ternary, unary};
use sahasra_ptx_syntax::error::LoadError;
use sahasra_ptx_syntax::types::ScalarType as T;

/// Selects a float operation with `.ftz` and `.sat` for f32 and f16; f64 and bf16 have neither.
macro_rules! by_float {
    ($at:expr, $scalar:expr, $ftz:expr, $sat:expr, $make:ident, $operation:ident) => {
        match ($scalar, $ftz, $sat) {
            (T::F32, false, false) => Ok($make::<fl::$operation<f32>>()),
            (T::F32, true, false) => Ok($make::<fl::Flushing<fl::$operation<f32>>>()),
            (T::F32, false, true) => Ok($make::<fl::Saturating<fl::$operation<f32>>>()),
            (T::F32, true, true) => Ok($make::<fl::Saturating<fl::Flushing<fl::$operation<f32>>>>()),
            (T::F64, false, false) => Ok($make::<fl::$operation<f64>>()),
            (T::F16, false, false) => Ok($make::<fl::$operation<Half>>()),
            (T::F16, true, false) => Ok($make::<fl::Flushing<fl::$operation<Half>>>()),
            (T::F16, false, true) => Ok($make::<fl::Saturating<fl::$operation<Half>>>()),
            (T::F16, true, true) => Ok($make::<fl::Saturating<fl::Flushing<fl::$operation<Half>>>>()),
            (T::F16x2, false, false) => Ok($make::<Both<fl::$operation<Half>>>()),
            (T::F16x2, true, false) => Ok($make::<Both<fl::Flushing<fl::$operation<Half>>>>()),
            (T::F16x2, false, true) => Ok($make::<Both<fl::Saturating<fl::$operation<Half>>>>()),
            (T::F16x2, true, true) => Ok($make::<Both<fl::Saturating<fl::Flushing<fl::$operation<Half>>>>>()),
            (T::Bf16, false, false) => Ok($make::<fl::$operation<Brain>>()),
            (T::Bf16x2, false, false) => Ok($make::<Both<fl::$operation<Brain>>>()),
            _ => Err($at.form()),
        }
    };
}

/// Selects a float operation of f32, with or without `.ftz`, or of f64.
macro_rules! by_wide_float {
    ($at:expr, $scalar:expr, $ftz:expr, $make:ident, $operation:ident) => {
        match ($scalar, $ftz) {
            (T::F32, false) => Ok($make::<fl::$operation<f32>>()),
            (T::F32, true) => Ok($make::<fl::Flushing<fl::$operation<f32>>>()),
            (T::F64, false) => Ok($make::<fl::$operation<f64>>()),
            _ => Err($at.form()),
        }
    };
}

/// Selects an f32 function, applied to f32 or to 16-bit floats.
macro_rules! through {
    ($at:expr, $scalar:expr, $ftz:expr, $operation:ident) => {
        match ($scalar, $ftz) {
            (T::F32, false) => Ok(unary::<function::$operation>()),
            (T::F32, true) => Ok(unary::<fl::Flushing<function::$operation>>()),
            (T::F16, false) => Ok(unary::<Through<Half, function::$operation>>()),
            (T::F16, true) => Ok(unary::<fl::Flushing<Through<Half, function::$operation>>>()),
            (T::F16x2, false) => Ok(unary::<Both<Through<Half, function::$operation>>>()),
            (T::F16x2, true) => Ok(unary::<Both<fl::Flushing<Through<Half, function::$operation>>>>()),
            (T::Bf16, false) => Ok(unary::<Through<Brain, function::$operation>>()),
            (T::Bf16, true) => Ok(unary::<fl::Flushing<Through<Brain, function::$operation>>>()),
            (T::Bf16x2, false) => Ok(unary::<Both<Through<Brain, function::$operation>>>()),
            (T::Bf16x2, true) => Ok(unary::<Both<fl::Flushing<Through<Brain, function::$operation>>>>()),
            _ => Err($at.form()),
        }
    };
}

/// Selects an operation for an explicit rounding direction; `$function` is its type with all wrappers.
macro_rules! by_direction {
    ($at:expr, $direction:expr, $make:ident, |$rounding:ident| $function:ty) => {
        match $direction {
            "rz" => {
                type $rounding = TowardZero;
                Ok($make::<$function>())
            }
            "rm" => {
                type $rounding = Down;
                Ok($make::<$function>())
            }
            "rp" => {
                type $rounding = Up;
                Ok($make::<$function>())
            }
            _ => Err($at.form()),
        }
    };
}

/// Selects an operation with directed rounding and without `.sat`.
macro_rules! directed {
    ($at:expr, $direction:expr, $scalar:expr, $ftz:expr, $make:ident, $operation:ident) => {
        match ($scalar, $ftz) {
            (T::F32, false) => by_direction!($at, $direction, $make, |M| rounding::$operation<M>),
            (T::F32, true) => by_direction!($at, $direction, $make, |M| fl::Flushing<rounding::$operation<M>>),
            (T::F64, false) => by_direction!($at, $direction, $make, |M| double::$operation<M>),
            _ => Err($at.form()),
        }
    };
}

/// Selects an operation with directed rounding that has `.sat` for f32.
macro_rules! directed_or_saturated {
    ($at:expr, $direction:expr, $scalar:expr, $ftz:expr, $sat:expr, $make:ident, $operation:ident) => {
        match ($scalar, $ftz, $sat) {
            (T::F32, false, true) => by_direction!($at, $direction, $make, |M| fl::Saturating<rounding::$operation<M>>),
            (T::F32, true, true) => by_direction!($at, $direction, $make, |M| fl::Saturating<fl::Flushing<rounding::$operation<M>>>),
            (_, _, false) => directed!($at, $direction, $scalar, $ftz, $make, $operation),
            _ => Err($at.form()),
        }
    };
}

struct Modifiers<'a> {
    ftz: bool,
    sat: bool,
    approximate: bool,
    nan: bool,
    relu: bool,
    xor_sign: bool,
    rounding: Option<&'a str>,
    scalar: T,
    /// Type of the operands of 16 bits in a mixed-precision instruction (PTX ISA §9.7.5).
    narrow: Option<T>,
}

impl<'a> Lowering<'a> {
    fn float_modifiers(&mut self, at: At<'a, '_>) -> Result<Modifiers<'a>, LoadError> {
        let (flags, rest) = at.split(&[
            "ftz", "sat", "approx", "full", "NaN", "relu", "xorsign", "abs", "rn", "rz", "rm", "rp",
        ]);
        let (scalar, narrow) = match rest.as_slice() {
            ["f32", narrow @ ("f16" | "bf16")] => (T::F32, T::from_name(narrow)),
            rest => (at.one_type(rest)?, None),
        };
        let has = |word: &str| flags.contains(&word);
        let mut rounding = flags.iter().filter(|word| matches!(**word, "rn" | "rz" | "rm" | "rp"));
        let first = rounding.next().copied();
        if rounding.next().is_some() || !scalar.is_float() || has("xorsign") != has("abs") {
            return Err(at.form());
        }
        let opcode = at.instruction.opcode;
        let mut approximate = has("approx") || has("full");
        let mut first = first;
        if first.is_none() && !approximate {
            let unrounded = self.dialect.version < (1, 4);
            match (opcode, scalar) {
                ("rcp" | "sqrt" | "div", T::F32) | ("sin" | "cos" | "ex2" | "lg2" | "rsqrt", _) => approximate = unrounded,
                ("rcp" | "sqrt" | "div" | "mad", T::F64) if unrounded => first = Some("rn"),
                // GPUs since sm_20 run it as `fma.rn.ftz.f32` (§9.7.3.7).
                ("mad", T::F32) => first = Some("rn"),
                _ => {}
            }
        }
        Ok(Modifiers {
            ftz: has("ftz") || (scalar == T::F32 && self.dialect.flushes() && opcode != "copysign"),
            sat: has("sat"),
            approximate,
            nan: has("NaN"),
            relu: has("relu"),
            xor_sign: has("xorsign"),
            rounding: first,
            scalar,
            narrow,
        })
    }

    pub(super) fn float_arithmetic(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let Modifiers {
            ftz,
            sat,
            approximate,
            nan,
            relu,
            xor_sign,
            rounding,
            scalar,
            narrow,
        } = self.float_modifiers(at)?;
        let opcode = at.instruction.opcode;
        if (opcode, rounding, relu) == ("fma", Some("rn"), true) && !sat && !approximate && !nan && !xor_sign {
            let function = match (scalar, ftz) {
                (T::F16, false) => ternary::<Relu<fl::FusedMultiplyAdd<Half>>>(),
                (T::F16, true) => ternary::<Relu<fl::Flushing<fl::FusedMultiplyAdd<Half>>>>(),
                (T::F16x2, false) => ternary::<Both<Relu<fl::FusedMultiplyAdd<Half>>>>(),
                (T::F16x2, true) => ternary::<Both<Relu<fl::Flushing<fl::FusedMultiplyAdd<Half>>>>>(),
                (T::Bf16, false) => ternary::<Relu<fl::FusedMultiplyAdd<Brain>>>(),
                (T::Bf16x2, false) => ternary::<Both<Relu<fl::FusedMultiplyAdd<Brain>>>>(),
                _ => return Err(at.form()),
            };
            return self.same_type(at, function, scalar);
        }
        if relu || ((nan || xor_sign) && !matches!(opcode, "min" | "max")) {
            return Err(at.form());
        }
        if matches!(opcode, "min" | "max") && rounding.is_none() && !sat {
            return self.float_extremum(at, scalar, ftz, nan, xor_sign);
        }
        let function: Result<LaneFunction, LoadError> = match (opcode, rounding) {
            ("add" | "sub" | "mul" | "mad" | "fma" | "div", Some(direction @ ("rz" | "rm" | "rp"))) => {
                if approximate {
                    return Err(at.form());
                }
                match opcode {
                    "add" => directed_or_saturated!(at, direction, scalar, ftz, sat, binary, Add),
                    "sub" => directed_or_saturated!(at, direction, scalar, ftz, sat, binary, Subtract),
                    "mul" => directed_or_saturated!(at, direction, scalar, ftz, sat, binary, Multiply),
                    "div" if !sat => directed!(at, direction, scalar, ftz, binary, Divide),
                    "div" => Err(at.form()),
                    _ => directed_or_saturated!(at, direction, scalar, ftz, sat, ternary, FusedMultiplyAdd),
                }
            }
            ("add", _) => by_float!(at, scalar, ftz, sat, binary, Add),
            ("sub", _) => by_float!(at, scalar, ftz, sat, binary, Subtract),
            ("mul", _) => by_float!(at, scalar, ftz, sat, binary, Multiply),
            ("mad" | "fma", Some("rn")) => {
                by_float!(at, scalar, ftz, sat, ternary, FusedMultiplyAdd)
            }
            // The ISA allows an error of 2 ulp for `div.approx` and `div.full`; a correctly rounded quotient is within it.
            ("div", Some("rn")) if !approximate => by_wide_float!(at, scalar, ftz, binary, Divide),
            ("div", None) if approximate && scalar == T::F32 && !sat => match (at.modifiers().contains(&"full"), ftz) {
                (true, _) => by_wide_float!(at, scalar, ftz, binary, Divide),
                (false, true) => Ok(binary::<fl::Flushing<function::ApproximateDivide>>()),
                (false, false) => Ok(binary::<function::ApproximateDivide>()),
            },
            ("abs", None) => by_float!(at, scalar, ftz, sat, unary, Absolute),
            ("neg", None) => by_float!(at, scalar, ftz, sat, unary, Negate),
            _ => Err(at.form()),
        };
        if approximate && opcode != "div" {
            return Err(at.form());
        }
        match narrow {
            Some(narrow) => self.mixed_precision(at, function?, narrow),
            None => self.same_type(at, function?, scalar),
        }
    }

    /// `add`, `sub` and `fma` of f32 (PTX ISA §9.7.5): all sources but the last have 16 bits and are converted first.
    fn mixed_precision(&mut self, at: At<'a, '_>, function: LaneFunction, narrow: T) -> Result<(), LoadError> {
        let expected = if at.instruction.opcode == "fma" { 4 } else { 3 };
        let operands = at.all_operands();
        if operands.len() != expected {
            return Err(at.invalid(format!("expected {expected} operands, found {}", operands.len())));
        }
        let mut sources = Vec::new();
        for operand in &operands[1..expected - 1] {
            let (source, value) = (self.source(at, operand, narrow)?, self.new_register(Width::W32));
            let guard = self.guard.take();
            self.lane(widen(narrow), value, &[source]);
            self.guard = guard;
            sources.push(value);
        }
        sources.push(self.source(at, &operands[expected - 1], T::F32)?);
        let target = self.target(at, &operands[0], Width::W32)?;
        self.lane(function, target, &sources);
        Ok(())
    }

    /// `min`, `max` (PTX ISA §9.7.3.11-12, §9.7.4.7-8) of two operands, or three of f32.
    fn float_extremum(&mut self, at: At<'a, '_>, scalar: T, ftz: bool, nan: bool, xor_sign: bool) -> Result<(), LoadError> {
        let sat = false;
        let function = match (at.instruction.opcode, nan, xor_sign) {
            ("min", false, false) => by_float!(at, scalar, ftz, sat, binary, Minimum),
            ("min", true, false) => by_float!(at, scalar, ftz, sat, binary, MinimumNan),
            ("min", false, true) => by_float!(at, scalar, ftz, sat, binary, MinimumXorSign),
            ("min", true, true) => by_float!(at, scalar, ftz, sat, binary, MinimumNanXorSign),
            (_, false, false) => by_float!(at, scalar, ftz, sat, binary, Maximum),
            (_, true, false) => by_float!(at, scalar, ftz, sat, binary, MaximumNan),
            (_, false, true) => by_float!(at, scalar, ftz, sat, binary, MaximumXorSign),
            (_, true, true) => by_float!(at, scalar, ftz, sat, binary, MaximumNanXorSign),
        }?;
        let [target, a, b, c] = at.all_operands() else {
            return self.same_type(at, function, scalar);
        };
        if scalar != T::F32 {
            return Err(at.form());
        }
        let sources = [a, b, c]
            .into_iter()
            .map(|operand| self.source(at, operand, scalar))
            .collect::<Result<Vec<_>, _>>()?;
        let target = self.target(at, target, Width::W32)?;
        let first = self.new_register(Width::W32);
        let guard = self.guard.take();
        self.lane(function, first, &sources[..2]);
        self.guard = guard;
        self.lane(function, target, &[first, sources[2]]);
        Ok(())
    }

    pub(super) fn float_function(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        if at.instruction.opcode == "testp" {
            return self.test_property(at);
        }
        let Modifiers {
            ftz,
            sat,
            approximate,
            nan,
            relu,
            xor_sign,
            rounding,
            scalar,
            narrow: _,
        } = self.float_modifiers(at)?;
        if sat || nan || relu || xor_sign {
            return Err(at.form());
        }
        let opcode = at.instruction.opcode;
        let single = scalar == T::F32;
        let function: Result<LaneFunction, LoadError> = match (opcode, rounding, approximate) {
            ("copysign", None, false) if !ftz => {
                by_wide_float!(at, scalar, false, binary, CopySign)
            }
            ("sqrt" | "rcp", Some(direction @ ("rz" | "rm" | "rp")), false) => {
                if opcode == "sqrt" {
                    directed!(at, direction, scalar, ftz, unary, SquareRoot)
                } else {
                    directed!(at, direction, scalar, ftz, unary, Reciprocal)
                }
            }
            ("sqrt", Some("rn"), false) | ("sqrt", None, true) => {
                by_wide_float!(at, scalar, ftz, unary, SquareRoot)
            }
            ("rcp", None, true) if !single => Ok(unary::<function::FlushedReciprocal64>()),
            ("rcp", Some("rn"), false) | ("rcp", None, true) => {
                by_wide_float!(at, scalar, ftz && single, unary, Reciprocal)
            }
            ("rsqrt", None, true) if single && ftz => Ok(unary::<fl::Flushing<function::ReciprocalSquareRoot>>()),
            ("rsqrt", None, true) if single => Ok(unary::<function::ReciprocalSquareRoot>()),
            ("rsqrt", None, true) if ftz => Ok(unary::<function::FlushedReciprocalSquareRoot64>()),
            ("rsqrt", None, true) => Ok(unary::<function::ReciprocalSquareRoot64>()),
            ("sin", None, true) if single && ftz => Ok(unary::<fl::Flushing<function::Sine>>()),
            ("sin", None, true) if single => Ok(unary::<function::Sine>()),
            ("cos", None, true) if single && ftz => Ok(unary::<fl::Flushing<function::Cosine>>()),
            ("cos", None, true) if single => Ok(unary::<function::Cosine>()),
            // bf16 has only `ex2.approx.ftz` (§9.7.4.10).
            ("ex2", None, true) if ftz || !matches!(scalar, T::Bf16 | T::Bf16x2) => through!(at, scalar, ftz, Exponential2),
            ("lg2", None, true) if single && ftz => Ok(unary::<fl::Flushing<function::Logarithm2>>()),
            ("lg2", None, true) if single => Ok(unary::<function::Logarithm2>()),
            ("tanh", None, true) if !ftz => through!(at, scalar, false, HyperbolicTangent),
            _ => Err(at.form()),
        };
        self.same_type(at, function?, scalar)
    }

    /// `testp` (PTX ISA §9.7.3.1), implemented by comparisons of the magnitude.
    fn test_property(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        use crate::lanes::{logic, relation, select};
        let (property, rest) = at.split(&["finite", "infinite", "number", "notanumber", "normal", "subnormal"]);
        let scalar = at.one_type(&rest)?;
        let [target, source] = at.operands()?;
        let source = self.source(at, source, scalar)?;
        let target = self.target(at, target, Width::Predicate)?;
        let (width, infinite, normal) = match scalar {
            T::F32 => (
                Width::W32,
                u64::from(f32::INFINITY.to_bits()),
                u64::from(f32::MIN_POSITIVE.to_bits()),
            ),
            T::F64 => (Width::W64, f64::INFINITY.to_bits(), f64::MIN_POSITIVE.to_bits()),
            _ => return Err(at.form()),
        };
        let (infinite, normal, zero) = (self.constant(width, infinite), self.constant(width, normal), self.zero(width));
        let magnitude = self.new_register(width);
        let guard = self.guard.take();
        let double = scalar == T::F64;
        self.lane(
            if double {
                unary::<fl::Absolute<f64>>()
            } else {
                unary::<fl::Absolute<f32>>()
            },
            magnitude,
            &[source],
        );
        let less = if double {
            relation::<fl::Less<f64>>()
        } else {
            relation::<fl::Less<f32>>()
        };
        let equal = if double {
            relation::<fl::Equal<f64>>()
        } else {
            relation::<fl::Equal<f32>>()
        };
        let nan = if double {
            relation::<fl::AnyNan<f64>>()
        } else {
            relation::<fl::AnyNan<f32>>()
        };
        let number = if double {
            relation::<fl::Numbers<f64>>()
        } else {
            relation::<fl::Numbers<f32>>()
        };
        let (first, second) = (self.new_register(Width::Predicate), self.new_register(Width::Predicate));
        match property.as_slice() {
            ["finite"] => self.lane(less, first, &[magnitude, infinite]),
            ["infinite"] => self.lane(equal, first, &[magnitude, infinite]),
            ["number"] => self.lane(number, first, &[magnitude, magnitude]),
            ["notanumber"] => self.lane(nan, first, &[magnitude, magnitude]),
            ["normal"] => {
                let (below, not_below) = (self.new_register(Width::Predicate), self.new_register(Width::Predicate));
                self.lane(less, below, &[magnitude, normal]);
                self.lane(logic::<select::PredicateNot>(), not_below, &[below]);
                self.lane(less, second, &[magnitude, infinite]);
                self.lane(logic::<select::PredicateAnd>(), first, &[not_below, second]);
            }
            ["subnormal"] => {
                let above = self.new_register(Width::Predicate);
                self.lane(less, above, &[zero, magnitude]);
                self.lane(less, second, &[magnitude, normal]);
                self.lane(logic::<select::PredicateAnd>(), first, &[above, second]);
            }
            _ => return Err(at.form()),
        }
        self.guard = guard;
        self.lane(logic::<select::PredicateCopy>(), target, &[first]);
        Ok(())
    }
}
