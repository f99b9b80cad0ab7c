//! The heap from which kernels allocate.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::{ALIGNMENT, DevicePointer, Memory, MemoryError};

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

    pub(super) fn set_limit(&self, bytes: u64) {
        self.state().limit = bytes;
    }

    fn state(&self) -> MutexGuard<'_, HeapState> {
        self.0.lock()
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
