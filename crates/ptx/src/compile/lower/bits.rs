//! Logic, shifts and bit fields (PTX ISA §9.7.8, §9.7.1.14-20, §9.7.9.7).

use super::arithmetic::{by_integer, by_width};
use super::{At, Lowering};
use crate::compile::ir::Width;
use crate::lanes::integer as int;
use crate::lanes::{LaneFunction, binary, bits, logic, relation, select, ternary, unary};
use sahasra_ptx_syntax::error::LoadError;
use sahasra_ptx_syntax::syntax::Operand;
use sahasra_ptx_syntax::types::ScalarType as T;

impl<'a> Lowering<'a> {
    pub(super) fn bits(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let opcode = at.instruction.opcode;
        let (flags, rest) = at.split(&["l", "r", "wrap", "clamp", "shiftamt"]);
        if opcode == "lop3" || opcode == "bfi" {
            return self.bit_insert(at);
        }
        if matches!(opcode, "prmt" | "bmsk" | "szext" | "fns") {
            return self.word_operation(at);
        }
        let scalar = at.one_type(&rest)?;
        if scalar == T::Pred {
            return self.predicate_logic(at);
        }
        if scalar.is_float() {
            return Err(at.form());
        }
        match opcode {
            "and" | "or" | "xor" | "not" | "cnot" | "brev" => {
                let function = match opcode {
                    "and" => by_width!(scalar, binary, And),
                    "or" => by_width!(scalar, binary, Or),
                    "xor" => by_width!(scalar, binary, Xor),
                    "not" => by_width!(scalar, unary, Not),
                    "cnot" => by_width!(scalar, unary, BooleanNot),
                    _ => by_width!(scalar, unary, Reverse),
                };
                self.same_type(at, function.ok_or_else(|| at.form())?, scalar)
            }
            "shl" | "shr" => {
                let function = if opcode == "shl" {
                    by_width!(scalar, binary, ShiftLeft)
                } else {
                    by_integer!(scalar, binary, ShiftRight)
                };
                let [target, value, amount] = at.operands()?;
                self.two_types(
                    at,
                    function.ok_or_else(|| at.form())?,
                    (target, scalar),
                    &[(value, scalar), (amount, T::U32)],
                )
            }
            "popc" | "clz" => {
                let function = match (opcode, scalar) {
                    ("popc", T::B32) => unary::<int::PopulationCount<u32>>(),
                    ("popc", T::B64) => unary::<int::PopulationCount<u64>>(),
                    ("clz", T::B32) => unary::<int::LeadingZeros<u32>>(),
                    ("clz", T::B64) => unary::<int::LeadingZeros<u64>>(),
                    _ => return Err(at.form()),
                };
                let [target, value] = at.operands()?;
                self.two_types(at, function, (target, T::U32), &[(value, scalar)])
            }
            "bfind" => {
                let function = if flags.contains(&"shiftamt") {
                    by_integer!(scalar, unary, FindShift)
                } else {
                    by_integer!(scalar, unary, Find)
                };
                let [target, value] = at.operands()?;
                self.two_types(at, function.ok_or_else(|| at.form())?, (target, T::U32), &[(value, scalar)])
            }
            "bfe" => {
                let function = by_integer!(scalar, ternary, Extract).ok_or_else(|| at.form())?;
                let [target, value, position, length] = at.operands()?;
                self.two_types(
                    at,
                    function,
                    (target, scalar),
                    &[(value, scalar), (position, T::U32), (length, T::U32)],
                )
            }
            "shf" => {
                let function = match flags.as_slice() {
                    ["l", "wrap"] => ternary::<bits::Funnel<true, false>>(),
                    ["l", "clamp"] => ternary::<bits::Funnel<true, true>>(),
                    ["r", "wrap"] => ternary::<bits::Funnel<false, false>>(),
                    ["r", "clamp"] => ternary::<bits::Funnel<false, true>>(),
                    _ => return Err(at.form()),
                };
                let [target, low, high, amount] = at.operands()?;
                self.two_types(at, function, (target, T::B32), &[(low, T::B32), (high, T::B32), (amount, T::U32)])
            }
            _ => Err(at.form()),
        }
    }

