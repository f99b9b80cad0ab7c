//! Where a call submits its work.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sahasra_cuda_device::{Failure, Operation, Ticket};

use crate::boundary::Handle;
use crate::context::Context;
use crate::current;
use crate::driver;
use crate::status::Status;
use crate::stream::{Event, Stream};

/// The stream handles that name a default stream: null, `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`.
const DEFAULTS: [Handle; 3] = [Handle(0), Handle(1), Handle(2)];

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
                context: current::context()?,
                stream: None,
            });
        }
        let stream = driver.streams.get(handle)?;
        Ok(Self {
            context: stream.context.upgrade().ok_or(Status::CONTEXT_IS_DESTROYED)?,
            stream: Some(stream),
        })
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

    /// Submits an operation to the context of the lane.
    pub(crate) fn submit(&self, operation: Operation) -> Result<Ticket, Status> {
        self.begin()?;
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
                self.last()
            }
        });
        Ok(())
    }
}
