//! Comparison and selection (PTX ISA §9.7.6, §9.3.1).

use super::arithmetic::{by_integer, by_width};
use super::{At, Lowering};
use crate::compile::ir::{RegisterId, Width};
use crate::lanes::float as fl;
use crate::lanes::half::{Brain, Half};
use crate::lanes::integer as int;
use crate::lanes::{LaneFunction, logic, relation, select, ternary, unary};
use sahasra_ptx_syntax::error::LoadError;
use sahasra_ptx_syntax::syntax::Operand;
use sahasra_ptx_syntax::types::ScalarType as T;

macro_rules! by_float {
    ($scalar:expr, $ftz:expr, $operation:ident) => {
        match ($scalar, $ftz) {
            (T::F32, false) => Some(relation::<fl::$operation<f32>>()),
            (T::F32, true) => Some(relation::<fl::Flushing<fl::$operation<f32>>>()),
            (T::F64, false) => Some(relation::<fl::$operation<f64>>()),
            (T::F16, false) => Some(relation::<fl::$operation<Half>>()),
            (T::F16, true) => Some(relation::<fl::Flushing<fl::$operation<Half>>>()),
            (T::Bf16, false) => Some(relation::<fl::$operation<Brain>>()),
            _ => None,
        }
    };
}

const COMPARISONS: [&str; 18] = [
    "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan",
];

fn comparison(name: &str, scalar: T, ftz: bool) -> Option<LaneFunction> {
    if scalar.is_float() {
        return match name {
            "eq" => by_float!(scalar, ftz, Equal),
            "ne" => by_float!(scalar, ftz, NotEqual),
            "lt" => by_float!(scalar, ftz, Less),
            "le" => by_float!(scalar, ftz, LessOrEqual),
            "gt" => by_float!(scalar, ftz, Greater),
            "ge" => by_float!(scalar, ftz, GreaterOrEqual),
            "equ" => by_float!(scalar, ftz, EqualUnordered),
            "neu" => by_float!(scalar, ftz, NotEqualUnordered),
            "ltu" => by_float!(scalar, ftz, LessUnordered),
            "leu" => by_float!(scalar, ftz, LessOrEqualUnordered),
            "gtu" => by_float!(scalar, ftz, GreaterUnordered),
            "geu" => by_float!(scalar, ftz, GreaterOrEqualUnordered),
            "num" => by_float!(scalar, ftz, Numbers),
            "nan" => by_float!(scalar, ftz, AnyNan),
            _ => None,
        };
    }
    if ftz {
        return None;
    }
    match name {
        "eq" => by_width!(scalar, relation, Equal),
        "ne" => by_width!(scalar, relation, NotEqual),
        "lt" => by_integer!(scalar, relation, Less),
        "le" => by_integer!(scalar, relation, LessOrEqual),
        "gt" => by_integer!(scalar, relation, Greater),
        "ge" => by_integer!(scalar, relation, GreaterOrEqual),
        // These names compare without sign, whatever the type (PTX ISA §9.3.1).
        "lo" => by_width!(scalar, relation, Less),
        "ls" => by_width!(scalar, relation, LessOrEqual),
        "hi" => by_width!(scalar, relation, Greater),
        "hs" => by_width!(scalar, relation, GreaterOrEqual),
        _ => None,
    }
}

impl<'a> Lowering<'a> {
    pub(super) fn comparison(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        match at.instruction.opcode {
            "setp" => self.set_predicate(at),
            "set" => self.set(at),
            "selp" => self.select(at),
            _ => self.select_by_sign(at),
        }
    }

