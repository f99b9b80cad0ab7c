//! Large pieces of memory that were used and are not: the next tensor of the same size takes one, whose pages are there already.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Most bytes that lie unused. They are the system's to take: this bounds what a process seems to have.
const MOST_BYTES: usize = 512 << 20;
/// Sizes are multiples of it: what the system counts memory in, at most.
const GRAIN_BYTES: usize = 64 << 10;
/// A huge page of most machines. What fills whole ones is asked for in them.
const HUGE_BYTES: usize = 2 << 20;

static POOL: Mutex<Pool> = Mutex::new(Pool {
    unused: VecDeque::new(),
    bytes: 0,
});

struct Pool {
    /// The one that was used last is at the end.
    unused: VecDeque<Mapping>,
    bytes: usize,
}

/// Memory of the system's.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: *mut c_void,
    bytes: usize,
}

// SAFETY: the mapping is the only owner of its address.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(bytes: usize) -> Option<Self> {
        // What is before the first huge page goes back.
        let more = if bytes >= HUGE_BYTES { HUGE_BYTES } else { 0 };
        let all = bytes.checked_add(more)?;
        // SAFETY: new memory, wherever the system likes.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), all, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }.ok()?;
        let before = if more > 0 { start.align_offset(HUGE_BYTES) } else { 0 };
        let kept = start.wrapping_byte_add(before);
        // SAFETY: whole pages of the mapping before and behind what is kept; that they stay mapped costs addresses and nothing else.
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

    /// Advice: that it is not taken costs time and nothing else. No more than what is used is taken.
    fn advise_huge(&self) {
        #[cfg(target_os = "linux")]
        if self.bytes >= HUGE_BYTES {
            let whole = self.bytes / HUGE_BYTES * HUGE_BYTES;
            // SAFETY: pages of this mapping, of whose content nothing changes.
            let _ = unsafe { rustix::mm::madvise(self.start, whole, rustix::mm::Advice::LinuxHugepage) };
        }
    }

    /// Nothing in it is needed: the system may take its pages when it needs them, until they are written to again.
    fn release(&self) {
        #[cfg(target_os = "linux")]
        {
            // SAFETY: there are no references to the memory, so that it may become zeros at any time.
            let _ = unsafe { rustix::mm::madvise(self.start, self.bytes, rustix::mm::Advice::LinuxFree) };
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: there are no references to the memory. It was mapped: this does not fail.
        let _ = unsafe { munmap(self.start, self.bytes) };
    }
}

/// Memory for so many bytes, with anything in it.
pub(crate) fn take(bytes: usize) -> Option<Mapping> {
    let bytes = bytes.checked_next_multiple_of(GRAIN_BYTES)?;
    let used_before = {
        let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
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
        // There may be a limit to which what lies here counts.
        let unused = {
            let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
            pool.bytes = 0;
            std::mem::take(&mut pool.unused)
        };
        drop(unused);
        Mapping::new(bytes)
    })
}

/// Returns a mapping without references to the pool.
pub(crate) fn give(mapping: Mapping) {
    if mapping.bytes > MOST_BYTES {
        return;
    }
    mapping.release();
    let mut surplus = Vec::new();
    {
        let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        pool.bytes += mapping.bytes;
        pool.unused.push_back(mapping);
        while pool.bytes > MOST_BYTES
            && let Some(oldest) = pool.unused.pop_front()
        {
            pool.bytes -= oldest.bytes;
            surplus.push(oldest);
        }
    }
    // To unmap takes a while.
    drop(surplus);
}

#[cfg(test)]
pub(crate) fn unused_bytes() -> usize {
    POOL.lock().unwrap().bytes
}

#[cfg(test)]
pub(crate) const fn most_bytes() -> usize {
    MOST_BYTES
}
