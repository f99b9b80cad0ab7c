//! Addresses of a group's access to host memory, checked.
//!
//! Three shapes are told apart: all lanes at one address, lanes one behind the other, anything else. One comparison of
//! the lowest and the highest address with the allocation this instruction touched last admits the whole access; only
//! where that fails are lanes looked at one by one.

#![allow(clippy::needless_range_loop, reason = "several arrays are walked lane by lane")]

use std::sync::Arc;

use super::worker::{Site, Stop, Worker};
use super::{LOCAL_WINDOW, SHARED_WINDOW};
use crate::compile::code::MemoryDetail;
use crate::fault::FaultKind;
use crate::lanes::memory::{Shape, for_each_lane};
use crate::lanes::{LANES, Level, level};
use crate::memory::Allocation;
use crate::types::Space;

/// Addresses below this are taken for null plus an index.
const NULL_GUARD: u64 = 1 << 16;

/// An allocation held for the rest of the launch.
pub(super) struct Kept {
    site: Site,
    /// Keeps the bytes alive when the host frees the allocation meanwhile.
    _allocation: Arc<Allocation>,
}

/// How a group's addresses lie.
#[derive(Clone, Copy)]
struct Pattern {
    shape: Shape,
    low: u64,
    high: u64,
    /// Or of all addresses.
    bits: u64,
}

#[inline(always)]
fn pattern_body(addresses: &[u64; LANES], mask: u64, size: u64) -> Pattern {
    let first = mask.trailing_zeros() as usize;
    let base = addresses[first];
    if mask == u64::MAX {
        let (mut apart, mut differs) = (0, 0);
        for lane in 0..LANES {
            apart |= addresses[lane] ^ base.wrapping_add(lane as u64 * size);
            differs |= addresses[lane] ^ base;
        }
        if apart == 0 {
            return Pattern {
                shape: Shape::Contiguous,
                low: base,
                high: base.wrapping_add(63 * size),
                bits: base,
            };
        }
        if differs == 0 {
            return Pattern {
                shape: Shape::Uniform,
                low: base,
                high: base,
                bits: base,
            };
        }
        let (mut low, mut high, mut bits) = (base, base, 0);
        for address in addresses {
            low = low.min(*address);
            high = high.max(*address);
            bits |= address;
        }
        return Pattern {
            shape: Shape::Gather,
            low,
            high,
            bits,
        };
    }
    let (mut apart, mut differs, mut low, mut high, mut bits) = (0, 0, base, base, 0);
    let start = base.wrapping_sub(first as u64 * size);
    for lane in 0..LANES {
        let active = 0u64.wrapping_sub((mask >> lane) & 1);
        let address = (addresses[lane] & active) | (base & !active);
        apart |= (address ^ start.wrapping_add(lane as u64 * size)) & active;
        differs |= address ^ base;
        low = low.min(address);
        high = high.max(address);
        bits |= address;
    }
    let shape = if differs == 0 {
        Shape::Uniform
    } else if apart == 0 {
        Shape::Contiguous
    } else {
        Shape::Gather
    };
    Pattern { shape, low, high, bits }
}

#[inline(always)]
fn widen_body(narrow: &[u32; LANES], offset: u32, wide: &mut [u64; LANES]) {
    for lane in 0..LANES {
        wide[lane] = u64::from(narrow[lane].wrapping_add(offset));
    }
}

#[inline(always)]
fn spread_body(addresses: &[u64; LANES], add: u64, pointers: &mut [*mut u8; LANES]) {
    for lane in 0..LANES {
        pointers[lane] = std::ptr::without_provenance_mut(addresses[lane].wrapping_add(add) as usize);
    }
}

macro_rules! leveled {
    ($name:ident = $body:ident($($argument:ident: $type:ty),*) -> $out:ty) => {
        fn $name($($argument: $type),*) -> $out {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn v3($($argument: $type),*) -> $out { $body($($argument),*) }
                #[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
                fn avx512($($argument: $type),*) -> $out { $body($($argument),*) }
                match level() {
                    Level::Baseline => {}
                    // SAFETY: the level was detected.
                    Level::V3 => return unsafe { v3($($argument),*) },
                    // SAFETY: the level was detected.
                    Level::Avx512 => return unsafe { avx512($($argument),*) },
                }
            }
            $body($($argument),*)
        }
    };
}

