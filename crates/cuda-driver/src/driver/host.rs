//! Host memory that programs allocate or register, and memory that host and device share, as it comes and goes.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sahasra_cuda_device::{Extent, Failure, FailureKind, HostBlock, Operation, Region};

use crate::boundary::{Handle, HostPointer};
use crate::context::Context;
use crate::host::{HostRange, Origin};
use crate::ranges::Kind;
use crate::status::Status;

use super::Driver;

/// Flag of memory that kernels access (`CU_MEMHOSTALLOC_DEVICEMAP`, `CU_MEMHOSTREGISTER_DEVICEMAP`).
pub(crate) const DEVICE_MAP: u32 = 2;
/// Flag of registered memory that kernels only read (`CU_MEMHOSTREGISTER_READ_ONLY`).
pub(crate) const READ_ONLY: u32 = 8;
/// Alignment of host memory in bytes: a page.
const ALIGNMENT: usize = 4096;

/// What to do about an access to pinned memory of the program that the device does not have.
pub(super) fn remedy(failure: &Failure) -> Option<&'static str> {
    let (_, digits) = failure
        .message
        .rsplit_once("at address 0x")
        .filter(|_| failure.kind == FailureKind::IllegalAddress)?;
    let end = digits.find(|digit: char| !digit.is_ascii_hexdigit()).unwrap_or(digits.len());
    let address = usize::from_str_radix(&digits[..end], 16).ok()?;
    super::get().is_ok_and(|driver| driver.is_only_of_host(address)).then_some(
        "the address is in pinned memory of the program, which a session gives to kernels only if the program asks for it: allocate it with \
         cudaHostAllocMapped (CU_MEMHOSTALLOC_DEVICEMAP), register it with cudaHostRegisterMapped (CU_MEMHOSTREGISTER_DEVICEMAP), or ask for \
         its device pointer",
    )
}

/// Whether this process has mapped all of a range of addresses, for reading and writing. `true` if the kernel does not tell.
fn is_writable(range: Range<usize>) -> bool {
    std::fs::read_to_string("/proc/self/maps").map_or(true, |maps| covers(&maps, range))
}

/// Whether the mappings of proc_pid_maps(5), in ascending order, cover a range with readable and writable memory.
fn covers(maps: &str, range: Range<usize>) -> bool {
    let mut covered = range.start;
    for line in maps.lines() {
        let mapping = line.split_once(' ').and_then(|(addresses, rest)| {
            let (start, end) = addresses.split_once('-')?;
            let parsed = |digits| usize::from_str_radix(digits, 16).ok();
            Some((parsed(start)?, parsed(end)?, rest.starts_with("rw")))
        });
        let Some((start, end, is_writable)) = mapping.filter(|(_, end, _)| *end > covered) else {
            continue;
        };
        if start > covered || !is_writable {
            return false;
        }
        covered = end;
        if covered >= range.end {
            return true;
        }
    }
    false
}

impl Driver {
    /// Makes a block accessible to kernels of a context. A device elsewhere gets a copy, which takes its memory and time: only if the program
    /// says that kernels access the block.
    fn share(&self, context: &Arc<Context>, block: &Arc<HostBlock>, kind: Kind, is_wanted: bool) -> Result<(), Status> {
        if !self.device.properties().shares_host_memory && !is_wanted {
            return Ok(());
        }
        context.queue.share(block).map_err(|failure| Status::from(&failure))?;
        let address = block.pointer() as u64;
        self.ranges.note(context, address, block.bytes() as u64, kind).inspect_err(|_| {
            // Refused only after a fault, when nothing is shared any more.
            let _ = context.submit(Operation::Unmap { address });
        })
    }

    /// Ends what [`share`](Self::share) began, after everything that was submitted. Waits for that if `is_waiting`.
    fn end_sharing(&self, address: usize, is_waiting: bool) -> Result<(), Status> {
        let address = address as u64;
        let Some(range) = self.ranges.retire(address, Kind::is_shared) else {
            return Ok(());
        };
        let outcome = match range.context.upgrade() {
            Some(context) => context.submit(Operation::Unmap { address }).and_then(|ticket| match is_waiting {
                true => context.wait(ticket),
                false => Ok(()),
            }),
            None => Ok(()),
        };
        self.ranges.forget(address, range.context_id);
        outcome
    }

