//! Where a call submits its work.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sahasra_cuda_device::{Failure, Operation, Ticket};

use crate::boundary::{Handle, HostPointer};
use crate::capture::Capture;
use crate::context::Context;
use crate::current;
use crate::driver;
use crate::graph::Work;
use crate::parameters::HostParameters;
use crate::status::Status;
use crate::stream::{Event, Stream};

/// `CU_STREAM_LEGACY`.
const LEGACY: Handle = Handle(1);
/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: Handle = Handle(2);

thread_local! {
    /// The stream for which null stands.
    static DEFAULT: Cell<Handle> = const { Cell::new(LEGACY) };
}

/// Runs a call in which null stands for `CU_STREAM_PER_THREAD`.
pub(crate) fn with_stream_of_thread<T>(call: impl FnOnce() -> T) -> T {
    let before = DEFAULT.replace(PER_THREAD);
    let outcome = call();
    DEFAULT.set(before);
    outcome
}

/// Where a call submits its work: a stream, or the default stream of the current context.
pub(crate) struct Lane {
    pub(crate) context: Arc<Context>,
    pub(crate) stream: Option<Arc<Stream>>,
    /// Whether it is the default stream for which streams of the program wait.
    pub(crate) is_legacy: bool,
}

impl Lane {
    /// The lane of a stream's handle.
    pub(crate) fn of(handle: Handle) -> Result<Self, Status> {
        let driver = driver::get()?;
        let handle = if handle == Handle::NULL { DEFAULT.get() } else { handle };
        if matches!(handle, LEGACY | PER_THREAD) {
            return Ok(Self {
                context: current::context()?,
                stream: None,
                is_legacy: handle == LEGACY,
            });
        }
        let stream = driver.streams.get(handle)?;
        Ok(Self {
            context: stream.context.upgrade().ok_or(Status::CONTEXT_IS_DESTROYED)?,
            stream: Some(stream),
            is_legacy: false,
        })
    }

    /// Handle of the stream, or null.
    pub(crate) fn handle(&self) -> Handle {
        self.stream.as_ref().map_or(Handle::NULL, |stream| stream.handle)
    }

    /// The capture of which the lane is part: work becomes a node of its graph. Refuses work in the legacy stream that a capture forbids.
    pub(crate) fn capture(&self) -> Result<Option<Arc<Capture>>, Status> {
        let captures = &driver::get()?.captures;
        if captures.is_empty() {
            return Ok(None);
        }
        match &self.stream {
            Some(stream) => captures.valid_of_stream(stream.handle),
            None if self.is_legacy => captures.check_legacy(self.context.id).map(|()| None),
            None => Ok(None),
        }
    }

    /// Refuses what cannot be captured, and makes the capture invalid.
    pub(crate) fn refuse_capture(&self) -> Result<(), Status> {
        match self.capture()? {
            None => Ok(()),
            Some(capture) => Err(capture.invalidate(Status::STREAM_CAPTURE_UNSUPPORTED)),
        }
    }

    /// Adds work of the lane to the graph of its capture, if it is part of one. Returns whether it is. If the work is refused, the capture
    /// becomes invalid: its graph would lack the work.
    pub(crate) fn add(&self, work: impl FnOnce() -> Result<Work, Status>) -> Result<bool, Status> {
        let Some(capture) = self.capture()? else {
            return Ok(false);
        };
        let added = self.context.check().and_then(|()| {
            let insert = |work| capture.add(self.handle(), work);
            driver::get()?.add_node(&capture.graph, work()?, insert)
        });
        added.map(|_| true).map_err(|status| capture.invalidate(status))
    }

    /// The last function of the program after which work of the lane goes on.
    fn last_function(&self) -> u64 {
        match &self.stream {
            Some(stream) => {
                let of_default = self.context.default_function.load(Ordering::Relaxed);
                stream.last_function.load(Ordering::Relaxed).max(of_default)
            }
            None => self.context.callbacks.last(),
        }
    }

