//! The reconciler of `BurstJob`s.
//!
//! 1. Observe: is it finished, being deleted, coordinated already?
//! 2. Validate: fetch what the spec refers to and check everything; `Accepted=False` names the field that is wrong.
//! 3. Act: start a [`Coordinator`], which does the rest; or tell the one that runs of a change; or let a finished job go.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::StreamExt;
use kube::{
    Api, Resource, ResourceExt,
    runtime::{
        applier,
        controller::{Action, Config},
        reflector::ObjectRef,
    },
};
use sahasra_crds::{
    BurstJob, FINALIZER,
    conditions::{self, ACCEPTED},
};
use sahasra_service::{causes, part};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use super::{
    coordinator::{Coordinator, CoordinatorError, owner},
    objects::{Objects, WriteError},
    observe::{ObserveError, observe},
    status::{self, Verdict},
    validate::{Invalid, ValidBurst, validate},
};
use crate::{clock::timestamp, context::Context, objects::code, queue::queue};

/// Reconciles at the same time.
const CONCURRENCY: u16 = 16;
/// Coordinators that ended and whose jobs are to be looked at again.
const ENDED: usize = 1024;
/// First and longest wait after an error, or before what was missing is looked for again.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));
/// How much longer than a grant's ttl a dead worker is waited for.
pub(super) const EXPIRY_MARGIN: Duration = Duration::from_secs(5);
/// A finished job is remembered for so long: the cache may not show its end yet.
const REMEMBERED: Duration = Duration::from_secs(60);

