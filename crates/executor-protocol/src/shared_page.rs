//! A few pages of memory that two processes share as 64-bit words, each read and written atomically.
//!
//! The memory is a sealed memfd. Either process can write invalid values, which does no harm to a reader that treats each word on its own,
//! but neither can shrink the memory while the other has mapped it.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// Mapping of `WORDS` words. The file is kept open only where it must be passed to another process.
#[derive(Debug)]
pub(crate) struct SharedPage<const WORDS: usize> {
    words: NonNull<AtomicU64>,
}

// SAFETY: the mapping is shared memory that is accessed only through atomics, and it lives as long as the page.
unsafe impl<const WORDS: usize> Send for SharedPage<WORDS> {}
// SAFETY: as above.
unsafe impl<const WORDS: usize> Sync for SharedPage<WORDS> {}

impl<const WORDS: usize> SharedPage<WORDS> {
    const BYTES: usize = WORDS * size_of::<u64>();

    /// Creates zeroed memory. Returns its mapping and its file. The name is shown in `/proc`.
    pub(crate) fn create(name: &str) -> std::io::Result<(Self, OwnedFd)> {
        let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, Self::BYTES as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Self::map(&file)?, file))
    }

    /// Maps the memory of a file that [`SharedPage::create`] made.
    ///
    /// # Errors
    /// Errors of the system calls; a file of another size, or one that can be shrunk.
    pub(crate) fn map(file: impl AsFd) -> std::io::Result<Self> {
        let is_sealed = rustix::fs::fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        if rustix::fs::fstat(&file)?.st_size != Self::BYTES as i64 || !is_sealed {
            return Err(std::io::Error::other("not a status page"));
        }
        // SAFETY: a new mapping at an address that the kernel chooses; the file is sealed, so its pages cannot disappear.
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
        let words = NonNull::new(pointer.cast()).ok_or_else(|| std::io::Error::other("failed to map the status page: null address"))?;
        Ok(Self { words })
    }

    /// The word with index `place`.
    ///
    /// # Panics
    /// If `place` is not below `WORDS`.
    pub(crate) fn word(&self, place: usize) -> &AtomicU64 {
        assert!(place < WORDS, "word {place} of {WORDS}");
        // SAFETY: the address is within the mapping, which is page-aligned and lives as long as `self`.
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