    /// Allocates zeroed host memory.
    pub(crate) fn allocate_host(&self, context: &Arc<Context>, bytes: usize, flags: u32) -> Result<HostPointer, Status> {
        if bytes == 0 {
            return Err(Status::INVALID_VALUE);
        }
        context.check()?;
        let block = Arc::new(self.device.allocate_host(bytes, ALIGNMENT).ok_or(Status::OUT_OF_MEMORY)?);
        self.share(context, &block, Kind::Mapped, flags & DEVICE_MAP != 0)?;
        let pointer = HostPointer::new(block.pointer().cast());
        let range = HostRange::new(context, block, flags, Origin::Allocated);
        self.host.write().insert(pointer.address(), range);
        Ok(pointer)
    }

    /// Frees host memory that [`allocate_host`](Self::allocate_host) made. Work that was submitted before may still use it.
    pub(crate) fn free_host(&self, pointer: HostPointer) -> Result<(), Status> {
        let removed = self.remove_host(pointer, Origin::Allocated).ok_or(Status::INVALID_VALUE)?;
        if let Some(context) = self.contexts.find(removed.context_handle) {
            // A function of the program may use it.
            context.callbacks.wait(context.callbacks.last())?;
        }
        let outcome = self.end_sharing(pointer.address(), false);
        drop(removed);
        outcome
    }

    /// Makes memory of the program known, and accessible to kernels.
    pub(crate) fn register_host(&self, context: &Arc<Context>, pointer: HostPointer, bytes: usize, flags: u32) -> Result<(), Status> {
        let start = NonNull::new(pointer.pointer().cast::<u8>()).ok_or(Status::INVALID_VALUE)?;
        let end = pointer.address().checked_add(bytes).ok_or(Status::INVALID_VALUE)?;
        if bytes == 0 {
            return Err(Status::INVALID_VALUE);
        }
        if !is_writable(pointer.address()..end) {
            return Err(if flags & READ_ONLY != 0 {
                Status::NOT_SUPPORTED
            } else {
                Status::INVALID_VALUE
            });
        }
        context.check()?;
        let mut host = self.host.write();
        let below = host.range(..end).next_back();
        if below.is_some_and(|(start, range)| start + range.bytes() > pointer.address()) {
            return Err(Status::HOST_MEMORY_ALREADY_REGISTERED);
        }
        // SAFETY: the program keeps registered memory until it has unregistered it, which waits for the work that may use it.
        let block = Arc::new(unsafe { HostBlock::borrowed(start, bytes) });
        self.share(context, &block, Kind::Mapped, flags & DEVICE_MAP != 0)?;
        host.insert(pointer.address(), HostRange::new(context, block, flags, Origin::Registered));
        Ok(())
    }

    /// Forgets registered memory, after everything that was submitted.
    pub(crate) fn unregister_host(&self, pointer: HostPointer) -> Result<(), Status> {
        let removed = self.remove_host(pointer, Origin::Registered);
        removed.ok_or(Status::HOST_MEMORY_NOT_REGISTERED)?;
        self.end_sharing(pointer.address(), true)
    }

    /// Allocates memory that host and device share. It counts as memory of the device, and is freed as such.
    pub(crate) fn allocate_managed(&self, context: &Arc<Context>, bytes: usize, flags: u32) -> Result<u64, Status> {
        if bytes == 0 {
            return Err(Status::INVALID_VALUE);
        }
        context.check()?;
        let size = Kind::Managed.charge(bytes as u64);
        self.charge(size)?;
        let shared = HostBlock::new(bytes, ALIGNMENT).ok_or(Status::OUT_OF_MEMORY).and_then(|block| {
            let block = Arc::new(block);
            self.share(context, &block, Kind::Managed, true)?;
            Ok(block)
        });
        let block = shared.inspect_err(|_| self.release(size))?;
        let address = block.pointer() as usize;
        let range = HostRange::new(context, block, flags, Origin::Managed);
        let mut host = self.host.write();
        if context.is_destroyed.load(Ordering::Relaxed) {
            // Its memory was counted as free with all of the context's.
            return Err(Status::CONTEXT_IS_DESTROYED);
        }
        host.insert(address, range);
        Ok(address as u64)
    }