    /// Compares operands 1 and 2. With `.and`, `.or` or `.xor`, also returns the function and the predicate (operand 3) to combine with.
    fn compared(
        &mut self,
        at: At<'a, '_>,
        scalar: T,
        flags: &[&str],
        rest_operands: &[Operand<'a>],
    ) -> Result<(RegisterId, Option<(LaneFunction, RegisterId)>), LoadError> {
        let name = flags.iter().find(|word| COMPARISONS.contains(word)).ok_or_else(|| at.form())?;
        let ftz = flags.contains(&"ftz") || (scalar == T::F32 && self.dialect.flushes());
        let function = comparison(name, scalar, ftz).ok_or_else(|| at.form())?;
        let combine = match flags.iter().find(|word| matches!(**word, "and" | "or" | "xor")) {
            Some(&"and") => Some(logic::<select::PredicateAnd>()),
            Some(&"or") => Some(logic::<select::PredicateOr>()),
            Some(_) => Some(logic::<select::PredicateXor>()),
            None => None,
        };
        if rest_operands.len() != if combine.is_some() { 3 } else { 2 } {
            return Err(at.invalid("wrong number of operands"));
        }
        let sources = [
            self.source(at, &rest_operands[0], scalar)?,
            self.source(at, &rest_operands[1], scalar)?,
        ];
        let combine = match combine {
            Some(function) => Some((function, self.source(at, &rest_operands[2], T::Pred)?)),
            None => None,
        };
        let result = self.new_register(Width::Predicate);
        let guard = self.guard.take();
        self.lane(function, result, &sources);
        self.guard = guard;
        Ok((result, combine))
    }

    fn set_predicate(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let mut known = COMPARISONS.to_vec();
        known.extend(["and", "or", "xor", "ftz"]);
        let (flags, rest) = at.split(&known);
        let scalar = at.one_type(&rest)?;
        if matches!(scalar, T::F16x2 | T::Bf16x2) {
            return self.compare_pairs(at, scalar, &flags, None);
        }
        let operands = at.all_operands();
        let (Some(first), Some(others)) = (operands.first(), operands.get(1..)) else {
            return Err(at.invalid("too few operands"));
        };
        let (first, second) = match first {
            Operand::Pair(first, second) => (&**first, Some(&**second)),
            single => (single, None),
        };
        let (compared, combine) = self.compared(at, scalar, &flags, others)?;
        let target = self.target(at, first, Width::Predicate)?;
        match second {
            None => match combine {
                None => self.retarget(compared, target),
                Some((function, with)) => self.lane(function, target, &[compared, with]),
            },
            Some(second) => {
                // q combines the complement of the comparison.
                let second = self.target(at, second, Width::Predicate)?;
                let inverted = self.new_register(Width::Predicate);
                let guard = self.guard.take();
                self.lane(logic::<select::PredicateNot>(), inverted, &[compared]);
                self.guard = guard;
                let (function, with) = match combine {
                    Some((function, with)) => (function, with),
                    None => (logic::<select::PredicateCopy>(), compared),
                };
                // Both results are computed before either is written, because the combining predicate may be a target.
                let (p, q) = (self.new_register(Width::Predicate), self.new_register(Width::Predicate));
                let guard = self.guard.take();
                self.lane(function, p, &[compared, with]);
                self.lane(function, q, &[inverted, with]);
                self.guard = guard;
                self.lane(logic::<select::PredicateCopy>(), target, &[p]);
                self.lane(logic::<select::PredicateCopy>(), second, &[q]);
            }
        }
        Ok(())
    }

    /// Lets the last emitted operation write `target` directly instead of `from`.
    fn retarget(&mut self, from: RegisterId, target: RegisterId) {
        if let Some(last) = self.result.operations.last_mut()
            && last.targets == [from]
        {
            last.targets = vec![target];
            last.guard = self.guard;
        }
    }

    /// `set` (PTX ISA §9.7.6.1): all ones, or 1.0 for a float, if the comparison holds.
    fn set(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let mut known = COMPARISONS.to_vec();
        known.extend(["and", "or", "xor", "ftz"]);
        let (flags, rest) = at.split(&known);
        let [to, from] = rest.as_slice() else {
            return Err(at.form());
        };
        let (Some(to), Some(from)) = (T::from_name(to), T::from_name(from)) else {
            return Err(at.form());
        };
        if matches!(from, T::F16x2 | T::Bf16x2) {
            return self.compare_pairs(at, from, &flags, Some(to));
        }
        let (truth, width) = match to {
            T::F32 => (u64::from(1f32.to_bits()), Width::W32),
            T::U32 | T::S32 => (u64::from(u32::MAX), Width::W32),
            // Comparisons of f16 and bf16 (§9.7.7.1).
            T::F16 if from == T::F16 => (0x3c00, Width::W16),
            T::Bf16 if from == T::Bf16 => (0x3f80, Width::W16),
            T::U16 | T::S16 if matches!(from, T::F16 | T::Bf16) => (0xffff, Width::W16),
            _ => return Err(at.form()),
        };
        let operands = at.all_operands();
        let (Some(first), Some(others)) = (operands.first(), operands.get(1..)) else {
            return Err(at.invalid("too few operands"));
        };
        let (compared, combine) = self.compared(at, from, &flags, others)?;
        let mut holds = compared;
        let guard = self.guard.take();
        if let Some((function, with)) = combine {
            holds = self.new_register(Width::Predicate);
            self.lane(function, holds, &[compared, with]);
        }
        self.guard = guard;
        let (truth, zero) = (self.constant(width, truth), self.zero(width));
        let target = self.target(at, first, width)?;
        let select = if width == Width::W16 {
            crate::lanes::select::<select::Select<u16>>()
        } else {
            crate::lanes::select::<select::Select<u32>>()
        };
        self.lane(select, target, &[truth, zero, holds]);
        Ok(())
    }

    /// `setp` and `set` of pairs (PTX ISA §9.7.7), which compare each half separately.
    fn compare_pairs(&mut self, at: At<'a, '_>, scalar: T, flags: &[&str], to: Option<T>) -> Result<(), LoadError> {
        let element = if scalar == T::F16x2 { T::F16 } else { T::Bf16 };
        let name = flags.iter().find(|word| COMPARISONS.contains(word)).ok_or_else(|| at.form())?;
        let function = comparison(name, element, flags.contains(&"ftz")).ok_or_else(|| at.form())?;
        let combine = match flags.iter().find(|word| matches!(**word, "and" | "or" | "xor")) {
            Some(&"and") => Some(logic::<select::PredicateAnd>()),
            Some(&"or") => Some(logic::<select::PredicateOr>()),
            Some(_) => Some(logic::<select::PredicateXor>()),
            None => None,
        };
        let operands = at.all_operands();
        if operands.len() != 3 + usize::from(combine.is_some()) {
            return Err(at.invalid("wrong number of operands"));
        }
        let sources = [self.source(at, &operands[1], T::B32)?, self.source(at, &operands[2], T::B32)?];
        let with = match combine {
            Some(function) => Some((function, self.source(at, &operands[3], T::Pred)?)),
            None => None,
        };
        let guard = self.guard.take();
        let mut holds = [0; 2];
        for (half, holds) in holds.iter_mut().enumerate() {
            let part = if half == 0 {
                unary::<crate::lanes::convert::Resize<u32, u16>>()
            } else {
                unary::<select::Upper<u16, u32>>()
            };
            let values = [self.new_register(Width::W16), self.new_register(Width::W16)];
            self.lane(part, values[0], &[sources[0]]);
            self.lane(part, values[1], &[sources[1]]);
            *holds = self.new_register(Width::Predicate);
            self.lane(function, *holds, &values);
            if let Some((combine, with)) = with {
                let combined = self.new_register(Width::Predicate);
                self.lane(combine, combined, &[*holds, with]);
                *holds = combined;
            }
        }
        self.guard = guard;
        match (to, &operands[0]) {
            (None, Operand::Pair(low, high)) => {
                let (low, high) = (self.target(at, low, Width::Predicate)?, self.target(at, high, Width::Predicate)?);
                self.lane(logic::<select::PredicateCopy>(), low, &[holds[0]]);
                self.lane(logic::<select::PredicateCopy>(), high, &[holds[1]]);
                Ok(())
            }
            (Some(to), target) => {
                let truth = match to {
                    T::F16x2 if scalar == T::F16x2 => 0x3c00,
                    T::Bf16x2 if scalar == T::Bf16x2 => 0x3f80,
                    T::U32 | T::S32 => 0xffff,
                    _ => return Err(at.form()),
                };
                let target = self.target(at, target, Width::W32)?;
                let (truth, zero) = (self.constant(Width::W16, truth), self.zero(Width::W16));
                let guard = self.guard.take();
                let parts = [self.new_register(Width::W16), self.new_register(Width::W16)];
                for (part, holds) in parts.iter().zip(holds) {
                    self.lane(crate::lanes::select::<select::Select<u16>>(), *part, &[truth, zero, holds]);
                }
                self.guard = guard;
                self.lane(crate::lanes::binary::<select::Pack<u16, u32>>(), target, &parts);
                Ok(())
            }
            _ => Err(at.invalid("a comparison of pairs gives two predicates")),
        }
    }

    /// `selp` (PTX ISA §9.7.6.3).
    fn select(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let scalar = at.one_type(at.modifiers())?;
        let function = match Width::of_bytes(scalar.bytes()) {
            Some(Width::W16) if scalar.bytes() == 2 => crate::lanes::select::<select::Select<u16>>(),
            Some(Width::W32) => crate::lanes::select::<select::Select<u32>>(),
            Some(Width::W64) => crate::lanes::select::<select::Select<u64>>(),
            _ => return Err(at.form()),
        };
        let [target, a, b, predicate] = at.operands()?;
        self.two_types(at, function, (target, scalar), &[(a, scalar), (b, scalar), (predicate, T::Pred)])
    }

    /// `slct` (PTX ISA §9.7.6.4).
    fn select_by_sign(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let (flags, rest) = at.split(&["ftz"]);
        let [to, by] = rest.as_slice() else {
            return Err(at.form());
        };
        let (Some(to), Some(by)) = (T::from_name(to), T::from_name(by)) else {
            return Err(at.form());
        };
        let function = match (to.bytes(), by) {
            (2, T::S32) => ternary::<select::SelectBySign<u16, i32>>(),
            (4, T::S32) => ternary::<select::SelectBySign<u32, i32>>(),
            (8, T::S32) => ternary::<select::SelectBySign<u64, i32>>(),
            (2, T::F32) => ternary::<select::SelectBySign<u16, f32>>(),
            (4, T::F32) => ternary::<select::SelectBySign<u32, f32>>(),
            (8, T::F32) => ternary::<select::SelectBySign<u64, f32>>(),
            _ => return Err(at.form()),
        };
        let [target, a, b, sign] = at.operands()?;
        if flags.is_empty() {
            return self.two_types(at, function, (target, to), &[(a, to), (b, to), (sign, by)]);
        }
        // A subnormal selector is flushed to zero, which selects a.
        let sign = self.source(at, sign, by)?;
        let flushed = self.new_register(Width::W32);
        let guard = self.guard.take();
        self.lane(unary::<fl::Flushing<select::Copy1<f32>>>(), flushed, &[sign]);
        self.guard = guard;
        let sources = [self.source(at, a, to)?, self.source(at, b, to)?, flushed];
        let width = Width::of_bytes(to.bytes()).ok_or_else(|| at.form())?;
        let target = self.target(at, target, width)?;
        self.lane(function, target, &sources);
        Ok(())
    }
}
