//! Writes progress while the burst runs: the checkpoint (see [`save`](super::save)), the status and the lease. Writes run in the
//! background, at most one of each kind at a time, within the budget of API writes.

use std::time::Duration;

use kube::{Resource, ResourceExt, runtime::reflector::ObjectRef};
use sahasra_crds::{
    BurstJobStatus, VramLease, VramLeaseStatus,
    burst_job::status::{ResultsStatus, SliceCounts},
    conditions::{ADMITTED, CHECKPOINTED},
};
use sahasra_service::{causes, tasks};

use super::{Coordinator, CoordinatorError, writes::Written};
use crate::{
    burst::{
        budget::Pace,
        objects::WriteError,
        status::{self, Verdict},
    },
    clock::timestamp,
    leases::{self, GrantedReason},
    objects::integer,
};

/// Time after which a burst that waits for its first slices, or for chunks to end, reports the reason.
const EXPLAIN_AFTER: Duration = Duration::from_millis(250);
/// Maximum time between two rounds of the coordinator's loop.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// Minimum time between two rounds that no event causes.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);
/// Bytes of results without a checkpoint at which one is written early. Agents keep these results until then, at most 64 MiB.
const UNCOVERED_BYTES: u64 = 8 << 20;
/// Maximum bytes that an agent keeps of a chunk in addition to its outputs.
const CHUNK_BYTES: u64 = 16;

#[derive(Debug, Default)]
pub(super) struct Writing {
    status: bool,
    checkpoint: bool,
    lease: bool,
    /// Whether the cache of leases has contained the lease.
    lease_cached: bool,
    /// Numbers of slices and grants in the lease's status as last written.
    lease_shown: Option<(u64, usize)>,
}

pub(super) fn status_pace(now: Duration) -> Pace {
    Pace::new(now, Duration::from_millis(500), Duration::from_secs(20))
}

pub(super) fn lease_pace(now: Duration) -> Pace {
    Pace::new(now, Duration::from_secs(1), Duration::from_secs(40))
}

impl Coordinator {
    /// Starts the writes that are due, differ from the last write and are within the budget.
    pub(super) fn write_progress(&mut self) {
        let now = self.now();
        if self.uncovered() == 0 && self.checkpoint_version.is_some() && !self.writing.checkpoint {
            // The checkpoint covers all results, including those that agents repeated on a new stream, so agents need not keep them.
            self.acknowledge(self.sequences());
        }
        if !self.budget.allows(now) {
            return;
        }
        if !self.writing.checkpoint && self.checkpoint_due(now) {
            self.checkpoint_pace.written(now);
            self.budget.spend();
            self.writing.checkpoint = true;
            self.start_checkpoint();
        }
        // Before the status: where the budget allows one write at a time, the status is always due, and a lease without conditions would remain
        // unexplained.
        if !self.writing.lease && self.lease_pace.due() <= now && self.budget.allows(now) {
            self.lease_pace.written(now);
            self.start_lease_status();
        }
        if !self.writing.status && self.status_due() <= now && self.budget.allows(now) {
            self.status_pace.written(now);
            let next = self.progress_status();
            if next != self.status {
                self.budget.spend();
                self.start_status(next);
            }
            if !self.writing.lease && self.lease_is_missing() {
                self.start_intent();
            }
        }
    }

    fn checkpoint_due(&self, now: Duration) -> bool {
        let uncovered = self.uncovered();
        uncovered > 0
            && (self.checkpoint_pace.due() <= now || uncovered * (CHUNK_BYTES + self.burst.layout.record_bytes() as u64) >= UNCOVERED_BYTES)
    }

    fn uncovered(&self) -> u64 {
        let counts = self.account.counts();
        (counts.succeeded + counts.failed).saturating_sub(self.covered.len())
    }

    /// Time of the next status write: soon if a reason for waiting must be reported, otherwise by the pace.
    fn status_due(&self) -> Duration {
        let admitted = sahasra_crds::conditions::get(&self.status.conditions, ADMITTED);
        let explained = admitted.is_some_and(|condition| condition.reason != sahasra_crds::conditions::SUSPENDED);
        let waiting = (!self.started && !explained && self.held.why_not.is_some()).then_some(self.claimed_at + EXPLAIN_AFTER);
        let early = waiting.or(self.suspension_report_due(EXPLAIN_AFTER));
        early.map_or(self.status_pace.due(), |at| at.min(self.status_pace.due()))
    }

