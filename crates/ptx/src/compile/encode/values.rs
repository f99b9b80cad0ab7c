//! Registers whose values come from outside the code: constants are written here, all others when a launch, a block or a group starts.

use super::Encoder;
use crate::compile::code::{GROUP, LaunchValue};
use crate::compile::ir::{Origin, Special, Width};
use crate::lanes::LANES;

impl Encoder<'_> {
    /// Writes constants to their area, and lists all other external values.
    pub(super) fn values(&mut self) {
        for (register, info) in self.lowered.registers.iter().enumerate() {
            let Some(place) = self.places.of[register] else {
                continue;
            };
            match info.origin {
                Origin::Code => {}
                Origin::Constant(bits) => {
                    // SAFETY: the location is in the constant area, whose size includes it.
                    unsafe { splat(self.code.constants.pointer().add(place.offset()), info.width, bits) }
                }
                Origin::Special(Special::Zero) => {}
                Origin::Parameter { offset, bytes, signed } => {
                    self.code
                        .launch_values
                        .push((place, info.width, LaunchValue::Parameter { offset, bytes, signed }))
                }
                Origin::Symbol { index, addend } => {
                    self.code
                        .launch_values
                        .push((place, info.width, LaunchValue::Symbol { index, addend }))
                }
                Origin::DynamicShared { addend } => {
                    self.code
                        .launch_values
                        .push((place, info.width, LaunchValue::DynamicShared { addend }))
                }
                Origin::Special(Special::Block(axis)) => self.code.block_values.push((place, info.width, axis)),
                Origin::Special(special) => {
                    if place.area() == GROUP {
                        self.code.lane_values.push((place, info.width, special));
                    } else {
                        self.code.launch_values.push((place, info.width, LaunchValue::Special(special)));
                    }
                }
            }
        }
    }
}

/// Writes `bits` to all elements of a register.
///
/// # Safety
/// `at` must point to a writable register of this width.
pub(crate) unsafe fn splat(at: *mut u8, width: Width, bits: u64) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match width {
            Width::Predicate => *at.cast::<u64>() = bits,
            Width::W16 => std::slice::from_raw_parts_mut(at.cast::<u16>(), LANES).fill(bits as u16),
            Width::W32 => std::slice::from_raw_parts_mut(at.cast::<u32>(), LANES).fill(bits as u32),
            Width::W64 => std::slice::from_raw_parts_mut(at.cast::<u64>(), LANES).fill(bits),
        }
    }
}
