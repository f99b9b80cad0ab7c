//! Events.

use std::ffi::c_uint;
use std::sync::Arc;

use sahasra_cuda_boundary::missing::refuse;

use crate::boundary::{Handle, Out};
use crate::current;
use crate::driver;
use crate::lane::Lane;
use crate::status::Status;
use crate::stream::{DISABLE_TIMING, Event};

/// `CU_EVENT_BLOCKING_SYNC` and `CU_EVENT_INTERPROCESS`.
const BLOCKING_SYNC: c_uint = 1;
const INTERPROCESS: c_uint = 4;

fn record(event: Handle, stream: Handle) -> Result<(), Status> {
    Lane::of(stream)?.record(&*driver::get()?.events.get(event)?)
}

fn destroy(event: Handle) -> Result<(), Status> {
    driver::get()?.events.remove(event).map(|_| ())
}

fn elapsed(milliseconds: Out<f32>, start: Handle, end: Handle) -> Result<(), Status> {
    milliseconds.require()?;
    let events = &driver::get()?.events;
    milliseconds.set(Event::milliseconds(&*events.get(start)?, &*events.get(end)?)?)
}

exports! {
    fn cuEventCreate(event: Out<Handle>, flags: c_uint) {
        event.require()?;
        driver::get()?;
        if flags & INTERPROCESS != 0 {
            return refuse("an event for other processes");
        }
        if flags & !(BLOCKING_SYNC | DISABLE_TIMING) != 0 {
            return Err(Status::INVALID_VALUE);
        }
        let created = Event::create(&current::context()?, flags)?;
        let handle = created.handle;
        driver::get()?.events.insert(handle, Arc::new(created));
        event.set(handle)
    }

    fn cuEventRecord(event: Handle, stream: Handle) {
        record(event, stream)
    }

    fn cuEventRecordWithFlags(event: Handle, stream: Handle, _flags: c_uint) {
        record(event, stream)
    }

    fn cuEventQuery(event: Handle) {
        if driver::get()?.events.get(event)?.is_done()? { Ok(()) } else { Err(Status::NOT_READY) }
    }

    fn cuEventSynchronize(event: Handle) {
        driver::get()?.events.get(event)?.wait()
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
