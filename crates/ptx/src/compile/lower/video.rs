//! SIMD video instructions (PTX ISA §9.7.18.2). Their sources may select parts of both registers, and their destination may name the parts
//! that are written or added.

use super::{At, Lowering};
use crate::compile::ir::{RegisterId, Width};
use crate::lanes::bits::{Nibbles, Permute};
use crate::lanes::integer as int;
use crate::lanes::video::{self, Video};
use crate::lanes::{LaneFunction, binary, ternary};
use sahasra_ptx_syntax::error::LoadError;
use sahasra_ptx_syntax::syntax::Operand;
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

/// Returns an operand without its selector, such as `.b7654`, and the digits of the selector, highest part first.
fn selected<'a>(at: At<'a, '_>, operand: &Operand<'a>, parts: usize) -> Result<(Operand<'a>, Option<Vec<u32>>), LoadError> {
    let letter = if parts == 2 { 'h' } else { 'b' };
    let Operand::Component(name, word) = operand else {
        return Ok((operand.clone(), None));
    };
    let Some(digits) = word.strip_prefix(letter) else {
        return Ok((operand.clone(), None));
    };
    let digits: Option<Vec<u32>> = digits.chars().map(|digit| digit.to_digit(2 * parts as u32)).collect();
    let digits = digits.filter(|digits| !digits.is_empty() && digits.len() <= parts);
    let digits = digits.ok_or_else(|| at.invalid(format!("{name} has no part .{word} here")))?;
    Ok((Operand::Name(name, 0), Some(digits)))
}

/// Returns the third operand of `prmt` that selects parts of {b, a}.
fn control(digits: &[u32], parts: usize) -> u64 {
    digits.iter().fold(0, |control, digit| {
        let digit = u64::from(*digit);
        if parts == 2 {
            (control << 8) | ((2 * digit + 1) << 4) | (2 * digit)
        } else {
            control << 4 | digit
        }
    })
}

impl<'a> Lowering<'a> {
    /// Returns the parts that a source selects of {b, a}, in one register. `whole` is the source without a selector.
    fn selection(&mut self, pair: [RegisterId; 2], whole: RegisterId, digits: Option<&[u32]>, parts: usize) -> RegisterId {
        let Some(digits) = digits else { return whole };
        let (target, control) = (self.new_register(Width::W32), self.constant(Width::W32, control(digits, parts)));
        self.lane(ternary::<Permute<Nibbles>>(), target, &[pair[0], pair[1], control]);
        target
    }

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
        let parts = if parts == "2" { 2 } else { 4 };
        let ((a, a_digits), (b, b_digits), (target, written)) =
            (selected(at, a, parts)?, selected(at, b, parts)?, selected(at, target, parts)?);
        if a_digits.iter().chain(&b_digits).any(|digits| digits.len() != parts) {
            return Err(at.invalid(format!("a source selects {parts} parts")));
        }
        let written = written.unwrap_or_else(|| (0..parts as u32).rev().collect());
        if written.first().is_some_and(|first| *first >= parts as u32) || !written.is_sorted_by(|a, b| a > b) {
            return Err(at.invalid("the parts of the destination do not descend"));
        }
        let mask = written.iter().fold(0, |mask, part| mask | 1 << part);
        how |= mask << video::MASK_AT;
        let pair = [self.source(at, &a, T::B32)?, self.source(at, &b, T::B32)?];
        let c = self.source(at, c, T::B32)?;
        let target = self.target(at, &target, Width::W32)?;
        let how = self.constant(Width::W32, u64::from(how));
        let guard = self.guard.take();
        let a = self.selection(pair, pair[0], a_digits.as_deref(), parts);
        let b = self.selection(pair, pair[1], b_digits.as_deref(), parts);
        if !sums && written.len() == parts {
            // All parts are written, so nothing of c remains.
            self.guard = guard;
            self.lane(function, target, &[a, b, how]);
            return Ok(());
        }
        let result = self.new_register(Width::W32);
        self.lane(function, result, &[a, b, how]);
        if sums {
            self.guard = guard;
            self.lane(binary::<int::Add<u32>>(), target, &[result, c]);
            return Ok(());
        }
        let bits = 32 / parts as u32;
        let kept = (0..parts as u32)
            .filter(|part| mask >> part & 1 == 0)
            .fold(0, |kept, part| kept | (u32::MAX >> (32 - bits)) << (part * bits));
        let (rest, kept) = (self.new_register(Width::W32), self.constant(Width::W32, u64::from(kept)));
        self.lane(binary::<int::And<u32>>(), rest, &[c, kept]);
        self.guard = guard;
        self.lane(binary::<int::Or<u32>>(), target, &[result, rest]);
        Ok(())
    }
}
