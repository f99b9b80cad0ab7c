//! Streams.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use crate::boundary::{Handle, HostPointer, In, Out};
use crate::current;
use crate::driver;
use crate::graph::Work;
use crate::lane::Lane;
use crate::ranges::Kind;
use crate::status::Status;
use crate::stream::{EXTERNAL, Event, NON_BLOCKING, Stream};

/// `CU_MEM_ATTACH_GLOBAL`, `CU_MEM_ATTACH_HOST` and `CU_MEM_ATTACH_SINGLE`.
const ATTACH_GLOBAL: c_uint = 1;
const ATTACH_HOST: c_uint = 2;
const ATTACH_SINGLE: c_uint = 4;

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
    let driver = driver::get()?;
    driver.streams.remove(stream)?;
    if let Some(capture) = driver.captures.forget_stream(stream) {
        driver.abandon(&capture, None);
    }
    Ok(())
}

/// Lets a capture wait for an event. Returns false if neither stream nor event is part of one.
fn wait_in_capture(lane: &Lane, event: &Event, flags: c_uint) -> Result<bool, Status> {
    if flags & EXTERNAL != 0 {
        // Outside of a capture there is no node.
        return if lane.add(|| Ok(Work::Wait(event.handle)))? {
            Ok(true)
        } else {
            Err(Status::INVALID_VALUE)
        };
    }
    let captures = &driver::get()?.captures;
    match (lane.capture()?, event.captured()) {
        (None, None) => Ok(false),
        (Some(capture), None) => Err(capture.invalidate(Status::STREAM_CAPTURE_ISOLATION)),
        (None, Some((id, nodes))) => {
            let capture = captures.of_id(id)?;
            let Some(stream) = &lane.stream else {
                return Err(capture.invalidate(Status::STREAM_CAPTURE_IMPLICIT));
            };
            if lane.context.id != capture.context_id {
                return Err(capture.invalidate(Status::STREAM_CAPTURE_UNSUPPORTED));
            }
            capture.join(stream.handle, stream.is_blocking(), nodes);
            Ok(true)
        }
        (Some(capture), Some((id, nodes))) if capture.id == id => {
            capture.wait(lane.handle(), &nodes);
            Ok(true)
        }
        (Some(capture), Some((id, _))) => {
            if let Ok(other) = captures.of_id(id) {
                other.invalidate(Status::STREAM_CAPTURE_MERGE);
            }
            Err(capture.invalidate(Status::STREAM_CAPTURE_MERGE))
        }
    }
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
        let lane = Lane::of(stream)?;
        lane.refuse_capture()?;
        lane.wait()
    }

    fn cuStreamQuery(stream: Handle) {
        let lane = Lane::of(stream)?;
        lane.refuse_capture()?;
        if lane.is_done()? { Ok(()) } else { Err(Status::NOT_READY) }
    }

    fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint) {
        let lane = Lane::of(stream)?;
        let event = driver::get()?.events.get(event)?;
        if flags & !EXTERNAL != 0 {
            return Err(Status::INVALID_VALUE);
        }
        if wait_in_capture(&lane, &event, flags)? {
            return Ok(());
        }
        lane.wait_for(&event)
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
        flags: c_uint,
    ) {
        let callback = callback.filter(|_| flags == 0).ok_or(Status::INVALID_VALUE)?;
        let lane = Lane::of(stream)?;
        lane.refuse_capture()?;
        lane.call(move |failure| {
            // The whole of it, which may be sent to the thread.
            let data: HostPointer = data;
            // SAFETY: the caller passed the function to be called with these arguments, from any thread.
            unsafe { callback(stream, failure.map_or(Status::SUCCESS, Status::from), data) };
        })
    }

    /// Managed memory is accessible to all streams and to the host as far as it ever is.
    fn cuStreamAttachMemAsync(stream: Handle, address: u64, bytes: usize, flags: c_uint) {
        let lane = Lane::of(stream)?;
        lane.refuse_capture()?;
        lane.context.check()?;
        let range = driver::get()?.ranges.find(address).filter(|range| range.kind == Kind::Managed);
        let range = range.ok_or(Status::INVALID_VALUE)?;
        let is_whole = bytes == 0 || (address == range.start && bytes as u64 == range.bytes);
        let is_known = matches!(flags, ATTACH_GLOBAL | ATTACH_HOST) || (flags == ATTACH_SINGLE && !lane.is_legacy);
        if is_whole && is_known { Ok(()) } else { Err(Status::INVALID_VALUE) }
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
