//! The end of a burst: final checkpoint, release of the VRAM, status, finalizer.

use std::{sync::Arc, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sahasra_crds::{
    BurstJob, VramLease,
    conditions::{ADMITTED, CHECKPOINTED, COMPLETE, FAILED},
};
use sahasra_service::{backoff::Backoff, causes, tasks};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{Coordinator, CoordinatorError, End, WriteError};
use crate::{
    burst::{objects::Objects, status::Verdict},
    clock::timestamp,
    fault::Step,
    leases::{GrantedReason, How, Release},
    pool::Unreleased,
};

/// Timeout of the retries of a final write that the API server or the object store does not accept.
const RETRY_TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum time for which the reported end of a burst is delayed by the release of its slices.
const RETURNED_WITHIN: Duration = Duration::from_secs(1);
const RETRY: Backoff = Backoff::milliseconds(100, 5_000);

impl Coordinator {
    pub(super) async fn finish(&mut self, end: End) -> Result<Arc<BurstJob>, CoordinatorError> {
        match end {
            End::Deleted => self.delete().await,
            End::Complete | End::Failed | End::Refused => self.conclude(end).await,
        }
    }

    /// Ends a burst whose job is being deleted: releases the slices, and writes nothing except to remove the finalizer.
    async fn delete(&mut self) -> Result<Arc<BurstJob>, CoordinatorError> {
        self.writes.abort_all();
        self.streams.clear();
        self.view = None;
        let (owner, ttl) = (self.owner(), self.burst.ttl);
        let mut how = How::Claim;
        while let Release::Again(wait) = self.context.releases.release(&owner, ttl, how).await {
            tokio::time::sleep(wait).await;
            how = How::Everywhere;
        }
        self.objects.remove_finalizer().await?;
        Ok(self.job.borrow().clone())
    }

    async fn conclude(&mut self, end: End) -> Result<Arc<BurstJob>, CoordinatorError> {
        self.settle_writes().await?;
        let immediately = end != End::Complete;
        if immediately {
            self.withdraw_all();
        }
        // VRAM is released while the checkpoint is written. After a crash in between, only chunks that no checkpoint covers run again.
        let (uid, pool) = (self.owner().uid, self.context.pool.clone());
        let (objects, lease) = (self.objects.clone(), self.lease.take());
        let returning = tasks::spawn(async move {
            let released = pool.release(&uid, immediately).await;
            (released, delete_leases(&objects, lease.as_ref()).await)
        });
        // Aborted if the end fails, because the next coordinator then adopts the grants and the lease, which must not be released
        // afterwards.
        let mut returning = AbortOnDropHandle::new(returning);
        // From here on, the status must show no slices.
        self.view = None;
        self.held = Default::default();
        let end = self.save_end(end).await?;
        if end == End::Deleted {
            let _ = tokio::time::timeout(RETURNED_WITHIN, &mut returning).await;
            return self.delete().await;
        }
        self.streams.clear();
        // An agent that does not answer must not delay the results. The pool repeats the release.
        let returned = tokio::time::timeout(RETURNED_WITHIN, &mut returning).await;
        self.status.lease = None;
        let mut verdicts = self.verdicts(end);
        verdicts.extend(self.was_admitted());
        self.status.completion_time = Some(Time(timestamp()));
        let began = Instant::now();
        let mut failures = 0;
        while let Err(error) = self.write_status_now(&verdicts).await {
            if self.is_deleted() {
                return self.delete().await;
            }
            let CoordinatorError::Write(error) = error else { return Err(error) };
            if self.lean || error.refusal().is_none() {
                self.patient(error, began, &mut failures).await?;
                continue;
            }
            // The status must show the end of the burst, so fields that the API server permanently rejects are left out.
            tracing::warn!(error = %causes(&error), "status permanently rejected");
            self.lean = true;
            let message = format!("{}: aggregate and failures are omitted", causes(&error));
            verdicts = vec![
                Verdict::new(FAILED, true, "StatusRejected", message),
                Verdict::new(COMPLETE, false, "StatusRejected", "the status was rejected"),
            ];
        }
        self.context.settings.faults.reached(Step::Completion);
        let verdict = &verdicts[0];
        self.event(end != End::Complete, verdict.kind, verdict.message.clone());
        let counts = self.account.counts();
        tracing::info!(?end, counts.succeeded, counts.failed, counts.retried, "finished");
        let returned = match returned {
            Ok(returned) => returned,
            Err(_) => returning.await,
        };
        self.budget.spend();
        let released = match returned {
            Ok((released, deleted)) => {
                deleted?;
                released
            }
            Err(error) => {
                tracing::error!(%error, "release task failed");
                Err(Unreleased { workers: Vec::new() })
            }
        };
        match released {
            Ok(()) => self.objects.remove_finalizer().await?,
            // The reconciler removes the finalizer when the agents answer or the grants have expired.
            Err(error) => {
                tracing::warn!(%error, "finished, but some agents did not respond: retrying the release until the slices have expired")
            }
        }
        let mut job = BurstJob::clone(&self.job.borrow());
        job.status = Some(self.status.clone());
        Ok(Arc::new(job))
    }

    /// Saves the counted results and their lists. Returns how the burst ends after that: `Refused` if they cannot be saved, `Deleted` if
    /// the job was deleted in the meantime.
    async fn save_end(&mut self, end: End) -> Result<End, CoordinatorError> {
        if end == End::Refused {
            return Ok(end);
        }
        let began = Instant::now();
        let (mut failures, mut texts) = (0, self.texts());
        let (mut saved, mut told) = (false, None);
        loop {
            let published = async {
                if !saved {
                    self.write_checkpoint_now(texts.clone()).await?;
                    saved = true;
                }
                self.publish().await
            };
            let error = match published.await {
                Ok(published) => {
                    (self.published, self.saving_failed) = (published, None);
                    return Ok(end);
                }
                Err(error) => error,
            };
            if self.is_deleted() {
                return Ok(End::Deleted);
            }
            if matches!(error, WriteError::TooLarge(_)) && !texts.is_empty() {
                // The checkpoint may fit without the files that are only for humans.
                texts.clear();
                continue;
            }
            if began.elapsed() > RETRY_TIMEOUT && matches!(error, WriteError::Store { .. }) {
                let message = format!(
                    "spec.output.store: {}: timed out after {} s: check the store and the rights of its Secret, then create the BurstJob \
                     again",
                    causes(&error),
                    RETRY_TIMEOUT.as_secs()
                );
                self.saving_failed = Some(Verdict::new(CHECKPOINTED, false, error.reason(), message.clone()));
                self.refused = Some(Verdict::new(FAILED, true, "StoreUnavailable", message));
            } else if let Some(refusal) = error.refusal() {
                self.refused = Some(refusal);
            }
            if self.refused.is_some() {
                tracing::warn!(error = %causes(&error), "failed to save the results");
                // The condition of a burst that has already failed describes the failed chunks instead.
                return Ok(if end == End::Failed { end } else { End::Refused });
            }
            let store = matches!(error, WriteError::Store { .. });
            self.patient(error, began, &mut failures).await?;
            let generation = Some(self.job.borrow().metadata.generation);
            if store && told != generation {
                // Progress for observers: the error that delays the end, with the current generation of the spec.
                let admitted: Vec<Verdict> = self.was_admitted().into_iter().collect();
                match self.write_status_now(&admitted).await {
                    Ok(()) => told = generation,
                    Err(error) => tracing::debug!(error = %causes(&error), "failed to write the cause of the delay to the status"),
                }
            }
        }
    }

    /// Waits before a write is retried, or until the job changes. Fails with an error that is not transient, or that has persisted for
    /// [`RETRY_TIMEOUT`].
    async fn patient(&mut self, error: WriteError, began: Instant, failures: &mut u32) -> Result<(), CoordinatorError> {
        let passing = matches!(&error, WriteError::Api { .. } | WriteError::Store { .. });
        if !passing || began.elapsed() > RETRY_TIMEOUT {
            return Err(error.into());
        }
        self.not_saved(error)?;
        *failures += 1;
        tokio::select! {
            () = tokio::time::sleep(RETRY.after(*failures)) => {}
            _ = self.job.changed() => {}
        }
        Ok(())
    }

    /// The condition `Admitted` of a burst that has released its slices. A short burst ends before any progress was written.
    fn was_admitted(&self) -> Option<Verdict> {
        let message = "VRAM for the minimum of slices was held";
        self.started
            .then(|| Verdict::new(ADMITTED, true, GrantedReason::SlicesGranted.reason(), message))
    }

    pub(super) fn is_deleted(&self) -> bool {
        self.job.borrow().metadata.deletion_timestamp.is_some()
    }

    fn verdicts(&self, end: End) -> Vec<Verdict> {
        let counts = self.account.counts();
        if end == End::Complete {
            let message = match counts.failed {
                0 => format!("all {} chunks succeeded", counts.total),
                failed => format!(
                    "{} of {} chunks succeeded; {failed} failed, which maxFailedChunks allows",
                    counts.succeeded, counts.total
                ),
            };
            return vec![Verdict::new(COMPLETE, true, "AllChunksDone", message)];
        }
        if let (End::Refused, Some(refusal)) = (end, &self.refused) {
            return Verdict::failed(&refusal.reason, refusal.message.clone());
        }
        let (reason, message) = match self.account.failures().first() {
            Some(first) => (
                first.code.clone(),
                format!(
                    "{}, maxFailedChunks allows {}: chunk {}: {}",
                    chunks_failed(counts.failed),
                    self.burst.max_failed,
                    first.index,
                    first.message
                ),
            ),
            None => ("ChunksFailed".to_owned(), chunks_failed(counts.failed)),
        };
        Verdict::failed(&reason, message)
    }
}

fn chunks_failed(count: u64) -> String {
    format!("{count} {} failed", if count == 1 { "chunk" } else { "chunks" })
}

/// Deletes the leases of a burst that ends. Retries while the API server does not accept the deletion, because the end may have to wait for
/// a store, and the leases would then exist without a holder.
async fn delete_leases(objects: &Objects, known: Option<&VramLease>) -> Result<(), WriteError> {
    let (began, mut failures) = (Instant::now(), 0);
    loop {
        match objects.delete_leases(known).await {
            Err(WriteError::Api { .. }) if began.elapsed() < RETRY_TIMEOUT => failures += 1,
            outcome => return outcome,
        }
        tokio::time::sleep(RETRY.after(failures)).await;
    }
}
