//! Requests that the pool makes to agents.

use sahasra_names::WorkerName;
use sahasra_wire::grants::{AcquireRequest, GrantId, Owner, ReleaseRequest, RenewRequest};

/// A request to an agent.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::pool) enum Action {
    Acquire {
        worker: WorkerName,
        endpoint: String,
        request: AcquireRequest,
    },
    Release {
        worker: WorkerName,
        endpoint: String,
        request: ReleaseRequest,
    },
    Renew {
        worker: WorkerName,
        endpoint: String,
        request: RenewRequest,
    },
    Inventory {
        worker: WorkerName,
        endpoint: String,
    },
}

impl Action {
    /// The worker whose agent is called.
    pub(in crate::pool) fn worker(&self) -> &WorkerName {
        match self {
            Self::Acquire { worker, .. } | Self::Release { worker, .. } | Self::Renew { worker, .. } | Self::Inventory { worker, .. } => {
                worker
            }
        }
    }

    /// The device of which slices are requested.
    pub(in crate::pool) fn device(&self) -> Option<&str> {
        match self {
            Self::Acquire { request, .. } => Some(&request.device),
            Self::Release { .. } | Self::Renew { .. } | Self::Inventory { .. } => None,
        }
    }

    /// Releases grants of an owner, except for `keep_slices` slices of each. If no grants are listed, all grants of the owner are released.
    pub(super) fn release(
        worker: &WorkerName,
        endpoint: &str,
        owner: &Owner,
        grants: Vec<GrantId>,
        keep_slices: u32,
        immediately: bool,
    ) -> Self {
        Self::Release {
            worker: worker.clone(),
            endpoint: endpoint.to_owned(),
            request: ReleaseRequest {
                owner: owner.clone(),
                grants,
                keep_slices,
                immediately,
            },
        }
    }
}
