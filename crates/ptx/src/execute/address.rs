//! Translation of the device addresses of a group's access to host memory, with checks of bounds and alignment.
//!
//! Accesses have one of four shapes: all lanes at one address, consecutive lanes at consecutive addresses, rows of lanes that are each one
//! of these, or anything else. One comparison of the lowest and the highest address with the allocation that the instruction last accessed
//! admits the whole access. Lanes are checked one by one only if this comparison fails.

use std::sync::Arc;

use super::pattern::{Pattern, interleave, pattern, spread, widen};
use super::worker::{Site, Stop, Worker};
use super::{LOCAL_WINDOW, PARAMETER_WINDOW, SHARED_WINDOW};
use crate::compile::code::MemoryDetail;
use crate::fault::FaultKind;
use crate::lanes::LANES;
use crate::lanes::memory::{Resolved, Shape, for_each_lane};
use crate::memory::Allocation;
use sahasra_ptx_syntax::types::Space;

/// Address below which an access is reported as one through a null pointer with an offset.
const NULL_GUARD: u64 = 1 << 16;

/// Remembered pattern of an address register, and the lanes for which it is valid (none once the register is written). `resolved` holds the
/// host addresses, without the offset of any instruction, in the window that last contained them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) mask: u64,
    pattern: Pattern,
    /// No window if `end` is 0.
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

/// Whether all accesses of a pattern are aligned and inside the window.
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

/// Allocation that is kept alive for the rest of the launch.
pub(super) struct Kept {
    site: Site,
    /// Keeps the bytes alive if the host frees the allocation in the meantime.
    _allocation: Arc<Allocation>,
}

impl Worker<'_> {
    pub(super) fn load(&mut self, detail: &MemoryDetail, active: u64, pc: u32) -> Result<(), Stop> {
        let (resolved, add) = self.resolve(detail, active, pc)?;
        if let Some(function) = detail.load {
            for (register, step) in detail.registers.iter().zip(&detail.steps) {
                let d = self.at(*register);
                // SAFETY: `resolve` has checked the whole access of every active lane; `d` is a register.
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
                // SAFETY: `resolve` has checked the whole access of every active lane; `s` is a register.
                unsafe { function(&*resolved, step.wrapping_add(add), s, active) }
            }
        }
        Ok(())
    }

    /// Returns the window of the access: shared memory, parameters, or the allocation that the instruction last accessed.
    #[inline(always)]
    fn window(&self, detail: &MemoryDetail, low: u64) -> Site {
        match detail.space {
            Space::Shared => self.shared_window(0),
            Space::Parameter => self.parameter_window(),
            Space::Generic if (SHARED_WINDOW..LOCAL_WINDOW).contains(&low) => self.shared_window(SHARED_WINDOW),
            _ => self.sites[detail.site as usize],
        }
    }

    /// Returns the host address of each active lane's access, checked for all `element * count` bytes, and a number of bytes to add to it.
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
            // SAFETY: the register holds 64 addresses of its width.
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
            // The address is in another allocation than last time: look it up once.
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

    /// Stores the host addresses of a pattern inside a window in `resolved`.
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

    /// Returns the 64 addresses in the register, without the offset of the instruction.
    fn addresses<'b>(&self, detail: &MemoryDetail) -> &'b [u64; LANES] {
        let register = self.at(detail.address);
        // SAFETY: registers have 64 elements and the `wide` buffer has 64 addresses; neither is written before the access ends.
        unsafe {
            if detail.narrow_address {
                widen(&*register.cast(), &mut *self.wide);
                &*self.wide
            } else {
                &*register.cast()
            }
        }
    }

    /// Returns the remembered pattern of an address register of the running group.
    #[inline(always)]
    pub(super) fn pattern_at(&mut self, pattern: usize) -> &mut Known {
        // SAFETY: `known` has `patterns` elements for each group.
        unsafe { self.known.get_unchecked_mut(self.running * self.code.patterns + pattern) }
    }

    /// Resolves addresses of local memory, and returns whether they are valid. Local memory is interleaved: `granule` bytes of lane 0, of
    /// lane 1, and so on, then the next `granule` bytes of lane 0. If all lanes use the same local address, their host addresses are
    /// therefore evenly spaced.
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

    /// Returns the host address of the running group's local memory.
    fn local_base(&self) -> *mut u8 {
        self.local.wrapping_add(self.running * LANES * self.local_bytes as usize)
    }

    /// Finds the allocation that contains an address.
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

    /// Returns the host address of one lane's access of `size` bytes.
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

    /// Returns the window of the block's shared memory at addresses from `start` on.
    fn shared_window(&self, start: u64) -> Site {
        Site {
            start,
            end: start + self.shared_bytes,
            host: self.shared,
        }
    }

    /// Returns the host address of `size` bytes of the parameters, for reading.
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

    /// Invalidates all patterns of the running group's address registers.
    pub(super) fn forget_patterns(&mut self) {
        let start = self.running * self.code.patterns;
        for known in &mut self.known[start..start + self.code.patterns] {
            known.mask = 0;
        }
    }
}
