//! State of the bursts and leases of a run, and how they ended. Does no I/O.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use sahasra_crds::{
    BurstJob, VramLease,
    conditions::{self, ACCEPTED, ADMITTED, CHECKPOINTED, COMPLETE, FAILED, GRANTED, SUSPENDED},
};

use super::progress::Snapshot;

/// Time after which a waiting burst or lease is given up if nothing runs. Slices are released within milliseconds and the operator solves
/// again every half second; the remaining time is for a machine under load.
const STUCK_TIMEOUT: Duration = Duration::from_secs(8);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// A burst is complete, or a lease was granted.
    Complete,
    /// A burst failed, with reason and message.
    Failed(String),
    /// A burst was rejected (`Accepted=False`) or is suspended, with the reason.
    Refused(String),
    /// A burst or lease waits for resources that no device has.
    Unplaceable(String),
    /// A burst was deleted by its `ttlSecondsAfterFinished` before its outcome was observed.
    Gone,
}

pub(super) type Key = (String, String);

/// The operator's statistics of all bursts together, which are newer than the status of any burst.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    pub held: u64,
    pub succeeded: u64,
    /// Chunks that failed permanently.
    pub failed: u64,
    /// Attempts beyond the first of each chunk.
    pub retried: u64,
}

#[derive(Debug, Default)]
pub(super) struct Following {
    bursts: BTreeMap<Key, (Option<BurstJob>, bool)>,
    leases: BTreeMap<Key, Option<VramLease>>,
    /// Time since which nothing runs although an object waits.
    stuck: Option<Instant>,
    gave_up: bool,
}

impl Following {
    pub(super) fn burst(&mut self, key: Key) {
        self.bursts.insert(key, (None, false));
    }

    pub(super) fn lease(&mut self, key: Key) {
        self.leases.insert(key, None);
    }

    pub(super) fn observe(&mut self, bursts: Vec<BurstJob>, leases: Vec<VramLease>, now: Instant) {
        let mut present: BTreeMap<Key, BurstJob> = bursts.into_iter().map(|job| (key(&job), job)).collect();
        for (key, (seen, gone)) in &mut self.bursts {
            match present.remove(key) {
                Some(job) => *seen = Some(job),
                // The last observed version of a deleted burst is kept.
                None => *gone = seen.is_some(),
            }
        }
        let mut present: BTreeMap<Key, VramLease> = leases.into_iter().map(|lease| (key(&lease), lease)).collect();
        for (key, seen) in &mut self.leases {
            if let Some(lease) = present.remove(key) {
                *seen = Some(lease);
            }
        }
        let running = self.bursts.values().any(|(job, _)| job.as_ref().is_some_and(is_running));
        let waiting = self.waiting().is_some();
        if running || !waiting {
            self.stuck = None;
        } else {
            let since = *self.stuck.get_or_insert(now);
            self.gave_up |= now.duration_since(since) >= STUCK_TIMEOUT;
        }
    }

    /// Time at which to observe again even if no object has changed.
    pub(super) fn wake(&self) -> Option<Instant> {
        self.stuck.filter(|_| !self.gave_up).map(|since| since + STUCK_TIMEOUT)
    }

    /// Returns the outcome of every object, or `None` while one has not ended.
    pub(super) fn endings(&self) -> Option<Vec<(Key, Ending)>> {
        let bursts = self.bursts.iter().map(|(key, (job, gone))| {
            let ending = job.as_ref().and_then(|job| self.ending(job)).or((*gone).then_some(Ending::Gone));
            ending.map(|ending| (key.clone(), ending))
        });
        let leases = self.leases.iter().map(|(key, lease)| {
            let granted = conditions::get(&lease.as_ref()?.status.as_ref()?.conditions, GRANTED)?;
            let ending = if granted.status == "True" || granted.reason == "Expired" {
                Ending::Complete
            } else if self.gave_up {
                Ending::Unplaceable(granted.message.clone())
            } else {
                return None;
            };
            Some((key.clone(), ending))
        });
        bursts.chain(leases).collect()
    }

    fn ending(&self, job: &BurstJob) -> Option<Ending> {
        let conditions = job.status.as_ref().map(|status| status.conditions.as_slice())?;
        if conditions::is_true(conditions, COMPLETE) {
            return Some(Ending::Complete);
        }
        if let Some(failed) = conditions::get(conditions, FAILED).filter(|failed| failed.status == "True") {
            return Some(Ending::Failed(format!("{}: {}", failed.reason, failed.message)));
        }
        if conditions::is_true(conditions, SUSPENDED) {
            return Some(Ending::Refused("spec.suspend is true, and a run cannot resume it".to_owned()));
        }
        // All objects of the manifests have been created, so whatever the burst lacks stays missing.
        if let Some(accepted) = conditions::get(conditions, ACCEPTED).filter(|accepted| accepted.status == "False") {
            return Some(Ending::Refused(format!("{}: {}", accepted.reason, accepted.message)));
        }
        let admitted = conditions::get(conditions, ADMITTED).filter(|admitted| admitted.status == "False")?;
        self.gave_up.then(|| Ending::Unplaceable(admitted.message.clone()))
    }

