//! Encoding of memory accesses: load and store functions by element and register width, interleaving of local memory, and the address
//! registers whose patterns are remembered.

use super::Encoder;
use crate::compile::code::{Instruction, Kind, MemoryDetail};
use crate::compile::ir::{Access, Action, Lowered, Operation, RegisterId, Width};
use crate::compile::uniform::{Class, Uniform};
use crate::lanes::LANES;
use crate::lanes::memory::{LoadFunction, StoreFunction, load, load_ordered, store, store_ordered};
use sahasra_ptx_syntax::types::Space;

/// Returns the pattern index of each register, 0 for none. Address registers have a pattern, because several accesses, or repeated
/// executions of one access, may use it between two writes. Registers that anything but lane operations writes have none.
pub(super) fn address_patterns(lowered: &Lowered, uniform: &Uniform) -> Vec<u16> {
    let mut used = vec![false; lowered.registers.len()];
    let mut written_otherwise = used.clone();
    for (index, operation) in lowered.operations.iter().enumerate() {
        match operation.action {
            Action::Load(_) | Action::Store(_) | Action::Atomic(..) => {
                used[uniform.alias[operation.sources[0] as usize] as usize] = true;
            }
            _ => {}
        }
        if !uniform.removed[index] && !matches!(operation.action, Action::Lane(_) | Action::Copy) {
            for target in &operation.targets {
                written_otherwise[*target as usize] = true;
            }
        }
    }
    let mut next = 0u16;
    (0..lowered.registers.len())
        .map(|register| {
            let varies = uniform.classes[register] >= Class::Lane;
            if used[register] && !written_otherwise[register] && varies && next < u16::MAX {
                next += 1;
                next
            } else {
                0
            }
        })
        .collect()
}

impl Encoder<'_> {
    pub(super) fn memory(&mut self, operation: &Operation, access: &Access, kind: Kind) -> Instruction {
        let address = operation.sources[0];
        let place = self.place(address);
        let width_of = |register: RegisterId| self.lowered.registers[register as usize].width;
        let width = operation.targets.first().map_or(Width::W64, |register| width_of(*register));
        let registers = match kind {
            Kind::Load => operation.targets.iter().map(|register| self.place(*register)).collect(),
            _ => operation.sources[1..].iter().map(|register| self.place(*register)).collect(),
        };
        let detail = MemoryDetail {
            space: access.space,
            element: u32::from(access.element),
            count: u32::from(access.count),
            offset: access.offset,
            narrow_address: width_of(address) == Width::W32,
            uniform_address: self.uniform.classes[self.uniform.alias[address as usize] as usize] < Class::Lane,
            pattern: self.patterns[self.uniform.alias[address as usize] as usize],
            steps: steps(access, self.code.local_granule),
            site: self.code.memory.len() as u32,
            address: place,
            registers,
            load: if kind == Kind::Load { load_function(access, width) } else { None },
            store: if kind == Kind::Store { store_function(access) } else { None },
            atomic: match &operation.action {
                Action::Atomic(_, operation) => Some(*operation),
                _ => None,
            },
            target: if kind == Kind::Atomic {
                operation.targets.first().map(|register| self.place(*register))
            } else {
                None
            },
        };
        self.code.memory.push(detail);
        Instruction {
            detail: self.code.memory.len() as u32 - 1,
            ..self.blank(kind)
        }
    }
}

fn load_function(access: &Access, width: Width) -> Option<LoadFunction> {
    let access = Access {
        signed: access.signed && usize::from(access.element) < width.bytes(),
        ..*access
    };
    macro_rules! pick {
        ($($element:literal $signed:literal $width:ident: $from:ty, $to:ty;)*) => {
            match (access.element, access.signed, width, access.ordered) {
                $(
                    ($element, $signed, Width::$width, false) => Some(load::<$from, $to>()),
                    ($element, $signed, Width::$width, true) => Some(load_ordered::<$from, $to>),
                )*
                _ => None,
            }
        };
    }
    pick! {
        1 false W16: u8, u16;
        1 false W32: u8, u32;
        1 false W64: u8, u64;
        1 true W16: i8, u16;
        1 true W32: i8, u32;
        1 true W64: i8, u64;
        2 false W16: u16, u16;
        2 false W32: u16, u32;
        2 false W64: u16, u64;
        2 true W32: i16, u32;
        2 true W64: i16, u64;
        4 false W32: u32, u32;
        4 false W64: u32, u64;
        4 true W64: i32, u64;
        8 false W64: u64, u64;
    }
}

/// Stores the low byte of each register element: 8-bit values are held in 16 bits.
unsafe fn store_byte(resolved: &crate::lanes::memory::Resolved, offset: usize, s: *const u8, mask: u64) {
    crate::lanes::memory::for_each_lane(mask, |lane| {
        // SAFETY: guaranteed by the contract of `StoreFunction`; a register of 8-bit values has 16-bit elements.
        unsafe { *resolved.pointer(lane).wrapping_add(offset) = s.cast::<u16>().add(lane).read() as u8 }
    });
}

fn store_function(access: &Access) -> Option<StoreFunction> {
    Some(match (access.element, access.ordered) {
        (1, _) => store_byte,
        (2, false) => store::<u16>(),
        (4, false) => store::<u32>(),
        (8, false) => store::<u64>(),
        (2, true) => store_ordered::<u16>,
        (4, true) => store_ordered::<u32>,
        (8, true) => store_ordered::<u64>,
        _ => return None,
    })
}

/// Returns the interleaving granule of local memory in bytes. Interleaving makes elements adjacent that lanes access at the same index of
/// their arrays. The granule is as small as possible, but at least as wide as the widest element. If generic addresses may reach local
/// memory, it is 32, because a whole access must then be contiguous.
pub(super) fn local_granule(lowered: &Lowered) -> u64 {
    let mut granule = 4;
    for operation in &lowered.operations {
        if let Action::Load(access) | Action::Store(access) | Action::Atomic(access, _) = operation.action {
            match access.space {
                Space::Local => granule = granule.max(u64::from(access.element)),
                Space::Generic => return 32,
                _ => {}
            }
        }
        if let Action::Matrix(_) = operation.action {
            return 32;
        }
    }
    granule
}

fn steps(access: &Access, granule: u64) -> Vec<usize> {
    (0..u64::from(access.count))
        .map(|index| {
            let offset = index * u64::from(access.element);
            let far = access.space == Space::Local;
            (if far {
                offset / granule * granule * LANES as u64 + offset % granule
            } else {
                offset
            }) as usize
        })
        .collect()
}