    /// Earliest time at which something must be done without an event.
    pub(super) fn next_wake(&self) -> Duration {
        let now = self.now();
        let mut wake = now + MAX_WAIT;
        if let Some(at) = self.dispatch_wake(now) {
            wake = wake.min(at);
        }
        let budget = self.budget.allows_at();
        let mut due = |at: Duration| wake = wake.min(at.max(budget));
        if !self.writing.checkpoint && self.uncovered() > 0 {
            due(self.checkpoint_pace.due());
        }
        if !self.writing.status && self.view.is_some() {
            due(self.status_due());
        }
        if !self.writing.lease && self.lease_differs() {
            due(self.lease_pace.due());
        }
        wake.max(now + SHORTEST_WAIT)
    }

    pub(super) fn progress_status(&self) -> BurstJobStatus {
        let mut next = self.status.clone();
        next.term = integer(self.term);
        next.lease = self.lease.as_ref().map(ResourceExt::name_any);
        status::count(&mut next, &self.account);
        if self.lean {
            next.failures.clear();
        }
        let aggregate =
            (!self.lean && !self.account.completed().is_empty()).then(|| self.aggregator.status(|index| self.burst.parameters(index)));
        let results = self.checkpoint_version.as_ref().map(|_| ResultsStatus {
            config_map: Some(self.objects.results_name()),
            url: self.published.clone(),
            bytes: integer(self.burst.result_bytes),
        });
        next.aggregate = aggregate;
        next.results = results.or(next.results);
        let slices = self.held.slices();
        next.slices = SliceCounts {
            held: integer(slices),
            peak: integer(self.peak_slices),
        };
        let admitted = if self.view.is_none() {
            None
        } else if self.started && (slices > 0 || self.held.why_not.is_none()) {
            // The message does not contain the number of slices; `status.slices` shows later growth.
            let message = match &self.held.why_not {
                Some(why_not) if self.held.keeps_fewer => {
                    format!("slices.min was raised, and the burst continues with fewer slices: {why_not}")
                }
                _ => "VRAM for the minimum of slices is held".to_owned(),
            };
            Some(Verdict::new(ADMITTED, true, GrantedReason::SlicesGranted.reason(), message))
        } else {
            self.held
                .why_not
                .as_ref()
                .map(|why_not| Verdict::new(ADMITTED, false, GrantedReason::WaitingForSlices.reason(), why_not.clone()))
        };
        let saved = sahasra_crds::conditions::get(&next.conditions, CHECKPOINTED)
            .map(|_| Verdict::new(CHECKPOINTED, true, "CheckpointWritten", "checkpoint written"));
        let saved = self.saving_failed.clone().or(saved);
        let verdicts: Vec<Verdict> = admitted.into_iter().chain(saved).chain(self.suspending()).collect();
        let generation = self.job.borrow().metadata.generation;
        status::judge(&mut next, generation, &verdicts, timestamp());
        next
    }

    fn start_status(&mut self, next: BurstJobStatus) {
        if self.started && self.status.start_time.is_some() && !sahasra_crds::conditions::is_true(&self.status.conditions, ADMITTED) {
            self.event(false, "Started", format!("{} slices held", self.held.slices()));
        }
        self.writing.status = true;
        let (objects, version) = (self.objects.clone(), self.version.clone());
        self.writes.spawn(tasks::tied(async move {
            let outcome = objects.write_status(&version, &next).await.map(Box::new);
            Written::Status(Box::new(next), outcome)
        }));
    }

    /// Continues with this lease, whose status may not show what the burst holds. Its conditions are kept because of their transition times.
    pub(super) fn adopt_lease(&mut self, lease: VramLease) {
        self.lease = Some(lease);
        (self.writing.lease_cached, self.writing.lease_shown) = (false, None);
    }

    /// Whether the lease was deleted by another client and not recreated. The cache may be behind, so only a lease that it has contained
    /// counts as deleted.
    fn lease_is_missing(&mut self) -> bool {
        let Some(lease) = &self.lease else { return self.view.is_some() };
        let Some(leases) = self.context.caches.leases.get() else {
            return false;
        };
        let found = leases.get(&ObjectRef::from_obj(lease));
        let is_cached = found.is_some_and(|found| found.uid() == lease.uid());
        self.writing.lease_cached |= is_cached;
        self.writing.lease_cached && !is_cached
    }

    /// Creates the lease again, for the slices that the burst still holds.
    fn start_intent(&mut self) {
        self.budget.spend();
        self.writing.lease = true;
        self.lease = None;
        let job = self.job.borrow().clone();
        let bounds = self.bounds(&job, self.held.slices());
        let objects = self.objects.clone();
        self.writes.spawn(tasks::tied(async move {
            Written::Intent(objects.write_intent(&job, bounds).await.map(Box::new))
        }));
    }

    fn lease_differs(&self) -> bool {
        self.lease.is_some() && self.writing.lease_shown != Some((self.held.slices(), self.held.grants.len()))
    }

