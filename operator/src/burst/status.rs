//! The status of a `BurstJob`, computed without a client.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use sahasra_crds::{
    BurstJobStatus,
    burst_job::status::{ChunkCounts, ChunkFailure, MAX_INDEXES_BYTES, MAX_MESSAGE_BYTES},
    conditions::{self, ACCEPTED, ADMITTED, CHECKPOINTED, COMPLETE, FAILED, SUSPENDED},
};

use super::account::Account;
use crate::objects::{cut, integer};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub kind: &'static str,
    pub status: bool,
    pub reason: String,
    pub message: String,
}

impl Verdict {
    pub(crate) fn new(kind: &'static str, status: bool, reason: &str, message: impl Into<String>) -> Self {
        Self {
            kind,
            status,
            reason: reason.to_owned(),
            message: message.into(),
        }
    }

    /// The conditions of a burst that failed.
    pub(crate) fn failed(reason: &str, message: impl Into<String>) -> Vec<Self> {
        vec![
            Self::new(FAILED, true, reason, message),
            Self::new(COMPLETE, false, reason, "the burst failed"),
        ]
    }
}

/// Sets conditions, and derives state and reason from them.
pub(crate) fn judge(status: &mut BurstJobStatus, generation: Option<i64>, verdicts: &[Verdict], now: Timestamp) {
    for verdict in verdicts {
        let message = cut(&verdict.message, MAX_MESSAGE_BYTES);
        conditions::set(
            &mut status.conditions,
            verdict.kind,
            verdict.status,
            &verdict.reason,
            &message,
            generation,
            now,
        );
    }
    observe(status, generation);
    let (state, deciding) = state(status);
    status.state = Some(state.to_owned());
    let reason = deciding.and_then(|kind| conditions::get(&status.conditions, kind));
    status.reason = reason.map(|condition| condition.reason.clone());
}

/// Sets the observed generation of the status and of every condition, changed or not, because `kubectl wait` compares both.
pub(crate) fn observe(status: &mut BurstJobStatus, generation: Option<i64>) {
    status.observed_generation = generation;
    for condition in &mut status.conditions {
        condition.observed_generation = generation;
    }
}

/// Value of `status.state`, and the type of the condition that determines it.
fn state(status: &BurstJobStatus) -> (&'static str, Option<&'static str>) {
    let is = |kind| conditions::is_true(&status.conditions, kind);
    let given = |kind| conditions::get(&status.conditions, kind).is_some();
    if is(COMPLETE) {
        ("Complete", Some(COMPLETE))
    } else if is(FAILED) {
        ("Failed", Some(FAILED))
    } else if is(SUSPENDED) {
        ("Suspended", Some(SUSPENDED))
    } else if given(ACCEPTED) && !is(ACCEPTED) {
        ("Pending", Some(ACCEPTED))
    } else if is(ADMITTED) {
        let saved = !given(CHECKPOINTED) || is(CHECKPOINTED);
        ("Running", Some(if saved { ADMITTED } else { CHECKPOINTED }))
    } else if given(ADMITTED) {
        ("Pending", Some(ADMITTED))
    } else {
        ("Pending", given(ACCEPTED).then_some(ACCEPTED))
    }
}

pub(crate) fn is_finished(status: Option<&BurstJobStatus>) -> bool {
    status.is_some_and(|status| [COMPLETE, FAILED].iter().any(|kind| conditions::is_true(&status.conditions, kind)))
}

/// Sets the fields of the status that follow from the account.
pub(crate) fn count(status: &mut BurstJobStatus, account: &Account) {
    let counts = account.counts();
    // After the end, nothing runs: chunks that are in flight when a burst fails are not waited for, and count as pending.
    let running = if status.completion_time.is_some() { 0 } else { counts.running };
    status.chunks = ChunkCounts {
        total: integer(counts.total),
        pending: integer(counts.pending + counts.running - running),
        running: integer(running),
        succeeded: integer(counts.succeeded),
        failed: integer(counts.failed),
        retried: integer(counts.retried),
    };
    let text = |set: &super::index_set::IndexSet| (!set.is_empty()).then(|| set.text(MAX_INDEXES_BYTES));
    status.completed_indexes = text(account.completed());
    status.failed_indexes = text(account.failed_set());
    status.failures = account
        .failures()
        .iter()
        .map(|failure| ChunkFailure {
            message: cut(&failure.message, MAX_MESSAGE_BYTES),
            ..failure.clone()
        })
        .collect();
}

/// Sets the fields of a burst that ended at `now` without a coordinator.
pub(crate) fn end(status: &mut BurstJobStatus, now: Timestamp) {
    status.completion_time.get_or_insert(Time(now));
    status.chunks.pending += std::mem::take(&mut status.chunks.running);
    status.slices.held = 0;
    status.lease = None;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_and_reason_follow_the_conditions() {
        let now = Timestamp::UNIX_EPOCH;
        let mut status = BurstJobStatus::default();
        let mut expect = |verdict: Verdict, state: &str, reason: &str| {
            judge(&mut status, Some(1), &[verdict], now);
            assert_eq!((status.state.as_deref(), status.reason.as_deref()), (Some(state), Some(reason)));
        };
        expect(
            Verdict::new(ACCEPTED, false, "ConfigMapNotFound", ""),
            "Pending",
            "ConfigMapNotFound",
        );
        expect(Verdict::new(ACCEPTED, true, "Valid", ""), "Pending", "Valid");
        expect(Verdict::new(ADMITTED, false, "WaitingForSlices", ""), "Pending", "WaitingForSlices");
        expect(Verdict::new(ADMITTED, true, "SlicesGranted", ""), "Running", "SlicesGranted");
        expect(
            Verdict::new(CHECKPOINTED, false, "StoreUnavailable", ""),
            "Running",
            "StoreUnavailable",
        );
        expect(
            Verdict::new(CHECKPOINTED, true, "CheckpointWritten", ""),
            "Running",
            "SlicesGranted",
        );
        expect(Verdict::new(SUSPENDED, true, "SuspendedBySpec", ""), "Suspended", "SuspendedBySpec");
        expect(Verdict::new(SUSPENDED, false, "Resumed", ""), "Running", "SlicesGranted");
        expect(Verdict::new(COMPLETE, true, "AllSucceeded", ""), "Complete", "AllSucceeded");
    }

    #[test]
    fn a_burst_that_ended_without_a_coordinator_has_no_slices_and_no_running_chunks() {
        let mut status = BurstJobStatus::default();
        (status.chunks.total, status.chunks.pending, status.chunks.running) = (5, 1, 4);
        status.slices.held = 4;
        status.lease = Some("lease".to_owned());
        end(&mut status, Timestamp::UNIX_EPOCH);
        assert_eq!((status.chunks.pending, status.chunks.running), (5, 0));
        assert_eq!((status.slices.held, status.lease), (0, None));
        assert!(status.completion_time.is_some());
    }
}
