//! From the outcome of the intake to a coordinator or to `Accepted=False`.

use std::{future::Future, panic::AssertUnwindSafe, sync::Arc};

use futures::FutureExt;
use kube::{
    Resource, ResourceExt,
    runtime::{controller::Action, reflector::ObjectRef},
};
use sahasra_crds::{BurstJob, conditions::ACCEPTED};
use sahasra_service::tasks;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{
    ReconcileError, Reconciler,
    state::{Intake, JobState, RETRY},
};
use crate::{
    burst::{
        intake::{Accepted, Outcome, Verdict},
        status,
    },
    clock::timestamp,
};

impl Reconciler {
    /// Passes a job to the intake. The job is reconciled again when the intake is done, or when the job has to wait.
    pub(super) fn admit(self: &Arc<Self>, job: &BurstJob, attempts: u32, before: Option<Verdict>) {
        let (uid, reference) = (job.uid().unwrap_or_default(), ObjectRef::from_obj(job));
        let (namespace, spec) = (job.namespace().unwrap_or_default(), job.spec.clone());
        let mut states = self.states.lock();
        let (reconciler, of) = (self.clone(), uid.clone());
        let task = tasks::spawn(async move {
            let admitting = reconciler.intake.admit(&namespace, &spec, before, |waiting| {
                if let Some(JobState::Intake(intake)) = reconciler.states.lock().get_mut(&of) {
                    intake.waits = Some(waiting);
                }
                let _ = reconciler.changed.send(reference.clone());
            });
            let outcome = caught(admitting).await;
            if let Some(JobState::Intake(intake)) = reconciler.states.lock().get_mut(&of) {
                intake.outcome = Some(outcome);
            }
            let _ = reconciler.changed.send(reference);
        });
        let intake = Intake {
            waits: None,
            outcome: None,
            attempts,
            _task: AbortOnDropHandle::new(task),
        };
        states.insert(uid, JobState::Intake(intake));
    }

    /// Starts a coordinator for an accepted job, or reports why a job was not accepted.
    pub(super) async fn act(self: &Arc<Self>, job: Arc<BurstJob>, outcome: Outcome, attempts: u32) -> Result<Action, ReconcileError> {
        match outcome {
            Outcome::Accepted(accepted) => match kernel_changed(&job, &accepted) {
                None => {
                    self.start(job, *accepted, attempts);
                    Ok(Action::await_change())
                }
                Some(verdict) => self.reject(&job, verdict, attempts).await,
            },
            Outcome::Refused(verdict) => self.reject(&job, verdict, attempts).await,
            Outcome::Failed(error) => {
                let failures = attempts + 1;
                let broken = JobState::Broken {
                    failures,
                    // The error is returned below.
                    error: None,
                    until: Instant::now() + RETRY.after(failures),
                };
                self.states.lock().insert(job.uid().unwrap_or_default(), broken);
                Err(error.into())
            }
        }
    }

    /// Writes the reason of the rejection to the status. The job is validated again later if the problem can be fixed without changing the
    /// job.
    async fn reject(&self, job: &BurstJob, verdict: Verdict, attempts: u32) -> Result<Action, ReconcileError> {
        let attempts = attempts + 1;
        let wait = verdict.may_pass.then(|| RETRY.after(attempts + 1));
        let (reason, message) = (verdict.reason, verdict.message.clone());
        let rejected = JobState::Rejected {
            attempts,
            until: wait.map(|wait| Instant::now() + wait),
            generation: job.metadata.generation,
            verdict,
        };
        self.states.lock().insert(job.uid().unwrap_or_default(), rejected);
        self.write_not_accepted(job, reason, message).await?;
        Ok(wait.map_or_else(Action::await_change, Action::requeue))
    }

    pub(super) async fn write_not_accepted(&self, job: &BurstJob, reason: &'static str, message: String) -> Result<(), ReconcileError> {
        let mut next = job.status.clone().unwrap_or_default();
        let verdict = status::Verdict::new(ACCEPTED, false, reason, message);
        status::judge(&mut next, job.metadata.generation, std::slice::from_ref(&verdict), timestamp());
        if self.write_status(job, &next).await? {
            self.context.event(job.object_ref(&()), true, reason, verdict.message);
        }
        Ok(())
    }
}

/// Converts a panic in the intake into a rejection of this job, which is validated again later. Other jobs are not affected.
async fn caught(admitting: impl Future<Output = Outcome>) -> Outcome {
    let outcome = AssertUnwindSafe(admitting).catch_unwind().await;
    outcome.unwrap_or_else(|_| {
        Outcome::Refused(Verdict {
            reason: "InternalError",
            message: "spec.kernel: validation failed inside the operator: report the error in its log with this BurstJob; retrying"
                .to_owned(),
            may_pass: true,
            version: None,
        })
    })
}

/// The PTX is fixed at admission, because the chunks that ran already must have used the same program. Returns a rejection if the PTX has
/// changed.
fn kernel_changed(job: &BurstJob, accepted: &Accepted) -> Option<Verdict> {
    let before = job.status.as_ref().and_then(|status| status.kernel_digest.as_ref())?;
    let digest = accepted.burst.digest();
    (*before != digest).then(|| Verdict {
        reason: "KernelChanged",
        message: format!("spec.kernel.ptx: its digest is {digest}, accepted was {before}: restore it, or create another BurstJob"),
        may_pass: true,
        version: Some(accepted.version.clone()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_in_the_intake_is_a_rejection_that_reports_it() {
        let outcome = caught(async { panic!("a check that fails, on purpose") }).await;
        let Outcome::Refused(refused @ Verdict { version: None, .. }) = outcome else {
            panic!("{outcome:?}");
        };
        assert!(
            refused.may_pass && refused.message.contains("failed inside the operator"),
            "{refused:?}"
        );
    }
}
