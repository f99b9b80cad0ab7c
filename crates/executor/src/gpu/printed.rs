//! What kernels print. The driver writes it to the standard output of this process when it is asked for the end of their work.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};

/// Maximum bytes of text between two calls that wait; the rest is dropped, and counted in a last line.
const MAX_BYTES: usize = 1 << 20;

/// Standard output of this process, if it is kept: a file in memory whose read part is freed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Printed(Option<Arc<Mutex<Capture>>>);

#[derive(Debug)]
struct Capture {
    file: File,
    /// Bytes that were read.
    read: u64,
    /// Bytes up to which the memory beyond the limit was freed.
    trimmed: u64,
}

impl Printed {
    /// Keeps the standard output of this process from now on.
    ///
    /// # Errors
    /// When the system has no memory for it.
    pub(crate) fn keep() -> io::Result<Self> {
        let file = memfd_create("printed", MemfdFlags::CLOEXEC)?;
        rustix::stdio::dup2_stdout(&file)?;
        Ok(Self::of(File::from(file)))
    }

    /// Text in a file.
    fn of(file: File) -> Self {
        let (read, trimmed) = (0, 0);
        Self(Some(Arc::new(Mutex::new(Capture { file, read, trimmed }))))
    }

    /// Whether the standard output of this process is kept.
    pub(super) fn is_kept(&self) -> bool {
        self.0.is_some()
    }

    /// Frees the memory of text beyond the limit, while nothing takes it.
    pub(super) fn trim(&self) {
        let Some(capture) = &self.0 else { return };
        let mut capture = capture.lock();
        let start = capture.trimmed.max(capture.read + MAX_BYTES as u64);
        let end = capture.end();
        if end > start {
            capture.free(start, end - start);
            capture.trimmed = end;
        }
    }

    /// Removes and returns what was written.
    pub(super) fn take(&self) -> Vec<u8> {
        let Some(capture) = &self.0 else { return Vec::new() };
        // SAFETY: writes what the C library keeps of the standard output, through which drivers print.
        unsafe { libc::fflush(std::ptr::null_mut()) };
        let mut capture = capture.lock();
        let written = capture.end().saturating_sub(capture.read);
        let length = usize::try_from(written).unwrap_or(MAX_BYTES).min(MAX_BYTES);
        let mut text = vec![0; length];
        if length == 0 || capture.file.read_exact_at(&mut text, capture.read).is_err() {
            return Vec::new();
        }
        capture.free(capture.read, written);
        capture.read += written;
        let dropped = written - length as u64;
        if dropped > 0 {
            text.extend_from_slice(format!("\nprinted text dropped: {dropped} bytes (limit: {MAX_BYTES} bytes)\n").as_bytes());
        }
        text
    }
}

impl Capture {
    /// Bytes that were written.
    fn end(&self) -> u64 {
        self.file.metadata().map_or(0, |file| file.len())
    }

    /// Frees the memory of a part. The driver goes on at the end of the file, whose length therefore stays.
    fn free(&self, start: u64, bytes: u64) {
        // Without that, it is freed with the session.
        let _ = fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, start, bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn text_that_is_not_taken_has_limited_memory_and_is_counted() {
        let file = File::from(memfd_create("printed", MemfdFlags::CLOEXEC).unwrap());
        let printed = Printed::of(file.try_clone().unwrap());
        for round in 1..=2 {
            for _ in 0..8 {
                (&file).write_all(&vec![b'a'; MAX_BYTES / 2]).unwrap();
                printed.trim();
                let bytes = file.metadata().unwrap().blocks() * 512;
                assert!(bytes <= MAX_BYTES as u64 + (4 << 10), "{bytes} bytes of memory in round {round}");
            }
            let text = String::from_utf8(printed.take()).unwrap();
            let dropped = format!("\nprinted text dropped: {} bytes (limit: {MAX_BYTES} bytes)\n", 3 * MAX_BYTES);
            assert!(text.starts_with(&"a".repeat(MAX_BYTES)) && text[MAX_BYTES..] == dropped);
            assert_eq!(file.metadata().unwrap().blocks(), 0);
            assert!(printed.take().is_empty());
        }
    }
}
