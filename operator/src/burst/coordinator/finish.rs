//! The end of a burst: final checkpoint, VRAM back, status, finalizer.

use std::{sync::Arc, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use object_store::{ObjectStoreExt, path::Path};
use sahasra_crds::{
    BurstJob,
    conditions::{ADMITTED, COMPLETE, FAILED},
};
use sahasra_service::part;

use super::{Coordinator, CoordinatorError, End};
use crate::{
    burst::{
        checkpoint::{Results, Segment},
        status::Verdict,
    },
    clock::timestamp,
    fault::Step,
    pool::Unreleased,
};

/// How long a write of the end is tried again when the API server does not answer.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long the end waits to be told for slices to be given back.
const RETURNED_WITHIN: Duration = Duration::from_secs(1);
/// First and longest wait in between.
const WAIT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

impl Coordinator {
    pub(super) async fn finish(&mut self, end: End) -> Result<Arc<BurstJob>, CoordinatorError> {
        match end {
            End::Deleted => self.delete().await,
            End::Complete | End::Failed => self.conclude(end).await,
        }
    }

    /// Everything of it goes: nothing is written but what lets the object go.
    async fn delete(&mut self) -> Result<Arc<BurstJob>, CoordinatorError> {
        self.writes.abort_all();
        self.streams.clear();
        let released = self.release(true).await;
        if let Err(error) = &released {
            tracing::warn!(%error, "deleted without an answer: the finalizer waits for the expiry");
            tokio::time::sleep(Duration::from_millis(self.burst.ttl_milliseconds) + super::super::reconcile::EXPIRY_MARGIN).await;
        }
        self.objects.remove_finalizer().await?;
        Ok(self.job.borrow().clone())
    }

    async fn conclude(&mut self, end: End) -> Result<Arc<BurstJob>, CoordinatorError> {
        self.settle_writes().await?;
        if end == End::Failed {
            self.withdraw_all();
        }
        if let Err(error) = self.write_manifest().await {
            tracing::warn!(error, "the manifest was not written");
        }
        let csv = self.csv();
        // VRAM goes back while the checkpoint is written: a crash in between costs at most running again what no checkpoint covers.
        let (uid, pool) = (self.owner().uid, self.context.pool.clone());
        let (objects, lease) = (self.objects.clone(), self.lease.take());
        let mut returning = part::spawn(async move {
            let released = pool.release(&uid, end == End::Failed).await;
            let deleted = match &lease {
                Some(lease) => objects.delete_lease(lease).await,
                None => Ok(()),
            };
            (released, deleted)
        });
        let began = tokio::time::Instant::now();
        let mut wait = WAIT.0;
        while let Err(error) = self.write_checkpoint_now(csv.clone()).await {
            patient(error, began, &mut wait).await?;
        }
        self.streams.clear();
        self.view = None;
        // An agent that does not answer holds nobody's results back: the end is told, what it holds returns at expiry.
        let returned = tokio::time::timeout(RETURNED_WITHIN, &mut returning).await;
        self.held = Default::default();
        self.status.lease = None;
        let mut verdicts = self.verdicts(end);
        if self.started {
            // A quick burst is over before progress was ever written.
            verdicts.push(Verdict::new(
                ADMITTED,
                true,
                "SlicesGranted",
                "VRAM for the minimum of slices was held",
            ));
        }
        self.status.completion_time = Some(Time(timestamp()));
        while let Err(error) = self.write_status_now(&verdicts).await {
            patient(error, began, &mut wait).await?;
        }
        self.context.faults.reached(Step::Completion);
        let verdict = &verdicts[0];
        self.event(end == End::Failed, verdict.kind, verdict.message.clone());
        let counts = self.account.counts();
        tracing::info!(
            job = self.owner().name,
            ?end,
            counts.succeeded,
            counts.failed,
            counts.retried,
            "finished"
        );
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
                tracing::error!(%error, "giving back was cut off");
                Err(Unreleased { workers: Vec::new() })
            }
        };
        match released {
            Ok(()) => self.objects.remove_finalizer().await?,
            // The reconciler removes it when the agents answer, or have had time enough.
            Err(error) => tracing::warn!(%error, "finished without an answer: the slices return at expiry"),
        }
        let mut job = BurstJob::clone(&self.job.borrow());
        job.status = Some(self.status.clone());
        Ok(Arc::new(job))
    }

    async fn release(&mut self, immediately: bool) -> Result<(), Unreleased> {
        self.view = None;
        self.context.pool.release(&self.owner().uid, immediately).await
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
            return vec![Verdict::new(COMPLETE, true, "AllChunksCounted", message)];
        }
        let (reason, message) = match self.account.failures().first() {
            Some(first) => (
                first.code.clone(),
                format!(
                    "{} chunks failed, {} may: chunk {}: {}",
                    counts.failed, self.burst.max_failed, first.index, first.message
                ),
            ),
            None => ("ChunksFailed".to_owned(), format!("{} chunks failed", counts.failed)),
        };
        vec![
            Verdict::new(FAILED, true, &reason, message),
            Verdict::new(COMPLETE, false, &reason, "the burst failed"),
        ]
    }

    /// With a store: the list of segments, beside them.
    async fn write_manifest(&self) -> Result<(), String> {
        let (Results::Store(segments), Some(folder)) = (self.results(), self.store_folder()) else {
            return Ok(());
        };
        let store = sahasra_store::open(&self.context.stores, &folder.url, &folder.options).map_err(|error| error.to_string())?;
        let manifest = manifest(self.burst.total, &segments);
        store
            .put(&Path::from("manifest.json"), manifest.into_bytes().into())
            .await
            .map(|_| ())
            .map_err(|error| error.to_string())
    }
}

/// Lists the segments and the indices counted in each.
fn manifest(total: u64, segments: &[Segment]) -> String {
    serde_json::json!({"chunks": total, "segments": segments}).to_string()
}

/// Waits before a write is tried again; an error that will not pass, or has not for too long, ends the coordinator.
async fn patient(error: CoordinatorError, began: tokio::time::Instant, wait: &mut Duration) -> Result<(), CoordinatorError> {
    let passing = matches!(&error, CoordinatorError::Write(super::WriteError::Api { .. }));
    if !passing || began.elapsed() > PATIENCE {
        return Err(error);
    }
    tracing::warn!(error = %sahasra_service::causes(&error), "the end was not written, trying again");
    tokio::time::sleep(*wait).await;
    *wait = (*wait * 2).min(WAIT.1);
    Ok(())
}
