//! The outcomes of a coordinator's background writes.

use sahasra_crds::{BurstJob, BurstJobStatus, VramLease};
use sahasra_names::WorkerName;

use crate::burst::{checkpoint::StoredSets, index_set::IndexSet, objects::WriteError, results_store::SegmentIndex};

pub(super) enum Written {
    Status(Box<BurstJobStatus>, Result<Box<BurstJob>, WriteError>),
    /// Resource version of the ConfigMap, and what it covers.
    Checkpoint(Result<(String, Box<Covered>), WriteError>),
    /// Generation of the lease after the write.
    Lease(Result<Option<i64>, WriteError>),
    /// The lease that replaces a deleted one.
    Intent(Result<Box<VramLease>, WriteError>),
}

/// The results that a checkpoint covers, and its state in the store.
pub(super) struct Covered {
    pub(super) indices: IndexSet,
    pub(super) sequences: Vec<(WorkerName, u64, u64)>,
    /// Number of segments that the checkpoint added to the index.
    pub(super) segments: usize,
    pub(super) index: Option<SegmentIndex>,
    pub(super) sets: Option<StoredSets>,
    pub(super) bytes: usize,
}
