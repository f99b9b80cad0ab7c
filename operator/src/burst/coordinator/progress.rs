//! What is written while the burst runs: checkpoint, status, lease. In the background, one of each at a time, within the
//! budget of API writes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource, ResourceExt};
use sahasra_crds::{
    BurstJob, BurstJobStatus, VramLeaseStatus,
    burst_job::status::ResultsStatus,
    conditions::{ADMITTED, GRANTED},
    vram_lease::GrantStatus,
};
use sahasra_service::{causes, part};
use sahasra_wire::burst::Store;

use super::{Coordinator, CoordinatorError};
use crate::{
    burst::{
        checkpoint::{self, Checkpoint, Contents, Results},
        index_set::IndexSet,
        objects::WriteError,
        status::{self, Verdict},
    },
    clock::timestamp,
    fault::Step,
};

/// A burst that has waited for so long for its first slices says why, in milliseconds.
const EXPLAIN_AFTER: u64 = 250;
/// Grants listed in the lease's status.
const LISTED_GRANTS: usize = 512;
/// With so many bytes of results not covered by a checkpoint one is written early: agents keep them meanwhile, 64 MiB at most.
const UNCOVERED_BYTES: u64 = 8 << 20;
/// What an agent keeps of a chunk beside its outputs, at most.
const CHUNK_BYTES: u64 = 16;

/// A write that came to its end.
pub(super) enum Written {
    Status(Box<BurstJobStatus>, Result<Box<BurstJob>, WriteError>),
    Checkpoint(Covered, Result<String, WriteError>),
    Lease(Result<(), WriteError>),
}

/// What a checkpoint covers.
pub(super) struct Covered {
    completed: IndexSet,
    failed: IndexSet,
    sequences: Vec<(String, u64, u64)>,
}

/// Which writes are under way, and what the last ones said.
#[derive(Debug, Default)]
pub(super) struct Writing {
    status: bool,
    checkpoint: bool,
    lease: bool,
    /// Slices, devices and renewals as the lease's status last had them.
    lease_shown: Option<(u64, usize)>,
}

impl Coordinator {
    /// Starts the writes that are due, differ from the last and fit the budget.
    pub(super) fn write_progress(&mut self) {
        let now = self.context.clock.now();
        if !self.budget.allows(now) {
            return;
        }
        if !self.writing.checkpoint && self.checkpoint_due(now) {
            self.checkpoint_pace.written(now);
            self.budget.spend();
            self.start_checkpoint();
        }
        if !self.writing.status && self.status_due() <= now && self.budget.allows(now) {
            self.status_pace.written(now);
            let next = self.progress_status();
            if next != self.status {
                self.budget.spend();
                self.start_status(next);
            }
        }
        if !self.writing.lease && self.lease_pace.due() <= now && self.budget.allows(now) {
            self.lease_pace.written(now);
            self.start_lease_status();
        }
    }

    fn checkpoint_due(&self, now: u64) -> bool {
        let uncovered = self.uncovered();
        uncovered > 0
            && (self.checkpoint_pace.due() <= now || uncovered * (CHUNK_BYTES + self.burst.layout.record_bytes() as u64) >= UNCOVERED_BYTES)
    }

    fn uncovered(&self) -> u64 {
        let counts = self.account.counts();
        (counts.succeeded + counts.failed).saturating_sub(self.covered.len())
    }

    /// Waiting is explained soon, progress at its pace.
    fn status_due(&self) -> u64 {
        let explained = sahasra_crds::conditions::get(&self.status.conditions, ADMITTED).is_some();
        if !self.started && !explained && self.held.why_not.is_some() {
            (self.claimed_at + EXPLAIN_AFTER).min(self.status_pace.due())
        } else {
            self.status_pace.due()
        }
    }

    /// When something is due by time alone.
    pub(super) fn next_wake(&self) -> u64 {
        let now = self.context.clock.now();
        let mut wake = now + 60_000;
        if let Some(at) = self.dispatch_wake(now) {
            wake = wake.min(at);
        }
        let budget = self.budget.allows_at();
        let mut due = |at: u64| wake = wake.min(at.max(budget));
        if !self.writing.checkpoint && self.uncovered() > 0 {
            due(self.checkpoint_pace.due());
        }
        if !self.writing.status && self.view.is_some() {
            due(self.status_due());
        }
        if !self.writing.lease && self.lease_differs() {
            due(self.lease_pace.due());
        }
        wake.max(now + 1)
    }