/// Why a reconcile failed.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// The API server did not give what the spec refers to.
    #[error("observe")]
    Observe(#[from] ObserveError),
    /// An object was not written.
    #[error("write")]
    Write(#[from] WriteError),
    /// The status was not written.
    #[error("write the status")]
    Status(#[source] kube::Error),
    /// The coordinator ended before its time.
    #[error("coordinate")]
    Coordinate(#[source] CoordinatorError),
}

impl ReconcileError {
    /// Category for metrics.
    pub fn category(&self) -> &'static str {
        match self {
            Self::Observe(error) => error.category(),
            Self::Write(error) => error.category(),
            Self::Status(_) => "status",
            Self::Coordinate(error) => error.category(),
        }
    }
}

/// Why a job cannot be run as it is, and whether that may change without a change of the job.
struct Refused {
    reason: &'static str,
    message: String,
    may_pass: bool,
}

/// What is known of a job beside the cache, by UID.
enum Known {
    /// A coordinator runs: it sees the job through this.
    Running(watch::Sender<Arc<BurstJob>>),
    /// It ended well, then.
    Finished(Instant),
    /// It ended otherwise, so often; the last cause waits to be reported.
    Broken(u32, Option<CoordinatorError>),
    /// Nothing runs; it was refused so often, or waits for the expiry since then.
    Waiting { attempts: u32, since: Instant },
}

struct Reconciler {
    context: Arc<Context>,
    known: Mutex<BTreeMap<String, Known>>,
    ended: mpsc::Sender<ObjectRef<BurstJob>>,
}

/// Reconciles all `BurstJob`s until dropped.
pub async fn run(context: Arc<Context>) {
    let (ended, ends) = mpsc::channel(ENDED);
    let reconciler = Arc::new(Reconciler {
        known: Mutex::default(),
        ended,
        context: context.clone(),
    });
    let (store, queue) = queue(Api::<BurstJob>::all(context.client.clone()), ends);
    let config = Config::default().concurrency(CONCURRENCY);
    let reconcile = |object, reconciler| Box::pin(reconcile(object, reconciler));
    applier(reconcile, on_error, reconciler, store, queue, config)
        .for_each(|outcome| async move {
            if let Err(error) = outcome {
                tracing::debug!(error = %causes(&error), "a BurstJob was not reconciled");
            }
        })
        .await;
}

async fn reconcile(job: Arc<BurstJob>, reconciler: Arc<Reconciler>) -> Result<Action, ReconcileError> {
    let began = Instant::now();
    let outcome = reconciler.reconcile(job).await;
    reconciler.context.metrics.reconciled("BurstJob", began.elapsed());
    outcome
}

fn on_error(job: Arc<BurstJob>, error: &ReconcileError, reconciler: Arc<Reconciler>) -> Action {
    let category = error.category();
    reconciler.context.metrics.reconcile_failed("BurstJob", category);
    let attempts = match reconciler.known().get(&job.uid().unwrap_or_default()) {
        Some(Known::Broken(attempts, _) | Known::Waiting { attempts, .. }) => *attempts,
        _ => 1,
    };
    // Someone else's write in between is no failure: look again at once.
    let wait = if category == "conflict" { RETRY.0 / 10 } else { backoff(attempts) };
    tracing::warn!(job = job.name_any(), namespace = job.namespace(), error = %causes(error), ?wait, "reconcile failed");
    Action::requeue(wait)
}

/// Doubles from the first to the longest wait.
fn backoff(attempts: u32) -> Duration {
    RETRY.0.saturating_mul(1 << attempts.saturating_sub(1).min(16)).min(RETRY.1)
}

impl Reconciler {
    async fn reconcile(self: &Arc<Self>, job: Arc<BurstJob>) -> Result<Action, ReconcileError> {
        let uid = job.uid().unwrap_or_default();
        // 1. Observe.
        match self.known().get_mut(&uid) {
            Some(Known::Running(current)) => {
                current.send_replace(job);
                return Ok(Action::await_change());
            }
            Some(Known::Broken(_, error)) => {
                if let Some(error) = error.take() {
                    return Err(ReconcileError::Coordinate(error));
                }
            }
            _ => {}
        }
        if job.metadata.deletion_timestamp.is_some() {
            return self.let_go(&job).await;
        }
        if status::is_finished(job.status.as_ref()) {
            return self.retire(&job).await;
        }
        if matches!(self.known().get(&uid), Some(Known::Finished(at)) if at.elapsed() < REMEMBERED) {
            return Ok(Action::requeue(REMEMBERED));
        }
        // 2. Validate.
        let burst = match self.check(&job).await? {
            Ok(burst) => burst,
            Err(refused) => return self.refuse(&job, refused).await,
        };
        // 3. Act.
        self.start(job, burst);
        Ok(Action::await_change())
    }

    async fn check(&self, job: &BurstJob) -> Result<Result<ValidBurst, Refused>, ReconcileError> {
        let namespace = job.namespace().unwrap_or_default();
        let observed = match observe(&self.context.client, &self.context.stores, &namespace, &job.spec).await {
            Ok(observed) => observed,
            Err(ObserveError::Missing { path, reason, message }) => {
                return Ok(Err(Refused {
                    reason,
                    message: format!("{path}: {message}"),
                    may_pass: true,
                }));
            }
            Err(error) => return Err(error.into()),
        };
        let burst = match validate(&job.spec, &observed) {
            Ok(burst) => burst,
            Err(Invalid { path, reason, message }) => {
                return Ok(Err(Refused {
                    reason,
                    message: format!("{path}: {message}"),
                    // What a ConfigMap or Secret holds may be put right there.
                    may_pass: path.starts_with("spec.kernel") || path.starts_with("spec.output"),
                }));
            }
        };
        // The PTX is fixed at admission: what ran already must have been the same program.
        let accepted = job.status.as_ref().and_then(|status| status.kernel_digest.as_ref());
        if let Some(accepted) = accepted.filter(|accepted| **accepted != burst.digest) {
            return Ok(Err(Refused {
                reason: "KernelChanged",
                message: format!(
                    "spec.kernel.ptx: it is {} now, accepted was {accepted}: put it back, or make another BurstJob",
                    burst.digest
                ),
                may_pass: true,
            }));
        }
        Ok(Ok(burst))
    }

    /// Says what is wrong; looks again when that may have passed.
    async fn refuse(&self, job: &BurstJob, refused: Refused) -> Result<Action, ReconcileError> {
        let uid = job.uid().unwrap_or_default();
        let mut next = job.status.clone().unwrap_or_default();
        let verdict = Verdict::new(ACCEPTED, false, refused.reason, refused.message);
        status::judge(&mut next, job.metadata.generation, std::slice::from_ref(&verdict), timestamp());
        if job.status.as_ref() != Some(&next) {
            let objects = Objects::new(&self.context.client, job);
            let version = job.resource_version().unwrap_or_default();
            match objects.try_write_status(&version, &next).await {
                Ok(_) => {}
                // Written or deleted in between: the watch tells.
                Err(error) if matches!(code(&error), 404 | 409) => return Ok(Action::await_change()),
                Err(error) => return Err(ReconcileError::Status(error)),
            }
            self.context.event(job.object_ref(&()), true, refused.reason, verdict.message);
        }
        if !refused.may_pass {
            return Ok(Action::await_change());
        }
        let mut known = self.known();
        let attempts = match known.get(&uid) {
            Some(Known::Waiting { attempts, .. }) => attempts + 1,
            _ => 1,
        };
        let since = Instant::now();
        known.insert(uid, Known::Waiting { attempts, since });
        Ok(Action::requeue(backoff(attempts + 1)))
    }

    /// Starts a coordinator.
    fn start(self: &Arc<Self>, job: Arc<BurstJob>, burst: ValidBurst) {
        let uid = job.uid().unwrap_or_default();
        let reference = ObjectRef::from_obj(&*job);
        let mut known = self.known();
        let failures = match known.get(&uid) {
            Some(Known::Broken(failures, _)) => *failures,
            _ => 0,
        };
        let (current, seen) = watch::channel(job);
        known.retain(|_, known| !matches!(known, Known::Finished(at) if at.elapsed() > REMEMBERED));
        known.insert(uid.clone(), Known::Running(current));
        drop(known);
        let coordinator = Coordinator::new(self.context.clone(), seen, burst);
        let reconciler = self.clone();
        part::spawn(async move {
            let began = Instant::now();
            // In a task of its own, so that a panic there ends as any other failure here.
            let outcome = part::spawn(coordinator.run()).await;
            let next = match outcome {
                Ok(Ok(_)) => Known::Finished(Instant::now()),
                Ok(Err(error)) => {
                    // Who ran for long begins anew with the shortest wait.
                    let failures = if began.elapsed() > RETRY.1 { 1 } else { failures + 1 };
                    Known::Broken(failures, Some(error))
                }
                Err(_) => {
                    tracing::error!(job = %reference, "a coordinator panicked");
                    Known::Broken(failures + 1, Some(CoordinatorError::Superseded))
                }
            };
            reconciler.known().insert(uid, next);
            let _ = reconciler.ended.send(reference).await;
        });
    }

    /// A finished job: its VRAM is back or returns by itself; it goes when its time has come.
    async fn retire(&self, job: &BurstJob) -> Result<Action, ReconcileError> {
        let objects = Objects::new(&self.context.client, job);
        if job.finalizers().iter().any(|finalizer| finalizer == FINALIZER)
            && let Some(wait) = self.give_back(job, &objects).await?
        {
            return Ok(Action::requeue(wait));
        }
        let (Some(ttl), Some(status)) = (job.spec.ttl_seconds_after_finished, job.status.as_ref()) else {
            return Ok(Action::await_change());
        };
        let Some(finished) = &status.completion_time else {
            return Ok(Action::await_change());
        };
        // Both times are of operators' clocks; a skew between them only shifts when the job goes.
        let elapsed = timestamp().as_second() - finished.0.as_second();
        match u64::try_from(ttl - elapsed) {
            Ok(left) if left > 0 => Ok(Action::requeue(Duration::from_secs(left))),
            _ => {
                objects.delete_job().await?;
                Ok(Action::await_change())
            }
        }
    }

    /// A job that is being deleted and has no coordinator here: what agents hold for it goes back, then the finalizer.
    async fn let_go(&self, job: &BurstJob) -> Result<Action, ReconcileError> {
        let uid = job.uid().unwrap_or_default();
        if !job.finalizers().iter().any(|finalizer| finalizer == FINALIZER) {
            self.known().remove(&uid);
            return Ok(Action::await_change());
        }
        let objects = Objects::new(&self.context.client, job);
        match self.give_back(job, &objects).await? {
            Some(wait) => Ok(Action::requeue(wait)),
            None => {
                self.known().remove(&uid);
                Ok(Action::await_change())
            }
        }
    }

    /// Gives everything of the job back and removes the finalizer; or says when to try again, because an agent that may
    /// hold something did not answer and its grants may not have expired yet.
    async fn give_back(&self, job: &BurstJob, objects: &Objects) -> Result<Option<Duration>, ReconcileError> {
        let uid = job.uid().unwrap_or_default();
        let term = job.status.as_ref().map_or(0, |status| status.term);
        // One more than any coordinator ever had: none of them gets anything afterwards.
        let owner = owner(job, u64::try_from(term).unwrap_or_default() + 1);
        let accepted = job
            .status
            .as_ref()
            .is_some_and(|status| conditions::get(&status.conditions, ACCEPTED).is_some());
        if (term > 0 || accepted)
            && let Err(error) = self.context.pool.release_everywhere(&owner).await
        {
            let since = match self.known().get(&uid) {
                Some(Known::Waiting { since, .. }) => *since,
                _ => Instant::now(),
            };
            let expiry = Duration::from_secs(u64::try_from(job.spec.lease.ttl_seconds).unwrap_or_default()) + EXPIRY_MARGIN;
            if since.elapsed() < expiry {
                tracing::info!(job = job.name_any(), %error, "waiting for an agent, or for the expiry");
                self.known().insert(uid, Known::Waiting { attempts: 1, since });
                return Ok(Some(Duration::from_secs(1)));
            }
            tracing::warn!(job = job.name_any(), %error, "let go after the expiry");
        }
        objects.delete_leases().await?;
        objects.remove_finalizer().await?;
        Ok(None)
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest() {
        assert_eq!(backoff(1), RETRY.0);
        assert_eq!(backoff(2), RETRY.0 * 2);
        assert_eq!(backoff(1000), RETRY.1);
    }
}
