//! Integer arithmetic (PTX ISA §9.7.1) and the floating point forms that share its opcodes (§9.7.3).

use super::{At, Lowering};
use crate::compile::ir::Width;
use crate::error::LoadError;
use crate::lanes::integer as int;
use crate::lanes::{LaneFunction, binary, ternary, unary};
use crate::syntax::Operand;
use crate::types::ScalarType as T;

/// The lane function of `$make::<int::$operation<type>>` for an integer type.
macro_rules! by_integer {
    ($scalar:expr, $make:ident, $operation:ident) => {
        match $scalar {
            T::U16 | T::B16 => Some($make::<int::$operation<u16>>()),
            T::S16 => Some($make::<int::$operation<i16>>()),
            T::U32 | T::B32 => Some($make::<int::$operation<u32>>()),
            T::S32 => Some($make::<int::$operation<i32>>()),
            T::U64 | T::B64 => Some($make::<int::$operation<u64>>()),
            T::S64 => Some($make::<int::$operation<i64>>()),
            _ => None,
        }
    };
}

/// The same where the sign makes no difference.
macro_rules! by_width {
    ($scalar:expr, $make:ident, $operation:ident) => {
        match $scalar {
            T::U16 | T::S16 | T::B16 => Some($make::<int::$operation<u16>>()),
            T::U32 | T::S32 | T::B32 => Some($make::<int::$operation<u32>>()),
            T::U64 | T::S64 | T::B64 => Some($make::<int::$operation<u64>>()),
            _ => None,
        }
    };
}

pub(super) use {by_integer, by_width};

impl<'a> Lowering<'a> {
    pub(super) fn arithmetic(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let float = at.modifiers().iter().filter_map(|word| T::from_name(word)).any(T::is_float);
        if float {
            return self.float_arithmetic(at);
        }
        match at.instruction.opcode {
            "mul" | "mad" => self.multiply(at),
            "mul24" | "mad24" => self.multiply24(at),
            _ => self.integer(at),
        }
    }

    fn integer(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let (flags, rest) = at.split(&["sat"]);
        let scalar = at.one_type(&rest)?;
        let saturating = !flags.is_empty();
        if saturating && (scalar != T::S32 || !matches!(at.instruction.opcode, "add" | "sub")) {
            return Err(at.form());
        }
        let unsigned_only = || if scalar.is_signed() { Some(()) } else { None };
        let function = match at.instruction.opcode {
            "add" if saturating => by_integer!(scalar, binary, AddSaturating),
            "sub" if saturating => by_integer!(scalar, binary, SubtractSaturating),
            "add" => by_width!(scalar, binary, Add),
            "sub" => by_width!(scalar, binary, Subtract),
            "div" => by_integer!(scalar, binary, Divide),
            "rem" => by_integer!(scalar, binary, Remainder),
            "min" => by_integer!(scalar, binary, Minimum),
            "max" => by_integer!(scalar, binary, Maximum),
            "sad" => by_integer!(scalar, ternary, AbsoluteDifferenceAdd),
            "abs" => unsigned_only().and_then(|()| by_integer!(scalar, unary, Absolute)),
            "neg" => unsigned_only().and_then(|()| by_width!(scalar, unary, Negate)),
            _ => None,
        };
        let function = function.ok_or_else(|| at.form())?;
        self.same_type(at, function, scalar)
    }

    /// Destination and all sources of one type.
    pub(super) fn same_type(&mut self, at: At<'a, '_>, function: LaneFunction, scalar: T) -> Result<(), LoadError> {
        let expected = match at.instruction.opcode {
            "abs" | "neg" | "not" | "cnot" | "sqrt" | "rcp" | "rsqrt" | "sin" | "cos" | "ex2" | "lg2" | "tanh" | "brev" => 2,
            "mad" | "fma" | "sad" => 4,
            _ => 3,
        };
        let operands = at.all_operands();
        if operands.len() != expected {
            return Err(at.invalid(format!("expected {expected} operands, found {}", operands.len())));
        }
        let width = Width::of_bytes(scalar.bytes()).ok_or_else(|| at.form())?;
        let sources = operands[1..]
            .iter()
            .map(|operand| self.source(at, operand, scalar))
            .collect::<Result<Vec<_>, _>>()?;
        let target = self.target(at, &operands[0], width)?;
        self.lane(function, target, &sources);
        Ok(())
    }