    pub(super) fn bursts(&self) -> impl Iterator<Item = (&Key, &BurstJob)> {
        self.bursts.iter().filter_map(|(key, (job, _))| Some((key, job.as_ref()?)))
    }

    /// Describes the progress of each burst when the run was stopped, one line each. The operator's statistics cover all bursts together, so
    /// if there are several, each line is from the burst's status, which is some seconds behind.
    pub(super) fn stopped(&self, counted: Counted) -> impl Iterator<Item = String> {
        let is_one = self.bursts.len() == 1;
        self.bursts().map(move |(key, job)| {
            let chunks = job.status.as_ref().map(|status| status.chunks.clone()).unwrap_or_default();
            let number = |figure: i64| u64::try_from(figure).unwrap_or_default();
            let (done, total) = (number(chunks.succeeded), number(chunks.total).max(declared(job)));
            let done = if is_one {
                done.max(counted.succeeded.min(total)).to_string()
            } else {
                format!("at least {done}")
            };
            let conditions = job.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
            let cause = [CHECKPOINTED, ADMITTED].iter().find_map(|kind| denied(conditions, kind));
            let cause = cause.map(|message| format!(": {message}")).unwrap_or_default();
            format!("BurstJob {}/{}: stopped with {done} of {total} chunks done{cause}", key.0, key.1)
        })
    }

    /// Message of the first burst whose progress or results cannot be saved.
    fn unsaved(&self) -> Option<String> {
        let mut bursts = self.bursts().filter(|(_, job)| self.ending(job).is_none());
        bursts.find_map(|(_, job)| denied(&job.status.as_ref()?.conditions, CHECKPOINTED))
    }

    /// Message of the first burst or lease that waits.
    fn waiting(&self) -> Option<String> {
        let bursts = self.bursts().filter(|(_, job)| self.ending(job).is_none());
        let mut bursts = bursts.filter_map(|(_, job)| denied(&job.status.as_ref()?.conditions, ADMITTED));
        let leases = self.leases.values().flatten();
        let mut leases = leases.filter_map(|lease| denied(&lease.status.as_ref()?.conditions, GRANTED));
        bursts.next().or_else(|| leases.next())
    }

    /// Returns the progress of the run: counts of the statuses, or of the operator where they are newer.
    pub(super) fn snapshot(&self, counted: Counted) -> Snapshot {
        let sum = |figure: fn(&sahasra_crds::burst_job::status::ChunkCounts) -> i64| {
            let counts = self
                .bursts()
                .filter_map(|(_, job)| job.status.as_ref())
                .map(|status| &status.chunks);
            counts.map(|chunks| u64::try_from(figure(chunks)).unwrap_or_default()).sum::<u64>()
        };
        let declared: u64 = self.bursts().map(|(_, job)| declared(job)).sum();
        let total = sum(|chunks| chunks.total).max(declared);
        let failed = sum(|chunks| chunks.failed).max(counted.failed).min(total);
        Snapshot {
            held: counted.held,
            total,
            done: sum(|chunks| chunks.succeeded).max(counted.succeeded).min(total - failed),
            failed,
            retried: counted.retried.max(sum(|chunks| chunks.retried)),
            waiting: self.unsaved().or_else(|| self.waiting().filter(|_| counted.held == 0)),
        }
    }
}

fn key(object: &impl ResourceExt) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// Message of a condition that is `False`, unless its object has expired.
fn denied(conditions: &[Condition], kind: &str) -> Option<String> {
    let condition = conditions::get(conditions, kind)?;
    (condition.status == "False" && condition.reason != "Expired").then(|| condition.message.clone())
}

/// Number of chunks, if `count` gives it explicitly; the operator counts a product of lists.
fn declared(job: &BurstJob) -> u64 {
    job.spec
        .chunks
        .count
        .and_then(|count| u64::try_from(count).ok())
        .unwrap_or_default()
}