    fn remove_host(&self, pointer: HostPointer, origin: Origin) -> Option<HostRange> {
        let mut host = self.host.write();
        host.get(&pointer.address()).filter(|range| range.origin == origin)?;
        host.remove(&pointer.address())
    }

    /// Makes host memory that the library knows accessible to kernels, unless it is.
    pub(crate) fn share_later(&self, address: usize) -> Result<(), Status> {
        if self.ranges.find(address as u64).is_some() {
            return Ok(());
        }
        let (block, context) = {
            let host = self.host.read();
            let (_, range) = host.range(..=address).next_back().ok_or(Status::INVALID_VALUE)?;
            (Arc::clone(&range.block), range.context_handle)
        };
        let context = self.contexts.find(context).ok_or(Status::CONTEXT_IS_DESTROYED)?;
        self.share(&context, &block, Kind::Mapped, true)
    }

    /// The context whose memory contains the rows, as [`Ranges::owner`](crate::ranges::Ranges::owner). Host memory that is used as memory of
    /// the device becomes that.
    pub(crate) fn owner(&self, region: &Region, extent: &Extent) -> Result<Arc<Context>, Status> {
        let address = region.address as usize;
        if self.ranges.find(region.address).is_none() && self.host_range(address).is_some() {
            self.share_later(address)?;
        }
        self.ranges.owner(region, extent)
    }

    /// Block of allocated host memory that contains a row, and the row's offset in it.
    pub(crate) fn allocated_host(&self, address: usize, bytes: usize) -> Option<(Arc<HostBlock>, usize)> {
        let host = self.host.read();
        let (start, range) = host.range(..=address).next_back()?;
        let offset = address - start;
        let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= range.bytes());
        (is_inside && range.origin == Origin::Allocated).then(|| (Arc::clone(&range.block), offset))
    }

    /// Whether an address is in host memory that the library knows and the device does not have. `false` while the memory changes.
    fn is_only_of_host(&self, address: usize) -> bool {
        let Some(host) = self.host.try_read() else {
            return false;
        };
        let below = host.range(..=address).next_back();
        below.is_some_and(|(start, range)| address - start < range.bytes()) && self.ranges.find(address as u64).is_none()
    }

    /// Start and flags of the range of host memory that contains a pointer.
    pub(crate) fn host_range(&self, address: usize) -> Option<(usize, usize, u32, Handle)> {
        let host = self.host.read();
        let (start, range) = host.range(..=address).next_back()?;
        (address - start < range.bytes()).then(|| (*start, range.bytes(), range.flags, range.context_handle))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registered_memory_is_mapped_for_reading_and_writing() {
        let maps = "1000-3000 rw-p 00000000 00:00 0\n3000-4000 rw-s 00000000 00:00 0 [heap]\n4000-5000 r--p 00000000 00:00 0\n6000-7000 rw-p 0 0 0\n";
        for (range, expected) in [
            (0x1000..0x4000, true),
            (0x1fff..0x3001, true),
            (0x3fff..0x4001, false),
            (0x4000..0x4001, false),
            (0xfff..0x1001, false),
            (0x5000..0x5001, false),
            (0x6000..0x7001, false),
            (0x8000..0x8001, false),
        ] {
            assert_eq!(covers(maps, range.clone()), expected, "{range:x?}");
        }
        let here = Box::new(1u64);
        let start = std::ptr::from_ref(&*here).addr();
        assert!(is_writable(start..start + 8) && !is_writable(8..16));
    }
}