leveled!(pattern = pattern_body(addresses: &[u64; LANES], mask: u64, size: u64) -> Pattern);
leveled!(widen = widen_body(narrow: &[u32; LANES], offset: u32, wide: &mut [u64; LANES]) -> ());
leveled!(spread = spread_body(addresses: &[u64; LANES], add: u64, pointers: &mut [*mut u8; LANES]) -> ());

impl Worker<'_> {
    pub(super) fn load(&mut self, detail: &MemoryDetail, active: u64, pc: u32) -> Result<(), Stop> {
        self.resolve(detail, active, pc)?;
        if let Some(function) = detail.load {
            for (index, register) in detail.registers.iter().enumerate() {
                let d = self.at(*register);
                // SAFETY: `resolve` admitted the whole access of every active lane; `d` is a register.
                unsafe { function(self.resolved, index * detail.element as usize, d, active) }
            }
        }
        Ok(())
    }

    pub(super) fn store(&mut self, detail: &MemoryDetail, active: u64, pc: u32) -> Result<(), Stop> {
        self.resolve(detail, active, pc)?;
        if let Some(function) = detail.store {
            for (index, register) in detail.registers.iter().enumerate() {
                let s = self.at(*register);
                // SAFETY: as in `load`.
                unsafe { function(self.resolved, index * detail.element as usize, s, active) }
            }
        }
        Ok(())
    }

    /// The window that holds addresses of this access: shared memory, parameters, or the allocation last touched.
    #[inline(always)]
    fn window(&self, detail: &MemoryDetail, low: u64) -> Site {
        match detail.space {
            Space::Shared => Site {
                start: 0,
                end: self.shared_bytes,
                host: self.shared,
            },
            Space::Parameter => {
                let parameters = self.session.parameters;
                Site {
                    start: 0,
                    end: parameters.len() as u64,
                    host: parameters.as_ptr().cast_mut(),
                }
            }
            Space::Generic if (SHARED_WINDOW..LOCAL_WINDOW).contains(&low) => Site {
                start: SHARED_WINDOW,
                end: SHARED_WINDOW + self.shared_bytes,
                host: self.shared,
            },
            _ => self.sites[detail.site as usize],
        }
    }

    /// Fills in where each active lane's access lies in host memory, all `element * count` bytes of it.
    pub(super) fn resolve(&mut self, detail: &MemoryDetail, active: u64, pc: u32) -> Result<(), Stop> {
        let size = u64::from(detail.element * detail.count);
        let register = self.at(detail.address);
        let mut offset = detail.offset as u64;
        let addresses: *const [u64; LANES] = if detail.narrow_address {
            // SAFETY: the register holds 64 words; the wide area 64 addresses.
            unsafe { widen(&*register.cast(), offset as u32, &mut *self.wide) };
            offset = 0;
            self.wide
        } else {
            register.cast()
        };
        // SAFETY: 64 addresses, not written while they are read here.
        let addresses = unsafe { &*addresses };
        if detail.space != Space::Local {
            let found = if detail.uniform_address {
                let base = addresses[0];
                Pattern {
                    shape: Shape::Uniform,
                    low: base,
                    high: base,
                    bits: base,
                }
            } else {
                pattern(addresses, active, size)
            };
            for attempt in 0..2 {
                let low = found.low.wrapping_add(offset);
                let high = found.high.wrapping_add(offset);
                let window = self.window(detail, low);
                let aligned = (if found.shape == Shape::Gather { found.bits | offset } else { low }) & (size - 1) == 0;
                if low >= window.start && low <= high && high < window.end && window.end - high >= size && aligned {
                    self.resolved.shape = found.shape;
                    self.resolved.stride = size as usize;
                    match found.shape {
                        Shape::Uniform => {
                            self.resolved.base = window.host.wrapping_add((low - window.start) as usize);
                        }
                        Shape::Contiguous => {
                            let before = active.trailing_zeros() as usize * size as usize;
                            self.resolved.base = window.host.wrapping_add((low - window.start) as usize).wrapping_sub(before);
                        }
                        Shape::Gather => {
                            let add = offset
                                .wrapping_sub(window.start)
                                .wrapping_add(window.host.expose_provenance() as u64);
                            spread(addresses, add, &mut self.resolved.pointers);
                        }
                    }
                    return Ok(());
                }
                // Another allocation than last time: look it up once.
                if attempt == 1 || !matches!(detail.space, Space::Global | Space::Constant | Space::Generic) {
                    break;
                }
                let lane = active.trailing_zeros() as usize;
                match self.locate(addresses[lane].wrapping_add(offset)) {
                    Some(site) => self.sites[detail.site as usize] = site,
                    None => break,
                }
            }
        }
        self.resolve_lanes(detail, active, addresses, offset, pc)
    }

    /// The allocation that holds an address.
    fn locate(&mut self, address: u64) -> Option<Site> {
        let index = self.kept.partition_point(|kept| kept.site.start <= address);
        if let Some(kept) = index.checked_sub(1).map(|index| &self.kept[index])
            && address < kept.site.end
        {
            return Some(kept.site);
        }
        let allocation = self.session.memory.find(address)?;
        let site = Site {
            start: allocation.start,
            end: allocation.start + allocation.bytes,
            host: allocation.host(),
        };
        let _ = site.host.expose_provenance();
        let index = self.kept.partition_point(|kept| kept.site.start <= site.start);
        self.kept.insert(
            index,
            Kept {
                site,
                _allocation: allocation,
            },
        );
        Some(site)
    }

    #[cold]
    fn resolve_lanes(&mut self, detail: &MemoryDetail, active: u64, addresses: &[u64; LANES], offset: u64, pc: u32) -> Result<(), Stop> {
        let size = u64::from(detail.element * detail.count);
        let mut failed = None;
        for_each_lane(active, |lane| {
            if failed.is_some() {
                return;
            }
            let address = addresses[lane].wrapping_add(offset);
            match self.resolve_lane(detail, lane, address, size) {
                Ok(pointer) => self.resolved.pointers[lane] = pointer,
                Err(kind) => failed = Some((lane, address, kind)),
            }
        });
        self.resolved.shape = Shape::Gather;
        self.resolved.stride = size as usize;
        match failed {
            None => Ok(()),
            Some((lane, address, kind)) => Err(Stop {
                kind,
                pc: Some(pc),
                thread: Some(self.running * LANES + lane),
                address: Some(address),
            }),
        }
    }

    fn resolve_lane(&mut self, detail: &MemoryDetail, lane: usize, address: u64, size: u64) -> Result<*mut u8, FaultKind> {
        let outside = FaultKind::OutOfBounds { bytes: size as u32 };
        let local = |worker: &Self, at: u64| {
            let inside = at.checked_add(size).is_some_and(|end| end <= worker.local_bytes);
            // SAFETY: local storage holds `local_bytes` for every lane of every group.
            inside.then(|| unsafe {
                worker
                    .local
                    .add((worker.running * LANES + lane) * worker.local_bytes as usize + at as usize)
            })
        };
        let linear = |site: Site| {
            let at = address.checked_sub(site.start)?;
            let inside = address.checked_add(size).is_some_and(|end| end <= site.end);
            // SAFETY: the access lies inside the window.
            inside.then(|| unsafe { site.host.add(at as usize) })
        };
        let pointer = match detail.space {
            Space::Shared | Space::Parameter => linear(self.window(detail, address)),
            Space::Local => local(self, address),
            Space::Generic if address >= LOCAL_WINDOW => local(self, address - LOCAL_WINDOW),
            Space::Generic if address >= SHARED_WINDOW => linear(self.window(detail, address)),
            _ => {
                if address < NULL_GUARD {
                    return Err(FaultKind::NullAccess);
                }
                self.locate(address).and_then(linear)
            }
        };
        let pointer = pointer.ok_or(outside)?;
        if address & (size - 1) != 0 {
            return Err(FaultKind::Misaligned { alignment: size as u32 });
        }
        Ok(pointer)
    }
}
