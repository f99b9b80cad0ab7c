//! The status of a `VramLease`: what its claim holds, and the condition `Granted` with its reasons.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use sahasra_crds::{
    VramLeaseStatus,
    conditions::{self, GRANTED},
    vram_lease::{GrantStatus, MAX_GRANTS},
};

use crate::{objects::integer, pool::ClaimView};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrantedReason {
    SlicesGranted,
    /// The pool has no slices for the claim.
    WaitingForSlices,
    /// The claim keeps its slices, and waits for those that a raised minimum adds.
    WaitingForMoreSlices,
    WaitingForAgents,
    /// The slices were not renewed in time, or the lease is not renewed and its time is over.
    Expired,
    /// The worker was removed, restarted, or does not answer.
    Lost,
}

impl GrantedReason {
    /// The reason for a claim that has not ended and needs at least `min` slices.
    pub(crate) fn of(view: &ClaimView, min: u64) -> Self {
        match &view.why_not {
            _ if view.slices() >= min => Self::SlicesGranted,
            _ if view.keeps_fewer => Self::WaitingForMoreSlices,
            Some(_) => Self::WaitingForSlices,
            None => Self::WaitingForAgents,
        }
    }

    pub(crate) const fn reason(self) -> &'static str {
        match self {
            Self::SlicesGranted => "SlicesGranted",
            Self::WaitingForSlices => "WaitingForSlices",
            Self::WaitingForMoreSlices => "WaitingForMoreSlices",
            Self::WaitingForAgents => "WaitingForAgents",
            Self::Expired => "Expired",
            Self::Lost => "WorkerLost",
        }
    }

    pub(crate) fn is_in(self, conditions: &[Condition]) -> bool {
        conditions::get(conditions, GRANTED).is_some_and(|condition| condition.reason == self.reason())
    }
}

/// The status of a lease whose claim has this view, in which the condition `Granted` of `conditions` is updated.
pub(crate) fn status(
    view: &ClaimView,
    term: u64,
    mut conditions: Vec<Condition>,
    (granted, message): (GrantedReason, &str),
    generation: Option<i64>,
    now: Timestamp,
) -> VramLeaseStatus {
    let is_granted = granted == GrantedReason::SlicesGranted;
    conditions::set(&mut conditions, GRANTED, is_granted, granted.reason(), message, generation, now);
    // Sorted, because the order in which agents answer means nothing and is another one after a restart.
    let mut grants: Vec<_> = view.grants.iter().collect();
    grants.sort_by_key(|grant| (&grant.device, grant.id.counter));
    let devices = grants.chunk_by(|one, next| one.device == next.device);
    let devices = integer(devices.count() as u64);
    let listed = grants.into_iter().take(MAX_GRANTS).map(|grant| GrantStatus {
        worker: grant.device.worker.to_string(),
        device: grant.device.device.to_string(),
        slices: i64::from(grant.slices),
        id: grant.id.text(),
    });
    VramLeaseStatus {
        term: integer(term),
        slices: integer(view.slices()),
        devices,
        grants: listed.collect(),
        conditions,
        observed_generation: generation,
        ..VramLeaseStatus::default()
    }
}
