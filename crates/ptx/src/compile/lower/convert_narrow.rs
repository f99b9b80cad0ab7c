//! `cvt` to and from f16, bf16, tf32 and 8-bit floats (PTX ISA §9.7.9.21).

use super::{At, Lowering};
use crate::compile::ir::{RegisterId, Width};
use crate::lanes::convert as cv;
use crate::lanes::float as fl;
use crate::lanes::half::{self, Brain, Half, PairFrom32, Value};
use crate::lanes::narrow::{AwayFromZero, E4m3, E5m2, EightsFrom32, EightsFromHalves, Even, HalvesFromEights, ToTf32, Zero};
use crate::lanes::rounding::{Down, TowardZero, Up};
use crate::lanes::{LaneFunction, binary, select, unary};
use sahasra_ptx_syntax::error::LoadError;
use sahasra_ptx_syntax::types::ScalarType as T;

/// Modifiers of a `cvt` besides its types.
pub(super) struct Flags<'a> {
    pub(super) rounding: Option<&'a str>,
    pub(super) ftz: bool,
    pub(super) sat: bool,
    pub(super) relu: bool,
    pub(super) finite: bool,
}

/// Selects the conversion from f32 to a 16-bit float, single or in pairs.
macro_rules! from_single {
    ($make:ident, $flags:expr, $type:ty, |$operation:ident| $function:ty) => {{
        macro_rules! with {
            ($zero:literal, $relu:literal, $finite:literal) => {{
                type $operation = half::From32<$type, $zero, $relu, $finite>;
                Some($make::<$function>())
            }};
        }
        match ($flags.rounding, $flags.relu, $flags.finite) {
            (Some("rn"), false, false) => with!(false, false, false),
            (Some("rn"), true, false) => with!(false, true, false),
            (Some("rn"), false, true) => with!(false, false, true),
            (Some("rn"), true, true) => with!(false, true, true),
            (Some("rz"), false, false) => with!(true, false, false),
            (Some("rz"), true, false) => with!(true, true, false),
            (Some("rz"), false, true) => with!(true, false, true),
            (Some("rz"), true, true) => with!(true, true, true),
            _ => None,
        }
    }};
}

macro_rules! by_integer {
    ($scalar:expr, $make:ident, $($with:tt)*) => {
        match $scalar {
            T::U8 | T::U16 => Some(unary::<half::$make<u16, $($with)*>>()),
            T::S8 | T::S16 => Some(unary::<half::$make<i16, $($with)*>>()),
            T::U32 => Some(unary::<half::$make<u32, $($with)*>>()),
            T::S32 => Some(unary::<half::$make<i32, $($with)*>>()),
            T::U64 => Some(unary::<half::$make<u64, $($with)*>>()),
            T::S64 => Some(unary::<half::$make<i64, $($with)*>>()),
            _ => None,
        }
    };
}

/// Selects the conversion to a 16-bit float for a rounding direction.
macro_rules! by_direction {
    ($rounding:expr, |$direction:ident| $function:expr) => {
        match $rounding {
            Some("rz") => {
                type $direction = TowardZero;
                $function
            }
            Some("rm") => {
                type $direction = Down;
                $function
            }
            Some("rp") => {
                type $direction = Up;
                $function
            }
            _ => None,
        }
    };
}

/// Whether one of the types is a 16-bit float.
pub(super) fn is_half(scalar: T) -> bool {
    matches!(scalar, T::F16 | T::F16x2 | T::Bf16 | T::Bf16x2)
}

/// Returns the exact conversion of f16 or bf16 to f32.
pub(super) fn widen(scalar: T) -> LaneFunction {
    if scalar == T::F16 {
        unary::<Value<Half>>()
    } else {
        unary::<Value<Brain>>()
    }
}

