//! Global memory of one device, which consists of allocations with device addresses.
//!
//! Every allocation is a separate zeroed block of host memory, or one that the host shares with kernels. Kernels access it at an address in
//! a 62-bit space. Addresses are never reused, and at least 256 unmapped bytes separate two allocations, so accesses past the end of an
//! allocation, to freed memory or through null are detected.
//!
//! **Races.** Kernels and the host may access the same bytes at the same time, as on a GPU. No Rust reference to these bytes ever exists:
//! they are accessed through raw pointers only. Each access copies plain bytes for which every bit pattern is valid, and accesses that a
//! kernel marks as atomic, volatile or ordered use host atomics. A racing program reads one of the values written, or a mix if an access is
//! wider than 8 bytes. It cannot corrupt the engine's own data, which is never stored in these blocks.

mod heap;
mod host;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use sahasra_memory::streaming;

pub use heap::{HEAP_BYTES, Heap};
pub use host::HostBlock;

/// Alignment of every allocation's device address, in bytes (as `cuMemAlloc`).
const ALIGNMENT: u64 = 256;
/// Lowest device address: far from null and from the windows of shared and local memory.
const FIRST_ADDRESS: u64 = 1 << 32;
/// Lowest address that a caller may choose: accesses below are reported as accesses through null.
const LOWEST_CHOSEN_ADDRESS: u64 = 1 << 16;
/// End of the device address space.
const LAST_ADDRESS: u64 = 1 << 62;

/// Address in a [`Memory`], in bytes. 0 is null and never allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DevicePointer(pub u64);

impl DevicePointer {
    /// Returns the address `bytes` bytes further.
    pub fn offset(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl fmt::Display for DevicePointer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:#x}", self.0)
    }
}

/// Reason why a memory operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The request exceeds the free bytes of the memory, or the host cannot provide them.
    #[error("out of memory: {requested} bytes requested, {available} of {capacity} available")]
    OutOfMemory {
        /// Requested bytes.
        requested: u64,
        /// Free bytes of the memory.
        available: u64,
        /// Total bytes of the memory.
        capacity: u64,
    },
    /// The address is not the start of an allocation.
    #[error("{0} is not the start of an allocation")]
    NotAllocated(DevicePointer),
    /// The range is not inside one allocation.
    #[error("{length} bytes at {pointer} are not inside one allocation")]
    OutOfBounds {
        /// Start of the range.
        pointer: DevicePointer,
        /// Length of the range in bytes.
        length: u64,
    },
    /// All device addresses have been used.
    #[error("the address space is used up")]
    AddressesExhausted,
    /// The range cannot be allocated at an address that the caller chose: not aligned, reserved for other allocations, or in use.
    #[error("{length} bytes cannot be allocated at {pointer}")]
    AddressTaken {
        /// Start of the range.
        pointer: DevicePointer,
        /// Length of the range in bytes.
        length: u64,
    },
}

/// Block of host memory with a device address.
#[derive(Debug)]
pub(crate) struct Allocation {
    /// First device address.
    pub(crate) start: u64,
    /// Length in bytes, as requested.
    pub(crate) bytes: u64,
    block: Arc<HostBlock>,
    /// Bytes that the allocation counts in the memory's use.
    counted: u64,
}

impl Allocation {
    /// Alignment of the host address, so that whole-register copies do not straddle cache lines.
    const LINE: usize = 64;

    fn new(start: u64, bytes: u64, counted: u64) -> Option<Self> {
        let block = HostBlock::new(usize::try_from(bytes).ok()?, Self::LINE)?;
        Some(Self {
            start,
            bytes,
            block: Arc::new(block),
            counted,
        })
    }

    /// Host address of the first byte.
    pub(crate) fn host(&self) -> *mut u8 {
        self.block.pointer()
    }
}

#[derive(Debug)]
struct Table {
    allocations: BTreeMap<u64, Arc<Allocation>>,
    next: u64,
}

