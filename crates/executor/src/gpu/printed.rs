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
}

impl Printed {
    /// Keeps the standard output of this process from now on.
    ///
    /// # Errors
    /// When the system has no memory for it.
    pub(crate) fn keep() -> io::Result<Self> {
        let file = memfd_create("printed", MemfdFlags::CLOEXEC)?;
        rustix::stdio::dup2_stdout(&file)?;
        let capture = Capture {
            file: File::from(file),
            read: 0,
        };
        Ok(Self(Some(Arc::new(Mutex::new(capture)))))
    }

    /// Removes and returns what was written.
    pub(super) fn take(&self) -> Vec<u8> {
        let Some(capture) = &self.0 else { return Vec::new() };
        // SAFETY: writes what the C library keeps of the standard output, through which drivers print.
        unsafe { libc::fflush(std::ptr::null_mut()) };
        let mut capture = capture.lock();
        let end = capture.file.metadata().map_or(0, |file| file.len());
        let written = end.saturating_sub(capture.read);
        let length = usize::try_from(written).unwrap_or(MAX_BYTES).min(MAX_BYTES);
        let mut text = vec![0; length];
        if length == 0 || capture.file.read_exact_at(&mut text, capture.read).is_err() {
            return Vec::new();
        }
        // The driver goes on at the end of the file, so that only its memory can be freed. Without that, it is freed with the session.
        let _ = fallocate(
            &capture.file,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            capture.read,
            written,
        );
        capture.read += written;
        let dropped = written - length as u64;
        if dropped > 0 {
            text.extend_from_slice(format!("\nprinted text dropped: {dropped} bytes (limit: {MAX_BYTES} bytes)\n").as_bytes());
        }
        text
    }
}
