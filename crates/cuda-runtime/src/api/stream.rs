//! Streams. Their handles are the driver's, so that programs may use both APIs.

use std::ffi::{c_int, c_uint};

use crate::boundary::{Handle, Out, Pointer};
use crate::{Error, context, exports};

fn create(stream: Out<Handle>, flags: c_uint, priority: c_int) -> Result<(), Error> {
    stream.require()?;
    context::ready()?.cuStreamCreateWithPriority(stream, flags, priority)
}

exports! {
    fn cudaStreamCreate(stream: Out<Handle>) {
        create(stream, 0, 0)
    }

    fn cudaStreamCreateWithFlags(stream: Out<Handle>, flags: c_uint) {
        create(stream, flags, 0)
    }

    fn cudaStreamCreateWithPriority(stream: Out<Handle>, flags: c_uint, priority: c_int) {
        create(stream, flags, priority)
    }

    fn cudaStreamDestroy(stream: Handle) {
        context::ready()?.cuStreamDestroy_v2(stream)
    }

    fn cudaStreamSynchronize(stream: Handle) {
        context::ready()?.cuStreamSynchronize(stream)
    }

    fn cudaStreamQuery(stream: Handle) {
        context::ready()?.cuStreamQuery(stream)
    }

    fn cudaStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint) {
        context::ready()?.cuStreamWaitEvent(stream, event, flags)
    }

    fn cudaStreamGetFlags(stream: Handle, flags: Out<c_uint>) {
        context::ready()?.cuStreamGetFlags(stream, flags)
    }

    fn cudaStreamGetPriority(stream: Handle, priority: Out<c_int>) {
        context::ready()?.cuStreamGetPriority(stream, priority)
    }

    fn cudaStreamGetId(stream: Handle, id: Out<u64>) {
        context::ready()?.cuStreamGetId(stream, id)
    }

    fn cudaStreamGetDevice(stream: Handle, device: Out<c_int>) {
        context::ready()?.cuStreamGetDevice(stream, device)
    }

    /// The callback gets an error code of the driver API, which is the same number.
    fn cudaStreamAddCallback(stream: Handle, callback: Pointer, data: Pointer, flags: c_uint) {
        context::ready()?.cuStreamAddCallback(stream, callback, data, flags)
    }

    fn cudaLaunchHostFunc(stream: Handle, function: Pointer, data: Pointer) {
        context::ready()?.cuLaunchHostFunc(stream, function, data)
    }

    fn cudaStreamAttachMemAsync(stream: Handle, address: u64, bytes: usize, flags: c_uint) {
        context::ready()?.cuStreamAttachMemAsync(stream, address, bytes, flags)
    }

    fn cudaStreamCopyAttributes(to: Handle, from: Handle) {
        context::ready()?.cuStreamCopyAttributes(to, from)
    }

    fn cudaStreamGetAttribute(stream: Handle, attribute: c_uint, value: Pointer) {
        context::ready()?.cuStreamGetAttribute(stream, attribute, value)
    }

    fn cudaStreamSetAttribute(stream: Handle, attribute: c_uint, value: Pointer) {
        context::ready()?.cuStreamSetAttribute(stream, attribute, value)
    }
}