    fn predicate_logic(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let function = match at.instruction.opcode {
            "and" => logic::<select::PredicateAnd>(),
            "or" => logic::<select::PredicateOr>(),
            "xor" => logic::<select::PredicateXor>(),
            "not" => logic::<select::PredicateNot>(),
            _ => return Err(at.form()),
        };
        self.same_type(at, function, T::Pred)
    }

    /// `bfi` (PTX ISA §9.7.1.21) and `lop3` (§9.7.8.6), composed of simpler operations.
    fn bit_insert(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        if at.instruction.opcode == "lop3" {
            return self.three_input_logic(at);
        }
        let scalar = at.one_type(at.modifiers())?;
        let [target, field, into, position, length] = at.operands()?;
        let (Some(width), T::B32 | T::B64) = (Width::of_bytes(scalar.bytes()), scalar) else {
            return Err(at.form());
        };
        let (field, into) = (self.source(at, field, scalar)?, self.source(at, into, scalar)?);
        let (position, length) = (self.source(at, position, T::U32)?, self.source(at, length, T::U32)?);
        let target = self.target(at, target, width)?;
        // mask = ((1 << length) − 1) << position, where length and position are bytes. Shifts clamp, with the same result as the ISA's
        // loop.
        let guard = self.guard.take();
        let byte = self.constant(Width::W32, 0xff);
        let ones = self.constant(width, u64::MAX);
        let (low_position, low_length) = (self.new_register(Width::W32), self.new_register(Width::W32));
        self.lane(binary::<int::And<u32>>(), low_position, &[position, byte]);
        self.lane(binary::<int::And<u32>>(), low_length, &[length, byte]);
        let mut parts = [0; 6];
        for part in &mut parts {
            *part = self.new_register(width);
        }
        let [above, below, mask, shifted, kept, new] = parts;
        let left = by_width!(scalar, binary, ShiftLeft).ok_or_else(|| at.form())?;
        let and = by_width!(scalar, binary, And).ok_or_else(|| at.form())?;
        let not = by_width!(scalar, unary, Not).ok_or_else(|| at.form())?;
        let outside = self.new_register(width);
        self.lane(left, above, &[ones, low_length]);
        self.lane(not, below, &[above]);
        self.lane(left, mask, &[below, low_position]);
        self.lane(left, shifted, &[field, low_position]);
        self.lane(and, new, &[shifted, mask]);
        self.lane(not, outside, &[mask]);
        self.lane(and, kept, &[into, outside]);
        self.guard = guard;
        self.lane(by_width!(scalar, binary, Or).ok_or_else(|| at.form())?, target, &[new, kept]);
        Ok(())
    }

    /// `prmt` (PTX ISA §9.7.9.7), `bmsk` (§9.7.1.25), `szext` (§9.7.1.22), `fns` (§9.7.1.17): all operands have 32 bits.
    fn word_operation(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let (function, sources) = match (at.instruction.opcode, at.modifiers()) {
            ("prmt", ["b32"]) => (ternary::<bits::Permute<bits::Nibbles>>(), 3),
            ("prmt", ["b32", "f4e"]) => (ternary::<bits::Permute<bits::Forward4>>(), 3),
            ("prmt", ["b32", "b4e"]) => (ternary::<bits::Permute<bits::Backward4>>(), 3),
            ("prmt", ["b32", "rc8"]) => (ternary::<bits::Permute<bits::Replicate8>>(), 3),
            ("prmt", ["b32", "ecl"]) => (ternary::<bits::Permute<bits::EdgeLeft>>(), 3),
            ("prmt", ["b32", "ecr"]) => (ternary::<bits::Permute<bits::EdgeRight>>(), 3),
            ("prmt", ["b32", "rc16"]) => (ternary::<bits::Permute<bits::Replicate16>>(), 3),
            ("bmsk", ["clamp", "b32"]) => (binary::<bits::BitMask<true>>(), 2),
            ("bmsk", ["wrap", "b32"]) => (binary::<bits::BitMask<false>>(), 2),
            ("szext", ["clamp", "u32"]) => (binary::<bits::Extend<false, true>>(), 2),
            ("szext", ["clamp", "s32"]) => (binary::<bits::Extend<true, true>>(), 2),
            ("szext", ["wrap", "u32"]) => (binary::<bits::Extend<false, false>>(), 2),
            ("szext", ["wrap", "s32"]) => (binary::<bits::Extend<true, false>>(), 2),
            ("fns", ["b32"]) => (ternary::<bits::FindNthSet>(), 3),
            _ => return Err(at.form()),
        };
        let operands = at.all_operands();
        if operands.len() != sources + 1 {
            return Err(at.invalid(format!("expected {} operands, found {}", sources + 1, operands.len())));
        }
        let sources: Vec<_> = operands[1..].iter().map(|operand| (operand, T::B32)).collect();
        self.two_types(at, function, (&operands[0], T::B32), &sources)
    }