    /// The status as it should be now, without its end.
    pub(super) fn progress_status(&self) -> BurstJobStatus {
        let mut next = self.status.clone();
        next.term = status::signed(self.term);
        next.lease = self.lease.clone();
        status::count(&mut next, &self.account);
        let aggregate = (!self.account.completed().is_empty()).then(|| self.aggregator.status(|index| self.burst.parameters(index)));
        let results = self.checkpoint_version.as_ref().map(|_| self.results_status());
        status::describe(&mut next, self.held.slices(), self.peak_slices, aggregate, results);
        let slices = self.held.slices();
        let admitted = if self.view.is_none() {
            None
        } else if self.started && (slices > 0 || self.held.why_not.is_none()) {
            // The figure is that of the admission: growth shows in the counts.
            Some(Verdict::new(
                ADMITTED,
                true,
                "SlicesGranted",
                "VRAM for the minimum of slices is held",
            ))
        } else {
            self.held
                .why_not
                .as_ref()
                .map(|why_not| Verdict::new(ADMITTED, false, "WaitingForSlices", why_not.clone()))
        };
        let verdicts: Vec<Verdict> = admitted.into_iter().collect();
        let generation = self.job.borrow().metadata.generation;
        status::judge(&mut next, generation, &verdicts, timestamp());
        next
    }

    pub(super) fn results_status(&self) -> ResultsStatus {
        let folder = self.store_folder();
        ResultsStatus {
            config_map: Some(self.objects.results_name()),
            url: folder
                .filter(|_| self.status.completion_time.is_some())
                .map(|folder| format!("{}/manifest.json", folder.url)),
            bytes: status::signed(self.burst.result_bytes),
        }
    }

    /// The job's own folder in the store: its UID keeps it apart from any other job's, earlier ones of the same name included.
    pub(super) fn store_folder(&self) -> Option<Store> {
        let store = self.burst.store.as_ref()?;
        let job = self.job.borrow();
        let folder = format!(
            "{}/{}/{}",
            job.namespace().unwrap_or_default(),
            job.name_any(),
            job.uid().unwrap_or_default()
        );
        Some(Store {
            url: format!("{}/{folder}", store.url.trim_end_matches('/')),
            options: store.options.clone(),
        })
    }

    fn start_status(&mut self, next: BurstJobStatus) {
        if self.started && self.status.start_time.is_some() && !sahasra_crds::conditions::is_true(&self.status.conditions, ADMITTED) {
            self.event(false, "Started", format!("{} slices held", self.held.slices()));
        }
        self.writing.status = true;
        let (objects, version) = (self.objects.clone(), self.version.clone());
        self.writes.spawn(part::tied(async move {
            let outcome = objects.write_status(&version, &next).await.map(Box::new);
            Written::Status(Box::new(next), outcome)
        }));
    }

    fn start_checkpoint(&mut self) {
        self.writing.checkpoint = true;
        let (contents, covered) = self.snapshot();
        let (objects, version, term) = (self.objects.clone(), self.checkpoint_version.clone(), self.term);
        self.writes.spawn(part::tied(async move {
            let outcome = objects.write_checkpoint(version.as_deref(), term, contents).await;
            Written::Checkpoint(covered, outcome)
        }));
    }

    fn lease_differs(&self) -> bool {
        self.lease.is_some() && self.writing.lease_shown != Some((self.held.slices(), self.held.grants.len()))
    }

    fn start_lease_status(&mut self) {
        let Some(name) = self.lease.clone().filter(|_| self.lease_differs()) else {
            return;
        };
        self.budget.spend();
        self.writing.lease = true;
        self.writing.lease_shown = Some((self.held.slices(), self.held.grants.len()));
        let next = self.lease_status();
        let objects = self.objects.clone();
        self.writes.spawn(part::tied(
            async move { Written::Lease(objects.write_lease_status(&name, &next).await) },
        ));
    }

    fn lease_status(&self) -> VramLeaseStatus {
        let slices = self.held.slices();
        let now = timestamp();
        let verdict = match &self.held.why_not {
            Some(why_not) if slices == 0 => Verdict::new(GRANTED, false, "WaitingForSlices", why_not.clone()),
            _ => Verdict::new(
                GRANTED,
                slices > 0,
                if slices > 0 { "SlicesGranted" } else { "Waiting" },
                "held for a BurstJob",
            ),
        };
        let mut next = lease_status(&self.held, self.term, self.burst.ttl_milliseconds);
        sahasra_crds::conditions::set(
            &mut next.conditions,
            verdict.kind,
            verdict.status,
            &verdict.reason,
            &verdict.message,
            Some(1),
            now,
        );
        next.observed_generation = Some(1);
        next.granted_at = self.status.start_time.clone();
        next
    }

    /// The checkpoint as of now.
    fn snapshot(&self) -> (Contents, Covered) {
        let checkpoint = Checkpoint {
            uid: self.owner().uid,
            term: self.term,
            completed: self.account.completed().clone(),
            failed: self.account.failed_set().clone(),
            failures: self.account.failures().to_vec(),
            retried: self.account.counts().retried,
            peak_slices: self.peak_slices,
            aggregator: self.aggregator.clone(),
            results: self.results(),
        };
        let covered = Covered {
            completed: checkpoint.completed.clone(),
            failed: checkpoint.failed.clone(),
            sequences: self.sequences(),
        };
        (checkpoint.encode(), covered)
    }

