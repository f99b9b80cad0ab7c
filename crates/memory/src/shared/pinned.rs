//! Pinned memory: page-locked memory of a CUDA program, within the memory that its process shares.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::Advice;

use super::{GRAIN_BYTES, SlotPool};

impl SlotPool {
    /// Allocates zeroed pinned memory, aligned to pages, which takes its memory at once. Returns `None` if there is no room.
    pub fn allocate_pinned(self: &Arc<Self>, bytes: usize) -> Option<PinnedMemory> {
        let whole = bytes.max(1).checked_next_multiple_of(GRAIN_BYTES as usize)?;
        let range = self.pinned.lock().allocate_range(whole).ok()?;
        let memory = PinnedMemory {
            pool: Arc::clone(self),
            range,
            bytes,
        };
        // Pages count for the process that touches them first: that must not be the executor.
        // SAFETY: whole pages of the mapping, which are zero and stay so.
        let populated = unsafe { rustix::mm::madvise(memory.start().as_ptr().cast(), whole, Advice::LinuxPopulateWrite) };
        populated.ok().map(|()| memory)
    }

    /// Offset of bytes of this process in the pinned memory, by which the executor finds them. Returns `None` if they are not all within it.
    pub fn pinned_offset(&self, start: *const u8, bytes: usize) -> Option<u64> {
        let first = self.memory.pinned(0, 0).as_ptr() as usize;
        let offset = (start as usize).checked_sub(first)?;
        (offset.checked_add(bytes)? <= self.memory.pinned_bytes).then_some(offset as u64)
    }
}

/// Pinned memory, which the executor can access. Dropping it returns its pages to the system; the executor must not use it any more then.
#[derive(Debug)]
pub struct PinnedMemory {
    pool: Arc<SlotPool>,
    range: Range<usize>,
    bytes: usize,
}

impl PinnedMemory {
    /// Address of the first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.pool.memory.pinned(self.range.start, self.bytes)
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        let start = self.pool.memory.pinned(self.range.start, self.range.len());
        // SAFETY: whole pages of the mapping, whose bytes are not used any more.
        let removed = unsafe { rustix::mm::madvise(start.as_ptr().cast(), self.range.len(), Advice::LinuxRemove) };
        // What is allocated there next must be zero.
        if removed.is_ok() {
            self.pool.pinned.lock().free_range(self.range.clone());
        }
    }
}
