//! The reconciler of `BurstJob`s.
//!
//! 1. Observe: whether the job is finished, being deleted or coordinated.
//! 2. Validate (`admission`): the intake fetches the objects that the spec refers to and validates everything. `Accepted=False` names the
//!    field that is wrong. The intake runs beside the reconciler, and its outcome requeues the job.
//! 3. Act: start a [`Coordinator`], which does the rest; or send it a change; or remove the finalizer of a finished job.
//!
//! `state` contains the state of each job in addition to the cache, and decides the next step.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use kube::{
    Api, Resource, ResourceExt,
    runtime::{
        controller::Action,
        reflector::{ObjectRef, Store},
    },
};
use parking_lot::Mutex;
use sahasra_crds::{
    BurstJob, BurstJobStatus,
    conditions::{self, ACCEPTED, ADMITTED},
};
use sahasra_service::{causes, tasks};
use tokio::{sync::watch, time::Instant};
use tracing::{Instrument, field::Empty};

use super::{
    coordinator::{Coordinator, CoordinatorError},
    intake::{Accepted, Intake, Waiting},
    objects::{Objects, WriteError},
    observe::ObserveError,
    status::{self, Verdict},
};
use crate::{
    clock::timestamp,
    context::Context,
    leases::{How, Release, owner_above},
    objects::{code, has_finalizer},
    queue::{Requeue, queue, reconcile_all},
};

mod admission;
mod state;

use state::{JobState, JobStates, Next, REMEMBERED, RETRY, is_expected, pause};

/// Interval at which the states of deleted jobs are dropped.
const SWEEP: Duration = Duration::from_secs(10);
/// Reason of the condition when the API server rejected one of the job's objects.
const REJECTED: &str = "WriteRejected";