    /// `mul`, `mad` with `.lo`, `.hi`, `.wide` (PTX ISA §9.7.1.3, §9.7.1.4).
    fn multiply(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let (part, rest) = at.split(&["lo", "hi", "wide"]);
        let scalar = at.one_type(&rest)?;
        let add = at.instruction.opcode == "mad";
        let function = match (part.as_slice(), add) {
            (["lo"], false) => by_width!(scalar, binary, Multiply),
            (["lo"], true) => by_width!(scalar, ternary, MultiplyAdd),
            (["hi"], false) => by_integer!(scalar, binary, MultiplyHigh),
            (["hi"], true) => by_integer!(scalar, ternary, MultiplyAddHigh),
            (["wide"], _) => {
                let (function, wide) = match (scalar, add) {
                    (T::U16, false) => (binary::<int::MultiplyWide<u16>>(), T::U32),
                    (T::S16, false) => (binary::<int::MultiplyWide<i16>>(), T::S32),
                    (T::U32, false) => (binary::<int::MultiplyWide<u32>>(), T::U64),
                    (T::S32, false) => (binary::<int::MultiplyWide<i32>>(), T::S64),
                    (T::U16, true) => (ternary::<int::MultiplyAddWide<u16>>(), T::U32),
                    (T::S16, true) => (ternary::<int::MultiplyAddWide<i16>>(), T::S32),
                    (T::U32, true) => (ternary::<int::MultiplyAddWide<u32>>(), T::U64),
                    (T::S32, true) => (ternary::<int::MultiplyAddWide<i32>>(), T::S64),
                    _ => return Err(at.form()),
                };
                return self.wide(at, function, scalar, wide, add);
            }
            _ => None,
        };
        let function = function.ok_or_else(|| at.form())?;
        self.same_type(at, function, scalar)
    }

    fn wide(&mut self, at: At<'a, '_>, function: LaneFunction, scalar: T, wide: T, add: bool) -> Result<(), LoadError> {
        let operands = at.all_operands();
        if operands.len() != if add { 4 } else { 3 } {
            return Err(at.invalid("wrong number of operands"));
        }
        let mut sources = vec![self.source(at, &operands[1], scalar)?, self.source(at, &operands[2], scalar)?];
        if add {
            sources.push(self.source(at, &operands[3], wide)?);
        }
        let width = Width::of_bytes(wide.bytes()).ok_or_else(|| at.form())?;
        let target = self.target(at, &operands[0], width)?;
        self.lane(function, target, &sources);
        Ok(())
    }

    /// `mul24.lo`, `mad24.lo` (PTX ISA §9.7.1.5, §9.7.1.6): as the 32-bit forms on the low 24 bits.
    fn multiply24(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let (part, rest) = at.split(&["lo", "hi"]);
        let scalar = at.one_type(&rest)?;
        if part.as_slice() != ["lo"] || !matches!(scalar, T::U32 | T::S32) {
            return Err(at.form());
        }
        let operands = at.all_operands();
        let add = at.instruction.opcode == "mad24";
        if operands.len() != if add { 4 } else { 3 } {
            return Err(at.invalid("wrong number of operands"));
        }
        let position = self.zero(Width::W32);
        let length = self.constant(Width::W32, 24);
        let extract = if scalar == T::S32 {
            ternary::<int::Extract<i32>>()
        } else {
            ternary::<int::Extract<u32>>()
        };
        let mut sources = Vec::new();
        for operand in &operands[1..3] {
            let source = self.source(at, operand, scalar)?;
            let low = self.new_register(Width::W32);
            self.lane(extract, low, &[source, position, length]);
            sources.push(low);
        }
        let target = self.target(at, &operands[0], Width::W32)?;
        if add {
            sources.push(self.source(at, &operands[3], scalar)?);
            self.lane(ternary::<int::MultiplyAdd<u32>>(), target, &sources);
        } else {
            self.lane(binary::<int::Multiply<u32>>(), target, &sources);
        }
        Ok(())
    }

    /// One source operand of a type, another of a second type.
    pub(super) fn two_types(
        &mut self,
        at: At<'a, '_>,
        function: LaneFunction,
        target: (&Operand<'a>, T),
        sources: &[(&Operand<'a>, T)],
    ) -> Result<(), LoadError> {
        let width = Width::of_bytes(target.1.bytes()).ok_or_else(|| at.form())?;
        let sources = sources
            .iter()
            .map(|(operand, scalar)| self.source(at, operand, *scalar))
            .collect::<Result<Vec<_>, _>>()?;
        let target = self.target(at, target.0, width)?;
        self.lane(function, target, &sources);
        Ok(())
    }
}
