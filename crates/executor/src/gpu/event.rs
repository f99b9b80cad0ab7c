//! Events of the driver.

use std::time::Duration;

use cudarc::driver::sys::{self, CUresult};
use sahasra_cuda_device::Failure;

use super::outcome::check;

/// An event of the context that was current when it was made. It ends with its context at the latest.
#[derive(Debug)]
pub(super) struct Event(sys::CUevent);

// SAFETY: an event may be used by any thread in which its context is current; the driver locks.
unsafe impl Send for Event {}

impl Event {
    /// Makes an event in the current context.
    pub(super) fn new() -> Result<Self, Failure> {
        let mut event = std::ptr::null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32;
        // SAFETY: the driver writes a handle.
        unsafe { check("cuEventCreate", sys::cuEventCreate(&mut event, flags))? };
        Ok(Self(event))
    }

    pub(super) fn record(&self, stream: sys::CUstream) -> Result<(), Failure> {
        // SAFETY: event and stream are of the current context.
        unsafe { check("cuEventRecord", sys::cuEventRecord(self.0, stream)) }
    }

    /// Whether everything before the event has ended.
    ///
    /// # Errors
    /// The fault of a kernel.
    pub(super) fn is_done(&self) -> Result<bool, CUresult> {
        // SAFETY: the event was recorded in the current context.
        match unsafe { sys::cuEventQuery(self.0) } {
            CUresult::CUDA_SUCCESS => Ok(true),
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            failed => Err(failed),
        }
    }

    /// Lets the driver write what kernels printed before the event, which has ended.
    pub(super) fn flush(&self) {
        // SAFETY: the event was recorded in the current context. Faults were reported when it had ended.
        let _ = unsafe { sys::cuEventSynchronize(self.0) };
    }

    /// Time since another event.
    pub(super) fn since(&self, earlier: &Self) -> Result<Duration, Failure> {
        let mut milliseconds = 0f32;
        // SAFETY: both events are of the current context and have ended; the driver writes a number.
        unsafe { check("cuEventElapsedTime", sys::cuEventElapsedTime(&mut milliseconds, earlier.0, self.0))? };
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1000.0))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made by `new` and destroyed once, by a thread in which its context is current.
        let _ = unsafe { sys::cuEventDestroy_v2(self.0) };
    }
}
