//! Steps before slices are acquired: finalizer, term, intent, and the takeover of a predecessor's state.

use std::{sync::Arc, time::Duration};

use kube::ResourceExt;
use sahasra_crds::{
    BurstJob,
    conditions::{ACCEPTED, SUSPENDED},
};
use sahasra_names::{Engine, WorkerName};
use sahasra_scheduler::ClaimKind;
use sahasra_wire::grants::Grant;
use tracing::Span;

use super::{Coordinator, CoordinatorError, Hold, progress};
use crate::{
    burst::{
        checkpoint::Checkpoint,
        objects::WriteError,
        status::{self, Verdict},
    },
    fault::Step,
    leases::{self, Bounds},
    objects::code,
    pool::ClaimRequest,
};

/// Part of a grant's drain timeout that is added to the chunk timeout: the time for a result to arrive before the executor is killed.
const GRACE_BEYOND_TIMEOUT: Duration = Duration::from_secs(1);
/// Wait before a burst that must be suspended retries a failed checkpoint.
const SAVE_AGAIN: Duration = Duration::from_secs(1);

impl Coordinator {
    /// Makes this coordinator the job's current one, and claims slices unless the job is suspended.
    pub(super) async fn secure(&mut self) -> Result<(), CoordinatorError> {
        let job = self.job.borrow_and_update().clone();
        let suspended = job.spec.suspend || job.metadata.deletion_timestamp.is_some();
        let (taken, term) = self.take_term(&job).await?;
        let adopted = self.took(&taken, term).await?;
        if suspended {
            if term > 1 {
                self.give_back_what_a_predecessor_held().await?;
            }
            return Ok(());
        }
        // The lease is written only after the term was taken. A lease written for an outdated version of a finished job would never be
        // deleted.
        let held = adopted.iter().map(|(_, grant)| u64::from(grant.slices)).sum();
        self.write_intent(&job, held).await?;
        if !self.account.is_finished() {
            self.claim(adopted, held);
        }
        Ok(())
    }

    /// Writes the lease of a burst that holds `held` slices.
    async fn write_intent(&mut self, job: &BurstJob, held: u64) -> Result<(), CoordinatorError> {
        let bounds = self.bounds(job, held);
        let lease = self.objects.write_intent(job, bounds).await?;
        self.adopt_lease(lease);
        self.budget.spend();
        self.context.settings.faults.reached(Step::Intent);
        Ok(())
    }

