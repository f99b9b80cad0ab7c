//! Contexts of a client of the engine `cuda`.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use sahasra_cuda_device::{Failure, FailureKind, Operation, Queue, Ticket, WatchedDevice};
use sahasra_wire::cuda::{MARKS_AT_ONCE, MAX_CONTEXTS, Mark};

use crate::session::hub::Hub;

/// Maximum number of contexts without a queue. A client that heeds failures discards them.
pub(super) const MAX_REFUSED: usize = 1024;
/// Value of [`Context::awaited`] while no answer waits for an operation.
pub(super) const NOTHING: u64 = u64::MAX;

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

/// Contexts of the client, by the numbers that it chose.
#[derive(Default)]
pub(super) struct Contexts(HashMap<u64, Context>);

impl Contexts {
    pub(super) fn get(&self, number: u64) -> Option<&Context> {
        self.0.get(&number)
    }

    /// The context with this number, which is created if there is none. Each has a thread: beyond their maximum number it has no queue, and
    /// stays so until it is discarded.
    pub(super) fn get_or_open(&mut self, number: u64, device: &dyn WatchedDevice, hub: &Arc<Hub>) -> &mut Context {
        let has_room = self.0.contains_key(&number) || self.0.values().filter(|context| context.queue.is_ok()).count() < MAX_CONTEXTS;
        self.0.entry(number).or_insert_with(|| Context::open(device, hub, has_room))
    }

    /// Whether an operation may name this number: it is known, or there is room for another one.
    pub(super) fn takes(&self, number: u64) -> bool {
        self.0.contains_key(&number) || self.0.len() < MAX_CONTEXTS + MAX_REFUSED
    }

    pub(super) fn remove(&mut self, number: u64) {
        self.0.remove(&number);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Context)> {
        self.0.iter().map(|(number, context)| (*number, context))
    }
}

impl Context {
    /// Opens a context, without a queue if there is no room for one.
    fn open(device: &dyn WatchedDevice, hub: &Arc<Hub>, has_room: bool) -> Self {
        let awaited = Arc::new(AtomicU64::new(NOTHING));
        let queue = if has_room {
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
