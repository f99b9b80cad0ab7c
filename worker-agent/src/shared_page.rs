//! A few pages of memory that two processes share as 64-bit words, each read and written atomically.
//!
//! The memory is a sealed memfd: who has it can write nonsense into it, which harms nobody else who keeps to reading single
//! words, but cannot shrink it under the other's feet.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// The mapping of `WORDS` words. The file is kept open only where it must be passed on.
#[derive(Debug)]
pub(crate) struct SharedPage<const WORDS: usize> {
    words: NonNull<AtomicU64>,
}

// SAFETY: the mapping is shared memory that is only reached through atomics, and lives as long as the page.
unsafe impl<const WORDS: usize> Send for SharedPage<WORDS> {}
// SAFETY: as above.
unsafe impl<const WORDS: usize> Sync for SharedPage<WORDS> {}

impl<const WORDS: usize> SharedPage<WORDS> {
    const BYTES: usize = WORDS * size_of::<u64>();

    /// New memory, all zero, and its file. The name is for people who look into `/proc`.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn create(name: &str) -> std::io::Result<(Self, OwnedFd)> {
        let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, Self::BYTES as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Self::map(&file)?, file))
    }

    /// The memory in a file that [`SharedPage::create`] made.
    ///
    /// # Errors
    /// The system's; a file of another size, or one that can shrink.
    pub(crate) fn map(file: impl AsFd) -> std::io::Result<Self> {
        let is_sealed = rustix::fs::fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        if rustix::fs::fstat(&file)?.st_size != Self::BYTES as i64 || !is_sealed {
            return Err(std::io::Error::other("not a status board"));
        }
        // SAFETY: a new mapping where the kernel chooses; the file is sealed, so that its pages cannot go away.
        let pointer = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                Self::BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        let words = NonNull::new(pointer.cast()).ok_or_else(|| std::io::Error::other("mapped at null"))?;
        Ok(Self { words })
    }

    /// One word.
    ///
    /// # Panics
    /// When there is no such word.
    pub(crate) fn word(&self, place: usize) -> &AtomicU64 {
        assert!(place < WORDS, "word {place} of {WORDS}");
        // SAFETY: within the mapping, which is page-aligned and lives as long as self.
        unsafe { self.words.add(place).as_ref() }
    }
}

impl<const WORDS: usize> Drop for SharedPage<WORDS> {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length; no reference outlives self.
        let _ = unsafe { rustix::mm::munmap(self.words.as_ptr().cast(), Self::BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_can_shrink_or_has_another_size_is_refused() {
        let (_, file) = SharedPage::<512>::create("test").unwrap();
        assert!(SharedPage::<512>::map(&file).is_ok());
        assert!(SharedPage::<1024>::map(&file).is_err());
        let unsealed = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&unsealed, 4096).unwrap();
        assert!(SharedPage::<512>::map(&unsealed).is_err());
    }
}
