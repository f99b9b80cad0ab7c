//! `cp.async` (PTX ISA §9.7.9.25.3). The copy completes when it is issued, so every wait for it is already satisfied.

use super::{At, Lowering};
use crate::compile::ir::{Access, Action, RegisterId, Width};
use crate::lanes::integer as int;
use crate::lanes::{logic, relation, select};
use sahasra_ptx_syntax::error::LoadError;
use sahasra_ptx_syntax::syntax::{Constant, Operand};
use sahasra_ptx_syntax::types::{ScalarType as T, Space};

impl<'a> Lowering<'a> {
    pub(super) fn copy_async(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        match at.modifiers() {
            ["async", "commit_group" | "wait_all"] => {
                at.operands::<0>()?;
                Ok(())
            }
            ["async", "wait_group"] => {
                at.operands::<1>()?;
                Ok(())
            }
            ["async", "ca" | "cg", "shared" | "shared::cta", "global", hints @ ..] => {
                let cached = hints.contains(&"L2::cache_hint");
                if hints.iter().any(|hint| !hint.starts_with("L2::")) {
                    return Err(at.form());
                }
                self.copy(at, cached)
            }
            ["async", "mbarrier", "arrive", ..] => self.arrive_for_copies(at),
            _ => Err(at.form()),
        }
    }

    /// `cp.async… [to], [from], bytes{, source bytes | ignore predicate}{, policy}`.
    fn copy(&mut self, at: At<'a, '_>, cached: bool) -> Result<(), LoadError> {
        let operands = at.all_operands();
        let operands = if cached {
            &operands[..operands.len().saturating_sub(1)]
        } else {
            operands
        };
        let (to, from, bytes, given) = match operands {
            [to, from, Operand::Constant(Constant::Integer(bytes)), given @ ..] if given.len() <= 1 => (to, from, *bytes, given.first()),
            _ => return Err(at.invalid("wrong operands")),
        };
        if !matches!(bytes, 4 | 8 | 16) || (at.modifiers()[1] == "cg" && bytes != 16) {
            return Err(at.invalid("4, 8 or 16 bytes are copied at a time, with .cg 16"));
        }
        let (to, from) = (self.address(at, to)?, self.address(at, from)?);
        let whole = |space: Space, offset: i64| Access {
            space,
            element: if bytes == 8 { 8 } else { 4 },
            count: if bytes == 16 { 4 } else { 1 },
            signed: false,
            offset,
            ordered: false,
        };
        let (load, store) = (whole(Space::Global, from.offset), whole(Space::Shared, to.offset));
        let width = if bytes == 8 { Width::W64 } else { Width::W32 };
        let guard = self.guard.take();
        let zero = self.zero(width);
        let parts: Vec<RegisterId> = (0..load.count).map(|_| self.new_register(width)).collect();
        // Number of bytes to read: all, none, or as many as a register says. The rest is zero.
        let full = match given {
            None => None,
            Some(Operand::Constant(Constant::Integer(size))) if *size == bytes => None,
            Some(operand) => {
                let reads = self.new_register(Width::Predicate);
                let is_predicate = match operand {
                    Operand::Name(name, 0) => self
                        .register(name)
                        .is_some_and(|found| found.is_ok_and(|id| self.width(id) == Width::Predicate)),
                    Operand::Not(_) => true,
                    _ => false,
                };
                if is_predicate {
                    let ignored = self.source(at, operand, T::Pred)?;
                    self.lane(logic::<select::PredicateNot>(), reads, &[ignored]);
                    Some((reads, None))
                } else {
                    let size = self.source(at, operand, T::U32)?;
                    let all = self.constant(Width::W32, bytes);
                    self.lane(relation::<int::GreaterOrEqual<u32>>(), reads, &[size, all]);
                    Some((reads, Some(size)))
                }
            }
        };
        let narrow_guard = |lowering: &mut Self, condition: RegisterId| match guard {
            None => condition,
            Some((register, negated)) => {
                let mut outer = register;
                if negated {
                    outer = lowering.new_register(Width::Predicate);
                    lowering.lane(logic::<select::PredicateNot>(), outer, &[register]);
                }
                let both = lowering.new_register(Width::Predicate);
                lowering.lane(logic::<select::PredicateAnd>(), both, &[condition, outer]);
                both
            }
        };
        match full {
            None => {
                self.guard = guard;
                self.emit(Action::Load(load), parts.clone(), vec![from.register]);
            }
            Some((reads, size)) => {
                for part in &parts {
                    self.emit(Action::Copy, vec![*part], vec![zero]);
                }
                let reads_now = narrow_guard(self, reads);
                self.guard = Some((reads_now, false));
                self.emit(Action::Load(load), parts.clone(), vec![from.register]);
                self.guard = None;
                if let Some(size) = size {
                    self.read_part(from.register, from.offset, bytes, size, &parts, guard);
                }
            }
        }
        self.guard = guard;
        let mut sources = vec![to.register];
        sources.extend(parts);
        self.emit(Action::Store(store), vec![], sources);
        Ok(())
    }

    /// Reads bytes 0 to `size`, if these are not all bytes, one at a time. Programs rarely use this.
    fn read_part(
        &mut self,
        base: RegisterId,
        offset: i64,
        bytes: u64,
        size: RegisterId,
        parts: &[RegisterId],
        guard: Option<(RegisterId, bool)>,
    ) {
        let (some, part) = (self.new_register(Width::Predicate), self.new_register(Width::Predicate));
        let less = self.new_register(Width::Predicate);
        let (none, all) = (self.zero(Width::W32), self.constant(Width::W32, bytes));
        self.lane(relation::<int::NotEqual<u32>>(), some, &[size, none]);
        self.lane(relation::<int::Less<u32>>(), less, &[size, all]);
        self.lane(logic::<select::PredicateAnd>(), part, &[some, less]);
        let behind = self.new_label();
        self.guard = Some((part, true));
        self.emit(Action::Branch(behind), vec![], vec![]);
        if let Some((register, negated)) = guard {
            self.guard = Some((register, !negated));
            self.emit(Action::Branch(behind), vec![], vec![]);
        }
        let wide = bytes == 8;
        let width = if wide { Width::W64 } else { Width::W32 };
        for byte in 0..bytes {
            self.guard = None;
            let inside = self.new_register(Width::Predicate);
            let number = self.constant(Width::W32, byte);
            self.lane(relation::<int::Less<u32>>(), inside, &[number, size]);
            let value = self.new_register(width);
            let access = Access {
                space: Space::Global,
                element: 1,
                count: 1,
                signed: false,
                offset: offset.wrapping_add(byte as i64),
                ordered: false,
            };
            self.guard = Some((inside, false));
            self.emit(Action::Load(access), vec![value], vec![base]);
            let within = if wide { byte } else { byte % 4 };
            let (shifted, amount) = (self.new_register(width), self.constant(Width::W32, 8 * within));
            let target = parts[if wide { 0 } else { byte as usize / 4 }];
            let (shift, or) = if wide {
                (
                    crate::lanes::binary::<int::ShiftLeft<u64>>(),
                    crate::lanes::binary::<int::Or<u64>>(),
                )
            } else {
                (
                    crate::lanes::binary::<int::ShiftLeft<u32>>(),
                    crate::lanes::binary::<int::Or<u32>>(),
                )
            };
            self.lane(shift, shifted, &[value, amount]);
            self.lane(or, target, &[target, shifted]);
        }
        self.guard = None;
        self.place_label(behind);
    }
}