    fn start_lease_status(&mut self) {
        if !self.lease_differs() {
            return;
        }
        let next = self.lease_status();
        let Some(lease) = &mut self.lease else { return };
        lease.status = Some(next.clone());
        let (objects, name) = (self.objects.clone(), lease.name_any());
        self.budget.spend();
        self.writing.lease = true;
        self.writing.lease_shown = Some((self.held.slices(), self.held.grants.len()));
        self.writes.spawn(tasks::tied(async move {
            Written::Lease(objects.write_lease_status(&name, &next).await)
        }));
    }

    fn lease_status(&self) -> VramLeaseStatus {
        let granted = GrantedReason::of(&self.held, 1);
        let message = match &self.held.why_not {
            Some(why_not) if granted == GrantedReason::WaitingForSlices => why_not,
            _ => "held for a BurstJob",
        };
        let lease = self.lease.as_ref();
        let conditions = lease
            .and_then(|lease| Some(lease.status.as_ref()?.conditions.clone()))
            .unwrap_or_default();
        let generation = lease.and_then(|lease| lease.metadata.generation);
        let mut next = leases::status(&self.held, self.term, conditions, (granted, message), generation, timestamp());
        next.granted_at = self.status.start_time.clone();
        next
    }

    pub(super) fn on_written(&mut self, written: Result<Written, tokio::task::JoinError>) -> Result<(), CoordinatorError> {
        let Ok(written) = written else {
            // A panic counts as a failed write; the next write is due at its time.
            tracing::error!("a write panicked");
            self.writing = Writing::default();
            return Ok(());
        };
        match written {
            Written::Status(next, outcome) => {
                self.writing.status = false;
                if let Some(job) = self.tolerate(outcome)? {
                    self.version = super::newer(std::mem::take(&mut self.version), job.resource_version().unwrap_or_default());
                    // A start time that was set during the write is kept.
                    let start_time = self.status.start_time.clone();
                    self.status = *next;
                    self.status.start_time = self.status.start_time.take().or(start_time);
                }
            }
            Written::Checkpoint(outcome) => {
                self.writing.checkpoint = false;
                match outcome {
                    Ok((version, covered)) => self.checkpoint_written(version, *covered),
                    Err(error) => self.not_saved(error)?,
                }
            }
            Written::Lease(outcome) => {
                self.writing.lease = false;
                match (self.tolerate(outcome)?, &mut self.lease) {
                    // The lease's spec was changed in the meantime, so the status must be written again for the new generation.
                    (Some(generation @ Some(_)), Some(lease)) if generation != lease.metadata.generation => {
                        lease.metadata.generation = generation;
                        self.writing.lease_shown = None;
                    }
                    (Some(_), _) => {}
                    (None, _) => self.writing.lease_shown = None,
                }
            }
            Written::Intent(outcome) => {
                self.writing.lease = false;
                if let Some(lease) = self.tolerate(outcome)? {
                    let note = format!(
                        "its VramLease {:?} was deleted and recreated: to release the slices, set spec.suspend or delete the BurstJob",
                        lease.name_any()
                    );
                    self.adopt_lease(*lease);
                    self.event(true, "LeaseDeleted", note);
                }
            }
        }
        Ok(())
    }

    /// Ignores errors of the API server, which must not stop a running burst. Returns other errors, such as being superseded.
    fn tolerate<T>(&self, outcome: Result<T, WriteError>) -> Result<Option<T>, CoordinatorError> {
        match outcome {
            Ok(value) => Ok(Some(value)),
            Err(error @ WriteError::Api { .. }) => {
                tracing::warn!(error = %causes(&error), "failed to write progress");
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for the background writes and handles their outcomes.
    pub(super) async fn settle_writes(&mut self) -> Result<(), CoordinatorError> {
        while let Some(written) = self.writes.join_next().await {
            self.on_written(written)?;
        }
        Ok(())
    }

    /// Writes the current status with `verdicts`, and waits for the write.
    pub(super) async fn write_status_now(&mut self, verdicts: &[Verdict]) -> Result<(), CoordinatorError> {
        let mut next = self.progress_status();
        let generation = self.job.borrow().metadata.generation;
        status::judge(&mut next, generation, verdicts, timestamp());
        self.budget.spend();
        let job = self.objects.write_status(&self.version, &next).await?;
        self.version = job.resource_version().unwrap_or_default();
        self.status = next;
        Ok(())
    }

    pub(super) fn event(&mut self, warning: bool, reason: &str, note: String) {
        self.budget.spend();
        let job = self.job.borrow().clone();
        self.context.event(job.object_ref(&()), warning, reason, note);
    }
}