    pub(super) fn on_written(&mut self, written: Result<Written, tokio::task::JoinError>) -> Result<(), CoordinatorError> {
        let Ok(written) = written else {
            // A panic in a write: as if it had failed; the next one is due in time.
            tracing::error!("a write panicked");
            self.writing = Writing::default();
            return Ok(());
        };
        match written {
            Written::Status(next, outcome) => {
                self.writing.status = false;
                if let Some(job) = self.tolerate(outcome)? {
                    self.version = super::newer(std::mem::take(&mut self.version), job.resource_version().unwrap_or_default());
                    // What started meanwhile stays.
                    let start_time = self.status.start_time.clone();
                    self.status = *next;
                    self.status.start_time = self.status.start_time.take().or(start_time);
                }
            }
            Written::Checkpoint(covered, outcome) => {
                self.writing.checkpoint = false;
                if let Some(version) = self.tolerate(outcome)? {
                    self.checkpoint_written(version, covered);
                }
            }
            Written::Lease(outcome) => {
                self.writing.lease = false;
                if self.tolerate(outcome)?.is_none() {
                    self.writing.lease_shown = None;
                }
            }
        }
        Ok(())
    }

    fn checkpoint_written(&mut self, version: String, covered: Covered) {
        self.context.faults.reached(Step::Checkpoint);
        self.checkpoint_version = Some(version);
        self.cover([&covered.completed, &covered.failed]);
        self.acknowledge(covered.sequences);
    }

    /// An API server that does not answer is no reason to stop while the burst runs; being superseded is.
    fn tolerate<T>(&self, outcome: Result<T, WriteError>) -> Result<Option<T>, CoordinatorError> {
        match outcome {
            Ok(value) => Ok(Some(value)),
            Err(error @ WriteError::Api { .. }) => {
                tracing::warn!(error = %causes(&error), "progress was not written");
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for the writes under way.
    pub(super) async fn settle_writes(&mut self) -> Result<(), CoordinatorError> {
        while let Some(written) = self.writes.join_next().await {
            self.on_written(written)?;
        }
        Ok(())
    }

    /// Writes the checkpoint and waits for it; with `csv` for people as well.
    pub(super) async fn write_checkpoint_now(&mut self, csv: Option<String>) -> Result<(), CoordinatorError> {
        let (mut contents, covered) = self.snapshot();
        if let Some(csv) = csv {
            contents.data.insert(checkpoint::CSV.to_owned(), csv);
        }
        self.budget.spend();
        let version = self
            .objects
            .write_checkpoint(self.checkpoint_version.as_deref(), self.term, contents)
            .await?;
        self.checkpoint_written(version, covered);
        Ok(())
    }

    /// Writes the status with `verdicts` and waits for it.
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

    /// `results.csv`, when the results are here and small enough.
    pub(super) fn csv(&self) -> Option<String> {
        let Results::Inline(records) = &self.results else { return None };
        let names: Vec<String> = self
            .burst
            .chunks
            .parameters()
            .iter()
            .map(|parameter| parameter.name.clone())
            .collect();
        let mut values = Vec::new();
        checkpoint::csv(self.account.completed(), records, &self.burst.layout, &names, |index| {
            match self.burst.chunks.evaluate(index, &mut values) {
                Ok(()) => values.iter().map(ToString::to_string).collect(),
                // A chunk that succeeded has parameters.
                Err(_) => vec![String::new(); names.len()],
            }
        })
    }

    pub(super) fn event(&mut self, warning: bool, reason: &str, note: String) {
        self.budget.spend();
        let job = self.job.borrow().clone();
        self.context.event(job.object_ref(&()), warning, reason, note);
    }
}

/// What a lease's status says of what is held.
pub(crate) fn lease_status(held: &crate::pool::ClaimView, term: u64, ttl_milliseconds: u64) -> VramLeaseStatus {
    let mut devices: Vec<(&str, &str)> = held
        .grants
        .iter()
        .map(|grant| (grant.worker.as_str(), grant.device.as_str()))
        .collect();
    devices.sort_unstable();
    devices.dedup();
    let slices = held.slices();
    let ttl = std::time::Duration::from_millis(ttl_milliseconds);
    VramLeaseStatus {
        term: status::signed(term),
        slices: status::signed(slices),
        devices: status::signed(devices.len() as u64),
        grants: (held.grants.iter().take(LISTED_GRANTS))
            .map(|grant| GrantStatus {
                worker: grant.worker.clone(),
                device: grant.device.clone(),
                slices: i64::from(grant.slices),
                id: grant.id.text(),
            })
            .collect(),
        expires_at: (slices > 0).then(|| Time(timestamp() + ttl)),
        renewals: status::signed(held.renewals),
        ..VramLeaseStatus::default()
    }
}

/// Ranges (first, count) of a text like `0-41,43`.
pub(super) fn ranges(text: &str) -> impl Iterator<Item = (u64, u64)> + '_ {
    text.split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        Some((first, last.checked_sub(first)? + 1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_back_as_written() {
        let mut set = IndexSet::full(42);
        set.insert(43, 1);
        let text = set.text(usize::MAX);
        assert_eq!(ranges(&text).collect::<Vec<_>>(), [(0, 42), (43, 1)]);
        assert_eq!(ranges("").count(), 0);
    }
}
