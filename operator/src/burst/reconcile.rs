//! The reconciler of `BurstJob`s.
//!
//! 1. Observe: is it finished, being deleted, coordinated already?
//! 2. Validate: the intake fetches what the spec refers to and checks everything; `Accepted=False` names the field that is wrong.
//!    That takes its time, beside the reconciler: what comes of it brings the job back.
//! 3. Act: start a [`Coordinator`], which does the rest; or tell the one that runs of a change; or let a finished job go.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::StreamExt;
use kube::{
    Api, Resource, ResourceExt,
    runtime::{
        applier,
        controller::{Action, Config},
        reflector::{ObjectRef, Store},
    },
};
use sahasra_crds::{
    BurstJob, BurstJobStatus, FINALIZER,
    conditions::{self, ACCEPTED, ADMITTED, COMPLETE, FAILED},
};
use sahasra_service::{causes, part};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    coordinator::{Coordinator, CoordinatorError, owner},
    intake::{self, Accepted, Outcome, Refused},
    objects::{Objects, WriteError},
    observe::ObserveError,
    status::{self, Verdict},
    validate::ValidBurst,
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

/// How often jobs that are gone are forgotten.
const SWEEP: Duration = Duration::from_secs(10);
/// Reason of conditions that tell of an object that the API server rejected.
const REJECTED: &str = "WriteRejected";

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

/// What is known of a job beside the cache, by UID.
enum Known {
    /// A coordinator runs: it sees the job through this.
    Running(watch::Sender<Arc<BurstJob>>),
    /// It ended well, then.
    Finished(Instant),
    /// It ended otherwise.
    Broken {
        /// How often.
        failures: u32,
        /// The last cause, which waits to be reported.
        error: Option<ReconcileError>,
        /// When the next one may start.
        until: Instant,
    },
    /// What it refers to is being fetched and checked.
    Intake(Taken),
    /// It was refused.
    Refused {
        /// How often.
        attempts: u32,
        /// Looked at again from then on; not at all when absent, unless it changes.
        until: Option<Instant>,
        generation: Option<i64>,
        verdict: intake::Verdict,
    },
    /// It waits for the expiry of what agents may hold for it, since then.
    Releasing(Instant),
}

/// A job in the intake.
struct Taken {
    /// What it waits for, until told.
    waits: Option<String>,
    /// What became of it, until acted upon.
    outcome: Option<Outcome>,
    /// How often it was tried before without a coordinator, or without a long-lived one.
    attempts: u32,
    _task: AbortOnDropHandle<()>,
}

/// What is to be done, from what is known.
enum Next {
    /// A look, later.
    Wait(Duration),
    /// Nothing.
    Nothing,
    /// What ended the coordinator is told.
    Report(Box<ReconcileError>),
    /// What the job waits for is told.
    Tell(String),
    /// What the intake found is acted upon.
    Act(Box<Outcome>, u32),
    /// It goes to the intake.
    Take { attempts: u32, before: Option<intake::Verdict> },
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
    let _ = context.caches.bursts.set(store.clone());
    let config = Config::default().concurrency(CONCURRENCY);
    let sweeping = sweep(reconciler.clone(), store.clone());
    let reconcile = |object, reconciler| Box::pin(reconcile(object, reconciler));
    let reconciling = applier(reconcile, on_error, reconciler, store, queue, config).for_each(|outcome| async move {
        if let Err(error) = outcome {
            tracing::debug!(error = %causes(&error), "a BurstJob was not reconciled");
        }
    });
    tokio::select! {
        () = reconciling => {}
        () = sweeping => {}
    }
}

/// Forgets jobs that are gone: one without a finalizer goes without a word.
async fn sweep(reconciler: Arc<Reconciler>, store: Store<BurstJob>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let here: BTreeSet<String> = store.state().iter().filter_map(|job| job.uid()).collect();
        // A coordinator notices by itself, and what it finished may not be in the cache any more, or not yet.
        reconciler.known().retain(|uid, known| match known {
            Known::Running(_) => true,
            Known::Finished(at) => at.elapsed() <= REMEMBERED,
            _ => here.contains(uid),
        });
    }
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
        Some(Known::Broken { failures: attempts, .. } | Known::Refused { attempts, .. }) => *attempts,
        _ => 1,
    };
    let wait = pause(category, attempts);
    tracing::warn!(job = job.name_any(), namespace = job.namespace(), error = %causes(error), ?wait, "reconcile failed");
    Action::requeue(wait)
}

/// The PTX is fixed at admission: what ran already must have been the same program.
fn kernel_changed(job: &BurstJob, burst: &ValidBurst) -> Option<Refused> {
    let accepted = job.status.as_ref().and_then(|status| status.kernel_digest.as_ref())?;
    (*accepted != burst.digest).then(|| Refused {
        reason: "KernelChanged",
        message: format!(
            "spec.kernel.ptx: it is {} now, accepted was {accepted}: put it back, or make another BurstJob",
            burst.digest
        ),
        may_pass: true,
    })
}

