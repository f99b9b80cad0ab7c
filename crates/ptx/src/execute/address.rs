//! Addresses of a group's access to host memory, checked.
//!
//! Three shapes are told apart: all lanes at one address, lanes one behind the other, anything else. One comparison of
//! the lowest and the highest address with the allocation this instruction touched last admits the whole access; only
//! where that fails are lanes looked at one by one.

use std::sync::Arc;

use super::pattern::{Pattern, interleave, pattern, spread, widen};
use super::worker::{Site, Stop, Worker};
use super::{LOCAL_WINDOW, PARAMETER_WINDOW, SHARED_WINDOW};
use crate::compile::code::MemoryDetail;
use crate::fault::FaultKind;
use crate::lanes::LANES;
use crate::lanes::memory::{Resolved, Shape, for_each_lane};
use crate::memory::Allocation;
use crate::types::Space;

/// Addresses below this are taken for null plus an index.
const NULL_GUARD: u64 = 1 << 16;

/// What is remembered of an address register: its pattern, the lanes it holds for (none once the register is written)
/// and where the addresses, without any instruction's offset, lie in the window they were last found in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) mask: u64,
    pattern: Pattern,
    /// No window where `end` is 0.
    window: Site,
    space: Space,
    resolved: Resolved,
}

impl Default for Known {
    fn default() -> Self {
        Self {
            mask: 0,
            pattern: Pattern::uniform(0),
            window: Site::EMPTY,
            space: Space::Generic,
            resolved: Resolved::new(),
        }
    }
}

/// Whether all of a pattern's accesses lie in a window and are aligned.
#[inline(always)]
fn fits(found: &Pattern, offset: u64, size: u64, window: &Site) -> bool {
    let low = found.low.wrapping_add(offset);
    let high = found.high.wrapping_add(offset);
    let bits = match found.shape {
        Shape::Uniform | Shape::Contiguous => low,
        Shape::Rows | Shape::Gather => found.bits | offset,
    };
    low >= window.start && low <= high && high < window.end && window.end - high >= size && bits & (size - 1) == 0
}

/// An allocation held for the rest of the launch.
pub(super) struct Kept {
    site: Site,
    /// Keeps the bytes alive when the host frees the allocation meanwhile.
    _allocation: Arc<Allocation>,
}

