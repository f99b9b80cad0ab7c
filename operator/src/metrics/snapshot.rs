//! Metrics that are computed at each scrape from the operator's current state.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use prometheus::IntGaugeVec;
use sahasra_crds::{BurstJob, GpuSession};
use sahasra_scheduler::ClaimKind;

use super::Metrics;
use crate::agents::{STATUSES, Worker};

pub(super) const BURST_STATES: [&str; 5] = ["Pending", "Running", "Suspended", "Complete", "Failed"];
pub(super) const SESSION_STATES: [&str; 4] = ["Pending", "Placed", "Ready", "Failed"];
pub(super) const CLAIM_KINDS: [&str; 3] = [kind(ClaimKind::Burst), kind(ClaimKind::Session), kind(ClaimKind::Lease)];

const fn kind(kind: ClaimKind) -> &'static str {
    match kind {
        ClaimKind::Burst => "BurstJob",
        ClaimKind::Session => "GpuSession",
        ClaimKind::Lease => "VramLease",
    }
}

impl Metrics {
    /// Updates the computed metrics. Called at each scrape. `claims` are those that wait for their minimum: kind of each, and the time for
    /// which it has waited.
    pub fn update(&self, workers: &[Worker], claims: &[(ClaimKind, Duration)], bursts: &[Arc<BurstJob>], sessions: &[Arc<GpuSession>]) {
        self.before_scrape();
        let status = |worker: &Worker| Some(worker.status().to_owned());
        set(&self.workers, &STATUSES, workers.iter().map(status));

        let mut waiting: BTreeMap<&str, (i64, Duration)> = CLAIM_KINDS.iter().map(|kind| (*kind, (0, Duration::ZERO))).collect();
        for (of, waited) in claims {
            let (count, oldest) = waiting.entry(kind(*of)).or_default();
            *count += 1;
            *oldest = (*oldest).max(*waited);
        }
        for (kind, (count, oldest)) in waiting {
            self.claims_waiting.with_label_values(&[kind]).set(count);
            self.claims_oldest.with_label_values(&[kind]).set(oldest.as_secs_f64());
        }

        let state = |job: &Arc<BurstJob>| job.status.as_ref()?.state.clone();
        set(&self.bursts, &BURST_STATES, bursts.iter().map(state));
        let state = |session: &Arc<GpuSession>| session.status.as_ref()?.state.clone();
        set(&self.sessions, &SESSION_STATES, sessions.iter().map(state));
    }
}

fn set(gauges: &IntGaugeVec, states: &[&str], objects: impl Iterator<Item = Option<String>>) {
    for (value, count) in by_state(states, objects) {
        gauges.with_label_values(&[value]).set(count);
    }
}

/// Number of objects in each state. Objects without a state, or with a state of another version, count as the first state.
fn by_state<'a>(states: &[&'a str], objects: impl Iterator<Item = Option<String>>) -> Vec<(&'a str, i64)> {
    let mut counts: Vec<(&str, i64)> = states.iter().map(|state| (*state, 0)).collect();
    for state in objects {
        let at = states.iter().position(|known| state.as_deref() == Some(*known)).unwrap_or(0);
        counts[at].1 += 1;
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
