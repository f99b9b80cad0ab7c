//! The `Ready` condition of `GpuWorker`s: the operator sets it to `False` when a worker's heartbeat stands still, and back to `True` when
//! it moves again.
//!
//! Everything else in a worker's status is written by its agent. The pool drops the grants of a lost worker itself.

use std::{sync::Arc, time::Duration};

use kube::Api;
use sahasra_crds::{
    GpuWorker,
    conditions::{self, READY},
};
use serde_json::json;

use crate::{
    agents::{HEARTBEAT_LOST, Worker},
    clock::timestamp,
    context::Context,
    objects::{self, code},
};

/// Reason of `Ready=True` when the operator restores it.
pub(crate) const HEARTBEAT_RESUMED: &str = "HeartbeatResumed";
/// Wait before a failed write is retried.
const RETRY: Duration = Duration::from_secs(2);

/// Sets the condition of all workers until dropped.
pub(crate) async fn run(context: Arc<Context>) {
    let mut changed = context.directory.subscribe();
    let api: Api<GpuWorker> = Api::all(context.client.clone());
    loop {
        changed.mark_unchanged();
        let mut failed = false;
        for worker in context.directory.workers() {
            let Some(ready) = verdict(&worker) else { continue };
            failed |= !reconcile(&api, &worker, ready, &context).await;
        }
        tokio::select! {
            outcome = changed.changed() => if outcome.is_err() { return },
            () = tokio::time::sleep(RETRY), if failed => {}
        }
    }
}

/// Sets the condition of a worker. Returns whether that succeeded.
#[tracing::instrument(level = "error", skip_all, fields(worker = %worker.name))]
async fn reconcile(api: &Api<GpuWorker>, worker: &Worker, ready: bool, context: &Context) -> bool {
    let began = std::time::Instant::now();
    let outcome = mark(api, worker, ready, context).await;
    context.metrics.reconciled("GpuWorker", began.elapsed());
    let Err(error) = outcome else { return true };
    let category = if code(&error) == 409 { "conflict" } else { "api" };
    context.metrics.reconcile_failed("GpuWorker", category);
    tracing::warn!(%error, "failed to mark the worker");
    false
}

/// The value that `Ready` must be set to, or `None` if it is correct.
fn verdict(worker: &Worker) -> Option<bool> {
    (worker.stale != worker.marked_lost).then_some(!worker.stale)
}

async fn mark(api: &Api<GpuWorker>, worker: &Worker, ready: bool, context: &Context) -> Result<(), kube::Error> {
    let Some(object) = api.get_opt(&worker.name).await? else {
        return Ok(());
    };
    let mut conditions = object.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
    let lost = conditions::get(&conditions, READY).is_some_and(|condition| condition.reason == HEARTBEAT_LOST);
    if lost != ready {
        // The agent or an earlier iteration has already written it.
        return Ok(());
    }
    let (reason, message) = if ready {
        (HEARTBEAT_RESUMED, "heartbeat resumed")
    } else {
        (HEARTBEAT_LOST, "heartbeat timed out: slices granted here are considered lost")
    };
    let generation = object.metadata.generation;
    if !conditions::set(&mut conditions, READY, ready, reason, message, generation, timestamp()) {
        return Ok(());
    }
    let version = object.metadata.resource_version.as_deref();
    objects::write_status_fields(api, &worker.name, version, json!({"conditions": conditions})).await?;
    let mut reference = kube::Resource::object_ref(&object, &());
    reference.namespace = None;
    context.event(reference, !ready, reason, message.to_owned());
    Ok(())
}
