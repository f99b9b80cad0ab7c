//! Memory of the GPU under the addresses that clients choose.
//!
//! Clients choose addresses in a range that was reserved for them. Physical memory is mapped there in pages of the driver's granularity, when
//! an allocation needs it first, and counts against the lease. The pages that an allocation fills are one mapping, which is freed with it.
//! A page that it does not fill is a mapping of its own, which allocations of one context share. Nothing zeroes it when an allocation
//! leaves, since each allocation is zeroed when it is made and pages are shared within a context only.
//!
//! Memory of the host that a client mirrors is mapped at its own address, outside of the range, if the driver has that address.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::sys;
use parking_lot::Mutex;
use sahasra_cuda_device::{Failure, FailureKind};

use super::lease::Lease;
use super::outcome::check;

/// Alignment of allocations in bytes.
const ALIGNMENT: u64 = 256;

/// Consecutive pages that were mapped together.
#[derive(Debug)]
struct Run {
    bytes: u64,
    handle: sys::CUmemGenericAllocationHandle,
    context: u64,
    /// Number of allocations in it.
    allocations: u32,
    /// Whether its addresses were reserved for it.
    is_elsewhere: bool,
}

#[derive(Debug)]
struct Allocation {
    bytes: u64,
    context: u64,
}

#[derive(Debug, Default)]
struct Tables {
    runs: BTreeMap<u64, Run>,
    allocations: BTreeMap<u64, Allocation>,
}

/// Memory by address. All methods are for the context that is current in the calling thread, except [`Pages::release`].
#[derive(Debug)]
pub(super) struct Pages {
    device: i32,
    page: u64,
    addresses: Range<u64>,
    lease: Arc<Lease>,
    tables: Mutex<Tables>,
}

fn protocol(message: impl Into<String>) -> Failure {
    Failure::new(FailureKind::Protocol, message)
}

impl Pages {
    /// Pages of `page` bytes in addresses that were reserved.
    pub(super) fn new(device: i32, page: u64, addresses: Range<u64>, lease: Arc<Lease>) -> Self {
        Self {
            device,
            page,
            addresses,
            lease,
            tables: Mutex::default(),
        }
    }

    /// Properties of memory on this device.
    pub(super) fn properties(device: i32) -> sys::CUmemAllocationProp {
        // SAFETY: zero is a value of every field, and means nothing wanted.
        let mut properties: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
        properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = location(device);
        properties
    }

    /// Makes memory at addresses of a context. Its contents are undefined. Returns the pages that are new.
    pub(super) fn map(&self, context: u64, address: u64, bytes: u64) -> Result<Vec<Range<u64>>, Failure> {
        let end = address
            .checked_add(bytes)
            .filter(|_| bytes > 0 && address.is_multiple_of(ALIGNMENT));
        let end = end.ok_or_else(|| protocol(format!("{bytes} bytes at {address:#x}: invalid address or size of an allocation")))?;
        if end.checked_next_multiple_of(self.page).is_none() {
            return Err(protocol(format!("{bytes} bytes at {address:#x} are beyond the address space")));
        }
        // Addresses of a context that is ending will be free.
        let missing = loop {
            let planned = self.plan(&self.tables.lock(), context, address..end);
            match planned {
                Ok(missing) => break missing,
                Err(_) if self.lease.wait_for_ending() => {}
                Err(failure) => return Err(failure),
            }
        };
        let size: u64 = missing.iter().map(|pages| pages.end - pages.start).sum();
        // Unlocked, because contexts that are ending free their memory meanwhile.
        self.lease.take(size)?;
        let mut tables = self.tables.lock();
        if self.plan(&tables, context, address..end).as_ref() != Ok(&missing) {
            self.lease.give(size);
            return Err(protocol(format!(
                "another context maps {bytes} bytes at {address:#x} at the same time"
            )));
        }
        let mut made = 0;
        for pages in &missing {
            let (start, length) = (pages.start, pages.end - pages.start);
            match self.make(start, length, context) {
                Ok(run) => tables.runs.insert(start, run),
                Err(failure) => {
                    self.lease.give(size - made);
                    let before = missing.iter().take_while(|pages| pages.start != start);
                    before
                        .map(|pages| pages.start)
                        .try_for_each(|start| self.unmake(&mut tables, start))?;
                    return Err(failure);
                }
            };
            made += length;
        }
        for (_, run) in tables.runs_mut(address, end) {
            run.allocations += 1;
        }
        tables.allocations.insert(address, Allocation { bytes, context });
        Ok(missing)
    }