/// How long to wait after an error.
fn pause(category: &str, attempts: u32) -> Duration {
    // Someone else's write in between is no failure: look again at once.
    if category == "conflict" { RETRY.0 / 10 } else { backoff(attempts) }
}

/// Doubles from the first to the longest wait.
fn backoff(attempts: u32) -> Duration {
    RETRY.0.saturating_mul(1 << attempts.saturating_sub(1).min(16)).min(RETRY.1)
}

impl Reconciler {
    async fn reconcile(self: &Arc<Self>, job: Arc<BurstJob>) -> Result<Action, ReconcileError> {
        let uid = job.uid().unwrap_or_default();
        // 1. Observe.
        if let Some(Known::Running(current)) = self.known().get(&uid) {
            current.send_replace(job);
            return Ok(Action::await_change());
        }
        if job.metadata.deletion_timestamp.is_some() {
            return self.let_go(&job).await;
        }
        if status::is_finished(job.status.as_ref()) {
            return self.retire(&job).await;
        }
        match self.next(&uid, job.metadata.generation) {
            Next::Nothing => Ok(Action::await_change()),
            Next::Wait(wait) => Ok(Action::requeue(wait)),
            Next::Report(error) => {
                if let ReconcileError::Coordinate(CoordinatorError::Write(write)) = &*error
                    && let Some(message) = write.rejection()
                {
                    self.report(&job, write, message).await?;
                }
                Err(*error)
            }
            Next::Tell(message) => {
                self.refused(&job, "WaitingForMemory", message).await?;
                Ok(Action::await_change())
            }
            // 2. Validate.
            Next::Take { attempts, before } => {
                self.take(&job, attempts, before);
                Ok(Action::await_change())
            }
            // 3. Act.
            Next::Act(outcome, attempts) => match *outcome {
                Outcome::Accepted(accepted) => match kernel_changed(&job, &accepted.burst) {
                    None => {
                        self.start(job, *accepted, attempts);
                        Ok(Action::await_change())
                    }
                    Some(refused) => {
                        let version = Some(accepted.version);
                        self.refuse(&job, intake::Verdict { refused, version }, attempts).await
                    }
                },
                Outcome::Refused(verdict) => self.refuse(&job, verdict, attempts).await,
                Outcome::Failed(error) => {
                    let failures = attempts + 1;
                    let until = Instant::now() + backoff(failures);
                    // Told here.
                    let told = None;
                    let broken = Known::Broken {
                        failures,
                        error: told,
                        until,
                    };
                    self.known().insert(uid, broken);
                    Err(error.into())
                }
            },
        }
    }

    /// What is to be done with a job that is neither coordinated nor over.
    fn next(&self, uid: &str, generation: Option<i64>) -> Next {
        let mut all = self.known();
        let taken = match all.get_mut(uid) {
            Some(Known::Intake(taken)) => match (taken.waits.take(), taken.outcome.take()) {
                (_, Some(outcome)) => Next::Act(Box::new(outcome), taken.attempts),
                (Some(message), None) => Next::Tell(message),
                (None, None) => Next::Nothing,
            },
            Some(Known::Broken { failures, error, until }) => match (error.take(), until.checked_duration_since(Instant::now())) {
                (Some(error), _) => Next::Report(Box::new(error)),
                // Whatever woke this reconcile, the next coordinator has its time.
                (None, Some(wait)) if !wait.is_zero() => Next::Wait(wait),
                (None, _) => Next::Take {
                    attempts: *failures,
                    before: None,
                },
            },
            Some(Known::Refused {
                attempts,
                until,
                generation: of,
                verdict,
            }) => match until.map(|until| until.saturating_duration_since(Instant::now())) {
                Some(wait) if !wait.is_zero() => Next::Wait(wait),
                None if *of == generation => Next::Nothing,
                _ => Next::Take {
                    attempts: *attempts,
                    // What else of the spec has changed may be what was wrong.
                    before: Some(verdict.clone()).filter(|_| *of == generation),
                },
            },
            Some(Known::Finished(at)) if at.elapsed() < REMEMBERED => Next::Wait(REMEMBERED),
            _ => Next::Take { attempts: 0, before: None },
        };
        if matches!(taken, Next::Act(..)) {
            all.remove(uid);
        }
        taken
    }

    /// Gives a job to the intake, which brings it back when it is done, or has to wait.
    fn take(self: &Arc<Self>, job: &BurstJob, attempts: u32, before: Option<intake::Verdict>) {
        let (uid, reference) = (job.uid().unwrap_or_default(), ObjectRef::from_obj(job));
        let (namespace, spec) = (job.namespace().unwrap_or_default(), job.spec.clone());
        let mut known = self.known();
        let (reconciler, of) = (self.clone(), uid.clone());
        let task = part::spawn(async move {
            let (waits, mut told) = mpsc::unbounded_channel();
            let context = reconciler.context.clone();
            let admitting = context.intake.admit(&namespace, &spec, before, |message| {
                let _ = waits.send(message);
            });
            let mut admitting = std::pin::pin!(admitting);
            let outcome = loop {
                tokio::select! {
                    outcome = &mut admitting => break outcome,
                    Some(message) = told.recv() => {
                        if let Some(Known::Intake(taken)) = reconciler.known().get_mut(&of) {
                            taken.waits = Some(message);
                        }
                        let _ = reconciler.ended.send(reference.clone()).await;
                    }
                }
            };
            if let Some(Known::Intake(taken)) = reconciler.known().get_mut(&of) {
                taken.outcome = Some(outcome);
            }
            let _ = reconciler.ended.send(reference).await;
        });
        let taken = Taken {
            waits: None,
            outcome: None,
            attempts,
            _task: AbortOnDropHandle::new(task),
        };
        known.insert(uid, Known::Intake(taken));
    }

