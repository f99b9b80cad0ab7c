//! `atom` and `red` (PTX ISA §9.7.13.6): host atomics on global memory, plain operations on the block's own shared memory.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::worker::{Stop, Worker};
use crate::compile::code::MemoryDetail;
use crate::compile::ir::AtomicOperation as Op;
use crate::lanes::Binary;
use crate::lanes::float::{Add, Float, Maximum, Minimum};
use crate::lanes::half::{Both, Brain, Half};
use crate::lanes::memory::{Resolved, Shape, for_each_lane};
use sahasra_ptx_syntax::types::Space;

/// Computes the new value from the old value and the operands.
#[inline(always)]
fn apply32(operation: Op, old: u32, operand: u32, new: u32) -> u32 {
    match operation {
        Op::AddInteger => old.wrapping_add(operand),
        Op::AddFloat => (f32::from_bits(old) + f32::from_bits(operand)).to_bits(),
        Op::AddHalf { brain: false } => Both::<Add<Half>>::apply(old, operand),
        Op::AddHalf { brain: true } => Both::<Add<Brain>>::apply(old, operand),
        Op::MinimumHalf { brain: false } => Both::<Minimum<Half>>::apply(old, operand),
        Op::MinimumHalf { brain: true } => Both::<Minimum<Brain>>::apply(old, operand),
        Op::MaximumHalf { brain: false } => Both::<Maximum<Half>>::apply(old, operand),
        Op::MaximumHalf { brain: true } => Both::<Maximum<Brain>>::apply(old, operand),
        Op::Minimum { signed: false } => old.min(operand),
        Op::Minimum { signed: true } => (old as i32).min(operand as i32) as u32,
        Op::Maximum { signed: false } => old.max(operand),
        Op::Maximum { signed: true } => (old as i32).max(operand as i32) as u32,
        Op::Increment => {
            if old >= operand {
                0
            } else {
                old + 1
            }
        }
        Op::Decrement => {
            if old == 0 || old > operand {
                operand
            } else {
                old - 1
            }
        }
        Op::And => old & operand,
        Op::Or => old | operand,
        Op::Xor => old ^ operand,
        Op::Exchange => operand,
        // `Arrive` exists for 64 bits only.
        Op::Arrive { .. } => old,
        Op::CompareExchange => {
            if old == operand {
                new
            } else {
                old
            }
        }
    }
}

#[inline(always)]
fn apply64(operation: Op, old: u64, operand: u64, new: u64) -> u64 {
    match operation {
        Op::AddInteger => old.wrapping_add(operand),
        Op::AddFloat => (f64::from_bits(old) + f64::from_bits(operand)).to_bits(),
        Op::Minimum { signed: false } => old.min(operand),
        Op::Minimum { signed: true } => (old as i64).min(operand as i64) as u64,
        Op::Maximum { signed: false } => old.max(operand),
        Op::Maximum { signed: true } => (old as i64).max(operand as i64) as u64,
        Op::And => old & operand,
        Op::Or => old | operand,
        Op::Xor => old ^ operand,
        Op::Exchange => operand,
        Op::Arrive { drop } => super::transaction::arrive(old, operand, drop),
        // These operations exist for fewer bits only, and are rejected for 64 bits when the module is loaded.
        Op::Increment | Op::Decrement | Op::AddHalf { .. } | Op::MinimumHalf { .. } | Op::MaximumHalf { .. } => old,
        Op::CompareExchange => {
            if old == operand {
                new
            } else {
                old
            }
        }
    }
}

#[inline(always)]
fn apply16(operation: Op, old: u16, operand: u16, new: u16) -> u16 {
    match operation {
        Op::AddHalf { brain: false } => Float::add(Half(old), Half(operand)).0,
        Op::AddHalf { brain: true } => Float::add(Brain(old), Brain(operand)).0,
        Op::MinimumHalf { brain: false } => Minimum::apply(Half(old), Half(operand)).0,
        Op::MinimumHalf { brain: true } => Minimum::apply(Brain(old), Brain(operand)).0,
        Op::MaximumHalf { brain: false } => Maximum::apply(Half(old), Half(operand)).0,
        Op::MaximumHalf { brain: true } => Maximum::apply(Brain(old), Brain(operand)).0,
        Op::CompareExchange if old == operand => new,
        Op::Exchange => operand,
        _ => old,
    }
}

/// Operands of an atomic operation of a group.
struct Lanes<'a, T> {
    resolved: &'a Resolved,
    /// Offset in bytes from the resolved addresses.
    offset: usize,
    active: u64,
    operand: *const T,
    /// New value of `cas`; equal to `operand` for all other operations.
    new: *const T,
    /// Register for the old values; null to discard them.
    target: *mut T,
}

impl<T: Copy> Lanes<'_, T> {
    /// Calls `update` with the pointer and the operands of each active lane, lowest lane first. `update` returns the old value.
    ///
    /// # Safety
    /// Operand, new value and target must be registers of `T`. It must be safe to call `update` with the lanes' pointers.
    #[inline(always)]
    unsafe fn each(&self, update: impl Fn(*mut T, T, T) -> T) {
        let visit = |lane: usize, pointer: *mut u8| {
            // SAFETY: guaranteed by the caller; registers have 64 elements.
            unsafe {
                let old = update(
                    pointer.wrapping_add(self.offset).cast(),
                    *self.operand.add(lane),
                    *self.new.add(lane),
                );
                if !self.target.is_null() {
                    *self.target.add(lane) = old;
                }
            }
        };
        for_each_lane(self.active, |lane| visit(lane, self.resolved.pointer(lane)));
    }

    /// Performs plain reads and writes of the block's own shared memory.
    ///
    /// # Safety
    /// As for [`each`](Self::each). The pointers must also be aligned, valid and exclusive to this worker.
    #[inline(always)]
    unsafe fn each_own(&self, apply: impl Fn(T, T, T) -> T) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            self.each(|pointer, operand, new| {
                let old = *pointer;
                *pointer = apply(old, operand, new);
                old
            });
        }
    }
}