    /// The mappings to make for an allocation.
    fn plan(&self, tables: &Tables, context: u64, allocation: Range<u64>) -> Result<Vec<Range<u64>>, Failure> {
        let Range { start, end } = allocation;
        let below = tables.allocations.range(..end).next_back();
        if below.is_some_and(|(other, allocation)| other + allocation.bytes > start) {
            return Err(protocol(format!("{} bytes at {start:#x} overlap another allocation", end - start)));
        }
        let (first, last) = (start - start % self.page, end.next_multiple_of(self.page));
        if tables.overlapping(first, last).any(|(_, run)| run.context != context) {
            let message = format!("{start:#x} shares a page of {} bytes with memory of another context", self.page);
            return Err(protocol(message));
        }
        let there: Vec<(u64, u64)> = tables.overlapping(first, last).map(|(start, run)| (start, run.bytes)).collect();
        Ok(self.missing(allocation, &there))
    }

    /// Pages of an allocation that are not mapped, as the mappings to make: those that it fills together, others one by one.
    fn missing(&self, allocation: Range<u64>, there: &[(u64, u64)]) -> Vec<Range<u64>> {
        let mut pieces: Vec<Range<u64>> = Vec::new();
        let first = allocation.start - allocation.start % self.page;
        let filled = allocation.start.next_multiple_of(self.page)..allocation.end - allocation.end % self.page;
        let mut at = first;
        while at < allocation.end {
            let is_filled = filled.contains(&at);
            let next = if is_filled { filled.end } else { at + self.page };
            // Only a page that an allocation does not fill can be there already.
            if is_filled || !there.iter().any(|(start, bytes)| (*start..start + bytes).contains(&at)) {
                pieces.push(at..next);
            }
            at = next;
        }
        pieces
    }

    /// Maps new memory, which is counted, at free addresses.
    fn make(&self, start: u64, bytes: u64, context: u64) -> Result<Run, Failure> {
        let is_elsewhere = !(self.addresses.contains(&start) && start + bytes <= self.addresses.end);
        let size = bytes as usize;
        let mut handle = 0;
        let access = sys::CUmemAccessDesc {
            location: location(self.device),
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the driver reads two structures and writes an address and a handle. The addresses are reserved, and nothing is mapped there.
        // What a failed step leaves is freed in the reverse order.
        unsafe {
            if is_elsewhere {
                reserve_at(start, size)?;
            }
            let mapped = check(
                "cuMemCreate",
                sys::cuMemCreate(&mut handle, size, &Self::properties(self.device), 0),
            )
            .and_then(|()| {
                check("cuMemMap", sys::cuMemMap(start, size, 0, handle, 0))
                    .and_then(|()| {
                        let accessible = check("cuMemSetAccess", sys::cuMemSetAccess(start, size, &access, 1));
                        accessible.inspect_err(|_| {
                            let _ = sys::cuMemUnmap(start, size);
                        })
                    })
                    .inspect_err(|_| {
                        let _ = sys::cuMemRelease(handle);
                    })
            });
            mapped.inspect_err(|_| {
                if is_elsewhere {
                    let _ = sys::cuMemAddressFree(start, size);
                }
            })?;
        }
        Ok(Run {
            bytes,
            handle,
            context,
            allocations: 0,
            is_elsewhere,
        })
    }

    /// Frees a mapping. If the driver does not, it stays counted.
    fn unmake(&self, tables: &mut Tables, start: u64) -> Result<(), Failure> {
        let Some(run) = tables.runs.remove(&start) else { return Ok(()) };
        let size = run.bytes as usize;
        // SAFETY: the mapping was made with this size, and the caller has waited for the work that uses it.
        unsafe {
            check("cuMemUnmap", sys::cuMemUnmap(start, size))?;
            check("cuMemRelease", sys::cuMemRelease(run.handle))?;
            if run.is_elsewhere {
                check("cuMemAddressFree", sys::cuMemAddressFree(start, size))?;
            }
        }
        self.lease.give(run.bytes);
        Ok(())
    }

    /// Whether freeing an allocation of a context frees pages, for which the work that uses them must have ended.
    pub(super) fn frees_pages(&self, context: u64, address: u64) -> bool {
        let tables = self.tables.lock();
        let found = tables.allocations.get(&address).filter(|allocation| allocation.context == context);
        found.is_some_and(|allocation| {
            let mut runs = tables.overlapping(address, address + allocation.bytes);
            runs.any(|(_, run)| run.allocations == 1)
        })
    }

    /// Frees an allocation of a context.
    pub(super) fn unmap(&self, context: u64, address: u64) -> Result<(), Failure> {
        let mut tables = self.tables.lock();
        let found = tables.allocations.get(&address).filter(|allocation| allocation.context == context);
        let bytes = found.ok_or_else(|| protocol(format!("no memory is mapped at {address:#x}")))?.bytes;
        tables.allocations.remove(&address);
        let mut unused = Vec::new();
        for (start, run) in tables.runs_mut(address, address + bytes) {
            run.allocations -= 1;
            if run.allocations == 0 {
                unused.push(start);
            }
        }
        unused.into_iter().try_for_each(|start| self.unmake(&mut tables, start))
    }

    /// Frees everything of a context that has been destroyed.
    pub(super) fn release(&self, context: u64) -> Result<(), Failure> {
        let mut tables = self.tables.lock();
        tables.allocations.retain(|_, allocation| allocation.context != context);
        let of_context = tables.runs.iter().filter(|(_, run)| run.context == context);
        let runs: Vec<u64> = of_context.map(|(start, _)| *start).collect();
        let mut outcome = Ok(());
        for start in runs {
            outcome = outcome.and(self.unmake(&mut tables, start));
        }
        outcome
    }

    /// Whether a range is within an allocation of a context.
    pub(super) fn contains(&self, context: u64, address: u64, bytes: u64) -> bool {
        let tables = self.tables.lock();
        let below = tables.allocations.range(..=address).next_back();
        below.is_some_and(|(start, allocation)| {
            let room = allocation.bytes.checked_sub(address - start);
            allocation.context == context && room.is_some_and(|room| bytes <= room)
        })
    }
}

impl Tables {
    /// Mappings that overlap a range.
    fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, &Run)> {
        let below = self
            .runs
            .range(..start)
            .next_back()
            .filter(move |(at, run)| *at + run.bytes > start);
        below
            .into_iter()
            .chain(self.runs.range(start..end))
            .map(|(start, run)| (*start, run))
    }

