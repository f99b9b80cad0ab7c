//! Memory on the GPU, and pinned host memory through which copies go.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys;

use super::Context;
use super::driver::check;
use crate::device::{ALIGNMENT, DeviceError, rounded_bytes};

/// Parts in one allocation of device memory, each at a multiple of [`ALIGNMENT`].
#[derive(Debug)]
pub(crate) struct CudaArea {
    context: Arc<Context>,
    used: Arc<AtomicU64>,
    pub(super) base: sys::CUdeviceptr,
    bytes: u64,
    /// Offset and size in bytes of each part.
    pub(super) parts: Vec<(u64, u64)>,
}

impl CudaArea {
    pub(super) fn allocate(context: &Arc<Context>, used: &Arc<AtomicU64>, parts: &[u64]) -> Result<Self, DeviceError> {
        context.enter()?;
        let bytes = rounded_bytes(parts);
        let size = usize::try_from(bytes).map_err(|_| DeviceError::OutOfMemory(format!("{bytes} bytes")))?;
        let mut base = 0;
        if size > 0 {
            // SAFETY: the context is current; the driver writes an address.
            unsafe { check("cuMemAlloc", sys::cuMemAlloc_v2(&mut base, size))? };
        }
        used.fetch_add(bytes, Ordering::Relaxed);
        let mut offset = 0;
        let placed = parts.iter().map(|part| {
            let at = offset;
            offset += (*part).max(1).next_multiple_of(ALIGNMENT);
            (at, *part)
        });
        let area = Self {
            context: Arc::clone(context),
            used: Arc::clone(used),
            base,
            bytes,
            parts: placed.collect(),
        };
        if size > 0 {
            // SAFETY: the range was allocated above. Waits for the device, because other streams may use the range immediately.
            unsafe {
                check("cuMemsetD8", sys::cuMemsetD8_v2(base, 0, size))?;
                check("cuStreamSynchronize", sys::cuStreamSynchronize(std::ptr::null_mut()))?;
            }
        }
        Ok(area)
    }

    pub(super) fn address(&self, part: usize) -> u64 {
        self.base + self.parts[part].0
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes as usize
    }
}

impl Drop for CudaArea {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
        if self.base != 0 && self.context.enter().is_ok() {
            // SAFETY: allocated by this area and freed once. In a poisoned context the call fails, which is harmless because the process
            // ends anyway.
            let _ = unsafe { sys::cuMemFree_v2(self.base) };
        }
    }
}

/// Page-locked host memory: asynchronous copies of other memory would block.
#[derive(Debug)]
pub(crate) struct Pinned {
    pub(super) pointer: *mut u8,
    pub(super) length: usize,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Allocates `length` zeroed bytes in the current context.
    pub(super) fn new(length: usize) -> Result<Self, DeviceError> {
        let mut pointer = std::ptr::null_mut();
        // SAFETY: the driver writes an address of `length` bytes of host memory.
        unsafe { check("cuMemHostAlloc", sys::cuMemHostAlloc(&mut pointer, length, 0))? };
        let pinned = Self {
            pointer: pointer.cast(),
            length,
        };
        // SAFETY: just allocated with this length. Zeroed because this tenant must not see previous content of these pages.
        unsafe { pinned.pointer.write_bytes(0, length) };
        Ok(pinned)
    }

    /// The first `length` bytes. No copy into them may be in progress.
    pub(super) fn bytes(&self, length: usize) -> &[u8] {
        assert!(length <= self.length);
        // SAFETY: within the allocation, which `new` initialised.
        unsafe { std::slice::from_raw_parts(self.pointer, length) }
    }

    /// Copies bytes to an offset. No copy from the target range may be in progress.
    pub(super) fn put(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.length);
        // SAFETY: within the allocation, which no Rust slice overlaps.
        unsafe { self.pointer.add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` and freed once.
        let _ = unsafe { sys::cuMemFreeHost(self.pointer.cast()) };
    }
}