/// Global memory of one device, or of one executor. Threads share it by reference, and allocating and freeing are atomic. A block that is
/// freed while a launch uses it stays alive until the launch ends.
#[derive(Debug)]
pub struct Memory {
    capacity: u64,
    /// Bytes that count against the capacity, of this memory and of those [beside](Self::beside) it.
    used: Arc<AtomicU64>,
    /// Lowest address of allocations whose address the memory chooses.
    first: u64,
    /// End of the addresses that the memory chooses.
    last: u64,
    table: RwLock<Table>,
    heap: Heap,
}

impl Memory {
    /// Returns a memory of at most `capacity` bytes. Host memory is used only as it is allocated and touched.
    pub fn new(capacity: u64) -> Self {
        Self::with_addresses(capacity, DevicePointer(FIRST_ADDRESS)..DevicePointer(LAST_ADDRESS))
    }

    /// Returns a memory like [`new`](Self::new), which chooses addresses in `addresses` only and leaves those below to
    /// [`allocate_at`](Self::allocate_at). The start is raised to 2^32 and rounded up to a multiple of 256, the end lowered to 2^62.
    pub fn with_addresses(capacity: u64, addresses: Range<DevicePointer>) -> Self {
        let first = addresses.start.0.clamp(FIRST_ADDRESS, LAST_ADDRESS).next_multiple_of(ALIGNMENT);
        Self {
            capacity,
            used: Arc::default(),
            first,
            last: addresses.end.0.clamp(first, LAST_ADDRESS),
            table: RwLock::new(Table {
                allocations: BTreeMap::new(),
                next: first,
            }),
            heap: Heap::default(),
        }
    }

    /// Returns an empty memory like [`with_addresses`](Self::with_addresses) that shares the capacity of this one: the allocations of both
    /// together do not exceed it.
    pub fn beside(&self, addresses: Range<DevicePointer>) -> Self {
        let mut memory = Self::with_addresses(self.capacity, addresses);
        memory.used = Arc::clone(&self.used);
        memory
    }

    /// Sets the maximum number of bytes that kernels may have allocated with `malloc` at a time, 8 MiB by default. They also count in
    /// [`used`](Self::used).
    pub fn set_heap_limit(&self, bytes: u64) {
        self.heap.set_limit(bytes);
    }

    /// Returns the heap of launches that do not set [`Launch::heap`](crate::Launch::heap).
    pub(crate) fn heap(&self) -> &Heap {
        &self.heap
    }

    /// Returns the capacity in bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the allocated bytes, with each allocation rounded up to a multiple of 256, including those of memories that share the
    /// capacity.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Allocates zeroed bytes at a 256-byte aligned address. An allocation of 0 bytes counts as 256 bytes.
    ///
    /// # Errors
    /// [`MemoryError::OutOfMemory`] beyond the capacity or the host's own memory, [`MemoryError::AddressesExhausted`] after as many bytes of
    /// allocations as there are addresses.
    pub fn allocate(&self, bytes: u64) -> Result<DevicePointer, MemoryError> {
        let size = self.charge(bytes)?;
        let start = {
            let mut table = self.table.write();
            let start = table.next;
            let end = start
                .checked_add(size)
                .and_then(|end| end.checked_add(ALIGNMENT))
                .filter(|end| *end < self.last);
            let Some(end) = end else {
                self.used.fetch_sub(size, Ordering::Relaxed);
                return Err(MemoryError::AddressesExhausted);
            };
            table.next = end;
            start
        };
        let allocation = self.back(start, bytes, size)?;
        self.table.write().allocations.insert(start, Arc::new(allocation));
        Ok(DevicePointer(start))
    }

    /// Allocates zeroed bytes at an address that the caller chooses: a multiple of 256 between 64 KiB and the first address of
    /// [`with_addresses`](Self::with_addresses). The range may be one that was freed. Callers that leave no gap to the next
    /// allocation lose the detection of accesses past the end.
    ///
    /// # Errors
    /// [`MemoryError::AddressTaken`] if the address is not such an address or the range overlaps another allocation;
    /// [`MemoryError::OutOfMemory`] as [`allocate`](Self::allocate).
    pub fn allocate_at(&self, pointer: DevicePointer, bytes: u64) -> Result<(), MemoryError> {
        let start = pointer.0;
        let taken = MemoryError::AddressTaken { pointer, length: bytes };
        let end = start.checked_add(bytes.max(1)).filter(|end| *end <= self.first);
        if end.is_none() || !start.is_multiple_of(ALIGNMENT) || start < LOWEST_CHOSEN_ADDRESS {
            return Err(taken);
        }
        let size = self.charge(bytes)?;
        let allocation = self.back(start, bytes, size)?;
        let inserted = self.insert_at(allocation);
        inserted.inspect_err(|_| {
            self.used.fetch_sub(size, Ordering::Relaxed);
        })
    }

