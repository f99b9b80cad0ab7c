//! `mbarrier` objects (PTX ISA §9.7.13.15) and `cp.async.mbarrier.arrive` (§9.7.13.15.17), implemented as atomics on 64 bits of shared
//! memory.
//!
//! A wait never suspends. It returns immediately whether the phase is complete, as the ISA allows for `try_wait`. The loop around the wait
//! in the program lets the awaited threads run.

use super::{At, Lowering};
use crate::compile::ir::{Access, Action, AtomicOperation, RegisterId, Width};
use crate::execute::{COUNT_BITS, PARITY_BIT};
use crate::lanes::convert::Resize;
use crate::lanes::integer as int;
use crate::lanes::{binary, relation, unary};
use sahasra_ptx_syntax::error::LoadError;
use sahasra_ptx_syntax::syntax::Operand;
use sahasra_ptx_syntax::types::{ScalarType as T, Space};

impl<'a> Lowering<'a> {
    pub(super) fn transaction_barrier(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let words = at.modifiers();
        let operands = at.all_operands();
        match words.first() {
            Some(&"init") => {
                let [address, count] = at.operands()?;
                let count = self.source(at, count, T::U32)?;
                let guard = self.guard.take();
                let count = self.as_word(count, 0);
                let expected = self.shifted(count, COUNT_BITS);
                let state = self.joined(count, expected);
                self.guard = guard;
                self.store_state(at, address, state)
            }
            Some(&"inval") => {
                let [address] = at.operands()?;
                let zero = self.zero(Width::W64);
                self.store_state(at, address, zero)
            }
            Some(change @ &("expect_tx" | "complete_tx")) => {
                let [address, bytes] = at.operands()?;
                let operand = self.bytes(at, bytes, *change == "complete_tx")?;
                self.arrive(at, address, None, operand, false)
            }
            Some(kind @ &("arrive" | "arrive_drop")) => {
                let (state, address, given) = match operands {
                    [state, address] => (state, address, None),
                    [state, address, given] => (state, address, Some(given)),
                    _ => return Err(at.invalid("wrong number of operands")),
                };
                let expects = words.contains(&"expect_tx");
                let operand = match given {
                    None if expects || words.contains(&"noComplete") => return Err(at.invalid("wrong number of operands")),
                    None => self.constant(Width::W64, 1),
                    Some(bytes) if expects => {
                        let bytes = self.bytes(at, bytes, false)?;
                        let one = self.constant(Width::W64, 1);
                        let guard = self.guard.take();
                        let operand = self.joined(bytes, one);
                        self.guard = guard;
                        operand
                    }
                    Some(count) => {
                        let count = self.source(at, count, T::U32)?;
                        let guard = self.guard.take();
                        let count = self.as_word(count, 0);
                        self.guard = guard;
                        count
                    }
                };
                let state = self.target(at, state, Width::W64)?;
                self.arrive(at, address, Some(state), operand, *kind == "arrive_drop")
            }
            Some(&"test_wait" | &"try_wait") => self.test_phase(at),
            Some(&"pending_count") => {
                let [target, state] = at.operands()?;
                let state = self.source(at, state, T::B64)?;
                let target = self.target(at, target, Width::W32)?;
                let guard = self.guard.take();
                let (low, mask) = (self.new_register(Width::W32), self.constant(Width::W32, (1 << COUNT_BITS) - 1));
                self.lane(unary::<Resize<u64, u32>>(), low, &[state]);
                self.guard = guard;
                self.lane(binary::<int::And<u32>>(), target, &[low, mask]);
                Ok(())
            }
            _ => Err(at.form()),
        }
    }

    /// `cp.async.mbarrier.arrive`: all preceding copies are complete. Without `.noinc`, the instruction first increments the pending count
    /// itself, so the arrival changes nothing.
    pub(super) fn arrive_for_copies(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let [address] = at.operands()?;
        let counts = at.modifiers().contains(&"noinc");
        let operand = self.constant(Width::W64, u64::from(counts));
        if counts {
            return self.arrive(at, address, None, operand, false);
        }
        let (access, register) = self.state_access(at, address)?;
        self.emit(Action::Atomic(access, AtomicOperation::AddInteger), vec![], vec![register, operand]);
        Ok(())
    }