    /// Adds the finalizer and takes the next term, both by compare-and-set on the version of the job that was read.
    async fn take_term(&self, job: &BurstJob) -> Result<(BurstJob, u64), CoordinatorError> {
        let refused = |operation: &'static str| {
            move |source: kube::Error| match code(&source) {
                404 => CoordinatorError::Write(WriteError::Gone),
                409 => CoordinatorError::Conflict(source),
                _ => CoordinatorError::Write(WriteError::Api { operation, source }),
            }
        };
        let job = if job.metadata.deletion_timestamp.is_none() {
            self.objects.add_finalizer(job).await.map_err(refused("add the finalizer"))?
        } else {
            job.clone()
        };
        let mut next = job.status.clone().unwrap_or_default();
        next.term += 1;
        next.kernel_digest = Some(self.burst.digest());
        if next.chunks.total == 0 {
            status::count(&mut next, &self.account);
        }
        let accepted = Verdict::new(ACCEPTED, true, "Valid", "the spec is valid");
        status::judge(&mut next, job.metadata.generation, &[accepted], crate::clock::timestamp());
        let version = job.resource_version().unwrap_or_default();
        let written = self.objects.try_write_status(&version, &next).await;
        let written = written.map_err(refused("write the new term to the status"))?;
        Ok((written, u64::try_from(next.term).unwrap_or_default()))
    }

    /// Adopts the state of the previous coordinator: status, checkpoint and grants. Returns the grants.
    async fn took(&mut self, job: &BurstJob, term: u64) -> Result<Vec<(WorkerName, Grant)>, CoordinatorError> {
        self.term = term;
        self.version = job.resource_version().unwrap_or_default();
        self.status = job.status.clone().unwrap_or_default();
        self.budget.spend();
        self.budget.spend();
        Span::current().record("term", term);
        tracing::info!(chunks = self.burst.total, "coordinating");
        if term == 1 {
            self.event(false, "Accepted", format!("{} chunks", self.burst.total));
            return Ok(Vec::new());
        }
        let (uid, pool, slice_bytes) = (self.owner().uid, self.context.pool.clone(), self.burst.slice_bytes);
        let (checkpoint, unclaimed) = tokio::join!(self.read_checkpoint(), leases::adopt(&pool, &uid, slice_bytes));
        if let Err(error) = checkpoint {
            if matches!(
                error,
                CoordinatorError::Checkpoint(_) | CoordinatorError::Write(WriteError::Store { .. })
            ) {
                self.tell_unreadable(&error).await;
            }
            return Err(error);
        }
        let mut adopted = unclaimed.grants;
        adopted.retain(|(_, grant)| grant.term <= term);
        if !unclaimed.silent.is_empty() {
            let workers = unclaimed.silent.join(", ");
            tracing::warn!(
                workers,
                "no inventory from agents at takeover: their grants for the job are released at expiry"
            );
        }
        let counts = self.account.counts();
        tracing::info!(
            grants = adopted.len(),
            succeeded = counts.succeeded,
            failed = counts.failed,
            "took over"
        );
        Ok(adopted)
    }

    /// Releases the slices of a job that was suspended or deleted while it had no coordinator. Results of running chunks are discarded.
    async fn give_back_what_a_predecessor_held(&mut self) -> Result<(), CoordinatorError> {
        if let Err(error) = self.context.pool.release_everywhere(&self.owner()).await {
            tracing::warn!(%error, "took over, but some agents did not respond: the slices are released at expiry");
        }
        self.objects.delete_all_leases().await?;
        Ok(())
    }

    pub(super) fn restore(&mut self, checkpoint: Checkpoint) {
        self.covered = checkpoint.completed.clone();
        checkpoint.failed.values().for_each(|failed| self.covered.unite(failed));
        self.results = checkpoint.results;
        self.aggregator = checkpoint.aggregator;
        self.peak_slices = checkpoint.peak_slices;
        self.account
            .restore(checkpoint.completed, checkpoint.failed, checkpoint.failures, checkpoint.retried);
    }

    fn claim(&mut self, adopted: Vec<(WorkerName, Grant)>, held: u64) {
        let job = self.job.borrow().clone();
        let Bounds { min, max } = self.bounds(&job, held);
        let request = ClaimRequest {
            owner: self.owner(),
            kind: ClaimKind::Burst,
            slice_bytes: self.burst.slice_bytes,
            class: self.burst.class.clone(),
            engine: Some(Engine::Ptx),
            min,
            max,
            priority: job.spec.priority,
            ttl: self.burst.ttl,
            grace: self.drain_timeout(),
            renewed: true,
            served: false,
            // Nothing was lost: the minimum must have been raised, if it is not held.
            keeps: self.status.start_time.is_some() && crate::objects::integer(held) >= self.status.slices.held,
            lost: None,
            session: None,
        };
        let mut view = self.context.pool.claim(request, adopted);
        view.mark_changed();
        self.view = Some(view);
        self.claimed_at = self.now();
        self.hold = Hold::Running;
        self.fit = Default::default();
    }

    /// Follows `spec.suspend`: lets running chunks end and releases the slices ([`fit_slices`](Self::fit_slices) those without chunks), or
    /// claims slices again.
    pub(super) async fn hold_or_suspend(&mut self) -> Result<(), CoordinatorError> {
        let suspend = self.job.borrow().spec.suspend;
        let now = self.now();
        match self.hold {
            _ if self.is_deleted() || self.account.is_finished() => {}
            Hold::Running if suspend => {
                self.withdraw_all();
                self.hold = Hold::Suspending(now + self.drain_timeout());
                self.fit.due = None;
            }
            Hold::Suspending(_) if !suspend => self.hold = Hold::Running,
            Hold::Suspending(until) if now >= until || self.account.counts().running == 0 => self.suspend().await?,
            Hold::Suspended if suspend && !sahasra_crds::conditions::is_true(&self.status.conditions, SUSPENDED) => self.suspend().await?,
            Hold::Suspended if !suspend && self.view.is_none() => self.resume().await?,
            _ => {}
        }
        Ok(())
    }

    /// Time for which running chunks may delay a suspension, or the end of a grant.
    pub(super) fn drain_timeout(&self) -> Duration {
        self.burst.chunk_timeout + GRACE_BEYOND_TIMEOUT
    }

    async fn suspend(&mut self) -> Result<(), CoordinatorError> {
        self.settle_writes().await?;
        let is_begun = !self.account.completed().is_empty() || !self.account.failed_set().is_empty();
        if is_begun && let Err(error) = self.write_checkpoint_now(Vec::new()).await {
            self.not_saved(error)?;
            if self.refused.is_none() {
                // The burst keeps this coordinator and its slices until its progress is saved.
                tokio::select! {
                    () = tokio::time::sleep(SAVE_AGAIN) => {}
                    _ = self.job.changed() => {}
                }
            }
            return Ok(());
        }
        self.lose_all_streams();
        if self.view.take().is_some() {
            let released = self.context.pool.release(&self.owner().uid, true).await;
            if let Err(error) = released {
                tracing::warn!(%error, "suspended, but some agents did not respond: retrying the release until the slices have expired");
            }
        }
        self.held = Default::default();
        self.started = false;
        self.devices.clear();
        self.objects.delete_leases(self.lease.take().as_ref()).await?;
        self.budget.spend();
        self.hold = Hold::Suspended;
        let verdicts = [
            Verdict::new(SUSPENDED, true, "SuspendedBySpec", "spec.suspend is true: slices are released"),
            Verdict::new(sahasra_crds::conditions::ADMITTED, false, "Suspended", "spec.suspend is true"),
        ];
        self.write_status_now(&verdicts).await
    }

    async fn resume(&mut self) -> Result<(), CoordinatorError> {
        let job: Arc<BurstJob> = self.job.borrow().clone();
        self.write_intent(&job, 0).await?;
        let now = self.now();
        // The intervals between writes start again from their minimum, so that the next changes are reported soon.
        (self.status_pace, self.lease_pace) = (progress::status_pace(now), progress::lease_pace(now));
        if sahasra_crds::conditions::is_true(&self.status.conditions, SUSPENDED) {
            self.write_status_now(&[Verdict::new(SUSPENDED, false, "Resumed", "spec.suspend is false")])
                .await?;
        }
        self.claim(Vec::new(), 0);
        Ok(())
    }
}