impl Worker<'_> {
    pub(super) fn load(&mut self, detail: &MemoryDetail, active: u64, pc: u32) -> Result<(), Stop> {
        let (resolved, add) = self.resolve(detail, active, pc)?;
        if let Some(function) = detail.load {
            for (register, step) in detail.registers.iter().zip(&detail.steps) {
                let d = self.at(*register);
                // SAFETY: `resolve` admitted the whole access of every active lane; `d` is a register.
                unsafe { function(&*resolved, step.wrapping_add(add), d, active) }
            }
        }
        Ok(())
    }

    pub(super) fn store(&mut self, detail: &MemoryDetail, active: u64, pc: u32) -> Result<(), Stop> {
        let (resolved, add) = self.resolve(detail, active, pc)?;
        if let Some(function) = detail.store {
            for (register, step) in detail.registers.iter().zip(&detail.steps) {
                let s = self.at(*register);
                // SAFETY: as in `load`.
                unsafe { function(&*resolved, step.wrapping_add(add), s, active) }
            }
        }
        Ok(())
    }

    /// The window that holds addresses of this access: shared memory, parameters, or the allocation last touched.
    #[inline(always)]
    fn window(&self, detail: &MemoryDetail, low: u64) -> Site {
        match detail.space {
            Space::Shared => self.shared_window(0),
            Space::Parameter => self.parameter_window(),
            Space::Generic if (SHARED_WINDOW..LOCAL_WINDOW).contains(&low) => self.shared_window(SHARED_WINDOW),
            _ => self.sites[detail.site as usize],
        }
    }

    /// Where each active lane's access lies in host memory, all `element * count` bytes of it, and bytes to add.
    #[inline(always)]
    pub(super) fn resolve(&mut self, detail: &MemoryDetail, active: u64, pc: u32) -> Result<(*const Resolved, usize), Stop> {
        let size = u64::from(detail.element * detail.count);
        let offset = detail.offset as u64;
        let known = self.pattern_at(usize::from(detail.pattern));
        if active & !known.mask == 0
            && known.space == detail.space
            && known.resolved.stride as u64 == size
            && fits(&known.pattern, offset, size, &known.window)
        {
            return Ok((&raw const known.resolved, offset as usize));
        }
        self.resolve_anew(detail, active, pc)?;
        Ok((&raw const *self.resolved, 0))
    }

    #[inline(never)]
    fn resolve_anew(&mut self, detail: &MemoryDetail, active: u64, pc: u32) -> Result<(), Stop> {
        let size = u64::from(detail.element * detail.count);
        let offset = detail.offset as u64;
        let found = if detail.uniform_address {
            let register = self.at(detail.address);
            // SAFETY: the register has 64 addresses of its width.
            Pattern::uniform(unsafe {
                if detail.narrow_address {
                    u64::from(*register.cast::<u32>())
                } else {
                    *register.cast::<u64>()
                }
            })
        } else {
            let known = self.pattern_at(usize::from(detail.pattern));
            if active & !known.mask == 0 && (known.pattern.stride == size || known.pattern.shape == Shape::Uniform) {
                known.pattern
            } else {
                let found = pattern(self.addresses(detail), active, size);
                if detail.pattern != 0 {
                    let known = self.pattern_at(usize::from(detail.pattern));
                    (known.mask, known.pattern, known.window) = (active, found, Site::EMPTY);
                }
                found
            }
        };
        if detail.space == Space::Local {
            if self.resolve_local(detail, &found, offset, size) {
                return Ok(());
            }
            return self.resolve_lanes(detail, active, pc);
        }
        let low = found.low.wrapping_add(offset);
        for attempt in 0..2 {
            let window = self.window(detail, low);
            if fits(&found, offset, size, &window) {
                self.place(detail, &found, &window, size);
                return Ok(());
            }
            // Another allocation than last time: look it up once.
            if attempt == 1 || !matches!(detail.space, Space::Global | Space::Constant | Space::Generic) {
                break;
            }
            match self.locate(low) {
                Some(site) => self.sites[detail.site as usize] = site,
                None => break,
            }
        }
        self.resolve_lanes(detail, active, pc)
    }

    /// A pattern inside a window as host addresses.
    fn place(&mut self, detail: &MemoryDetail, found: &Pattern, window: &Site, size: u64) {
        let offset = detail.offset as usize;
        let host = |address: u64| window.host.wrapping_add((address as usize).wrapping_sub(window.start as usize));
        self.resolved.shape = found.shape;
        self.resolved.stride = size as usize;
        match found.shape {
            Shape::Uniform => self.resolved.base = host(found.low),
            Shape::Contiguous => self.resolved.base = host(found.base),
            Shape::Rows => {
                self.resolved.row = found.row;
                self.resolved.uniform_rows = found.uniform_rows;
                for (row, first) in self.resolved.rows.iter_mut().zip(found.rows) {
                    *row = host(first);
                }
            }
            Shape::Gather => {
                let add = (window.host.expose_provenance() as u64)
                    .wrapping_sub(window.start)
                    .wrapping_add(offset as u64);
                let addresses = self.addresses(detail);
                spread(addresses, add, self.pointers);
                return;
            }
        }
        if detail.pattern != 0 && !detail.uniform_address {
            let resolved = *self.resolved;
            let known = self.pattern_at(usize::from(detail.pattern));
            (known.window, known.space, known.resolved) = (*window, detail.space, resolved);
        }
        self.resolved.base = self.resolved.base.wrapping_add(offset);
        for row in &mut self.resolved.rows {
            *row = row.wrapping_add(offset);
        }
    }

    /// The register's 64 addresses, without the offset.
    fn addresses<'b>(&self, detail: &MemoryDetail) -> &'b [u64; LANES] {
        let register = self.at(detail.address);
        // SAFETY: registers have 64 elements, the wide area 64 addresses; neither is written before the access ends.
        unsafe {
            if detail.narrow_address {
                widen(&*register.cast(), &mut *self.wide);
                &*self.wide
            } else {
                &*register.cast()
            }
        }
    }

    /// What is remembered of an address register of the running group.
    #[inline(always)]
    pub(super) fn pattern_at(&mut self, pattern: usize) -> &mut Known {
        // SAFETY: as many were made for each group as its code has.
        unsafe { self.known.get_unchecked_mut(self.running * self.code.patterns + pattern) }
    }

    /// Local memory is interleaved: `granule` bytes of lane 0, of lane 1, …, then the next of lane 0. An access of all
    /// lanes at one address is thereby one of consecutive places.
    fn resolve_local(&mut self, detail: &MemoryDetail, found: &Pattern, offset: u64, size: u64) -> bool {
        let (low, high) = (found.low.wrapping_add(offset), found.high.wrapping_add(offset));
        if low > high || high >= self.local_bytes || self.local_bytes - high < size || (found.bits | offset) & (size - 1) != 0 {
            return false;
        }
        let granule = self.code.local_granule;
        let base = self.local_base();
        if found.shape == Shape::Uniform {
            self.resolved.shape = Shape::Contiguous;
            self.resolved.stride = granule as usize;
            self.resolved.base = base.wrapping_add((low / granule * granule * LANES as u64 + low % granule) as usize);
        } else {
            self.resolved.shape = Shape::Gather;
            let addresses = self.addresses(detail);
            interleave(
                addresses,
                offset,
                granule.trailing_zeros(),
                base.expose_provenance() as u64,
                self.pointers,
            );
        }
        true
    }

    /// Local memory of the running group.
    fn local_base(&self) -> *mut u8 {
        self.local.wrapping_add(self.running * LANES * self.local_bytes as usize)
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
    fn resolve_lanes(&mut self, detail: &MemoryDetail, active: u64, pc: u32) -> Result<(), Stop> {
        let addresses = self.addresses(detail);
        let size = u64::from(detail.element * detail.count);
        let mut failed = None;
        for_each_lane(active, |lane| {
            if failed.is_some() {
                return;
            }
            let mut address = addresses[lane].wrapping_add(detail.offset as u64);
            if detail.narrow_address {
                address &= u64::from(u32::MAX);
            }
            match self.resolve_lane(detail, lane, address, size) {
                Ok(pointer) => self.pointers[lane] = pointer,
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
        let pointer = if detail.space == Space::Generic && address >= PARAMETER_WINDOW && detail.load.is_some() {
            self.parameter(address - PARAMETER_WINDOW, size)?
        } else {
            self.host_address(detail.space, lane, address, size)?
        };
        if address & (size - 1) != 0 {
            return Err(FaultKind::Misaligned { alignment: size as u32 });
        }
        Ok(pointer)
    }

    /// Where one lane's access of `size` bytes lies in host memory.
    pub(super) fn host_address(&mut self, space: Space, lane: usize, address: u64, size: u64) -> Result<*mut u8, FaultKind> {
        let outside = FaultKind::OutOfBounds { bytes: size as u32 };
        let local = |worker: &Self, at: u64| {
            let inside = at.checked_add(size).is_some_and(|end| end <= worker.local_bytes);
            inside.then(|| {
                let granule = worker.code.local_granule;
                let far = at / granule * granule * LANES as u64 + lane as u64 * granule + at % granule;
                worker.local_base().wrapping_add(far as usize)
            })
        };
        let linear = |site: Site| {
            let at = address.checked_sub(site.start)?;
            let inside = address.checked_add(size).is_some_and(|end| end <= site.end);
            // SAFETY: the access lies inside the window.
            inside.then(|| unsafe { site.host.add(at as usize) })
        };
        let pointer = match space {
            Space::Shared => linear(self.shared_window(0)),
            Space::Parameter => linear(self.parameter_window()),
            Space::Local => local(self, address),
            Space::Generic if address >= LOCAL_WINDOW => local(self, address - LOCAL_WINDOW),
            Space::Generic if address >= SHARED_WINDOW => linear(self.shared_window(SHARED_WINDOW)),
            _ => {
                if address < NULL_GUARD {
                    return Err(FaultKind::NullAccess);
                }
                self.locate(address).and_then(linear)
            }
        };
        pointer.ok_or(outside)
    }

    /// The block's shared memory at addresses from `start` on.
    fn shared_window(&self, start: u64) -> Site {
        Site {
            start,
            end: start + self.shared_bytes,
            host: self.shared,
        }
    }

    /// Bytes of the parameters, to be read.
    fn parameter(&self, at: u64, size: u64) -> Result<*mut u8, FaultKind> {
        let window = self.parameter_window();
        let inside = at.checked_add(size).is_some_and(|end| end <= window.end);
        if inside {
            Ok(window.host.wrapping_add(at as usize))
        } else {
            Err(FaultKind::OutOfBounds { bytes: size as u32 })
        }
    }

    fn parameter_window(&self) -> Site {
        let parameters = self.session.parameters;
        Site {
            start: 0,
            end: parameters.len() as u64,
            host: parameters.as_ptr().cast_mut(),
        }
    }

    /// Nothing is known of the running group's addresses any more.
    pub(super) fn forget_patterns(&mut self) {
        let start = self.running * self.code.patterns;
        for known in &mut self.known[start..start + self.code.patterns] {
            known.mask = 0;
        }
    }
}
