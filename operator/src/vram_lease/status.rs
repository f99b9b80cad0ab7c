//! Status and Events of a lease, computed from the lease and the slices that the pool holds for it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sahasra_crds::{
    VramLease, VramLeaseStatus,
    conditions::{self, GRANTED},
    vram_lease::{LeaseLoss, Renewal},
};

use super::{is_served_once, was_granted};
use crate::{
    clock::timestamp,
    leases::{self, GrantedReason},
    pool::{ClaimView, Loss, Lost},
};

/// Whether the loss is the end that the lease's spec requests.
pub(super) fn is_due(lease: &VramLease, lost: &Lost) -> bool {
    lease.spec.renewal == Renewal::Never && lost.why == Loss::Expired
}

fn loss_reason(lost: &Lost) -> GrantedReason {
    match lost.why {
        Loss::Expired => GrantedReason::Expired,
        Loss::Worker(_) => GrantedReason::Lost,
    }
}

fn loss_message(lost: &Lost) -> String {
    let plural = if lost.slices == 1 { "" } else { "s" };
    format!("{} slice{plural} on {}: {}", lost.slices, lost.device, lost.why)
}

/// The next status of the lease. `lost` is a loss that the current status does not contain.
pub(super) fn next_status(lease: &VramLease, view: &ClaimView, term: u64, ended: bool, lost: Option<&Lost>) -> VramLeaseStatus {
    let old = lease.status.clone().unwrap_or_default();
    let now = timestamp();
    let granted = match &view.lost {
        _ if !ended => match GrantedReason::of(view, u64::try_from(lease.spec.slices.min).unwrap_or_default()) {
            GrantedReason::WaitingForAgents if is_served_once(lease) && view.slices() > 0 => (
                GrantedReason::WaitingForSlices,
                "slices were lost, and are not replaced while renewal is Never: create another VramLease".to_owned(),
            ),
            GrantedReason::WaitingForAgents => (GrantedReason::WaitingForSlices, "waiting for agents to respond".to_owned()),
            GrantedReason::WaitingForMoreSlices if is_served_once(lease) => (
                GrantedReason::SlicesGranted,
                "the slices are held; no slices are added while renewal is Never: create another VramLease".to_owned(),
            ),
            waits @ (GrantedReason::WaitingForSlices | GrantedReason::WaitingForMoreSlices) => {
                let why_not = view.why_not.clone();
                (
                    waits,
                    why_not.unwrap_or_else(|| "waiting for slices that other claims release".to_owned()),
                )
            }
            granted => (granted, "the slices are held".to_owned()),
        },
        Some(lost) if !is_due(lease, lost) => (loss_reason(lost), loss_message(lost)),
        // The lease stays ended even if `renewal` is changed, because it is not claimed again.
        _ => (
            GrantedReason::Expired,
            "expired while renewal was Never: create another VramLease".to_owned(),
        ),
    };
    let (granted, message) = (granted.0, granted.1.as_str());
    let mut next = leases::status(view, term, old.conditions, (granted, message), lease.metadata.generation, now);
    next.granted_at = old.granted_at.or_else(|| (next.slices > 0).then_some(Time(now)));
    if lease.spec.renewal == Renewal::Never {
        let ends = now + lease.spec.ttl();
        next.expires_at = old.expires_at.or_else(|| (next.slices > 0).then_some(Time(ends)));
    }
    let loss = lost.map(|lost| LeaseLoss {
        time: Time(now),
        reason: loss_reason(lost).reason().to_owned(),
        message: loss_message(lost),
    });
    next.last_loss = loss.or(old.last_loss);
    next
}

/// Events to publish after the status was written: whether each is a warning, its reason and its text.
pub(super) fn events(lease: &VramLease, next: &VramLeaseStatus, lost: Option<&Lost>) -> Vec<(bool, &'static str, String)> {
    let mut events = Vec::new();
    if let Some(lost) = lost {
        let reason = if lost.why == Loss::Expired { "SlicesExpired" } else { "SlicesLost" };
        events.push((true, reason, loss_message(lost)));
    }
    let more = GrantedReason::WaitingForMoreSlices;
    let waited = lease.status.as_ref().is_some_and(|status| more.is_in(&status.conditions));
    let (is_granted, was_granted) = (conditions::is_true(&next.conditions, GRANTED), was_granted(lease));
    if is_granted && (!was_granted || waited) {
        let (slices, devices) = (next.slices, next.devices);
        events.push((
            false,
            GrantedReason::SlicesGranted.reason(),
            format!("slices: {slices}, on devices: {devices}"),
        ));
    }
    let granted = conditions::get(&next.conditions, GRANTED);
    if let Some(waits) = granted.filter(|granted| granted.reason == more.reason() && !waited) {
        events.push((false, more.reason(), waits.message.clone()));
    }
    if let Some(ended) = granted.filter(|granted| was_granted && lost.is_none() && granted.reason == GrantedReason::Expired.reason()) {
        events.push((false, GrantedReason::Expired.reason(), ended.message.clone()));
    }
    events
}
