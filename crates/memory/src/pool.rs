//! Pool of large mappings that are not in use. The next tensor of the same size takes a mapping from the pool, whose pages are already
//! present.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::ptr;

use parking_lot::Mutex;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Maximum size of the pool in bytes. The system may reclaim this memory anyway; the limit bounds the apparent memory usage of the process.
const MAX_BYTES: usize = 512 << 20;
/// Size in bytes of which all mappings are multiples: the largest page size of common systems.
const GRAIN_BYTES: usize = 64 << 10;
/// Size of a huge page on most machines, in bytes. Mappings of at least this size request huge pages.
const HUGE_BYTES: usize = 2 << 20;

static POOL: Mutex<Pool> = Mutex::new(Pool {
    unused: VecDeque::new(),
    bytes: 0,
});

struct Pool {
    /// Unused mappings; the most recently used one is the last.
    unused: VecDeque<Mapping>,
    bytes: usize,
}

#[derive(Debug)]
pub(crate) struct Mapping {
    start: *mut c_void,
    bytes: usize,
}

// SAFETY: The mapping is the only owner of its address.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(bytes: usize) -> Option<Self> {
        // The part before the first huge page boundary is unmapped again.
        let more = if bytes >= HUGE_BYTES { HUGE_BYTES } else { 0 };
        let all = bytes.checked_add(more)?;
        // SAFETY: A new mapping at an address that the system chooses.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), all, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }.ok()?;
        let before = if more > 0 { start.align_offset(HUGE_BYTES) } else { 0 };
        let kept = start.wrapping_byte_add(before);
        // SAFETY: The unmapped ranges are whole pages of the new mapping, before and after the part that is kept. If a call fails, the
        // pages only waste address space.
        unsafe {
            if before > 0 {
                let _ = munmap(start, before);
            }
            if more > before {
                let _ = munmap(kept.wrapping_byte_add(bytes), more - before);
            }
        }
        let mapping = Self { start: kept, bytes };
        mapping.advise_huge();
        Some(mapping)
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start.cast()
    }

    /// Requests huge pages for the whole huge pages of the mapping. If the system ignores the advice, access is only slower.
    fn advise_huge(&self) {
        #[cfg(target_os = "linux")]
        if self.bytes >= HUGE_BYTES {
            let whole = self.bytes / HUGE_BYTES * HUGE_BYTES;
            // SAFETY: The range consists of pages of this mapping, whose content does not change.
            let _ = unsafe { rustix::mm::madvise(self.start, whole, rustix::mm::Advice::LinuxHugepage) };
        }
    }

    /// Marks the content as unneeded. The system may reclaim the pages until they are written again.
    fn release(&self) {
        #[cfg(target_os = "linux")]
        {
            // SAFETY: There are no references to the memory, so it may become zero at any time.
            let _ = unsafe { rustix::mm::madvise(self.start, self.bytes, rustix::mm::Advice::LinuxFree) };
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: There are no references to the memory. It is mapped, so this does not fail.
        let _ = unsafe { munmap(self.start, self.bytes) };
    }
}

/// Returns a mapping of at least `bytes` bytes with arbitrary content, or `None` if the system provides no memory.
pub(crate) fn take(bytes: usize) -> Option<Mapping> {
    let bytes = bytes.checked_next_multiple_of(GRAIN_BYTES)?;
    let used_before = {
        let mut pool = POOL.lock();
        let place = pool.unused.iter().rposition(|mapping| mapping.bytes == bytes);
        let mapping = place.and_then(|place| pool.unused.remove(place));
        if mapping.is_some() {
            pool.bytes -= bytes;
        }
        mapping
    };
    if used_before.is_some() {
        return used_before;
    }
    Mapping::new(bytes).or_else(|| {
        // There may be a limit that includes the mappings in the pool.
        let unused = {
            let mut pool = POOL.lock();
            pool.bytes = 0;
            std::mem::take(&mut pool.unused)
        };
        drop(unused);
        Mapping::new(bytes)
    })
}

/// Returns a mapping to which no references exist to the pool.
pub(crate) fn give(mapping: Mapping) {
    if mapping.bytes > MAX_BYTES {
        return;
    }
    mapping.release();
    let mut surplus = Vec::new();
    {
        let mut pool = POOL.lock();
        pool.bytes += mapping.bytes;
        pool.unused.push_back(mapping);
        while pool.bytes > MAX_BYTES
            && let Some(oldest) = pool.unused.pop_front()
        {
            pool.bytes -= oldest.bytes;
            surplus.push(oldest);
        }
    }
    // Unmapping takes time, so it happens after the lock was released.
    drop(surplus);
}

#[cfg(test)]
pub(crate) fn unused_bytes() -> usize {
    POOL.lock().bytes
}

#[cfg(test)]
pub(crate) const fn most_bytes() -> usize {
    MAX_BYTES
}
