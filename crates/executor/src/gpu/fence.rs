//! What a queue waits for: the end of operations, with the times of marks.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys::CUresult;
use sahasra_cuda_device::Failure;

use super::event::Event;
use super::module::Module;
use super::outcome;
use crate::device::cuda::driver::description;

/// Time between two marks from which later ones are measured from the second: the driver's times have 24 bits.
const BASE_AGE: Duration = Duration::from_secs(1);

/// End of operations.
pub(super) enum End {
    /// The event of the last of them.
    Event(Event),
    /// Nothing is to be waited for.
    Nothing,
    Failed(Failure),
}

pub(super) struct Fence {
    /// Ticket of the last operation before it.
    pub(super) last: u64,
    pub(super) end: End,
    pub(super) mark: Option<u64>,
    pub(super) launched: Launched,
}

/// Kernels of an operation.
#[derive(Default)]
pub(super) struct Launched {
    /// The only kernel: its module, and its index there.
    pub(super) kernel: Option<(Arc<Module>, u32)>,
    /// Whether one of them prints.
    pub(super) prints: bool,
}

/// Operations that were begun since the last fence.
#[derive(Default)]
pub(super) struct Unfenced {
    pub(super) count: u64,
    pub(super) launched: Launched,
}

/// Times of marks.
pub(super) struct Clock {
    /// Event from which marks are measured, and its own time.
    base: Event,
    time: Duration,
}

/// A failure with the kernel that was launched before it, if it was one.
fn of_kernel(kernel: Option<&(Arc<Module>, u32)>, failure: Failure) -> Failure {
    let name = kernel.and_then(|(module, function)| Some(&module.functions.get(*function as usize)?.name));
    match name {
        Some(name) => Failure::new(failure.kind, format!("kernel {name}: {failure}")),
        None => failure,
    }
}

impl Fence {
    /// The fault that the driver reports.
    pub(super) fn fault(&self, result: CUresult) -> Failure {
        let failure = Failure::new(outcome::kind(result), description(result));
        of_kernel(self.launched.kernel.as_ref(), failure)
    }
}

impl Unfenced {
    /// A fault that the driver reports before there is a fence.
    pub(super) fn fault(&self, failure: Failure) -> Failure {
        of_kernel(self.launched.kernel.as_ref(), failure)
    }
}

impl Clock {
    /// Clock whose time begins with an event.
    pub(super) fn new(base: Event) -> Self {
        Self {
            base,
            time: Duration::ZERO,
        }
    }

    /// Time of an event that has ended, since the queue was opened.
    pub(super) fn read(&self, event: &Event) -> Result<Duration, Failure> {
        Ok(self.time + event.since(&self.base)?)
    }

    /// Measures from a later event if the base is old. Returns the event that is not needed.
    pub(super) fn rebase(&mut self, event: Event, time: Duration) -> Event {
        if time - self.time < BASE_AGE {
            return event;
        }
        self.time = time;
        std::mem::replace(&mut self.base, event)
    }
}
