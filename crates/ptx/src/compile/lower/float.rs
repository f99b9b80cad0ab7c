//! Floating point arithmetic and functions (PTX ISA §9.7.3).

use super::{At, Lowering};
use crate::compile::ir::Width;
use crate::error::LoadError;
use crate::lanes::float as fl;
use crate::lanes::rounding::{self, Down, TowardZero, Up};
use crate::lanes::transcendental as function;
use crate::lanes::{LaneFunction, binary, ternary, unary};
use crate::types::ScalarType as T;

/// `.ftz` and `.sat` around an f32 operation; f64 has neither.
macro_rules! by_float {
    ($at:expr, $scalar:expr, $ftz:expr, $sat:expr, $make:ident, $operation:ident) => {
        match ($scalar, $ftz, $sat) {
            (T::F32, false, false) => Ok($make::<fl::$operation<f32>>()),
            (T::F32, true, false) => Ok($make::<fl::Flushing<fl::$operation<f32>>>()),
            (T::F32, false, true) => Ok($make::<fl::Saturating<fl::$operation<f32>>>()),
            (T::F32, true, true) => Ok($make::<fl::Saturating<fl::Flushing<fl::$operation<f32>>>>()),
            (T::F64, false, false) => Ok($make::<fl::$operation<f64>>()),
            _ => Err($at.form()),
        }
    };
}

/// An f32 operation with a written direction.
macro_rules! by_direction {
    ($at:expr, $direction:expr, $make:ident, $operation:ident) => {
        match $direction {
            "rz" => Ok($make::<rounding::$operation<TowardZero>>()),
            "rm" => Ok($make::<rounding::$operation<Down>>()),
            "rp" => Ok($make::<rounding::$operation<Up>>()),
            _ => Err($at.form()),
        }
    };
}

/// The same with `.ftz`.
macro_rules! by_direction_flushed {
    ($at:expr, $direction:expr, $make:ident, $operation:ident) => {
        match $direction {
            "rz" => Ok($make::<fl::Flushing<rounding::$operation<TowardZero>>>()),
            "rm" => Ok($make::<fl::Flushing<rounding::$operation<Down>>>()),
            "rp" => Ok($make::<fl::Flushing<rounding::$operation<Up>>>()),
            _ => Err($at.form()),
        }
    };
}

macro_rules! directed {
    ($at:expr, $direction:expr, $ftz:expr, $make:ident, $operation:ident) => {
        if $ftz {
            by_direction_flushed!($at, $direction, $make, $operation)
        } else {
            by_direction!($at, $direction, $make, $operation)
        }
    };
}

struct Modifiers<'a> {
    ftz: bool,
    sat: bool,
    approximate: bool,
    nan: bool,
    rounding: Option<&'a str>,
    scalar: T,
}

