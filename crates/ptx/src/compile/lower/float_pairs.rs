//! `.f32x2` of add, sub, mul and fma (PTX ISA §9.7.3): two f32 in registers of 64 bits.

use super::{At, Lowering};
use crate::lanes::float as fl;
use crate::lanes::pair::Pair;
use crate::lanes::rounding::{self, Down, TowardZero, Up};
use crate::lanes::{binary, ternary};
use sahasra_ptx_syntax::error::LoadError;
use sahasra_ptx_syntax::types::ScalarType as T;

/// Selects an operation on pairs for a rounding direction and `.ftz`.
macro_rules! pairs {
    ($at:expr, $direction:expr, $ftz:expr, $make:ident, $operation:ident) => {
        match ($direction, $ftz) {
            ("rn", false) => $make::<Pair<fl::$operation<f32>>>(),
            ("rn", true) => $make::<Pair<fl::Flushing<fl::$operation<f32>>>>(),
            ("rz", false) => $make::<Pair<rounding::$operation<TowardZero>>>(),
            ("rz", true) => $make::<Pair<fl::Flushing<rounding::$operation<TowardZero>>>>(),
            ("rm", false) => $make::<Pair<rounding::$operation<Down>>>(),
            ("rm", true) => $make::<Pair<fl::Flushing<rounding::$operation<Down>>>>(),
            ("rp", false) => $make::<Pair<rounding::$operation<Up>>>(),
            ("rp", true) => $make::<Pair<fl::Flushing<rounding::$operation<Up>>>>(),
            _ => return Err($at.form()),
        }
    };
}

impl<'a> Lowering<'a> {
    pub(super) fn float_pairs(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let (flags, _) = at.split(&["rn", "rz", "rm", "rp"]);
        let direction = flags.first().copied().unwrap_or("rn");
        let ftz = at.modifiers().contains(&"ftz");
        let function = match at.instruction.opcode {
            "add" => pairs!(at, direction, ftz, binary, Add),
            "sub" => pairs!(at, direction, ftz, binary, Subtract),
            "mul" => pairs!(at, direction, ftz, binary, Multiply),
            "fma" => pairs!(at, direction, ftz, ternary, FusedMultiplyAdd),
            _ => return Err(at.form()),
        };
        self.same_type(at, function, T::B64)
    }
}
