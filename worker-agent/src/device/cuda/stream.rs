//! The order in which a lane's copies and launches happen.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys;

use super::Context;
use super::driver::check;
use super::memory::Pinned;
use crate::device::DeviceError;

/// Pinned memory of a stream for each direction, in bytes: larger copies go in pieces.
pub(super) const STAGING: usize = 256 << 10;
/// A kernel's parameters fit 4 KiB before PTX ISA 8.1 and 32,764 bytes since: a kernel that declares more than it is given
/// reads zeros from here, where it would otherwise read what lies beyond the array of pointers.
const MOST_PARAMETERS: usize = 4096;
pub(super) static ZEROS: [u8; 32 << 10] = [0; 32 << 10];

/// A stream, and pinned memory for its copies.
#[derive(Debug)]
pub struct CudaStream {
    pub(super) context: Arc<Context>,
    pub(super) stream: sys::CUstream,
    pub(super) upload: Pinned,
    /// Bytes of `upload` from which copies may be under way.
    pub(super) uploading: usize,
    pub(super) download: Pinned,
    pub(super) parameters: Vec<*mut c_void>,
}

// SAFETY: used by one thread at a time, which makes the context current first.
unsafe impl Send for CudaStream {}

impl CudaStream {
    /// A new one.
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, DeviceError> {
        context.enter()?;
        let mut stream = std::ptr::null_mut();
        // SAFETY: the driver writes a handle.
        unsafe {
            check(
                "cuStreamCreate",
                sys::cuStreamCreate(&mut stream, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32),
            )?
        };
        Ok(Self {
            context: Arc::clone(context),
            stream,
            upload: Pinned::new(STAGING)?,
            uploading: 0,
            download: Pinned::new(STAGING)?,
            parameters: vec![ZEROS.as_ptr().cast_mut().cast(); MOST_PARAMETERS],
        })
    }

    /// Waits for all that was put on it.
    pub(super) fn synchronise(&mut self) -> Result<(), DeviceError> {
        // SAFETY: the stream is this one's.
        unsafe { check("cuStreamSynchronize", sys::cuStreamSynchronize(self.stream))? };
        self.uploading = 0;
        Ok(())
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: made by `stream` and destroyed once. Copies from and to the pinned memory have ended before.
            unsafe {
                let _ = sys::cuStreamSynchronize(self.stream);
                let _ = sys::cuStreamDestroy_v2(self.stream);
            }
        }
    }
}
