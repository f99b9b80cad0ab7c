//! `atom` and `red` (PTX ISA §9.7.13.6): host atomics on global memory, plain operations on a block's own.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::worker::{Stop, Worker};
use crate::compile::code::MemoryDetail;
use crate::compile::ir::AtomicOperation as Op;
use crate::lanes::Binary;
use crate::lanes::float::{Add, Float};
use crate::lanes::half::{Both, Brain, Half};
use crate::lanes::memory::for_each_lane;
use crate::types::Space;

/// The value after the operation, from the old value and the operands.
fn apply32(operation: Op, old: u32, operand: u32, new: u32) -> u32 {
    match operation {
        Op::AddInteger => old.wrapping_add(operand),
        Op::AddFloat => (f32::from_bits(old) + f32::from_bits(operand)).to_bits(),
        Op::AddHalf { brain: false } => Both::<Add<Half>>::apply(old, operand),
        Op::AddHalf { brain: true } => Both::<Add<Brain>>::apply(old, operand),
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
        Op::CompareExchange => {
            if old == operand {
                new
            } else {
                old
            }
        }
    }
}

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
        // These exist for fewer bits only and are refused when the module is loaded.
        Op::Increment | Op::Decrement | Op::AddHalf { .. } => old,
        Op::CompareExchange => {
            if old == operand {
                new
            } else {
                old
            }
        }
    }
}

fn apply16(operation: Op, old: u16, operand: u16, new: u16) -> u16 {
    match operation {
        Op::AddHalf { brain: false } => Float::add(Half(old), Half(operand)).0,
        Op::AddHalf { brain: true } => Float::add(Brain(old), Brain(operand)).0,
        Op::CompareExchange if old == operand => new,
        Op::Exchange => operand,
        _ => old,
    }
}

macro_rules! perform {
    ($name:ident, $type:ty, $atomic:ty, $apply:ident) => {
        /// Safety: the pointer is aligned and valid.
        unsafe fn $name(operation: Op, shared: bool, pointer: *mut u8, operand: $type, new: $type) -> $type {
            if shared {
                let pointer = pointer.cast::<$type>();
                // SAFETY: the caller's contract; only this worker touches its block's shared memory.
                unsafe {
                    let old = *pointer;
                    *pointer = $apply(operation, old, operand, new);
                    return old;
                }
            }
            // SAFETY: the caller's contract; concurrent kernels reach these bytes through raw pointers and atomics.
            let atomic = unsafe { <$atomic>::from_ptr(pointer.cast()) };
            match operation {
                Op::AddInteger => atomic.fetch_add(operand, Ordering::SeqCst),
                Op::And => atomic.fetch_and(operand, Ordering::SeqCst),
                Op::Or => atomic.fetch_or(operand, Ordering::SeqCst),
                Op::Xor => atomic.fetch_xor(operand, Ordering::SeqCst),
                Op::Exchange => atomic.swap(operand, Ordering::SeqCst),
                Op::CompareExchange => match atomic.compare_exchange(operand, new, Ordering::SeqCst, Ordering::SeqCst) {
                    Ok(old) | Err(old) => old,
                },
                _ => {
                    let mut old = atomic.load(Ordering::SeqCst);
                    loop {
                        match atomic.compare_exchange_weak(old, $apply(operation, old, operand, new), Ordering::SeqCst, Ordering::SeqCst) {
                            Ok(old) => return old,
                            Err(seen) => old = seen,
                        }
                    }
                }
            }
        }
    };
}

perform!(perform16, u16, AtomicU16, apply16);
perform!(perform32, u32, AtomicU32, apply32);
perform!(perform64, u64, AtomicU64, apply64);

impl Worker<'_> {
    pub(super) fn atomic(&mut self, detail: &MemoryDetail, active: u64, pc: u32) -> Result<(), Stop> {
        let (resolved, add) = self.resolve(detail, active, pc)?;
        let Some(operation) = detail.atomic else {
            return Ok(());
        };
        let shared = detail.space == Space::Shared;
        let operand = detail.registers.first().map(|place| self.at(*place));
        let new = detail.registers.get(1).map(|place| self.at(*place)).or(operand);
        let target = detail.target.map(|place| self.at(place));
        let (Some(operand), Some(new)) = (operand, new) else {
            return Ok(());
        };
        for_each_lane(active, |lane| {
            // SAFETY: what `resolve` returned stays until the next access.
            let pointer = unsafe { (*resolved).pointer(lane).wrapping_add(add) };
            // SAFETY: `resolve` admitted the access, aligned; operands and target are registers of its width.
            unsafe {
                if detail.element == 2 {
                    let old = perform16(
                        operation,
                        shared,
                        pointer,
                        *operand.cast::<u16>().add(lane),
                        *new.cast::<u16>().add(lane),
                    );
                    if let Some(target) = target {
                        *target.cast::<u16>().add(lane) = old;
                    }
                } else if detail.element == 4 {
                    let old = perform32(
                        operation,
                        shared,
                        pointer,
                        *operand.cast::<u32>().add(lane),
                        *new.cast::<u32>().add(lane),
                    );
                    if let Some(target) = target {
                        *target.cast::<u32>().add(lane) = old;
                    }
                } else {
                    let old = perform64(
                        operation,
                        shared,
                        pointer,
                        *operand.cast::<u64>().add(lane),
                        *new.cast::<u64>().add(lane),
                    );
                    if let Some(target) = target {
                        *target.cast::<u64>().add(lane) = old;
                    }
                }
            }
        });
        Ok(())
    }
}