    /// Makes host memory accessible to kernels at its host address, which must be one that a caller may choose. It does not count in
    /// [`used`](Self::used), and stays alive until it is [freed](Self::free) here and no launch uses it.
    ///
    /// # Errors
    /// [`MemoryError::AddressTaken`] as [`allocate_at`](Self::allocate_at), but for the alignment.
    pub fn share(&self, block: Arc<HostBlock>) -> Result<DevicePointer, MemoryError> {
        let (start, bytes) = (block.pointer() as u64, block.bytes() as u64);
        let end = start.checked_add(bytes.max(1)).filter(|end| *end <= self.first);
        if end.is_none() || start < LOWEST_CHOSEN_ADDRESS {
            return Err(MemoryError::AddressTaken {
                pointer: DevicePointer(start),
                length: bytes,
            });
        }
        self.insert_at(Allocation {
            start,
            bytes,
            block,
            counted: 0,
        })?;
        Ok(DevicePointer(start))
    }

    /// Adds an allocation unless it overlaps another.
    fn insert_at(&self, allocation: Allocation) -> Result<(), MemoryError> {
        let (start, end) = (allocation.start, allocation.start + allocation.bytes.max(1));
        let mut table = self.table.write();
        let below = table.allocations.range(..end).next_back();
        if below.is_some_and(|(_, other)| other.start + other.bytes.max(1) > start) {
            return Err(MemoryError::AddressTaken {
                pointer: DevicePointer(start),
                length: allocation.bytes,
            });
        }
        table.allocations.insert(start, Arc::new(allocation));
        Ok(())
    }

    /// Error of a request for `bytes` while `used` bytes are allocated.
    fn refused(&self, bytes: u64, used: u64) -> MemoryError {
        MemoryError::OutOfMemory {
            requested: bytes,
            available: self.capacity.saturating_sub(used),
            capacity: self.capacity,
        }
    }

