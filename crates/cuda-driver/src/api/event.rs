//! Events.

use std::ffi::c_uint;
use std::sync::Arc;

use sahasra_cuda_boundary::missing::refuse;

use crate::boundary::{Handle, Out};
use crate::current;
use crate::driver;
use crate::graph::Work;
use crate::lane::Lane;
use crate::status::Status;
use crate::stream::{DISABLE_TIMING, EXTERNAL, Event};

/// `CU_EVENT_BLOCKING_SYNC` and `CU_EVENT_INTERPROCESS`.
const BLOCKING_SYNC: c_uint = 1;
const INTERPROCESS: c_uint = 4;

/// Records an event. In a capture it stands for the work before it, or is recorded by a node if it is an external one.
fn record(event: Handle, stream: Handle, flags: c_uint) -> Result<(), Status> {
    let lane = Lane::of(stream)?;
    let event = driver::get()?.events.get(event)?;
    if flags & !EXTERNAL != 0 {
        return Err(Status::INVALID_VALUE);
    }
    let is_own = event.context_id == lane.context.id;
    if flags & EXTERNAL != 0 {
        let captured = || {
            if is_own {
                Ok(Work::Record(event.handle))
            } else {
                Err(Status::INVALID_HANDLE)
            }
        };
        // Outside of a capture there is no node.
        return if lane.add(captured)? { Ok(()) } else { Err(Status::INVALID_VALUE) };
    }
    let Some(capture) = lane.capture()? else {
        return lane.record(&event);
    };
    if !is_own {
        return Err(capture.invalidate(Status::INVALID_HANDLE));
    }
    event.capture(capture.id, capture.frontier(lane.handle()));
    Ok(())
}

/// The event of a handle, for a question about its work.
fn recorded(event: Handle) -> Result<Arc<Event>, Status> {
    let driver = driver::get()?;
    let event = driver.events.get(event)?;
    match event.captured() {
        None => Ok(event),
        Some((capture, _)) => Err(driver.captures.refuse_event(capture)),
    }
}

fn destroy(event: Handle) -> Result<(), Status> {
    driver::get()?.events.remove(event).map(|_| ())
}

fn elapsed(milliseconds: Out<f32>, start: Handle, end: Handle) -> Result<(), Status> {
    milliseconds.require()?;
    milliseconds.set(Event::milliseconds(&*recorded(start)?, &*recorded(end)?)?)
}

exports! {
    fn cuEventCreate(event: Out<Handle>, flags: c_uint) {
        event.require()?;
        driver::get()?;
        let is_known = flags & !(BLOCKING_SYNC | DISABLE_TIMING | INTERPROCESS) == 0;
        let is_shared = flags & INTERPROCESS != 0;
        // Events for other processes have no times.
        if !is_known || (is_shared && flags & DISABLE_TIMING == 0) {
            return Err(Status::INVALID_VALUE);
        }
        if is_shared {
            return refuse("an event for other processes");
        }
        let created = Event::create(&current::context()?, flags)?;
        let handle = created.handle;
        driver::get()?.events.insert(handle, Arc::new(created));
        event.set(handle)
    }

    fn cuEventRecord(event: Handle, stream: Handle) {
        record(event, stream, 0)
    }

    fn cuEventRecordWithFlags(event: Handle, stream: Handle, flags: c_uint) {
        record(event, stream, flags)
    }

    fn cuEventQuery(event: Handle) {
        let event = recorded(event)?;
        driver::get()?.captures.check_call()?;
        if event.is_done()? { Ok(()) } else { Err(Status::NOT_READY) }
    }

    fn cuEventSynchronize(event: Handle) {
        let event = recorded(event)?;
        driver::get()?.captures.check_call()?;
        event.wait()
    }

    fn cuEventDestroy(event: Handle) {
        destroy(event)
    }

    fn cuEventDestroy_v2(event: Handle) {
        destroy(event)
    }

    fn cuEventElapsedTime(milliseconds: Out<f32>, start: Handle, end: Handle) {
        elapsed(milliseconds, start, end)
    }

    fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: Handle, end: Handle) {
        elapsed(milliseconds, start, end)
    }
}
