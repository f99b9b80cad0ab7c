//! Global memory of one device, which consists of allocations with device addresses.
//!
//! Every allocation is a separate zeroed block of host memory. Kernels access it at an address in a 62-bit space. Addresses are never
//! reused, and at least 256 unmapped bytes separate two allocations, so accesses past the end of an allocation, to freed memory or through
//! null are detected.
//!
//! **Races.** Kernels and the host may access the same bytes at the same time, as on a GPU. No Rust reference to these bytes ever exists:
//! they are accessed through raw pointers only. Each access copies plain bytes for which every bit pattern is valid, and accesses that a
//! kernel marks as atomic, volatile or ordered use host atomics. A racing program reads one of the values written, or a mix if an access is
//! wider than 8 bytes. It cannot corrupt the engine's own data, which is never stored in these blocks.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// Alignment of every allocation's device address, in bytes (as `cuMemAlloc`).
const ALIGNMENT: u64 = 256;
/// Lowest device address: far from null and from the windows of shared and local memory.
const FIRST_ADDRESS: u64 = 1 << 32;
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
}

/// Block of host memory with a device address.
#[derive(Debug)]
pub(crate) struct Allocation {
    /// First device address.
    pub(crate) start: u64,
    /// Length in bytes, as requested.
    pub(crate) bytes: u64,
    raw: NonNull<u8>,
    layout: Layout,
    /// `raw` aligned to a cache line, so that whole-register copies do not straddle lines.
    aligned: NonNull<u8>,
}

// SAFETY: the block is owned, and accessed through raw pointers only, under the rules in the module documentation.
unsafe impl Send for Allocation {}
// SAFETY: the block is owned, and accessed through raw pointers only, under the rules in the module documentation.
unsafe impl Sync for Allocation {}

impl Allocation {
    const LINE: usize = 64;

    fn new(start: u64, bytes: u64) -> Option<Self> {
        // `alloc_zeroed` with a small alignment is `calloc`, which returns fresh pages that are zeroed and untouched.
        let size = usize::try_from(bytes).ok()?.max(1).checked_add(Self::LINE)?;
        let layout = Layout::from_size_align(size, 16).ok()?;
        // SAFETY: the size is not zero.
        let raw = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let skip = raw.as_ptr().align_offset(Self::LINE);
        // SAFETY: `skip` is below LINE, which was added to the size.
        let aligned = unsafe { raw.add(skip) };
        Some(Self {
            start,
            bytes,
            raw,
            layout,
            aligned,
        })
    }

    /// Host address of the first byte.
    pub(crate) fn host(&self) -> *mut u8 {
        self.aligned.as_ptr()
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout; no other owner remains.
        unsafe { dealloc(self.raw.as_ptr(), self.layout) }
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
    used: AtomicU64,
    table: RwLock<Table>,
    heap: Heap,
}

/// Heap from which kernels allocate with `malloc`. Clones share it. Its allocations are in a [`Memory`], and are freed by `free` or
/// [`Heap::clear`], not when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Heap(Arc<Mutex<HeapState>>);

#[derive(Debug)]
struct HeapState {
    limit: u64,
    used: u64,
    allocations: HashMap<u64, u64>,
}

impl Default for Heap {
    fn default() -> Self {
        Self::new(HEAP_BYTES)
    }
}

impl Heap {
    /// Returns an empty heap of at most `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self(Arc::new(Mutex::new(HeapState {
            limit,
            used: 0,
            allocations: HashMap::new(),
        })))
    }

    fn state(&self) -> MutexGuard<'_, HeapState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Implements `malloc`. Returns `None` if the heap or the memory has no room.
    pub(crate) fn allocate(&self, memory: &Memory, bytes: u64) -> Option<DevicePointer> {
        let mut heap = self.state();
        let size = bytes.max(1).checked_next_multiple_of(ALIGNMENT)?;
        let used = heap.used.checked_add(size).filter(|used| *used <= heap.limit)?;
        let pointer = memory.allocate(bytes).ok()?;
        heap.used = used;
        heap.allocations.insert(pointer.0, size);
        Some(pointer)
    }

    /// Implements `free` of an address that `malloc` returned.
    pub(crate) fn free(&self, memory: &Memory, pointer: DevicePointer) -> Result<(), MemoryError> {
        let mut heap = self.state();
        let size = heap.allocations.remove(&pointer.0).ok_or(MemoryError::NotAllocated(pointer))?;
        heap.used -= size;
        memory.free(pointer)
    }

    /// Frees all allocations of the heap in `memory`, which must contain them.
    pub fn clear(&self, memory: &Memory) {
        let mut heap = self.state();
        heap.used = 0;
        for address in std::mem::take(&mut heap.allocations).into_keys() {
            // Cannot fail, because only the heap frees its allocations.
            let _ = memory.free(DevicePointer(address));
        }
    }
}

/// Default size of the device heap in bytes, as in CUDA.
pub const HEAP_BYTES: u64 = 8 << 20;

