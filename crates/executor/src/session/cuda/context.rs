//! A context of a client of the engine `cuda`.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use sahasra_cuda_device::{Failure, FailureKind, Operation, Queue, Ticket, WatchedDevice};
use sahasra_wire::cuda::{MARKS_AT_ONCE, Mark};

use crate::session::hub::Hub;

/// Maximum number of contexts of a client: each has a thread.
pub(super) const MAX_CONTEXTS: usize = 64;
/// Value of [`Context::awaited`] while no answer waits for an operation.
pub(super) const NOTHING: u64 = u64::MAX;

/// A context of the client.
pub(super) struct Context {
    /// The context's queue, or the reason why there is none.
    pub(super) queue: Result<Arc<dyn Queue>, Failure>,
    /// Number of operations that the client has sent.
    pub(super) operations: u64,
    /// Lowest ticket for which an answer waits, or [`NOTHING`].
    pub(super) awaited: Arc<AtomicU64>,
    /// Marks that were not reported, with the ticket of their last recording.
    pub(super) marks: HashMap<u64, Ticket>,
    /// Number of allocations, as far as operations succeeded.
    pub(super) allocations: u64,
}

impl Context {
    /// Opens a context of a client that has `count` others.
    pub(super) fn open(device: &dyn WatchedDevice, hub: &Arc<Hub>, count: usize) -> Self {
        let awaited = Arc::new(AtomicU64::new(NOTHING));
        let queue = if count < MAX_CONTEXTS {
            let (hub, awaited) = (Arc::clone(hub), Arc::clone(&awaited));
            device.open_watched(Arc::new(move |operation, ticket| {
                if operation.runs_kernels() {
                    hub.execution_ends();
                }
                // The operation counts as executed before this reads what is awaited.
                fence(Ordering::SeqCst);
                let frees = matches!(
                    operation,
                    Operation::Map { .. } | Operation::Unmap { .. } | Operation::Unload(_) | Operation::Erase(_)
                );
                if frees || ticket.0 >= awaited.load(Ordering::SeqCst) {
                    hub.download_ends();
                }
            }))
        } else {
            let message = format!("too many contexts: a session has at most {MAX_CONTEXTS}");
            Err(Failure::new(FailureKind::OutOfMemory, message))
        };
        Self {
            queue,
            operations: 0,
            awaited,
            marks: HashMap::new(),
            allocations: 0,
        }
    }

    pub(super) fn queue(&self) -> Result<&Arc<dyn Queue>, Failure> {
        self.queue.as_ref().map_err(Clone::clone)
    }

    /// Whether the first `operations` operations have been executed, or never will be.
    pub(super) fn has_executed(&self, operations: u64) -> bool {
        match &self.queue {
            Ok(queue) => queue.is_done(Ticket(operations)).unwrap_or(true),
            Err(_) => true,
        }
    }

    /// Removes the marks that were recorded.
    pub(super) fn take_marks(&mut self, queue: &dyn Queue, executed: Ticket) -> Vec<Mark> {
        let recorded = self.marks.iter().filter(|(_, ticket)| **ticket <= executed).map(|(mark, _)| *mark);
        let recorded: Vec<u64> = recorded.take(MARKS_AT_ONCE).collect();
        let mut marks = Vec::with_capacity(recorded.len());
        for mark in recorded {
            self.marks.remove(&mark);
            if let Some(time) = queue.marked(mark) {
                let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
                marks.push(Mark { mark, nanoseconds });
            }
            queue.forget(mark);
        }
        marks
    }
}
