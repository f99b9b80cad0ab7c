//! Streams of a GPU: each is the sequence of one lane's copies and launches.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys;

use super::Context;
use super::driver::check;
use super::memory::Pinned;
use crate::device::DeviceError;

/// Size of a stream's pinned memory for each direction, in bytes. Larger copies are split.
pub(super) const STAGING: usize = 256 << 10;
/// Number of parameter pointers passed to a launch, initially all to `ZEROS`. A kernel's parameters fit 4 KiB before PTX ISA 8.1 and 32,764
/// bytes since. A kernel that declares more parameters than it is given reads zeros instead of memory beyond the array of pointers.
const MAX_PARAMETERS: usize = 4096;
pub(super) static ZEROS: [u8; 32 << 10] = [0; 32 << 10];

/// A stream, and pinned memory for its copies.
#[derive(Debug)]
pub(crate) struct CudaStream {
    pub(super) context: Arc<Context>,
    pub(super) stream: sys::CUstream,
    pub(super) upload: Pinned,
    /// Number of bytes of `upload` from which copies may be in progress.
    pub(super) uploading: usize,
    pub(super) download: Pinned,
    pub(super) parameters: Vec<*mut c_void>,
}

// SAFETY: used by one thread at a time, which makes the context current first.
unsafe impl Send for CudaStream {}

impl CudaStream {
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
            parameters: vec![ZEROS.as_ptr().cast_mut().cast(); MAX_PARAMETERS],
        })
    }

    /// Waits for all work on the stream.
    pub(super) fn synchronise(&mut self) -> Result<(), DeviceError> {
        // SAFETY: the stream belongs to `self`.
        unsafe { check("cuStreamSynchronize", sys::cuStreamSynchronize(self.stream))? };
        self.uploading = 0;
        Ok(())
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: created by `new` and destroyed once. Copies from and to the pinned memory end before it is freed.
            unsafe {
                let _ = sys::cuStreamSynchronize(self.stream);
                let _ = sys::cuStreamDestroy_v2(self.stream);
            }
        }
    }
}
