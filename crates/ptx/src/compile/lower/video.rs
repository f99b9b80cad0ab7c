//! SIMD video instructions (PTX ISA §9.7.18.2) on whole registers. Selections and masks of parts are rejected.

use super::{At, Lowering};
use crate::compile::ir::Width;
use crate::lanes::integer as int;
use crate::lanes::video::{self, Video};
use crate::lanes::{LaneFunction, binary, ternary};
use sahasra_ptx_syntax::error::LoadError;
use sahasra_ptx_syntax::types::ScalarType as T;

/// Returns the lane function of a SIMD video operation on parts of `BITS` bits.
fn function<const BITS: u32>(operation: &str) -> Option<LaneFunction> {
    Some(match operation {
        "vadd" => ternary::<Video<video::Add, BITS>>(),
        "vsub" => ternary::<Video<video::Subtract, BITS>>(),
        "vavrg" => ternary::<Video<video::Average, BITS>>(),
        "vabsdiff" => ternary::<Video<video::Difference, BITS>>(),
        "vmin" => ternary::<Video<video::Minimum, BITS>>(),
        "vmax" => ternary::<Video<video::Maximum, BITS>>(),
        "eq" => ternary::<Video<video::Equal, BITS>>(),
        "ne" => ternary::<Video<video::NotEqual, BITS>>(),
        "lt" => ternary::<Video<video::Less, BITS>>(),
        "le" => ternary::<Video<video::LessOrEqual, BITS>>(),
        "gt" => ternary::<Video<video::Greater, BITS>>(),
        "ge" => ternary::<Video<video::GreaterOrEqual, BITS>>(),
        _ => return None,
    })
}

impl<'a> Lowering<'a> {
    pub(super) fn video(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let opcode = at.instruction.opcode;
        let (operation, parts) = opcode.split_at(opcode.len() - 1);
        let words = at.modifiers();
        let (types, rest) = words.split_at(words.iter().take_while(|word| matches!(**word, "u32" | "s32")).count());
        let (operation, rest, signs) = match (operation, types, rest) {
            ("vset", [a, b], [comparison, rest @ ..]) => (*comparison, rest, ["u32", a, b]),
            ("vset", ..) => return Err(at.form()),
            (operation, [d, a, b], rest) => (operation, rest, [*d, a, b]),
            _ => return Err(at.form()),
        };
        let function = if parts == "2" {
            function::<16>(operation)
        } else {
            function::<8>(operation)
        };
        let function = function.ok_or_else(|| at.form())?;
        let mut how = 0;
        for (scalar, bit) in signs.into_iter().zip([video::D_SIGNED, video::A_SIGNED, video::B_SIGNED]) {
            how |= if scalar == "s32" { bit } else { 0 };
        }
        let sums = rest == ["add"];
        how |= if sums { video::SUMS } else { 0 };
        how |= if rest == ["sat"] { video::SATURATES } else { 0 };
        let [target, a, b, c] = at.operands()?;
        let [a, b, c] = [
            self.source(at, a, T::B32)?,
            self.source(at, b, T::B32)?,
            self.source(at, c, T::B32)?,
        ];
        let target = self.target(at, target, Width::W32)?;
        let how = self.constant(Width::W32, u64::from(how));
        if !sums {
            // All parts are written, so nothing of c remains.
            self.lane(function, target, &[a, b, how]);
            return Ok(());
        }
        let guard = self.guard.take();
        let sum = self.new_register(Width::W32);
        self.lane(function, sum, &[a, b, how]);
        self.guard = guard;
        self.lane(binary::<int::Add<u32>>(), target, &[sum, c]);
        Ok(())
    }
}
