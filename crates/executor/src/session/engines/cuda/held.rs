//! [`Held`]: what holds the operations of a client back.

use bytes::Bytes;
use sahasra_cuda_device::Operation;
use sahasra_memory::shared::Loan;
use sahasra_wire::cuda::{Load, Read, Write};

/// What later operations of the client wait for: a request whose result they may change, or operations for which a queue has no room.
pub(super) enum Held {
    Read(Read, Option<Loan>),
    Load { load: Load, images: Vec<Bytes> },
    Batch { context: u64, rest: std::vec::IntoIter<Operation> },
    Write(Write, Bytes),
}

impl Held {
    pub(super) fn context(&self) -> u64 {
        match self {
            Self::Read(read, _) => read.context,
            Self::Load { load, .. } => load.context,
            Self::Batch { context, .. } => *context,
            Self::Write(write, _) => write.context,
        }
    }

    /// Whether it waits for all operations of its context, rather than for room in the queue.
    pub(super) fn waits_for_all(&self) -> bool {
        matches!(self, Self::Read(..) | Self::Load { .. })
    }
}