#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    #[error("failed to read the job's spec")]
    Observe(#[from] ObserveError),
    #[error("failed to write the job's objects")]
    Write(#[from] WriteError),
    #[error("failed to write the status")]
    Status(#[source] kube::Error),
    #[error("failed to coordinate the job")]
    Coordinate(#[source] CoordinatorError),
}

impl ReconcileError {
    pub fn category(&self) -> &'static str {
        match self {
            Self::Observe(error) => error.category(),
            Self::Write(error) => error.category(),
            Self::Status(_) => "status",
            Self::Coordinate(error) => error.category(),
        }
    }
}

struct Reconciler {
    context: Arc<Context>,
    intake: Intake,
    states: Mutex<JobStates>,
    /// Queue of jobs to reconcile although they have not changed.
    changed: Requeue<BurstJob>,
}

/// Reconciles all `BurstJob`s until dropped.
pub async fn run(context: Arc<Context>) {
    let (changed, store, queue) = queue(Api::<BurstJob>::all(context.client.clone()));
    let reconciler = Arc::new(Reconciler {
        states: Mutex::default(),
        changed,
        intake: Intake::new(
            context.client.clone(),
            context.settings.stores.clone(),
            context.settings.input_bytes,
        ),
        context: context.clone(),
    });
    let _ = context.caches.bursts.set(store.clone());
    let sweeping = sweep(reconciler.clone(), store.clone());
    let reconciling = reconcile_all(store, queue, reconciler, reconcile, on_error);
    tokio::select! {
        () = reconciling => {}
        () = sweeping => {}
    }
}

/// Drops the states of deleted jobs. The deletion of a job without a finalizer causes no reconcile.
async fn sweep(reconciler: Arc<Reconciler>, store: Store<BurstJob>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let here: BTreeSet<String> = store.state().iter().filter_map(|job| job.uid()).collect();
        // A coordinator notices the deletion itself, and the cache may not contain a finished job any more, or not show its end yet.
        reconciler.states.lock().retain(|uid, state| match state {
            JobState::Running(_) => true,
            JobState::Finished(at) => at.elapsed() <= REMEMBERED,
            _ => here.contains(uid),
        });
    }
}

// A root: the span of the runtime has the same name and namespace in another form.
#[tracing::instrument(level = "error", name = "reconcile", parent = None, skip_all, fields(job = job.name_any(), namespace = job.namespace()))]
async fn reconcile(job: Arc<BurstJob>, reconciler: Arc<Reconciler>) -> Result<Action, ReconcileError> {
    let began = Instant::now();
    let outcome = reconciler.reconcile(job).await;
    reconciler.context.metrics.reconciled("BurstJob", began.elapsed());
    outcome
}

#[tracing::instrument(level = "error", name = "reconcile", parent = None, skip_all, fields(job = job.name_any(), namespace = job.namespace()))]
fn on_error(job: Arc<BurstJob>, error: &ReconcileError, reconciler: Arc<Reconciler>) -> Action {
    let category = error.category();
    reconciler.context.metrics.reconcile_failed("BurstJob", category);
    let attempts = match reconciler.states.lock().get(&job.uid().unwrap_or_default()) {
        Some(JobState::Broken { failures: attempts, .. } | JobState::Rejected { attempts, .. }) => *attempts,
        _ => 1,
    };
    let wait = pause(category, attempts);
    if is_expected(category, attempts) {
        tracing::debug!(error = %causes(error), ?wait, "reconcile failed");
    } else {
        tracing::warn!(error = %causes(error), ?wait, "reconcile failed");
    }
    Action::requeue(wait)
}

impl Reconciler {
    async fn reconcile(self: &Arc<Self>, job: Arc<BurstJob>) -> Result<Action, ReconcileError> {
        let uid = job.uid().unwrap_or_default();
        // 1. Observe.
        if let Some(JobState::Running(current)) = self.states.lock().get(&uid) {
            current.send_replace(job);
            return Ok(Action::await_change());
        }
        if job.metadata.deletion_timestamp.is_some() {
            return self.clean_up(&job).await;
        }
        if status::is_finished(job.status.as_ref()) {
            return self.retire(&job).await;
        }
        let next = state::next(&mut self.states.lock(), &uid, job.metadata.generation, Instant::now());
        match next {
            Next::Nothing => Ok(Action::await_change()),
            Next::Wait(wait) => Ok(Action::requeue(wait)),
            Next::Report { error, retry } => {
                if let ReconcileError::Coordinate(CoordinatorError::Write(write)) = &*error
                    && let Some(message) = write.rejection()
                {
                    self.report(&job, write, message).await?;
                    if write.is_user_error() {
                        tracing::info!(error = %causes(write), ?retry, "rejected");
                        return Ok(Action::requeue(retry));
                    }
                }
                Err(*error)
            }
            Next::ShowWaiting(Waiting { reason, message }) => {
                self.write_not_accepted(&job, reason, message).await?;
                Ok(Action::await_change())
            }
            // 2. Validate.
            Next::Admit { attempts, before } => {
                self.admit(&job, attempts, before);
                Ok(Action::await_change())
            }
            // 3. Act.
            Next::Act(outcome, attempts) => self.act(job, *outcome, attempts).await,
        }
    }

    /// Reports in the status that the API server rejected one of the job's objects. If no retry can succeed, the job ends.
    async fn report(&self, job: &BurstJob, error: &WriteError, message: String) -> Result<(), ReconcileError> {
        let verdicts = if error.is_final() {
            Verdict::failed(REJECTED, message.clone())
        } else {
            let message = format!("{message}; retrying every {} s", RETRY.longest.as_secs());
            vec![Verdict::new(ADMITTED, false, REJECTED, message)]
        };
        let mut next = job.status.clone().unwrap_or_default();
        status::judge(&mut next, job.metadata.generation, &verdicts, timestamp());
        if error.is_final() {
            status::end(&mut next, timestamp());
        }
        if self.write_status(job, &next).await? {
            self.context.event(job.object_ref(&()), true, REJECTED, message);
        }
        Ok(())
    }

    /// Writes the status if it changes and the job is unchanged since it was read; otherwise the watch delivers the newer job. Returns
    /// whether the status was written.
    async fn write_status(&self, job: &BurstJob, next: &BurstJobStatus) -> Result<bool, ReconcileError> {
        if job.status.as_ref() == Some(next) {
            return Ok(false);
        }
        let objects = Objects::new(&self.context.client, job);
        let version = job.resource_version().unwrap_or_default();
        match objects.try_write_status(&version, next).await {
            Ok(_) => Ok(true),
            Err(error) if matches!(code(&error), 404 | 409) => Ok(false),
            Err(error) => Err(ReconcileError::Status(error)),
        }
    }

    fn start(self: &Arc<Self>, job: Arc<BurstJob>, accepted: Accepted, failures: u32) {
        let uid = job.uid().unwrap_or_default();
        let reference = ObjectRef::from_obj(&*job);
        let (current, seen) = watch::channel(job);
        self.states.lock().insert(uid.clone(), JobState::Running(current));
        let Accepted { burst, memory, .. } = accepted;
        let coordinator = Coordinator::new(self.context.clone(), seen, burst);
        let reconciler = self.clone();
        // Not within the span of the reconcile, which ends long before the burst.
        let span = tracing::info_span!(parent: None, "burst", job = reference.name, namespace = reference.namespace, term = Empty);
        let running = async move {
            let began = Instant::now();
            // Runs in a task of its own, so that a panic in the coordinator is handled as any other failure.
            let outcome = tasks::spawn(coordinator.run()).await;
            drop(memory);
            let error = match outcome {
                Ok(Ok(_)) => None,
                Ok(Err(error)) => Some(error),
                Err(_) => {
                    tracing::error!("a coordinator panicked");
                    Some(CoordinatorError::Superseded)
                }
            };
            let next = match error {
                None => JobState::Finished(Instant::now()),
                Some(error) => {
                    // After a long run the backoff starts again from its first wait.
                    let failures = if began.elapsed() > RETRY.longest { 1 } else { failures + 1 };
                    let error = ReconcileError::Coordinate(error);
                    let until = Instant::now() + pause(error.category(), failures);
                    let error = Some(error);
                    JobState::Broken { failures, error, until }
                }
            };
            reconciler.states.lock().insert(uid, next);
            let _ = reconciler.changed.send(reference);
        };
        tasks::spawn(running.instrument(span));
    }

    /// Handles a finished job: releases its VRAM unless that is done, and deletes the job when its TTL is over.
    async fn retire(&self, job: &BurstJob) -> Result<Action, ReconcileError> {
        // A change of the spec after the end has no effect, but clients that wait for a condition need to know that it was observed.
        if let Some(status) = &job.status
            && status.observed_generation != job.metadata.generation
        {
            let mut next = status.clone();
            status::observe(&mut next, job.metadata.generation);
            self.write_status(job, &next).await?;
        }
        let objects = Objects::new(&self.context.client, job);
        if has_finalizer(job)
            && let Release::Again(wait) = self.give_back(job, &objects).await?
        {
            return Ok(Action::requeue(wait));
        }
        let (Some(ttl), Some(status)) = (job.spec.ttl_seconds_after_finished, job.status.as_ref()) else {
            return Ok(Action::await_change());
        };
        let Some(finished) = &status.completion_time else {
            return Ok(Action::await_change());
        };
        // Both times are from operators' clocks. A skew between them only shifts the deletion of the job.
        let elapsed = timestamp().as_second() - finished.0.as_second();
        match u64::try_from(ttl - elapsed) {
            Ok(left) if left > 0 => Ok(Action::requeue(Duration::from_secs(left))),
            _ => {
                objects.delete_job(job).await?;
                Ok(Action::await_change())
            }
        }
    }

    /// A job that is being deleted and has no coordinator here: releases the grants that agents hold for it, then removes the finalizer.
    async fn clean_up(&self, job: &BurstJob) -> Result<Action, ReconcileError> {
        self.states.lock().remove(&job.uid().unwrap_or_default());
        if !has_finalizer(job) {
            return Ok(Action::await_change());
        }
        let objects = Objects::new(&self.context.client, job);
        Ok(match self.give_back(job, &objects).await? {
            Release::Again(wait) => Action::requeue(wait),
            Release::Done => Action::await_change(),
        })
    }

    /// Releases everything of the job. Once that is done, deletes its leases and removes the finalizer.
    async fn give_back(&self, job: &BurstJob, objects: &Objects) -> Result<Release, ReconcileError> {
        let term = job.status.as_ref().map_or(0, |status| status.term);
        let is_accepted = |status: &BurstJobStatus| conditions::get(&status.conditions, ACCEPTED).is_some();
        if term > 0 || job.status.as_ref().is_some_and(is_accepted) {
            let release = self
                .context
                .releases
                .release(&owner_above(job, term), job.spec.lease.ttl(), How::Everywhere)
                .await;
            if release != Release::Done {
                return Ok(release);
            }
        }
        objects.delete_all_leases().await?;
        objects.remove_finalizer().await?;
        Ok(Release::Done)
    }
}
