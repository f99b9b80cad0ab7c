//! Streams and events. A context has one queue, so work of all its streams runs in the order in which it was submitted, which is an order
//! that CUDA allows. A stream remembers its last operation, so that waiting for it does not wait for others.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use sahasra_cuda_device::Ticket;

use crate::boundary::Handle;
use crate::context::Context;
use crate::status::Status;
use crate::table::new_handle;

/// `CU_STREAM_NON_BLOCKING`.
pub(crate) const NON_BLOCKING: u32 = 1;
/// Events without times.
pub(crate) const DISABLE_TIMING: u32 = 2;

/// `CU_EVENT_WAIT_EXTERNAL` and `CU_EVENT_RECORD_EXTERNAL`: in a capture, a node waits for an event or records it.
pub(crate) const EXTERNAL: u32 = 1;

/// A stream that a program created.
pub(crate) struct Stream {
    pub(crate) handle: Handle,
    pub(crate) context: Weak<Context>,
    pub(crate) context_id: u64,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    pub(crate) last: AtomicU64,
    /// The last function of the program in the stream.
    pub(crate) last_function: AtomicU64,
}

impl Stream {
    /// Makes a stream in a context.
    pub(crate) fn create(context: &Arc<Context>, flags: u32, priority: i32) -> Result<Self, Status> {
        context.check()?;
        let stream = Self {
            handle: new_handle(),
            context: Arc::downgrade(context),
            context_id: context.id,
            flags,
            priority,
            last: AtomicU64::new(0),
            last_function: AtomicU64::new(0),
        };
        Ok(stream)
    }

    /// Whether the legacy stream waits for it, and it for the legacy stream.
    pub(crate) fn is_blocking(&self) -> bool {
        self.flags & NON_BLOCKING == 0
    }
}

pub(crate) struct Event {
    pub(crate) handle: Handle,
    pub(crate) context: Weak<Context>,
    pub(crate) context_id: u64,
    flags: u32,
    mark: u64,
    ticket: AtomicU64,
    is_recorded: AtomicBool,
    /// The capture in which it was recorded last, and the nodes for which it stands.
    captured: Mutex<Option<(u64, Vec<Handle>)>>,
}

impl Event {
    /// Makes an event in a context.
    pub(crate) fn create(context: &Arc<Context>, flags: u32) -> Result<Self, Status> {
        context.check()?;
        let handle = new_handle();
        Ok(Self {
            handle,
            context: Arc::downgrade(context),
            context_id: context.id,
            flags,
            mark: handle.0,
            ticket: AtomicU64::new(0),
            is_recorded: AtomicBool::new(false),
            captured: Mutex::default(),
        })
    }

    /// Whether it takes times.
    pub(crate) fn has_time(&self) -> bool {
        self.flags & DISABLE_TIMING == 0
    }

    fn context(&self) -> Result<Arc<Context>, Status> {
        self.context.upgrade().ok_or(Status::CONTEXT_IS_DESTROYED)
    }

    /// Name of its time in the queue, if it has one.
    pub(crate) fn mark(&self) -> Option<u64> {
        self.has_time().then_some(self.mark)
    }

    /// Lets the event stand for nodes of a capture.
    pub(crate) fn capture(&self, capture: u64, nodes: Vec<Handle>) {
        *self.captured.lock() = Some((capture, nodes));
    }

    /// The capture in which the event was recorded last, if it was, and the nodes for which it stands.
    pub(crate) fn captured(&self) -> Option<(u64, Vec<Handle>)> {
        self.captured.lock().clone()
    }

    /// Notes the operation that the event waits for.
    pub(crate) fn record(&self, ticket: Ticket) {
        *self.captured.lock() = None;
        self.ticket.store(ticket.0, Ordering::Relaxed);
        self.is_recorded.store(true, Ordering::Release);
    }

    /// The operation that the event waits for; before a record, none.
    pub(crate) fn ticket(&self) -> Ticket {
        Ticket(self.ticket.load(Ordering::Relaxed))
    }

    /// Whether what was recorded is done.
    pub(crate) fn is_done(&self) -> Result<bool, Status> {
        let context = self.context()?;
        let done = context.queue.is_done(self.ticket());
        done.map_err(|failure| context.failed(&failure))
    }

    /// Waits until the work that precedes the latest record of the event is done.
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
