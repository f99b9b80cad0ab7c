//! The outcomes of a coordinator's background writes, and the errors of a checkpoint.

use sahasra_crds::{BurstJob, BurstJobStatus, MAX_CONFIG_MAP_BYTES, VramLease, conditions::FAILED};
use sahasra_names::WorkerName;

use crate::burst::{checkpoint::StoredSets, index_set::IndexSet, objects::WriteError, results_store::SegmentIndex, status::Verdict};

pub(super) enum Written {
    Status(Box<BurstJobStatus>, Result<Box<BurstJob>, WriteError>),
    /// Resource version of the ConfigMap, and what it covers.
    Checkpoint(Result<(String, Box<Covered>), SaveError>),
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

#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error("failed to {operation}")]
    Store {
        operation: &'static str,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("the checkpoint has {0} bytes, exceeding the {MAX_CONFIG_MAP_BYTES} of a ConfigMap")]
    TooLarge(usize),
}

impl SaveError {
    pub fn category(&self) -> &'static str {
        match self {
            Self::Write(error) => error.category(),
            Self::Store { .. } => "store",
            Self::TooLarge(_) => "size",
        }
    }

    /// Reason of the condition that reports this error.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Write(_) => "ApiServerUnavailable",
            Self::Store { .. } => "StoreUnavailable",
            Self::TooLarge(_) => "CheckpointTooLarge",
        }
    }

    /// Condition of a burst that can never be saved, because a retry would be rejected again. `None` for errors that a retry may overcome.
    pub(super) fn refusal(&self) -> Option<Verdict> {
        match self {
            Self::TooLarge(bytes) => Some(Verdict::new(
                FAILED,
                true,
                self.reason(),
                format!(
                    "spec.output: the indices of succeeded and failed chunks have {bytes} bytes, exceeding the {MAX_CONFIG_MAP_BYTES} of \
                     a ConfigMap: set output.store, or lower spec.maxFailedChunks"
                ),
            )),
            Self::Write(error) if error.is_final() => Some(Verdict::new(
                FAILED,
                true,
                "CheckpointRejected",
                format!(
                    "{}: set spec.output.store, or create smaller BurstJobs",
                    error.rejection().unwrap_or_default()
                ),
            )),
            _ => None,
        }
    }
}
