//! Stored sequences of a context, which count as memory of the lease.

use std::sync::Arc;

use parking_lot::Mutex;
use sahasra_cuda_device::{Failure, Operation, SequenceId, Sequences};

use super::lease::Lease;

/// Memory of the lease, until it is dropped.
#[derive(Debug)]
struct Taken {
    lease: Arc<Lease>,
    bytes: u64,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.lease.give(self.bytes);
    }
}

/// [Sequences](self) of a context.
#[derive(Debug)]
pub(super) struct Stored {
    lease: Arc<Lease>,
    sequences: Mutex<Sequences<Taken>>,
}

impl Stored {
    pub(super) fn new(lease: &Arc<Lease>) -> Self {
        Self {
            lease: Arc::clone(lease),
            sequences: Mutex::default(),
        }
    }

    pub(super) fn extend(&self, id: SequenceId, operations: &[Operation]) -> Result<(), Failure> {
        let lease = Arc::clone(&self.lease);
        self.sequences.lock().extend(id, operations, |bytes| {
            lease.take(bytes)?;
            Ok(Taken { lease, bytes })
        })
    }

    pub(super) fn amend(&self, id: SequenceId, index: u32, operations: &[Operation]) -> Result<(), Failure> {
        self.sequences.lock().amend(id, index, operations)
    }

    pub(super) fn operations(&self, id: SequenceId) -> Result<Arc<Vec<Operation>>, Failure> {
        self.sequences.lock().operations(id)
    }

    pub(super) fn erase(&self, id: SequenceId) -> Result<(), Failure> {
        self.sequences.lock().erase(id)
    }

    /// Frees all sequences.
    pub(super) fn clear(&self) {
        *self.sequences.lock() = Sequences::default();
    }
}
