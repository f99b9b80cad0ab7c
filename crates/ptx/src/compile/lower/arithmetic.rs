//! Integer arithmetic (PTX ISA §9.7.1) and the floating point forms that share its opcodes (§9.7.3).

use super::{At, Lowering};
use crate::compile::ir::{Action, RegisterId, Width};
use crate::lanes::integer as int;
use crate::lanes::{LaneFunction, binary, ternary, unary};
use sahasra_ptx_syntax::error::LoadError;
use sahasra_ptx_syntax::syntax::Operand;
use sahasra_ptx_syntax::types::ScalarType as T;

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

/// The lane function of an integer type for an operation whose result does not depend on the sign; see `by_integer!`.
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
        if at.modifiers().contains(&"cc") || matches!(at.instruction.opcode, "addc" | "subc" | "madc") {
            return self.extended(at);
        }
        if at.modifiers().iter().any(|word| matches!(*word, "u16x2" | "s16x2")) {
            return self.halves(at);
        }
        if at.modifiers().contains(&"f32x2") {
            return self.float_pairs(at);
        }
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
        let (flags, rest) = at.split(&["sat", "relu"]);
        let scalar = at.one_type(&rest)?;
        let saturating = flags.contains(&"sat");
        if flags.contains(&"relu") {
            return match (flags.as_slice(), at.instruction.opcode, scalar) {
                (["relu"], "min", T::S32) => self.same_type(at, binary::<int::MinimumRelu<i32>>(), scalar),
                (["relu"], "max", T::S32) => self.same_type(at, binary::<int::MaximumRelu<i32>>(), scalar),
                _ => Err(at.form()),
            };
        }
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

    /// Emits an operation whose destination and sources all have one type.
    pub(super) fn same_type(&mut self, at: At<'a, '_>, function: LaneFunction, scalar: T) -> Result<(), LoadError> {
        let expected = match at.instruction.opcode {
            "abs" | "neg" | "not" | "cnot" | "sqrt" | "rcp" | "rsqrt" | "sin" | "cos" | "ex2" | "lg2" | "tanh" | "brev" => 2,
            "mad" | "fma" | "sad" | "dp4a" | "dp2a" => 4,
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
        let (part, rest) = at.split(&["lo", "hi", "wide", "sat"]);
        let scalar = at.one_type(&rest)?;
        let add = at.instruction.opcode == "mad";
        let function = match (part.as_slice(), add) {
            (["lo"], false) => by_width!(scalar, binary, Multiply),
            (["lo"], true) => by_width!(scalar, ternary, MultiplyAdd),
            (["hi"], false) => by_integer!(scalar, binary, MultiplyHigh),
            (["hi"], true) => by_integer!(scalar, ternary, MultiplyAddHigh),
            (["hi", "sat"], true) if scalar == T::S32 => Some(ternary::<int::MultiplyAddHighSaturating<i32>>()),
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

    /// `mul24`, `mad24` (PTX ISA §9.7.1.5, §9.7.1.6).
    fn multiply24(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let (part, rest) = at.split(&["lo", "hi", "sat"]);
        let scalar = at.one_type(&rest)?;
        let add = at.instruction.opcode == "mad24";
        let function = match (part.as_slice(), scalar) {
            (["lo"], T::U32) => binary::<int::Multiply24<false, false>>(),
            (["lo"], T::S32) => binary::<int::Multiply24<true, false>>(),
            (["hi"], T::U32) => binary::<int::Multiply24<false, true>>(),
            (["hi"], T::S32) => binary::<int::Multiply24<true, true>>(),
            (["hi", "sat"], T::S32) if add => binary::<int::Multiply24<true, true>>(),
            _ => return Err(at.form()),
        };
        if !add {
            return self.same_type(at, function, scalar);
        }
        let [target, a, b, c] = at.operands()?;
        let sources = [
            self.source(at, a, scalar)?,
            self.source(at, b, scalar)?,
            self.source(at, c, scalar)?,
        ];
        let target = self.target(at, target, Width::W32)?;
        let product = self.new_register(Width::W32);
        let guard = self.guard.take();
        self.lane(function, product, &sources[..2]);
        self.guard = guard;
        let sum = if part.contains(&"sat") {
            binary::<int::AddSaturating<i32>>()
        } else {
            binary::<int::Add<u32>>()
        };
        self.lane(sum, target, &[product, sources[2]]);
        Ok(())
    }

    /// `add.cc`, `addc`, `sub.cc`, `subc`, `mad.cc`, `madc` (PTX ISA §9.7.2). The condition code is a register of the function that holds 0
    /// or 1. A product is computed first and then added with the carry.
    ///
    /// The ISA says that a subtraction writes its borrow to the condition code. Code from compilers shows that it writes the carry of a +
    /// !b + 1, hence 1 if nothing is borrowed: NVRTC's division of 128-bit integers reads it with `addc`.
    fn extended(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let (flags, rest) = at.split(&["cc", "lo", "hi"]);
        let scalar = at.one_type(&rest)?;
        let wide = match scalar {
            T::U32 | T::S32 | T::B32 => false,
            T::U64 | T::S64 | T::B64 => true,
            _ => return Err(at.form()),
        };
        let (opcode, carries_out) = (at.instruction.opcode, flags.contains(&"cc"));
        let width = if wide { Width::W64 } else { Width::W32 };
        let operands = at.all_operands();
        let product = matches!(opcode, "mad" | "madc");
        let expected = if product { 4 } else { 3 };
        if operands.len() != expected || product != (flags.contains(&"lo") || flags.contains(&"hi")) {
            return Err(if operands.len() == expected {
                at.form()
            } else {
                at.invalid(format!("expected {expected} operands"))
            });
        }
        let mut sources = operands[1..]
            .iter()
            .map(|operand| self.source(at, operand, scalar))
            .collect::<Result<Vec<_>, _>>()?;
        let target = self.target(at, &operands[0], width)?;
        let carry = self.carry();
        let carry_in = if matches!(opcode, "addc" | "subc" | "madc") {
            carry
        } else if opcode == "sub" {
            self.constant(Width::W32, 1)
        } else {
            self.zero(Width::W32)
        };
        let guard = self.guard.take();
        if product {
            let function = if flags.contains(&"lo") {
                by_width!(scalar, binary, Multiply)
            } else {
                by_integer!(scalar, binary, MultiplyHigh)
            };
            let factor = self.new_register(width);
            self.lane(function.ok_or_else(|| at.form())?, factor, &sources[..2]);
            sources = vec![factor, sources[2]];
        }
        sources.push(carry_in);
        let (value, out) = match (matches!(opcode, "sub" | "subc"), wide) {
            (false, false) => (ternary::<int::AddCarry<u32>>(), ternary::<int::CarryOut<u32>>()),
            (false, true) => (ternary::<int::AddCarry<u64>>(), ternary::<int::CarryOut<u64>>()),
            (true, false) => (ternary::<int::SubtractBorrow<u32>>(), ternary::<int::BorrowOut<u32>>()),
            (true, true) => (ternary::<int::SubtractBorrow<u64>>(), ternary::<int::BorrowOut<u64>>()),
        };
        // The target may be one of the sources, so the carry is computed before the value and written after it.
        let next = self.new_register(Width::W32);
        if carries_out {
            self.lane(out, next, &sources);
        }
        self.guard = guard;
        self.lane(value, target, &sources);
        if carries_out {
            self.emit(Action::Copy, vec![carry], vec![next]);
        }
        Ok(())
    }

    /// `.u16x2` and `.s16x2` of add, min, max (PTX ISA §9.7.1.1, §9.7.1.11-12).
    fn halves(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let function = match (at.instruction.opcode, at.modifiers()) {
            ("add", ["u16x2" | "s16x2"]) => binary::<int::Halves<int::Add<u16>>>(),
            ("min", ["u16x2"]) => binary::<int::Halves<int::Minimum<u16>>>(),
            ("min", ["s16x2"]) => binary::<int::Halves<int::Minimum<i16>>>(),
            ("max", ["u16x2"]) => binary::<int::Halves<int::Maximum<u16>>>(),
            ("max", ["s16x2"]) => binary::<int::Halves<int::Maximum<i16>>>(),
            ("min", ["relu", "s16x2"] | ["s16x2", "relu"]) => binary::<int::Halves<int::MinimumRelu<i16>>>(),
            ("max", ["relu", "s16x2"] | ["s16x2", "relu"]) => binary::<int::Halves<int::MaximumRelu<i16>>>(),
            _ => return Err(at.form()),
        };
        self.same_type(at, function, T::B32)
    }

    /// `dp4a`, `dp2a` (PTX ISA §9.7.1.23-24).
    pub(super) fn dot_product(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        macro_rules! by_signs {
            ($a:expr, $b:expr, $name:ident $(, $high:literal)?) => {
                match ($a, $b) {
                    ("u32", "u32") => ternary::<int::$name<false, false $(, $high)?>>(),
                    ("u32", "s32") => ternary::<int::$name<false, true $(, $high)?>>(),
                    ("s32", "u32") => ternary::<int::$name<true, false $(, $high)?>>(),
                    ("s32", "s32") => ternary::<int::$name<true, true $(, $high)?>>(),
                    _ => return Err(at.form()),
                }
            };
        }
        let function = match (at.instruction.opcode, at.modifiers()) {
            ("dp4a", [a, b]) => by_signs!(*a, *b, DotProduct4),
            ("dp2a", ["lo", a, b]) => by_signs!(*a, *b, DotProduct2, false),
            ("dp2a", ["hi", a, b]) => by_signs!(*a, *b, DotProduct2, true),
            _ => return Err(at.form()),
        };
        self.same_type(at, function, T::B32)
    }

    /// Returns the register of the condition code `CC.CF` in the function that is being lowered.
    fn carry(&mut self) -> RegisterId {
        match self.carry {
            Some(register) => register,
            None => {
                let register = self.new_register(Width::W32);
                self.carry = Some(register);
                register
            }
        }
    }

    /// Emits an operation whose destination and sources each have their own type.
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
