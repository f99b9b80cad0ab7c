//! Logic, shifts and bit fields (PTX ISA §9.7.8, §9.7.1.14-20, §9.7.9.7).

use super::arithmetic::{by_integer, by_width};
use super::{At, Lowering};
use crate::compile::ir::Width;
use crate::error::LoadError;
use crate::lanes::integer as int;
use crate::lanes::{binary, logic, select, ternary, unary};
use crate::syntax::Operand;
use crate::types::ScalarType as T;

impl<'a> Lowering<'a> {
    pub(super) fn bits(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let opcode = at.instruction.opcode;
        let (flags, rest) = at.split(&["l", "r", "wrap", "clamp", "shiftamt"]);
        if opcode == "lop3" || opcode == "bfi" {
            return self.bit_insert(at);
        }
        let scalar = at.one_type(&rest)?;
        if scalar == T::Pred {
            return self.predicate_logic(at);
        }
        if scalar.is_float() {
            return Err(at.form());
        }
        let operands = at.all_operands();
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
                    ["l", "wrap"] => ternary::<int::Funnel<true, false>>(),
                    ["l", "clamp"] => ternary::<int::Funnel<true, true>>(),
                    ["r", "wrap"] => ternary::<int::Funnel<false, false>>(),
                    ["r", "clamp"] => ternary::<int::Funnel<false, true>>(),
                    _ => return Err(at.form()),
                };
                let [target, low, high, amount] = at.operands()?;
                self.two_types(at, function, (target, T::B32), &[(low, T::B32), (high, T::B32), (amount, T::U32)])
            }
            "prmt" if scalar == T::B32 && operands.len() == 4 => {
                let [target, low, high, pick] = at.operands()?;
                self.two_types(
                    at,
                    ternary::<int::Permute>(),
                    (target, T::B32),
                    &[(low, T::B32), (high, T::B32), (pick, T::B32)],
                )
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

    /// `bfi` (PTX ISA §9.7.1.21) and `lop3` (§9.7.8.6), made of simpler operations.
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
        // mask = ((1 << length) − 1) << position, amounts being bytes; shifts clamp as the ISA's loop does.
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

    /// Ors the minterms of the table; each is an and of three inputs or their complements.
    fn three_input_logic(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        if at.modifiers() != ["b32"] {
            return Err(at.form());
        }
        let [target, a, b, c, table] = at.operands()?;
        let Operand::Constant(table) = table else {
            return Err(at.invalid("the table is not a constant"));
        };
        let table = table.bits(T::B32).ok_or_else(|| at.invalid("the table is not an integer"))?;
        let inputs = [
            self.source(at, a, T::B32)?,
            self.source(at, b, T::B32)?,
            self.source(at, c, T::B32)?,
        ];
        let target = self.target(at, target, Width::W32)?;
        let guard = self.guard.take();
        let (and, or, not) = (binary::<int::And<u32>>(), binary::<int::Or<u32>>(), unary::<int::Not<u32>>());
        let mut complements = [0; 3];
        for (input, complement) in inputs.iter().zip(&mut complements) {
            *complement = self.new_register(Width::W32);
            self.lane(not, *complement, &[*input]);
        }
        let mut sum = self.zero(Width::W32);
        for minterm in (0..8).filter(|minterm| (table >> minterm) & 1 != 0) {
            let pick = |input: usize| {
                if (minterm >> (2 - input)) & 1 != 0 {
                    inputs[input]
                } else {
                    complements[input]
                }
            };
            let (first, both, next) = (
                self.new_register(Width::W32),
                self.new_register(Width::W32),
                self.new_register(Width::W32),
            );
            self.lane(and, first, &[pick(0), pick(1)]);
            self.lane(and, both, &[first, pick(2)]);
            self.lane(or, next, &[sum, both]);
            sum = next;
        }
        self.guard = guard;
        self.lane(unary::<select::Copy1<u32>>(), target, &[sum]);
        Ok(())
    }
}