impl<'a> Lowering<'a> {
    /// `cvt` with pairs, tf32 or 8-bit floats, which are operand types of no other instruction. `None` for any other conversion.
    pub(super) fn packed_conversion(&mut self, at: At<'a, '_>, to: &str, from: &str, flags: &Flags<'_>) -> Option<Result<(), LoadError>> {
        let eights = |relu: bool| match (to, from, relu) {
            ("e4m3x2", "f32", false) => Some(binary::<EightsFrom32<E4m3, false>>()),
            ("e4m3x2", "f32", true) => Some(binary::<EightsFrom32<E4m3, true>>()),
            ("e5m2x2", "f32", false) => Some(binary::<EightsFrom32<E5m2, false>>()),
            ("e5m2x2", "f32", true) => Some(binary::<EightsFrom32<E5m2, true>>()),
            ("e4m3x2", "f16x2", false) => Some(unary::<EightsFromHalves<E4m3, false>>()),
            ("e4m3x2", "f16x2", true) => Some(unary::<EightsFromHalves<E4m3, true>>()),
            ("e5m2x2", "f16x2", false) => Some(unary::<EightsFromHalves<E5m2, false>>()),
            ("e5m2x2", "f16x2", true) => Some(unary::<EightsFromHalves<E5m2, true>>()),
            ("f16x2", "e4m3x2", false) => Some(unary::<HalvesFromEights<E4m3, false>>()),
            ("f16x2", "e4m3x2", true) => Some(unary::<HalvesFromEights<E4m3, true>>()),
            ("f16x2", "e5m2x2", false) => Some(unary::<HalvesFromEights<E5m2, false>>()),
            ("f16x2", "e5m2x2", true) => Some(unary::<HalvesFromEights<E5m2, true>>()),
            _ => None,
        };
        let tf32 = || {
            macro_rules! with {
                ($rounding:ty) => {
                    match (flags.relu, flags.finite) {
                        (false, false) => unary::<ToTf32<$rounding, false, false>>(),
                        (true, false) => unary::<ToTf32<$rounding, true, false>>(),
                        (false, true) => unary::<ToTf32<$rounding, false, true>>(),
                        (true, true) => unary::<ToTf32<$rounding, true, true>>(),
                    }
                };
            }
            Some(match flags.rounding? {
                "rna" if !flags.relu => with!(AwayFromZero),
                "rn" => with!(Even),
                "rz" => with!(Zero),
                _ => return None,
            })
        };
        if flags.ftz || flags.sat {
            return matches!(to, "tf32" | "f16x2" | "bf16x2" | "e4m3x2" | "e5m2x2").then(|| Err(at.form()));
        }
        let plain = flags.rounding == Some("rn");
        let (function, target, source) = match (to, from) {
            ("tf32", "f32") => (tf32(), T::B32, T::F32),
            ("f16x2", "f32") => (from_single!(binary, flags, Half, |Operation| PairFrom32<Operation>), T::B32, T::F32),
            ("bf16x2", "f32") => (
                from_single!(binary, flags, Brain, |Operation| PairFrom32<Operation>),
                T::B32,
                T::F32,
            ),
            ("e4m3x2" | "e5m2x2", "f32") => (eights(flags.relu).filter(|_| plain && flags.finite), T::B16, T::F32),
            ("e4m3x2" | "e5m2x2", "f16x2") => (eights(flags.relu).filter(|_| plain && flags.finite), T::B16, T::B32),
            ("f16x2", "e4m3x2" | "e5m2x2") => (eights(flags.relu).filter(|_| plain && !flags.finite), T::B32, T::B16),
            _ => return None,
        };
        Some(match (function, at.all_operands()) {
            (None, _) => Err(at.form()),
            (Some(function), [d, a, b]) if from == "f32" && to != "tf32" => {
                self.two_types(at, function, (d, target), &[(a, source), (b, source)])
            }
            (Some(function), [d, a]) if from != "f32" || to == "tf32" => self.two_types(at, function, (d, target), &[(a, source)]),
            _ => Err(at.invalid("wrong number of operands")),
        })
    }