    /// Counts an allocation of `bytes`. Returns the counted size.
    fn charge(&self, bytes: u64) -> Result<u64, MemoryError> {
        let size = bytes
            .max(1)
            .checked_next_multiple_of(ALIGNMENT)
            .ok_or_else(|| self.refused(bytes, self.used()))?;
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(size).filter(|total| *total <= self.capacity)
            })
            .map_err(|used| self.refused(bytes, used))?;
        Ok(size)
    }

    /// Counts bytes that are no device memory against the capacity, as long as the returned value exists.
    ///
    /// # Errors
    /// [`MemoryError::OutOfMemory`] beyond the capacity.
    pub fn reserve(&self, bytes: u64) -> Result<Reservation, MemoryError> {
        let counted = self.charge(bytes)?;
        Ok(Reservation {
            used: Arc::clone(&self.used),
            counted,
        })
    }

    /// Host memory of an allocation that [`charge`](Self::charge) counted as `size`. On an error, it is not counted any more.
    fn back(&self, start: u64, bytes: u64, size: u64) -> Result<Allocation, MemoryError> {
        Allocation::new(start, bytes, size).ok_or_else(|| {
            self.used.fetch_sub(size, Ordering::Relaxed);
            self.refused(bytes, self.used())
        })
    }

    /// Frees an allocation.
    ///
    /// # Errors
    /// [`MemoryError::NotAllocated`] if `pointer` is not the start of an allocation, or if it was already freed.
    pub fn free(&self, pointer: DevicePointer) -> Result<(), MemoryError> {
        let removed = self.table.write().allocations.remove(&pointer.0);
        let allocation = removed.ok_or(MemoryError::NotAllocated(pointer))?;
        self.used.fetch_sub(allocation.counted, Ordering::Relaxed);
        Ok(())
    }

    pub fn free_all(&self) {
        let freed = {
            let mut table = self.table.write();
            std::mem::take(&mut table.allocations)
        };
        let counted = freed.values().map(|allocation| allocation.counted).sum();
        self.used.fetch_sub(counted, Ordering::Relaxed);
    }

    /// Finds the allocation that contains `address`, or that ends right before it.
    pub(crate) fn find(&self, address: u64) -> Option<Arc<Allocation>> {
        let table = self.table.read();
        let (_, allocation) = table.allocations.range(..=address).next_back()?;
        (address - allocation.start <= allocation.bytes).then(|| Arc::clone(allocation))
    }

    fn range(&self, pointer: DevicePointer, length: usize) -> Result<(Arc<Allocation>, *mut u8), MemoryError> {
        let length = length as u64;
        let refused = MemoryError::OutOfBounds { pointer, length };
        let allocation = self.find(pointer.0).ok_or(refused)?;
        let offset = pointer.0 - allocation.start;
        if offset.checked_add(length).is_none_or(|end| end > allocation.bytes) {
            return Err(refused);
        }
        // SAFETY: the offset is inside the block.
        let host = unsafe { allocation.host().add(offset as usize) };
        Ok((allocation, host))
    }

    /// Copies `bytes` to the device. An empty slice succeeds at any address.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`] if the range is not inside one allocation.
    pub fn write(&self, pointer: DevicePointer, bytes: &[u8]) -> Result<(), MemoryError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let (_keep, host) = self.range(pointer, bytes.len())?;
        // SAFETY: the range was checked and is kept alive; the source is a Rust slice and cannot overlap it.
        unsafe { streaming::copy(bytes.as_ptr(), host, bytes.len()) }
        Ok(())
    }

    /// Copies from the device into `bytes`.
    ///
    /// # Errors
    /// The errors of [`write`](Self::write).
    pub fn read(&self, pointer: DevicePointer, bytes: &mut [u8]) -> Result<(), MemoryError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let (_keep, host) = self.range(pointer, bytes.len())?;
        // SAFETY: the range was checked and is kept alive; the target is a Rust slice and cannot overlap it.
        unsafe { streaming::copy(host, bytes.as_mut_ptr(), bytes.len()) }
        Ok(())
    }

    /// Copies `length` bytes from one range to another. The ranges may overlap.
    ///
    /// # Errors
    /// The errors of [`write`](Self::write).
    pub fn copy(&self, from: DevicePointer, to: DevicePointer, length: u64) -> Result<(), MemoryError> {
        if length == 0 {
            return Ok(());
        }
        let bytes = |pointer| usize::try_from(length).map_err(|_| MemoryError::OutOfBounds { pointer, length });
        let (_keep_source, source) = self.range(from, bytes(from)?)?;
        let (_keep_target, target) = self.range(to, bytes(to)?)?;
        // SAFETY: both ranges were checked and are kept alive; `copy` allows overlap.
        unsafe { std::ptr::copy(source, target, bytes(to)?) }
        Ok(())
    }

    /// Sets `length` bytes to `byte`.
    ///
    /// # Errors
    /// The errors of [`write`](Self::write).
    pub fn fill(&self, pointer: DevicePointer, byte: u8, length: u64) -> Result<(), MemoryError> {
        if length == 0 {
            return Ok(());
        }
        let length = usize::try_from(length).map_err(|_| MemoryError::OutOfBounds { pointer, length })?;
        let (_keep, host) = self.range(pointer, length)?;
        // SAFETY: the range was checked and is kept alive.
        unsafe { std::ptr::write_bytes(host, byte, length) }
        Ok(())
    }
}

/// Bytes that count in [`Memory::used`] until this is dropped.
#[derive(Debug)]
pub struct Reservation {
    used: Arc<AtomicU64>,
    counted: u64,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.used.fetch_sub(self.counted, Ordering::Relaxed);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.free_all();
    }
}
