//! Events. Their handles are the driver's.

use std::ffi::c_uint;

use crate::boundary::{Handle, Out};
use crate::{context, exports};

exports! {
    fn cudaEventCreate(event: Out<Handle>) {
        event.require()?;
        context::ready()?.cuEventCreate(event, 0)
    }

    fn cudaEventCreateWithFlags(event: Out<Handle>, flags: c_uint) {
        event.require()?;
        context::ready()?.cuEventCreate(event, flags)
    }

    fn cudaEventRecord(event: Handle, stream: Handle) {
        context::ready()?.cuEventRecord(event, stream)
    }

    fn cudaEventRecordWithFlags(event: Handle, stream: Handle, flags: c_uint) {
        context::ready()?.cuEventRecordWithFlags(event, stream, flags)
    }

    fn cudaEventQuery(event: Handle) {
        context::ready()?.cuEventQuery(event)
    }

    fn cudaEventSynchronize(event: Handle) {
        context::ready()?.cuEventSynchronize(event)
    }

    fn cudaEventDestroy(event: Handle) {
        context::ready()?.cuEventDestroy_v2(event)
    }

    fn cudaEventElapsedTime(milliseconds: Out<f32>, start: Handle, end: Handle) {
        milliseconds.require()?;
        context::ready()?.cuEventElapsedTime(milliseconds, start, end)
    }
}