    /// Says what is wrong; looks again when that may have passed.
    async fn refuse(&self, job: &BurstJob, verdict: intake::Verdict, attempts: u32) -> Result<Action, ReconcileError> {
        let attempts = attempts + 1;
        let wait = verdict.refused.may_pass.then(|| backoff(attempts + 1));
        let (reason, message) = (verdict.refused.reason, verdict.refused.message.clone());
        let known = Known::Refused {
            attempts,
            until: wait.map(|wait| Instant::now() + wait),
            generation: job.metadata.generation,
            verdict,
        };
        self.known().insert(job.uid().unwrap_or_default(), known);
        self.refused(job, reason, message).await?;
        Ok(wait.map_or_else(Action::await_change, Action::requeue))
    }

    /// Writes `Accepted=False`.
    async fn refused(&self, job: &BurstJob, reason: &'static str, message: String) -> Result<(), ReconcileError> {
        let mut next = job.status.clone().unwrap_or_default();
        let verdict = Verdict::new(ACCEPTED, false, reason, message);
        status::judge(&mut next, job.metadata.generation, std::slice::from_ref(&verdict), timestamp());
        if self.write_status(job, &next).await? {
            self.context.event(job.object_ref(&()), true, reason, verdict.message);
        }
        Ok(())
    }

    /// The API server rejected one of the job's objects: says so in its status. What no retry changes ends the job.
    async fn report(&self, job: &BurstJob, error: &WriteError, message: String) -> Result<(), ReconcileError> {
        let verdicts = if error.is_final() {
            vec![
                Verdict::new(FAILED, true, REJECTED, message.clone()),
                Verdict::new(COMPLETE, false, REJECTED, "the burst failed"),
            ]
        } else {
            let message = format!("{message}; tried again every {} s", RETRY.1.as_secs());
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

    /// Writes the status if it changes and nobody has written the job in between, in which case the watch tells. Whether it did.
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

    /// Starts a coordinator.
    fn start(self: &Arc<Self>, job: Arc<BurstJob>, accepted: Accepted, failures: u32) {
        let uid = job.uid().unwrap_or_default();
        let reference = ObjectRef::from_obj(&*job);
        let (current, seen) = watch::channel(job);
        self.known().insert(uid.clone(), Known::Running(current));
        let Accepted { burst, memory, .. } = accepted;
        let coordinator = Coordinator::new(self.context.clone(), seen, burst);
        let reconciler = self.clone();
        part::spawn(async move {
            let began = Instant::now();
            // In a task of its own, so that a panic there ends as any other failure here.
            let outcome = part::spawn(coordinator.run()).await;
            drop(memory);
            let error = match outcome {
                Ok(Ok(_)) => None,
                Ok(Err(error)) => Some(error),
                Err(_) => {
                    tracing::error!(job = %reference, "a coordinator panicked");
                    Some(CoordinatorError::Superseded)
                }
            };
            let next = match error {
                None => Known::Finished(Instant::now()),
                Some(error) => {
                    // Who ran for long begins anew with the shortest wait.
                    let failures = if began.elapsed() > RETRY.1 { 1 } else { failures + 1 };
                    let error = ReconcileError::Coordinate(error);
                    let until = Instant::now() + pause(error.category(), failures);
                    let error = Some(error);
                    Known::Broken { failures, error, until }
                }
            };
            reconciler.known().insert(uid, next);
            let _ = reconciler.ended.send(reference).await;
        });
    }

    /// A finished job: its VRAM is back or returns by itself; it goes when its time has come.
    async fn retire(&self, job: &BurstJob) -> Result<Action, ReconcileError> {
        // A change after the end changes nothing, but who waits for a condition wants to know that it was seen.
        if let Some(status) = &job.status
            && status.observed_generation != job.metadata.generation
        {
            let mut next = status.clone();
            status::observe(&mut next, job.metadata.generation);
            self.write_status(job, &next).await?;
        }
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
                Some(Known::Releasing(since)) => *since,
                _ => Instant::now(),
            };
            let expiry = Duration::from_secs(u64::try_from(job.spec.lease.ttl_seconds).unwrap_or_default()) + EXPIRY_MARGIN;
            if since.elapsed() < expiry {
                tracing::info!(job = job.name_any(), %error, "waiting for an agent, or for the expiry");
                self.known().insert(uid, Known::Releasing(since));
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
