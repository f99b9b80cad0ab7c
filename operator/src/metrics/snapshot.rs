//! Metrics that are computed at each scrape from the operator's current state.

use std::{collections::BTreeMap, sync::OnceLock};

use kube::runtime::reflector::Store;
use sahasra_crds::{BurstJob, GpuSession, VramLease};
use sahasra_scheduler::ClaimKind;

use crate::{context::Context, http};

/// States of a `BurstJob` in its status.
pub(super) const BURST_STATES: [&str; 5] = ["Pending", "Running", "Suspended", "Complete", "Failed"];
/// States of a `GpuSession` in its status.
pub(super) const SESSION_STATES: [&str; 4] = ["Pending", "Placed", "Ready", "Failed"];
pub(super) const CLAIM_KINDS: [&str; 3] = [kind(ClaimKind::Burst), kind(ClaimKind::Session), kind(ClaimKind::Lease)];

const fn kind(kind: ClaimKind) -> &'static str {
    match kind {
        ClaimKind::Burst => "burst",
        ClaimKind::Session => "session",
        ClaimKind::Lease => "lease",
    }
}

/// Caches of the reconcilers. They are set once the reconcilers run, which is on the leader only.
#[derive(Default)]
pub struct Caches {
    pub bursts: OnceLock<Store<BurstJob>>,
    pub sessions: OnceLock<Store<GpuSession>>,
    pub leases: OnceLock<Store<VramLease>>,
}

/// Updates the computed metrics. Called at each scrape.
pub fn observe(context: &Context) {
    let metrics = &context.metrics;
    metrics.before_scrape();

    let mut workers: BTreeMap<&str, i64> = http::STATUSES.iter().map(|status| (*status, 0)).collect();
    for worker in context.directory.workers() {
        *workers.entry(http::status(&worker)).or_default() += 1;
    }
    for (status, count) in workers {
        metrics.workers.with_label_values(&[status]).set(count);
    }

    let mut waiting: BTreeMap<&str, (i64, u64)> = CLAIM_KINDS.iter().map(|kind| (*kind, (0, 0))).collect();
    for (of, milliseconds) in context.pool.waiting() {
        let (count, oldest) = waiting.entry(kind(of)).or_default();
        *count += 1;
        *oldest = (*oldest).max(milliseconds);
    }
    for (kind, (count, oldest)) in waiting {
        metrics.claims_waiting.with_label_values(&[kind]).set(count);
        metrics.claims_oldest.with_label_values(&[kind]).set(oldest as f64 / 1e3);
    }

    let bursts = context.caches.bursts.get().map(Store::state).unwrap_or_default();
    let state = |job: &BurstJob| job.status.as_ref()?.state.clone();
    let counts = by_state(&BURST_STATES, bursts.iter().map(|job| state(job)));
    for (state, count) in counts {
        metrics.bursts.with_label_values(&[state]).set(count);
    }
    let sessions = context.caches.sessions.get().map(Store::state).unwrap_or_default();
    let state = |session: &GpuSession| session.status.as_ref()?.state.clone();
    let counts = by_state(&SESSION_STATES, sessions.iter().map(|session| state(session)));
    for (state, count) in counts {
        metrics.sessions.with_label_values(&[state]).set(count);
    }
}

/// Number of objects in each state. Objects without a state, or with a state of another version, count as the first state.
fn by_state<'a>(states: &[&'a str], objects: impl Iterator<Item = Option<String>>) -> Vec<(&'a str, i64)> {
    let mut counts: Vec<(&str, i64)> = states.iter().map(|state| (*state, 0)).collect();
    for state in objects {
        let at = states.iter().position(|known| state.as_deref() == Some(*known)).unwrap_or(0);
        if let Some((_, count)) = counts.get_mut(at) {
            *count += 1;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_without_a_state_count_as_pending() {
        let states = [Some("Running"), None, Some("Running"), Some("Unheard")].map(|state| state.map(str::to_owned));
        let counts = by_state(&BURST_STATES, states.into_iter());
        assert_eq!(
            counts,
            [("Pending", 2), ("Running", 2), ("Suspended", 0), ("Complete", 0), ("Failed", 0)]
        );
    }
}
