//! Status and Events of a lease, computed from the lease and the slices that the pool holds for it.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sahasra_crds::{
    VramLease, VramLeaseStatus,
    conditions::{self, GRANTED},
    vram_lease::{LeaseLoss, Renewal},
};

use super::{ttl_milliseconds, was_granted};
use crate::{
    burst::coordinator::lease_status,
    clock::timestamp,
    pool::{ClaimView, Loss, Lost},
};

/// Reason of `Granted=False`: the slices were not renewed in time, or the lease is not renewed and its time is over.
pub(crate) const EXPIRED: &str = "Expired";
/// Reason of `Granted=False`: the worker is gone, restarted, or does not answer.
pub(super) const LOST: &str = "Lost";

/// Whether the loss is the end that the lease's spec asks for.
pub(super) fn is_due(lease: &VramLease, lost: &Lost) -> bool {
    lease.spec.renewal == Renewal::Never && lost.why == Loss::Expired
}

/// Message about lost slices and the cause.
fn loss_message(lost: &Lost) -> String {
    let plural = if lost.slices == 1 { "" } else { "s" };
    format!("{} slice{plural} on {}: {}", lost.slices, lost.device, lost.why)
}

/// The next status of the lease. `lost` is a loss that the current status does not contain.
pub(super) fn next_status(lease: &VramLease, view: &ClaimView, term: u64, ended: bool, lost: Option<&Lost>) -> VramLeaseStatus {
    let old = lease.status.clone().unwrap_or_default();
    let mut next = lease_status(view, term);
    let (enough, now) = (next.slices >= lease.spec.slices.min, timestamp());
    let worker_lost = view.lost.as_ref().filter(|lost| lost.why != Loss::Expired);
    let (reason, message) = match &view.why_not {
        _ if ended => match (&view.lost, worker_lost) {
            (_, Some(lost)) => (LOST, loss_message(lost)),
            (Some(lost), None) if lease.spec.renewal != Renewal::Never => (EXPIRED, loss_message(lost)),
            // Also true after `renewal` was changed: the lease is not claimed again.
            _ => (EXPIRED, "it expired while renewal was Never; create another VramLease".to_owned()),
        },
        _ if enough => ("SlicesGranted", "the slices are held".to_owned()),
        Some(why_not) => ("WaitingForSlices", why_not.clone()),
        None => ("WaitingForSlices", "waiting for agents to answer".to_owned()),
    };
    next.conditions = old.conditions;
    let generation = lease.metadata.generation;
    conditions::set(&mut next.conditions, GRANTED, enough && !ended, reason, &message, generation, now);
    next.observed_generation = generation;
    next.granted_at = old.granted_at.or_else(|| (next.slices > 0).then_some(Time(now)));
    if lease.spec.renewal == Renewal::Never {
        let ends = now + Duration::from_millis(ttl_milliseconds(lease));
        next.expires_at = old.expires_at.or_else(|| (next.slices > 0).then_some(Time(ends)));
    }
    next.last_loss = lost.map_or(old.last_loss, |lost| {
        let reason = if lost.why == Loss::Expired { EXPIRED } else { "WorkerLost" };
        Some(LeaseLoss {
            time: Time(now),
            reason: reason.to_owned(),
            message: loss_message(lost),
        })
    });
    next
}

/// Events to publish after the status was written: whether each is a warning, its reason and its text.
pub(super) fn events(lease: &VramLease, next: &VramLeaseStatus, lost: Option<&Lost>) -> Vec<(bool, &'static str, String)> {
    let mut events = Vec::new();
    if let Some(lost) = lost {
        let reason = if lost.why == Loss::Expired { "SlicesExpired" } else { "SlicesLost" };
        events.push((true, reason, loss_message(lost)));
    }
    let (is_granted, was_granted) = (conditions::is_true(&next.conditions, GRANTED), was_granted(lease));
    if is_granted && !was_granted {
        let (slices, devices) = (next.slices, next.devices);
        events.push((false, "SlicesGranted", format!("slices: {slices}, on devices: {devices}")));
    }
    let granted = conditions::get(&next.conditions, GRANTED);
    if let Some(ended) = granted.filter(|granted| was_granted && lost.is_none() && granted.reason == EXPIRED) {
        events.push((false, EXPIRED, ended.message.clone()));
    }
    events
}