    /// Conversion with a single 16-bit float on at least one side. `source` is in a register as wide as `from`; the result is as wide as
    /// `to`.
    pub(super) fn half_conversion(
        &mut self,
        at: At<'a, '_>,
        source: RegisterId,
        from: T,
        to: T,
        flags: &Flags<'_>,
    ) -> Result<(LaneFunction, RegisterId), LoadError> {
        let Flags {
            rounding,
            ftz,
            sat,
            relu,
            finite,
        } = *flags;
        if matches!(from, T::F16x2 | T::Bf16x2) || matches!(to, T::F16x2 | T::Bf16x2) {
            return Err(at.form());
        }
        // The f32 value of a 16-bit float is exact, and the conversion continues from it.
        if is_half(from) {
            if relu || finite && to != T::F16 && to != T::Bf16 {
                return Err(at.form());
            }
            let value = self.new_register(Width::W32);
            // `.ftz` applies to single precision only, in which no f16 value is subnormal.
            self.lane(widen(from), value, &[source]);
            let function = match to {
                T::F32 => match (rounding, sat) {
                    (None, false) => unary::<select::Copy1<f32>>(),
                    (None, true) => unary::<fl::Saturating<select::Copy1<f32>>>(),
                    _ => return Err(at.form()),
                },
                T::F64 if rounding.is_none() && !sat => unary::<cv::Widen>(),
                T::F16 | T::Bf16 => {
                    let integral = match rounding {
                        Some("rni") => Some(unary::<cv::RoundToIntegral<f32, cv::NearestEven>>()),
                        Some("rzi") => Some(unary::<cv::RoundToIntegral<f32, TowardZero>>()),
                        Some("rmi") => Some(unary::<cv::RoundToIntegral<f32, Down>>()),
                        Some("rpi") => Some(unary::<cv::RoundToIntegral<f32, Up>>()),
                        None | Some("rn") => None,
                        Some("rz") if from != to => None,
                        Some(_) => return Err(at.form()),
                    };
                    let mut value = value;
                    if let Some(integral) = integral.or(sat.then(unary::<fl::Saturating<select::Copy1<f32>>>)) {
                        let next = self.new_register(Width::W32);
                        self.lane(integral, next, &[value]);
                        value = next;
                    }
                    let function = if to == T::F16 {
                        from_single!(
                            unary,
                            Flags {
                                rounding: Some(if rounding == Some("rz") { "rz" } else { "rn" }),
                                ..*flags
                            },
                            Half,
                            |Operation| Operation
                        )
                    } else {
                        from_single!(
                            unary,
                            Flags {
                                rounding: Some(if rounding == Some("rz") { "rz" } else { "rn" }),
                                ..*flags
                            },
                            Brain,
                            |Operation| Operation
                        )
                    };
                    return Ok((function.ok_or_else(|| at.form())?, value));
                }
                // `.sat` has no effect, because conversions to integers saturate.
                _ => self.float_to_integer(at, T::F32, to, rounding)?,
            };
            return Ok((function, value));
        }
        let function = match (from, to) {
            _ if ftz || sat => None,
            (T::F32, T::F16) if matches!(rounding, Some("rn" | "rz")) => from_single!(unary, flags, Half, |Operation| Operation),
            (T::F32, T::Bf16) if matches!(rounding, Some("rn" | "rz")) => from_single!(unary, flags, Brain, |Operation| Operation),
            _ if relu || finite => None,
            (T::F32, T::F16) => by_direction!(rounding, |M| Some(unary::<half::From32Directed<Half, M>>())),
            (T::F32, T::Bf16) => by_direction!(rounding, |M| Some(unary::<half::From32Directed<Brain, M>>())),
            (T::F64, T::F16) if rounding == Some("rn") => Some(unary::<half::From64<Half>>()),
            (T::F64, T::Bf16) if rounding == Some("rn") => Some(unary::<half::From64<Brain>>()),
            (T::F64, T::F16) => by_direction!(rounding, |M| Some(unary::<half::From64Directed<Half, M>>())),
            (T::F64, T::Bf16) => by_direction!(rounding, |M| Some(unary::<half::From64Directed<Brain, M>>())),
            (_, T::F16) if rounding == Some("rn") => by_integer!(from, FromInteger, Half),
            (_, T::Bf16) if rounding == Some("rn") => by_integer!(from, FromInteger, Brain),
            (_, T::F16) => by_direction!(rounding, |M| by_integer!(from, FromIntegerDirected, Half, M)),
            (_, T::Bf16) => by_direction!(rounding, |M| by_integer!(from, FromIntegerDirected, Brain, M)),
            _ => None,
        };
        Ok((function.ok_or_else(|| at.form())?, source))
    }
}
