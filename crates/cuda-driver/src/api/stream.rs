//! Streams.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use crate::boundary::{Handle, HostPointer, In, Out};
use crate::current;
use crate::driver;
use crate::lane::Lane;
use crate::status::Status;
use crate::stream::Stream;

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;

fn create(out: Out<Handle>, flags: c_uint, priority: c_int) -> Result<(), Status> {
    out.require()?;
    driver::get()?;
    if flags & !NON_BLOCKING != 0 {
        return Err(Status::INVALID_VALUE);
    }
    let stream = Stream::create(&current::context()?, flags, priority)?;
    let handle = stream.handle;
    driver::get()?.streams.insert(handle, Arc::new(stream));
    out.set(handle)
}

fn destroy(stream: Handle) -> Result<(), Status> {
    driver::get()?.streams.remove(stream).map(|_| ())
}

fn capture(stream: Handle, status: Out<c_uint>, id: Out<u64>) -> Result<(), Status> {
    Lane::of(stream)?;
    status.set(0)?;
    id.set_if_wanted(0);
    Ok(())
}

exports! {
    fn cuStreamCreate(stream: Out<Handle>, flags: c_uint) {
        create(stream, flags, 0)
    }

    fn cuStreamCreateWithPriority(stream: Out<Handle>, flags: c_uint, priority: c_int) {
        create(stream, flags, priority.clamp(-5, 0))
    }

    fn cuStreamDestroy(stream: Handle) {
        destroy(stream)
    }

    fn cuStreamDestroy_v2(stream: Handle) {
        destroy(stream)
    }

    fn cuStreamSynchronize(stream: Handle) {
        Lane::of(stream)?.wait()
    }

    fn cuStreamQuery(stream: Handle) {
        if Lane::of(stream)?.is_done()? { Ok(()) } else { Err(Status::NOT_READY) }
    }

    /// What was recorded runs before what follows here: both are in one queue, or the event's context is waited for.
    fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) {
        let lane = Lane::of(stream)?;
        let event = driver::get()?.events.get(event)?;
        if event.context_id != lane.context.id {
            event.wait()?;
        }
        lane.context.check()
    }

    fn cuStreamGetFlags(stream: Handle, flags: Out<c_uint>) {
        flags.set(Lane::of(stream)?.stream.map_or(0, |stream| stream.flags))
    }

    fn cuStreamGetPriority(stream: Handle, priority: Out<c_int>) {
        priority.set(Lane::of(stream)?.stream.map_or(0, |stream| stream.priority))
    }

    fn cuStreamGetId(stream: Handle, id: Out<u64>) {
        let lane = Lane::of(stream)?;
        id.set(lane.stream.map_or(lane.context.id, |stream| stream.handle.0))
    }

    fn cuStreamGetCtx(stream: Handle, context: Out<Handle>) {
        context.set(Lane::of(stream)?.context.handle)
    }

    fn cuStreamGetCtx_v2(stream: Handle, context: Out<Handle>, green: Out<Handle>) {
        green.set_if_wanted(Handle::NULL);
        context.set(Lane::of(stream)?.context.handle)
    }

    fn cuStreamGetDevice(stream: Handle, device: Out<c_int>) {
        Lane::of(stream)?;
        device.set(0)
    }

    /// Work that follows in the stream is accepted when the function has run.
    fn cuStreamAddCallback(
        stream: Handle,
        callback: Option<unsafe extern "C" fn(Handle, Status, HostPointer)>,
        data: HostPointer,
        _flags: c_uint,
    ) {
        let callback = callback.ok_or(Status::INVALID_VALUE)?;
        Lane::of(stream)?.call(move |failure| {
            // The whole of it, which may be sent to the thread.
            let data: HostPointer = data;
            // SAFETY: the caller passed the function to be called with these arguments, from any thread.
            unsafe { callback(stream, failure.map_or(Status::SUCCESS, Status::from), data) };
        })
    }

    fn cuStreamIsCapturing(stream: Handle, status: Out<c_uint>) {
        capture(stream, status, Out::new(std::ptr::null_mut()))
    }

    fn cuStreamGetCaptureInfo(stream: Handle, status: Out<c_uint>, id: Out<u64>) {
        capture(stream, status, id)
    }

    fn cuStreamGetCaptureInfo_v2(
        stream: Handle,
        status: Out<c_uint>,
        id: Out<u64>,
        _graph: Out<Handle>,
        _dependencies: Out<u64>,
        _count: Out<usize>,
    ) {
        capture(stream, status, id)
    }

    fn cuStreamGetCaptureInfo_v3(
        stream: Handle,
        status: Out<c_uint>,
        id: Out<u64>,
        _graph: Out<Handle>,
        _dependencies: Out<u64>,
        _edges: Out<u64>,
        _count: Out<usize>,
    ) {
        capture(stream, status, id)
    }

    fn cuThreadExchangeStreamCaptureMode(mode: Out<c_uint>) {
        mode.get()?;
        mode.set(0)
    }

    fn cuStreamAttachMemAsync(stream: Handle, _address: u64, _bytes: usize, _flags: c_uint) {
        Lane::of(stream)?;
        // There is no managed memory to attach.
        Err(Status::INVALID_VALUE)
    }

    fn cuStreamCopyAttributes(to: Handle, from: Handle) {
        Lane::of(to)?;
        Lane::of(from).map(|_| ())
    }

    /// Attributes of streams are hints.
    fn cuStreamSetAttribute(stream: Handle, _attribute: c_uint, value: In<u64>) {
        Lane::of(stream)?;
        value.get().map(|_| ())
    }
}
