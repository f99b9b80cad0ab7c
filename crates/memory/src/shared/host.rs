//! Host memory of a client's program within the memory that it shares.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::Advice;

use super::{GRAIN_BYTES, SlotPool};

impl SlotPool {
    /// Allocates zeroed host memory, aligned to pages. Returns `None` if there is no room.
    pub fn allocate_host(self: &Arc<Self>, bytes: usize) -> Option<HostMemory> {
        let whole = bytes.max(1).checked_next_multiple_of(GRAIN_BYTES as usize)?;
        let range = self.host.lock().allocate_range(whole).ok()?;
        Some(HostMemory {
            pool: Arc::clone(self),
            range,
            bytes,
        })
    }

    /// Offset of bytes of this process in the host memory, by which the executor finds them. Returns `None` if they are not all within it.
    pub fn host_offset(&self, start: *const u8, bytes: usize) -> Option<u64> {
        let first = self.memory.host(0, 0).as_ptr() as usize;
        let offset = (start as usize).checked_sub(first)?;
        (offset.checked_add(bytes)? <= self.memory.host_bytes).then_some(offset as u64)
    }
}

/// Host memory that the executor can access. Dropping it returns its pages to the system; the executor must not use it any more then.
#[derive(Debug)]
pub struct HostMemory {
    pool: Arc<SlotPool>,
    range: Range<usize>,
    bytes: usize,
}

impl HostMemory {
    /// Address of the first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.pool.memory.host(self.range.start, self.bytes)
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        let start = self.pool.memory.host(self.range.start, self.range.len());
        // SAFETY: whole pages of the mapping, of which nobody uses the bytes any more.
        let removed = unsafe { rustix::mm::madvise(start.as_ptr().cast(), self.range.len(), Advice::LinuxRemove) };
        // What is allocated there next must be zero.
        if removed.is_ok() {
            self.pool.host.lock().free_range(self.range.clone());
        }
    }
}