    /// Returns the access, and the address register, for the state of the object at an address.
    fn state_access(&mut self, at: At<'a, '_>, address: &Operand<'a>) -> Result<(Access, RegisterId), LoadError> {
        let shared = at.modifiers().iter().any(|word| matches!(*word, "shared" | "shared::cta"));
        let place = self.address(at, address)?;
        let space = if shared {
            Space::Shared
        } else {
            place.space.unwrap_or(Space::Generic)
        };
        let access = Access {
            space,
            element: 8,
            count: 1,
            signed: false,
            offset: place.offset,
            ordered: true,
        };
        Ok((access, place.register))
    }

    fn store_state(&mut self, at: At<'a, '_>, address: &Operand<'a>, state: RegisterId) -> Result<(), LoadError> {
        let (access, register) = self.state_access(at, address)?;
        self.emit(Action::Store(access), vec![], vec![register, state]);
        Ok(())
    }

    fn arrive(
        &mut self,
        at: At<'a, '_>,
        address: &Operand<'a>,
        state: Option<RegisterId>,
        operand: RegisterId,
        drop: bool,
    ) -> Result<(), LoadError> {
        let (access, register) = self.state_access(at, address)?;
        let targets = state.into_iter().collect();
        self.emit(
            Action::Atomic(access, AtomicOperation::Arrive { drop }),
            targets,
            vec![register, operand],
        );
        Ok(())
    }

    /// Counts bytes that have been copied at the barrier at an address.
    pub(super) fn complete_bytes(&mut self, at: At<'a, '_>, barrier: &Operand<'a>, bytes: &Operand<'a>) -> Result<(), LoadError> {
        let operand = self.bytes(at, bytes, true)?;
        self.arrive(at, barrier, None, operand, false)
    }

    /// `test_wait`, `try_wait`: whether the phase given by a state or by a parity is complete. The time limit of `try_wait` has no effect.
    fn test_phase(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let hinted = at.modifiers().first() == Some(&"try_wait");
        let (target, address, phase) = match at.all_operands() {
            [target, address, phase] => (target, address, phase),
            [target, address, phase, _] if hinted => (target, address, phase),
            _ => return Err(at.invalid("wrong number of operands")),
        };
        let by_parity = at.modifiers().contains(&"parity");
        let phase = self.source(at, phase, if by_parity { T::U32 } else { T::B64 })?;
        let target = self.target(at, target, Width::Predicate)?;
        let (access, register) = self.state_access(at, address)?;
        let state = self.new_register(Width::W64);
        self.emit(Action::Load(access), vec![state], vec![register]);
        let guard = self.guard.take();
        let phase = if by_parity { self.as_word(phase, PARITY_BIT) } else { phase };
        let (differs, top) = (self.new_register(Width::W64), self.constant(Width::W64, 1 << PARITY_BIT));
        self.lane(binary::<int::Xor<u64>>(), differs, &[state, phase]);
        self.guard = guard;
        self.lane(relation::<int::GreaterOrEqual<u64>>(), target, &[differs, top]);
        Ok(())
    }

    /// Returns a number of bytes, or its negation, in the form that [`AtomicOperation::Arrive`] takes.
    fn bytes(&mut self, at: At<'a, '_>, operand: &Operand<'a>, negative: bool) -> Result<RegisterId, LoadError> {
        let bytes = self.source(at, operand, T::U32)?;
        let guard = self.guard.take();
        let mut high = self.as_word(bytes, 32);
        if negative {
            let (opposite, zero) = (self.new_register(Width::W64), self.zero(Width::W64));
            self.lane(binary::<int::Subtract<u64>>(), opposite, &[zero, high]);
            high = opposite;
        }
        self.guard = guard;
        Ok(high)
    }

    /// Extends 32 bits to 64, shifted left by `shift`.
    fn as_word(&mut self, value: RegisterId, shift: u32) -> RegisterId {
        let wide = self.new_register(Width::W64);
        self.lane(unary::<Resize<u32, u64>>(), wide, &[value]);
        if shift == 0 { wide } else { self.shifted(wide, shift) }
    }

    fn shifted(&mut self, value: RegisterId, shift: u32) -> RegisterId {
        let (shifted, amount) = (self.new_register(Width::W64), self.constant(Width::W32, u64::from(shift)));
        self.lane(binary::<int::ShiftLeft<u64>>(), shifted, &[value, amount]);
        shifted
    }

    fn joined(&mut self, a: RegisterId, b: RegisterId) -> RegisterId {
        let both = self.new_register(Width::W64);
        self.lane(binary::<int::Or<u64>>(), both, &[a, b]);
        both
    }
}
