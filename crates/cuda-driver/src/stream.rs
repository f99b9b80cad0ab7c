//! Streams and events. A context has one queue, so work of all its streams runs in the order in which it was submitted, which is an order
//! that CUDA allows. A stream remembers its last operation, so that waiting for it does not wait for others.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use sahasra_cuda_device::{Operation, Ticket};

use crate::boundary::Handle;
use crate::context::{self, Context};
use crate::driver;
use crate::status::Status;
use crate::table::new_handle;

/// The stream handles that name a default stream: null, `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`.
const DEFAULTS: [Handle; 3] = [Handle(0), Handle(1), Handle(2)];
/// Events without times.
pub(crate) const DISABLE_TIMING: u32 = 2;

/// A stream that a program created.
pub(crate) struct Stream {
    pub(crate) handle: Handle,
    pub(crate) context: Weak<Context>,
    pub(crate) context_id: u64,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    last: AtomicU64,
}

impl Stream {
    /// Makes a stream in a context.
    pub(crate) fn create(context: &Arc<Context>, flags: u32, priority: i32) -> Result<Handle, Status> {
        context.check()?;
        let stream = Self {
            handle: new_handle(),
            context: Arc::downgrade(context),
            context_id: context.id,
            flags,
            priority,
            last: AtomicU64::new(0),
        };
        let handle = stream.handle;
        driver::get()?.streams.insert(handle, Arc::new(stream));
        Ok(handle)
    }
}

/// Where a call submits its work: a stream, or the default stream of the current context.
pub(crate) struct Lane {
    pub(crate) context: Arc<Context>,
    pub(crate) stream: Option<Arc<Stream>>,
}

impl Lane {
    /// The lane of a stream's handle.
    pub(crate) fn of(handle: Handle) -> Result<Self, Status> {
        let driver = driver::get()?;
        if DEFAULTS.contains(&handle) {
            return Ok(Self {
                context: context::current()?,
                stream: None,
            });
        }
        let stream = driver.streams.get(handle)?;
        Ok(Self {
            context: stream.context.upgrade().ok_or(Status::CONTEXT_IS_DESTROYED)?,
            stream: Some(stream),
        })
    }

    /// Submits an operation to the context of the lane.
    pub(crate) fn submit(&self, operation: Operation) -> Result<Ticket, Status> {
        let ticket = self.context.submit(operation)?;
        self.note(ticket);
        Ok(ticket)
    }

    /// Notes an operation that was submitted as the lane's.
    pub(crate) fn note(&self, ticket: Ticket) {
        if let Some(stream) = &self.stream {
            stream.last.fetch_max(ticket.0, Ordering::Relaxed);
        }
    }

    /// The lane's last operation.
    pub(crate) fn last(&self) -> Ticket {
        match &self.stream {
            Some(stream) => Ticket(stream.last.load(Ordering::Relaxed)),
            None => self.context.queue.last(),
        }
    }

    /// Waits for the lane's work.
    pub(crate) fn wait(&self) -> Result<(), Status> {
        self.context.wait(self.last())
    }

    /// Whether the lane's work is done.
    pub(crate) fn is_done(&self) -> Result<bool, Status> {
        let done = self.context.queue.is_done(self.last());
        done.map_err(|failure| self.context.failed(&failure))
    }
}

/// An event.
pub(crate) struct Event {
    pub(crate) context: Weak<Context>,
    pub(crate) context_id: u64,
    flags: u32,
    mark: u64,
    ticket: AtomicU64,
    is_recorded: AtomicBool,
}

impl Event {
    /// Makes an event in a context.
    pub(crate) fn create(context: &Arc<Context>, flags: u32) -> Result<Handle, Status> {
        context.check()?;
        let handle = new_handle();
        let event = Self {
            context: Arc::downgrade(context),
            context_id: context.id,
            flags,
            mark: handle.0,
            ticket: AtomicU64::new(0),
            is_recorded: AtomicBool::new(false),
        };
        driver::get()?.events.insert(handle, Arc::new(event));
        Ok(handle)
    }

    fn has_time(&self) -> bool {
        self.flags & DISABLE_TIMING == 0
    }

    fn context(&self) -> Result<Arc<Context>, Status> {
        self.context.upgrade().ok_or(Status::CONTEXT_IS_DESTROYED)
    }

    /// Notes what a lane has submitted so far.
    pub(crate) fn record(&self, lane: &Lane) -> Result<(), Status> {
        if lane.context.id != self.context_id {
            return Err(Status::INVALID_HANDLE);
        }
        let ticket = if self.has_time() {
            lane.submit(Operation::Mark(self.mark))?
        } else {
            lane.context.check()?;
            lane.last()
        };
        self.ticket.store(ticket.0, Ordering::Relaxed);
        self.is_recorded.store(true, Ordering::Release);
        Ok(())
    }

    fn ticket(&self) -> Ticket {
        Ticket(self.ticket.load(Ordering::Relaxed))
    }

    /// Whether what was recorded is done.
    pub(crate) fn is_done(&self) -> Result<bool, Status> {
        let context = self.context()?;
        let done = context.queue.is_done(self.ticket());
        done.map_err(|failure| context.failed(&failure))
    }

    /// Waits for what was recorded.
    pub(crate) fn wait(&self) -> Result<(), Status> {
        self.context()?.wait(self.ticket())
    }

    /// Milliseconds from one event to another.
    pub(crate) fn milliseconds(start: &Self, end: &Self) -> Result<f32, Status> {
        for event in [start, end] {
            if !event.has_time() || !event.is_recorded.load(Ordering::Acquire) {
                return Err(Status::INVALID_HANDLE);
            }
            if !event.is_done()? {
                return Err(Status::NOT_READY);
            }
        }
        if start.context_id != end.context_id {
            return Err(Status::INVALID_HANDLE);
        }
        let context = start.context()?;
        let time = |event: &Self| context.queue.marked(event.mark).ok_or(Status::NOT_READY);
        Ok(((time(end)?.as_secs_f64() - time(start)?.as_secs_f64()) * 1000.0) as f32)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Some(context) = self.context.upgrade() {
            context.queue.forget(self.mark);
        }
    }
}