impl Memory {
    /// Returns a memory of at most `capacity` bytes. Host memory is used only as it is allocated and touched.
    pub fn new(capacity: u64) -> Self {
        Self {
            capacity,
            used: AtomicU64::new(0),
            table: RwLock::new(Table {
                allocations: BTreeMap::new(),
                next: FIRST_ADDRESS,
            }),
            heap: Heap::default(),
        }
    }

    /// Sets the maximum number of bytes that kernels may have allocated with `malloc` at a time, 8 MiB by default. They also count in
    /// [`used`](Self::used).
    pub fn set_heap_limit(&self, bytes: u64) {
        self.heap.state().limit = bytes;
    }

    /// Returns the heap of launches that do not set [`Launch::heap`](crate::Launch::heap).
    pub(crate) fn heap(&self) -> &Heap {
        &self.heap
    }

    /// Returns the capacity in bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the allocated bytes, with each allocation rounded up to a multiple of 256.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Allocates zeroed bytes at a 256-byte aligned address. An allocation of 0 bytes counts as 256 bytes.
    ///
    /// # Errors
    /// [`MemoryError::OutOfMemory`] beyond the capacity or the host's own memory, [`MemoryError::AddressesExhausted`] after 2^62 bytes of
    /// allocations.
    pub fn allocate(&self, bytes: u64) -> Result<DevicePointer, MemoryError> {
        let refused = |used: u64| MemoryError::OutOfMemory {
            requested: bytes,
            available: self.capacity.saturating_sub(used),
            capacity: self.capacity,
        };
        let size = bytes
            .max(1)
            .checked_next_multiple_of(ALIGNMENT)
            .ok_or_else(|| refused(self.used()))?;
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(size).filter(|total| *total <= self.capacity)
            })
            .map_err(refused)?;
        let release = |error: MemoryError| {
            self.used.fetch_sub(size, Ordering::Relaxed);
            error
        };
        let start = {
            let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
            let start = table.next;
            let end = start
                .checked_add(size)
                .and_then(|end| end.checked_add(ALIGNMENT))
                .filter(|end| *end < LAST_ADDRESS);
            table.next = end.ok_or_else(|| release(MemoryError::AddressesExhausted))?;
            start
        };
        let allocation = Allocation::new(start, bytes).ok_or_else(|| release(refused(self.used())))?;
        self.table
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .allocations
            .insert(start, Arc::new(allocation));
        Ok(DevicePointer(start))
    }

    /// Frees an allocation.
    ///
    /// # Errors
    /// [`MemoryError::NotAllocated`] if [`allocate`](Self::allocate) did not return `pointer`, or if it was already freed.
    pub fn free(&self, pointer: DevicePointer) -> Result<(), MemoryError> {
        let removed = self
            .table
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .allocations
            .remove(&pointer.0);
        let allocation = removed.ok_or(MemoryError::NotAllocated(pointer))?;
        self.used
            .fetch_sub(allocation.bytes.max(1).next_multiple_of(ALIGNMENT), Ordering::Relaxed);
        Ok(())
    }

    /// Finds the allocation that contains `address`, or that ends right before it.
    pub(crate) fn find(&self, address: u64) -> Option<Arc<Allocation>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
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
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), host, bytes.len()) }
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
        unsafe { std::ptr::copy_nonoverlapping(host, bytes.as_mut_ptr(), bytes.len()) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_are_zeroed_aligned_and_counted() {
        let memory = Memory::new(4096);
        let pointer = memory.allocate(1000).expect("fits");
        assert_ne!(pointer.0, 0);
        assert_eq!(pointer.0 % 256, 0);
        assert_eq!(memory.used(), 1024);
        let mut bytes = vec![1; 1000];
        memory.read(pointer, &mut bytes).expect("reads");
        assert!(bytes.iter().all(|byte| *byte == 0));
        memory.free(pointer).expect("frees");
        assert_eq!(memory.used(), 0);
        assert_eq!(memory.free(pointer), Err(MemoryError::NotAllocated(pointer)));
    }

    #[test]
    fn capacity_is_a_hard_limit() {
        let memory = Memory::new(1024);
        assert!(memory.allocate(1025).is_err());
        let first = memory.allocate(512).expect("fits");
        assert!(matches!(memory.allocate(513), Err(MemoryError::OutOfMemory { available: 512, .. })));
        memory.allocate(512).expect("fits");
        memory.free(first).expect("frees");
        memory.allocate(1).expect("fits again");
        assert!(memory.allocate(u64::MAX).is_err());
    }

    #[test]
    fn ranges_stay_inside_one_allocation() {
        let memory = Memory::new(1 << 20);
        let first = memory.allocate(100).expect("fits");
        let second = memory.allocate(100).expect("fits");
        assert!(second.0 >= first.0 + 512, "a gap lies between allocations");
        memory.write(first.offset(96), &[1, 2, 3, 4]).expect("inside");
        assert!(memory.write(first.offset(97), &[1, 2, 3, 4]).is_err());
        assert!(memory.read(DevicePointer(0), &mut [0]).is_err());
        memory.fill(first, 7, 100).expect("inside");
        assert!(memory.fill(first, 7, 101).is_err());
        let mut bytes = [0; 2];
        memory.read(first.offset(98), &mut bytes).expect("inside");
        assert_eq!(bytes, [7, 7]);
    }
}