/// Calls `$run` with a closure for the operation, so that the loop over lanes is compiled separately for each common operation.
macro_rules! for_operation {
    ($operation:expr, $lanes:expr, $run:ident, $apply:ident: $($common:pat => $value:expr),*) => {
        match $operation {
            $($common => $lanes.$run(|old, operand, new| $apply($value, old, operand, new)),)*
            other => $lanes.$run(|old, operand, new| $apply(other, old, operand, new)),
        }
    };
}

macro_rules! perform {
    ($name:ident, $type:ty, $atomic:ty, $apply:ident) => {
        /// Safety: the pointers must be aligned and valid, and exclusive to this worker if `own`; the registers must have elements of the
        /// type.
        unsafe fn $name(operation: Op, own: bool, lanes: &Lanes<'_, $type>) {
            // SAFETY: guaranteed by the caller. Concurrent kernels also use only raw pointers and atomics for global memory.
            unsafe {
                if own {
                    return for_operation!(operation, lanes, each_own, $apply:
                        Op::AddInteger => Op::AddInteger,
                        Op::AddFloat => Op::AddFloat,
                        Op::Minimum { signed: false } => Op::Minimum { signed: false },
                        Op::Minimum { signed: true } => Op::Minimum { signed: true },
                        Op::Maximum { signed: false } => Op::Maximum { signed: false },
                        Op::Maximum { signed: true } => Op::Maximum { signed: true },
                        Op::Or => Op::Or,
                        Op::CompareExchange => Op::CompareExchange
                    );
                }
                let order = Ordering::SeqCst;
                let host = |pointer: *mut $type| <$atomic>::from_ptr(pointer);
                match operation {
                    Op::AddInteger => lanes.each(|pointer, operand, _| host(pointer).fetch_add(operand, order)),
                    Op::And => lanes.each(|pointer, operand, _| host(pointer).fetch_and(operand, order)),
                    Op::Or => lanes.each(|pointer, operand, _| host(pointer).fetch_or(operand, order)),
                    Op::Xor => lanes.each(|pointer, operand, _| host(pointer).fetch_xor(operand, order)),
                    Op::Exchange => lanes.each(|pointer, operand, _| host(pointer).swap(operand, order)),
                    Op::CompareExchange => lanes.each(|pointer, operand, new| {
                        match host(pointer).compare_exchange(operand, new, order, order) {
                            Ok(old) | Err(old) => old,
                        }
                    }),
                    _ => lanes.each(|pointer, operand, new| {
                        let atomic = host(pointer);
                        let mut old = atomic.load(order);
                        while let Err(seen) = atomic.compare_exchange_weak(old, $apply(operation, old, operand, new), order, order) {
                            old = seen;
                        }
                        old
                    }),
                }
            }
        }
    };
}

perform!(perform16, u16, AtomicU16, apply16);
perform!(perform32, u32, AtomicU32, apply32);
perform!(perform64, u64, AtomicU64, apply64);

/// Applies an operation to one element of `bytes` bytes.
///
/// # Safety
/// Both pointers must be valid and aligned, and the operation must exist for this size.
pub(super) unsafe fn reduce(operation: Op, bytes: u8, target: *mut u8, source: *const u8) {
    macro_rules! reduce {
        ($perform:ident, $type:ty) => {{
            // SAFETY: guaranteed by the caller.
            let operand = unsafe { source.cast::<$type>().read() };
            let mut resolved = Resolved::new();
            (resolved.shape, resolved.base) = (Shape::Uniform, target);
            let lanes = Lanes::<$type> {
                resolved: &resolved,
                offset: 0,
                active: 1,
                operand: &raw const operand,
                new: &raw const operand,
                target: std::ptr::null_mut(),
            };
            // SAFETY: guaranteed by the caller; only lane 0 is active.
            unsafe { $perform(operation, false, &lanes) }
        }};
    }
    match bytes {
        2 => reduce!(perform16, u16),
        4 => reduce!(perform32, u32),
        _ => reduce!(perform64, u64),
    }
}

impl Worker<'_> {
    pub(super) fn atomic(&mut self, detail: &MemoryDetail, active: u64, pc: u32) -> Result<(), Stop> {
        let (resolved, offset) = self.resolve(detail, active, pc)?;
        let (Some(operation), Some(operand)) = (detail.atomic, detail.registers.first()) else {
            return Ok(());
        };
        // Only one worker runs a block, and no other worker sees its shared memory.
        let own = detail.space == Space::Shared;
        let operand = self.at(*operand);
        let new = detail.registers.get(1).map_or(operand, |place| self.at(*place));
        let target = detail.target.map_or(std::ptr::null_mut(), |place| self.at(place));
        macro_rules! perform {
            ($perform:ident, $type:ty) => {
                // SAFETY: `resolve` has checked the access of every active lane, including its alignment, and its result is valid until the
                // next access; operands and target are registers of the access's width.
                unsafe {
                    let lanes = Lanes::<$type> {
                        resolved: &*resolved,
                        offset,
                        active,
                        operand: operand.cast(),
                        new: new.cast(),
                        target: target.cast(),
                    };
                    $perform(operation, own, &lanes)
                }
            };
        }
        match detail.element {
            2 => perform!(perform16, u16),
            4 => perform!(perform32, u32),
            _ => perform!(perform64, u64),
        }
        Ok(())
    }
}
