//! State of each job in addition to the cache, and the next step that follows from it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use sahasra_crds::BurstJob;
use sahasra_service::backoff::Backoff;
use tokio::{sync::watch, time::Instant};
use tokio_util::task::AbortOnDropHandle;

use super::ReconcileError;
use crate::burst::intake::{Outcome, Verdict, Waiting};

/// Waits after an error, or before a missing reference is looked up again.
pub(super) const RETRY: Backoff = Backoff::milliseconds(250, 30_000);
/// Waits after a conflict. Usually the watch delivers the newer object within the first.
const CONFLICT: Backoff = Backoff::milliseconds(100, 30_000);
/// Number of consecutive conflicts after which a job's conflicts are logged as warnings: about 1.5 s.
const PERSISTENT_CONFLICTS: u32 = 5;
/// Time for which a finished job is remembered, because the cache may not show its end yet.
pub(super) const REMEMBERED: Duration = Duration::from_secs(60);

pub(super) type JobStates = BTreeMap<String, JobState>;

/// State of a job in addition to the cache.
pub(super) enum JobState {
    Running(watch::Sender<Arc<BurstJob>>),
    Finished(Instant),
    /// The coordinator ended with an error, or none could be started.
    Broken {
        failures: u32,
        /// The last error, until it is reported.
        error: Option<ReconcileError>,
        until: Instant,
    },
    Intake(Intake),
    Rejected {
        attempts: u32,
        /// Time of the next validation. `None` if the job must change first.
        until: Option<Instant>,
        generation: Option<i64>,
        verdict: Verdict,
    },
}

pub(super) struct Intake {
    /// The cause for which the job waits, until it is written to the status.
    pub(super) waits: Option<Waiting>,
    pub(super) outcome: Option<Outcome>,
    /// Number of earlier attempts without a coordinator, or with one that ended soon.
    pub(super) attempts: u32,
    pub(super) _task: AbortOnDropHandle<()>,
}

/// The next step for a job that is neither coordinated nor finished.
pub(super) enum Next {
    Wait(Duration),
    Nothing,
    Report {
        error: Box<ReconcileError>,
        retry: Duration,
    },
    ShowWaiting(Waiting),
    /// Process the outcome of the intake. The number is that of earlier attempts.
    Act(Box<Outcome>, u32),
    /// Pass the job to the intake, with the verdict that holds unless the referenced objects have changed.
    Admit {
        attempts: u32,
        before: Option<Verdict>,
    },
}

/// Decides the next step for the job with this UID and generation. An error or outcome in the result is removed from `states`.
pub(super) fn next(states: &mut JobStates, uid: &str, generation: Option<i64>, now: Instant) -> Next {
    let next = match states.get_mut(uid) {
        Some(JobState::Intake(intake)) => match (intake.waits.take(), intake.outcome.take()) {
            (_, Some(outcome)) => Next::Act(Box::new(outcome), intake.attempts),
            (Some(waiting), None) => Next::ShowWaiting(waiting),
            (None, None) => Next::Nothing,
        },
        Some(JobState::Broken { failures, error, until }) => {
            let retry = until.saturating_duration_since(now);
            match error.take() {
                Some(error) => Next::Report {
                    error: Box::new(error),
                    retry,
                },
                // The backoff applies to every reconcile, regardless of its cause.
                None if !retry.is_zero() => Next::Wait(retry),
                None => Next::Admit {
                    attempts: *failures,
                    before: None,
                },
            }
        }
        Some(JobState::Rejected {
            attempts,
            until,
            generation: rejected,
            verdict,
        }) => match until.map(|until| until.saturating_duration_since(now)) {
            Some(wait) if !wait.is_zero() => Next::Wait(wait),
            None if *rejected == generation => Next::Nothing,
            _ => Next::Admit {
                attempts: *attempts,
                // A verdict on another generation does not apply to this one.
                before: Some(verdict.clone()).filter(|_| *rejected == generation),
            },
        },
        Some(JobState::Finished(at)) if now.duration_since(*at) < REMEMBERED => Next::Wait(REMEMBERED),
        _ => Next::Admit { attempts: 0, before: None },
    };
    if matches!(next, Next::Act(..)) {
        states.remove(uid);
    }
    next
}

/// Wait after an error of this category.
pub(super) fn pause(category: &str, attempts: u32) -> Duration {
    let backoff = if category == "conflict" { CONFLICT } else { RETRY };
    backoff.after(attempts)
}

/// Whether an error of this category is logged only for debugging: a conflict is not a failure, unless it persists.
pub(super) fn is_expected(category: &str, attempts: u32) -> bool {
    category == "conflict" && attempts < PERSISTENT_CONFLICTS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::burst::coordinator::CoordinatorError;

    #[test]
    fn conflicts_back_off_and_are_logged_once_they_persist() {
        let waits: Vec<u128> = (1..=4).map(|attempts| pause("conflict", attempts).as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800]);
        assert_eq!(pause("conflict", 1000), RETRY.longest);
        assert!(is_expected("conflict", 1) && is_expected("conflict", 4));
        assert!(!is_expected("conflict", 5) && !is_expected("api", 1));
    }

    #[test]
    fn an_error_is_reported_once_and_the_backoff_applies_to_every_reconcile() {
        let now = Instant::now();
        let broken = JobState::Broken {
            failures: 2,
            error: Some(ReconcileError::Coordinate(CoordinatorError::Superseded)),
            until: now + RETRY.first,
        };
        let mut states = JobStates::from([("job".to_owned(), broken)]);
        assert!(matches!(next(&mut states, "job", Some(1), now), Next::Report { retry, .. } if retry == RETRY.first));
        assert!(matches!(next(&mut states, "job", Some(2), now), Next::Wait(wait) if wait == RETRY.first));
        let later = now + RETRY.first;
        assert!(matches!(
            next(&mut states, "job", Some(1), later),
            Next::Admit { attempts: 2, before: None }
        ));
    }

    #[test]
    fn a_permanently_rejected_spec_is_validated_again_when_it_changes() {
        let verdict = Verdict {
            reason: "InvalidPtx",
            message: "spec.kernel.ptx".to_owned(),
            may_pass: false,
            version: None,
        };
        let rejected = |until| JobState::Rejected {
            attempts: 1,
            until,
            generation: Some(1),
            verdict: verdict.clone(),
        };
        let now = Instant::now();
        let mut states = JobStates::from([("job".to_owned(), rejected(None))]);
        assert!(matches!(next(&mut states, "job", Some(1), now), Next::Nothing));
        assert!(matches!(
            next(&mut states, "job", Some(2), now),
            Next::Admit { attempts: 1, before: None }
        ));
        // A rejection that may change is checked again after the wait, with the verdict for unchanged objects.
        let mut states = JobStates::from([("job".to_owned(), rejected(Some(now + RETRY.first)))]);
        assert!(matches!(next(&mut states, "job", Some(1), now), Next::Wait(_)));
        assert!(matches!(
            next(&mut states, "job", Some(1), now + RETRY.first),
            Next::Admit { before: Some(_), .. }
        ));
    }
}