/// Whether a burst holds slices, or has not been rejected or refused admission so far.
fn is_running(job: &BurstJob) -> bool {
    let Some(status) = &job.status else { return true };
    let is = |kind| conditions::is_true(&status.conditions, kind);
    let ended = is(COMPLETE) || is(FAILED);
    let refused = |kind| conditions::get(&status.conditions, kind).is_some_and(|condition| condition.status == "False");
    !ended && !refused(ACCEPTED) && !refused(ADMITTED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn job(name: &str, conditions: &[(&str, &str, &str)]) -> BurstJob {
        let conditions: Vec<_> = conditions
            .iter()
            .map(|(kind, status, reason)| {
                json!({"type": kind, "status": status, "reason": reason, "message": format!("{reason}."), "lastTransitionTime": "2026-01-01T00:00:00Z"})
            })
            .collect();
        let job = json!({
            "apiVersion": "sahasra.dev/v1alpha1", "kind": "BurstJob", "metadata": {"name": name, "namespace": "default"},
            "spec": {"kernel": {"ptx": {"inline": ""}, "entry": "k", "block": [1], "args": []}, "chunks": {"count": 10}, "slice": {"vram": "1Mi"}},
            "status": {"conditions": conditions, "chunks": {"total": 10, "pending": 0, "running": 0, "succeeded": 4, "failed": 1, "retried": 2}},
        });
        serde_json::from_value(job).unwrap()
    }

    fn key(name: &str) -> Key {
        ("default".to_owned(), name.to_owned())
    }

    fn following(names: &[&str]) -> Following {
        let mut following = Following::default();
        names.iter().for_each(|name| following.burst(key(name)));
        following
    }

    #[test]
    fn a_run_ends_when_every_burst_has() {
        let now = Instant::now();
        let mut following = following(&["a", "b", "c"]);
        let done = job("a", &[(COMPLETE, "True", "AllChunksDone")]);
        let failed = job("b", &[(FAILED, "True", "Trap"), (COMPLETE, "False", "Trap")]);
        following.observe(
            vec![done.clone(), failed.clone(), job("c", &[(ADMITTED, "True", "SlicesGranted")])],
            vec![],
            now,
        );
        assert_eq!(following.endings(), None);
        let refused = job("c", &[(ACCEPTED, "False", "EntryNotFound")]);
        following.observe(vec![done, failed, refused], vec![], now);
        let expected = [
            (key("a"), Ending::Complete),
            (key("b"), Ending::Failed("Trap: Trap.".into())),
            (key("c"), Ending::Refused("EntryNotFound: EntryNotFound.".into())),
        ];
        assert_eq!(following.endings().unwrap(), expected);
    }

    #[test]
    fn a_burst_that_waits_while_nothing_runs_times_out() {
        let now = Instant::now();
        let mut following = following(&["a", "b"]);
        let waits = job("a", &[(ADMITTED, "False", "WaitingForSlices")]);
        let runs = job("b", &[(ADMITTED, "True", "SlicesGranted")]);
        following.observe(vec![waits.clone(), runs], vec![], now);
        assert_eq!(following.wake(), None, "the other may make room");
        let done = job("b", &[(COMPLETE, "True", "AllChunksDone")]);
        following.observe(vec![waits.clone(), done.clone()], vec![], now);
        assert_eq!(following.wake(), Some(now + STUCK_TIMEOUT));
        following.observe(vec![waits.clone(), done.clone()], vec![], now + STUCK_TIMEOUT / 2);
        assert_eq!(following.endings(), None);
        following.observe(vec![waits, done], vec![], now + STUCK_TIMEOUT);
        assert_eq!(
            following.endings().unwrap()[0],
            (key("a"), Ending::Unplaceable("WaitingForSlices.".into()))
        );
    }

    #[test]
    fn a_burst_that_went_by_its_own_ttl_ended() {
        let now = Instant::now();
        let mut following = following(&["a"]);
        following.observe(vec![], vec![], now);
        assert_eq!(following.endings(), None, "it has not been seen yet");
        following.observe(vec![job("a", &[(ADMITTED, "True", "SlicesGranted")])], vec![], now);
        following.observe(vec![], vec![], now);
        assert_eq!(following.endings().unwrap(), [(key("a"), Ending::Gone)]);
    }

    #[test]
    fn the_operators_newer_statistics_take_precedence_over_the_status() {
        let mut following = following(&["a"]);
        following.observe(vec![job("a", &[])], vec![], Instant::now());
        let counted = |succeeded, failed| Counted {
            held: 3,
            succeeded,
            failed,
            retried: 1,
        };
        let snapshot = following.snapshot(counted(8, 1));
        assert_eq!(
            (snapshot.total, snapshot.done, snapshot.failed, snapshot.retried, snapshot.held),
            (10, 8, 1, 2, 3)
        );
        // Failed chunks count as failed before the status has them, never as done.
        let snapshot = following.snapshot(counted(4, 6));
        assert_eq!((snapshot.done, snapshot.failed), (4, 6));
        let stopped: Vec<String> = following.stopped(counted(6, 1)).collect();
        assert_eq!(stopped, ["BurstJob default/a: stopped with 6 of 10 chunks done"]);
    }

    #[test]
    fn results_that_are_not_saved_are_reported() {
        let mut following = following(&["a"]);
        let unsaved = job(
            "a",
            &[(ADMITTED, "True", "SlicesGranted"), (CHECKPOINTED, "False", "StoreUnavailable")],
        );
        following.observe(vec![unsaved], vec![], Instant::now());
        let counted = Counted {
            held: 3,
            ..Counted::default()
        };
        assert_eq!(following.snapshot(counted).waiting.as_deref(), Some("StoreUnavailable."));
        let stopped: Vec<String> = following.stopped(counted).collect();
        assert_eq!(stopped, ["BurstJob default/a: stopped with 4 of 10 chunks done: StoreUnavailable."]);
    }

    #[test]
    fn of_several_bursts_that_are_stopped_the_status_counts() {
        let mut following = following(&["a", "b"]);
        following.observe(vec![job("a", &[]), job("b", &[])], vec![], Instant::now());
        let counted = Counted {
            succeeded: 12,
            ..Counted::default()
        };
        let stopped: Vec<String> = following.stopped(counted).collect();
        assert_eq!(stopped[1], "BurstJob default/b: stopped with at least 4 of 10 chunks done");
    }
}