    /// Mappings that overlap a range.
    fn runs_mut(&mut self, start: u64, end: u64) -> impl Iterator<Item = (u64, &mut Run)> {
        let first = self.overlapping(start, end).next().map_or(end, |(first, _)| first);
        self.runs.range_mut(first..end).map(|(start, run)| (*start, run))
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let bytes = self.addresses.end - self.addresses.start;
        if bytes > 0 {
            // SAFETY: reserved for these pages, none of which is mapped unless its context could not be destroyed. Then the call fails, and
            // the process ends.
            let _ = unsafe { sys::cuMemAddressFree(self.addresses.start, bytes as usize) };
        }
    }
}

fn location(device: i32) -> sys::CUmemLocation {
    sys::CUmemLocation {
        type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: device,
    }
}

/// Reserves these addresses and no others.
unsafe fn reserve_at(start: u64, size: usize) -> Result<(), Failure> {
    let mut reserved = 0;
    // SAFETY: the driver writes an address; what it reserves elsewhere is freed.
    unsafe {
        check("cuMemAddressReserve", sys::cuMemAddressReserve(&mut reserved, size, 0, start, 0))?;
        if reserved == start {
            return Ok(());
        }
        check("cuMemAddressFree", sys::cuMemAddressFree(reserved, size))?;
    }
    let message = format!(
        "the driver has no memory at {start:#x}, which the program chose for memory that it shares with kernels: use device memory"
    );
    Err(Failure::new(FailureKind::OutOfMemory, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_an_allocation_fills_are_one_mapping_and_others_single() {
        let pages = Pages::new(0, 100, 0..0, Arc::new(Lease::new(0, 0)));
        // First and last address of each mapping.
        let missing = |allocation: Range<u64>, there: &[(u64, u64)]| -> Vec<(u64, u64)> {
            let missing = pages.missing(allocation, there);
            missing.into_iter().map(|pages| (pages.start, pages.end)).collect()
        };
        assert_eq!(missing(0..300, &[]), [(0, 300)]);
        assert_eq!(missing(10..20, &[]), [(0, 100)]);
        assert_eq!(missing(10..20, &[(0, 100)]), []);
        assert_eq!(missing(50..150, &[]), [(0, 100), (100, 200)]);
        assert_eq!(missing(50..450, &[(0, 100)]), [(100, 400), (400, 500)]);
        assert_eq!(missing(50..450, &[(0, 100), (400, 100)]), [(100, 400)]);
        assert_eq!(missing(100..250, &[(200, 100)]), [(100, 200)]);
    }
}