impl<'a> Lowering<'a> {
    fn float_modifiers(&mut self, at: At<'a, '_>) -> Result<Modifiers<'a>, LoadError> {
        let (flags, rest) = at.split(&["ftz", "sat", "approx", "full", "NaN", "rn", "rz", "rm", "rp"]);
        let scalar = at.one_type(&rest)?;
        let has = |word: &str| flags.contains(&word);
        let mut rounding = flags.iter().filter(|word| matches!(**word, "rn" | "rz" | "rm" | "rp"));
        let first = rounding.next().copied();
        if rounding.next().is_some() || !matches!(scalar, T::F32 | T::F64) {
            return Err(at.form());
        }
        Ok(Modifiers {
            ftz: has("ftz"),
            sat: has("sat"),
            approximate: has("approx") || has("full"),
            nan: has("NaN"),
            rounding: first,
            scalar,
        })
    }

    pub(super) fn float_arithmetic(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let Modifiers {
            ftz,
            sat,
            approximate,
            nan,
            rounding,
            scalar,
        } = self.float_modifiers(at)?;
        let opcode = at.instruction.opcode;
        let function: Result<LaneFunction, LoadError> = match (opcode, rounding) {
            ("add" | "sub" | "mul" | "mad" | "fma" | "div", Some(direction @ ("rz" | "rm" | "rp"))) => {
                if scalar != T::F32 || sat || approximate || nan {
                    return Err(at.form());
                }
                match opcode {
                    "add" => directed!(at, direction, ftz, binary, Add),
                    "sub" => directed!(at, direction, ftz, binary, Subtract),
                    "mul" => directed!(at, direction, ftz, binary, Multiply),
                    "div" => directed!(at, direction, ftz, binary, Divide),
                    _ => directed!(at, direction, ftz, ternary, FusedMultiplyAdd),
                }
            }
            ("add", _) => by_float!(at, scalar, ftz, sat, binary, Add),
            ("sub", _) => by_float!(at, scalar, ftz, sat, binary, Subtract),
            ("mul", _) => by_float!(at, scalar, ftz, sat, binary, Multiply),
            ("mad" | "fma", Some("rn")) => {
                by_float!(at, scalar, ftz, sat, ternary, FusedMultiplyAdd)
            }
            // The ISA bounds `div.approx` and `div.full` by 2 ulp; correctly rounded is inside.
            ("div", Some("rn")) if !approximate => by_float!(at, scalar, ftz, sat, binary, Divide),
            ("div", None) if approximate && scalar == T::F32 => {
                by_float!(at, scalar, ftz, sat, binary, Divide)
            }
            ("min", None) if nan => by_float!(at, scalar, ftz, sat, binary, MinimumNan),
            ("max", None) if nan => by_float!(at, scalar, ftz, sat, binary, MaximumNan),
            ("min", None) if at.all_operands().len() == 3 => {
                by_float!(at, scalar, ftz, sat, binary, Minimum)
            }
            ("max", None) if at.all_operands().len() == 3 => {
                by_float!(at, scalar, ftz, sat, binary, Maximum)
            }
            ("abs", None) => by_float!(at, scalar, ftz, sat, unary, Absolute),
            ("neg", None) => by_float!(at, scalar, ftz, sat, unary, Negate),
            _ => Err(at.form()),
        };
        if approximate && opcode != "div" {
            return Err(at.form());
        }
        self.same_type(at, function?, scalar)
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
            rounding,
            scalar,
        } = self.float_modifiers(at)?;
        if sat || nan {
            return Err(at.form());
        }
        let opcode = at.instruction.opcode;
        let single = scalar == T::F32;
        let function: Result<LaneFunction, LoadError> = match (opcode, rounding, approximate) {
            ("copysign", None, false) if !ftz => {
                by_float!(at, scalar, false, false, binary, CopySign)
            }
            ("sqrt" | "rcp", Some(direction @ ("rz" | "rm" | "rp")), false) if single => {
                if opcode == "sqrt" {
                    directed!(at, direction, ftz, unary, SquareRoot)
                } else {
                    directed!(at, direction, ftz, unary, Reciprocal)
                }
            }
            ("sqrt", Some("rn"), false) | ("sqrt", None, true) => {
                by_float!(at, scalar, ftz, false, unary, SquareRoot)
            }
            ("rcp", Some("rn"), false) | ("rcp", None, true) => {
                by_float!(at, scalar, ftz && single, false, unary, Reciprocal)
            }
            ("rsqrt", None, true) if single && ftz => Ok(unary::<fl::Flushing<function::ReciprocalSquareRoot>>()),
            ("rsqrt", None, true) if single => Ok(unary::<function::ReciprocalSquareRoot>()),
            ("rsqrt", None, true) => Ok(unary::<function::ReciprocalSquareRoot64>()),
            ("sin", None, true) if single && ftz => Ok(unary::<fl::Flushing<function::Sine>>()),
            ("sin", None, true) if single => Ok(unary::<function::Sine>()),
            ("cos", None, true) if single && ftz => Ok(unary::<fl::Flushing<function::Cosine>>()),
            ("cos", None, true) if single => Ok(unary::<function::Cosine>()),
            ("ex2", None, true) if single && ftz => Ok(unary::<fl::Flushing<function::Exponential2>>()),
            ("ex2", None, true) if single => Ok(unary::<function::Exponential2>()),
            ("lg2", None, true) if single && ftz => Ok(unary::<fl::Flushing<function::Logarithm2>>()),
            ("lg2", None, true) if single => Ok(unary::<function::Logarithm2>()),
            ("tanh", None, true) if single => Ok(unary::<function::HyperbolicTangent>()),
            _ => Err(at.form()),
        };
        self.same_type(at, function?, scalar)
    }

    /// `testp` (PTX ISA §9.7.3.1), by comparisons of the magnitude.
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
