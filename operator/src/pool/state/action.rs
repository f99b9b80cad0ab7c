//! Requests that the pool makes to agents.

use sahasra_names::WorkerName;
use sahasra_wire::grants::{AcquireRequest, GrantId, Owner, ReleaseRequest, RenewRequest};

/// A request to the agent of a worker.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::pool) struct Action {
    pub worker: WorkerName,
    pub endpoint: String,
    pub request: Request,
}

#[derive(Clone, Debug, PartialEq)]
pub(in crate::pool) enum Request {
    Acquire(AcquireRequest),
    Release(ReleaseRequest),
    Renew(RenewRequest),
    Inventory,
}

impl Action {
    pub(super) fn new(worker: &WorkerName, endpoint: &str, request: Request) -> Self {
        Self {
            worker: worker.clone(),
            endpoint: endpoint.to_owned(),
            request,
        }
    }

    /// The device of which slices are requested.
    pub(in crate::pool) fn device(&self) -> Option<&str> {
        match &self.request {
            Request::Acquire(request) => Some(&request.device),
            Request::Release(_) | Request::Renew(_) | Request::Inventory => None,
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
        let owner = owner.clone();
        let request = ReleaseRequest {
            owner,
            grants,
            keep_slices,
            immediately,
        };
        Self::new(worker, endpoint, Request::Release(request))
    }
}