    /// `lop3` (PTX ISA §9.7.8.6): the first input selects between two functions of the other inputs, one for each half of the table. With
    /// `.or` or `.and`, a predicate is combined with the test whether the result is not zero.
    fn three_input_logic(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let combine = match at.modifiers() {
            ["b32"] => None,
            ["or", "b32"] => Some(logic::<select::PredicateOr>()),
            ["and", "b32"] => Some(logic::<select::PredicateAnd>()),
            _ => return Err(at.form()),
        };
        let operands = at.all_operands();
        if operands.len() != if combine.is_some() { 6 } else { 5 } {
            return Err(at.invalid("wrong number of operands"));
        }
        let Operand::Constant(table) = operands[4] else {
            return Err(at.invalid("the table is not a constant"));
        };
        let table = table
            .bits(T::B32)
            .filter(|table| *table < 256)
            .ok_or_else(|| at.invalid("the table has 8 bits"))? as u8;
        let inputs = [
            self.source(at, &operands[1], T::B32)?,
            self.source(at, &operands[2], T::B32)?,
            self.source(at, &operands[3], T::B32)?,
        ];
        let (first, second) = match &operands[0] {
            Operand::Pair(first, second) => (&**first, Some(&**second)),
            single => (single, None),
        };
        let target = self.target(at, first, Width::W32)?;
        let predicate = match (combine, second) {
            (None, None) => None,
            (Some(combine), Some(second)) => Some((
                combine,
                self.target(at, second, Width::Predicate)?,
                self.source(at, &operands[5], T::Pred)?,
            )),
            _ => return Err(at.invalid("the predicate belongs to the form with .or or .and")),
        };
        let guard = self.guard.take();
        let [set, clear, value] = [(); 3].map(|()| self.new_register(Width::W32));
        self.lane(boolean(table >> 4), set, &inputs[1..]);
        self.lane(boolean(table & 15), clear, &inputs[1..]);
        self.lane(ternary::<bits::BitSelect>(), value, &[inputs[0], set, clear]);
        if let Some((combine, predicate, with)) = predicate {
            let zero = self.zero(Width::W32);
            let [holds, combined] = [(); 2].map(|()| self.new_register(Width::Predicate));
            self.lane(relation::<int::NotEqual<u32>>(), holds, &[value, zero]);
            self.lane(combine, combined, &[holds, with]);
            self.guard = guard;
            self.lane(logic::<select::PredicateCopy>(), predicate, &[combined]);
        }
        self.guard = guard;
        self.lane(unary::<select::Copy1<u32>>(), target, &[value]);
        Ok(())
    }
}

/// Returns the function of two inputs with this truth table of four bits.
fn boolean(table: u8) -> LaneFunction {
    macro_rules! pick {
        ($($table:literal)*) => {
            match table {
                $($table => binary::<bits::Boolean<$table>>(),)*
                _ => binary::<bits::Boolean<15>>(),
            }
        };
    }
    pick!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14)
}