    /// Refuses work after a fault, and waits for functions of the program that are before it.
    pub(crate) fn begin(&self) -> Result<(), Status> {
        self.context.callbacks.wait(self.last_function())?;
        self.context.check()
    }

    /// Calls a function of the program after the work of the lane.
    pub(crate) fn call(&self, function: impl FnOnce(Option<&Failure>) + Send + 'static) -> Result<(), Status> {
        let number = self.context.callbacks.submit(self.last(), Box::new(function))?;
        let last = match &self.stream {
            Some(stream) => &stream.last_function,
            None => &self.context.default_function,
        };
        last.fetch_max(number, Ordering::Relaxed);
        Ok(())
    }

    /// Calls a function of the program as [`call`](Self::call). It is not called after a fault.
    pub(crate) fn call_host(&self, HostParameters { function, data }: HostParameters) -> Result<(), Status> {
        self.context.check()?;
        self.call(move |failure| {
            if failure.is_none_or(|failure| !failure.is_sticky()) {
                // The whole of it, which may be sent to the thread.
                let data: HostPointer = data;
                // SAFETY: the caller passed the address of a function to be called with this argument, from any thread.
                unsafe { std::mem::transmute::<usize, unsafe extern "C" fn(HostPointer)>(function)(data) };
            }
        })
    }

    /// Submits an operation to the context of the lane.
    pub(crate) fn submit(&self, operation: Operation) -> Result<Ticket, Status> {
        self.begin()?;
        let ticket = self.context.submit(operation)?;
        self.note(ticket);
        Ok(ticket)
    }

    /// Notes an operation that was submitted as the lane's, or that the lane waits for.
    pub(crate) fn note(&self, ticket: Ticket) {
        let last = match &self.stream {
            Some(stream) => &stream.last,
            None if self.is_legacy => &self.context.legacy_last,
            None => return,
        };
        last.fetch_max(ticket.0, Ordering::Relaxed);
    }

    /// The last operation that is done before the lane is: that of a stream, and of the legacy stream if it waits for that one; or that of all
    /// streams.
    pub(crate) fn last(&self) -> Ticket {
        let Some(stream) = &self.stream else {
            return self.context.queue.last();
        };
        let own = stream.last.load(Ordering::Relaxed);
        Ticket(match stream.is_blocking() {
            true => own.max(self.context.legacy_last.load(Ordering::Relaxed)),
            false => own,
        })
    }

    /// Lets the lane wait for what an event stands for: both are in one queue, or the event's context is waited for.
    pub(crate) fn wait_for(&self, event: &Event) -> Result<(), Status> {
        if event.context_id == self.context.id {
            self.note(event.ticket());
        } else {
            event.wait()?;
        }
        self.join();
        self.context.check()
    }

    /// Lets blocking streams wait for those for which the legacy stream waits, as after any work in it.
    fn join(&self) {
        if self.is_legacy {
            self.note(self.last());
        }
    }

    /// Waits for the lane's work.
    pub(crate) fn wait(&self) -> Result<(), Status> {
        self.context.callbacks.wait(self.last_function())?;
        self.context.wait(self.last())
    }

    /// Whether the lane's work is done.
    pub(crate) fn is_done(&self) -> Result<bool, Status> {
        let done = self.context.queue.is_done(self.last());
        let done = done.map(|is_done| is_done && self.context.callbacks.is_done(self.last_function()));
        done.map_err(|failure| self.context.failed(&failure))
    }

    /// Lets an event wait for what the lane has submitted so far.
    pub(crate) fn record(&self, event: &Event) -> Result<(), Status> {
        if self.context.id != event.context_id {
            return Err(Status::INVALID_HANDLE);
        }
        event.record(match event.mark() {
            Some(mark) => self.submit(Operation::Mark(mark))?,
            None => {
                self.begin()?;
                self.join();
                self.last()
            }
        });
        Ok(())
    }
}
