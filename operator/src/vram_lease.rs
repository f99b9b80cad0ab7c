//! The reconciler of `VramLease`s that belong to users and sessions. Slices are acquired, renewed for as long as the object exists if its
//! spec asks for renewal, and released when the object is deleted. A session's slice that was lost is not acquired again elsewhere. The
//! lease of a burst is managed by the burst's coordinator.
//!
//! 1. Observe: the owner of the lease, whether it is being deleted, and what the pool holds for it.
//! 2. Act: write finalizer and term, then register a claim in the pool; or release the slices.
//! 3. Report: write the status when the held slices have changed.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Api, Resource, ResourceExt,
    api::ListParams,
    runtime::{controller::Action, reflector::ObjectRef},
};
use parking_lot::Mutex;
use sahasra_crds::{
    VramLease, VramLeaseStatus,
    conditions::{self, GRANTED},
    vram_lease::Renewal,
};
use sahasra_names::WorkerName;
use sahasra_scheduler::ClaimKind;
use sahasra_service::{causes, tasks};
use sahasra_wire::{
    grants::{Owner, SessionTerms},
    milliseconds,
};
use serde_json::json;
use tokio::{sync::watch, time::Instant};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    context::Context,
    leases::{Bounds, GrantedReason, How, Release, owner, owner_above},
    objects::{self, ApiError, api, code},
    pool::{ClaimRequest, ClaimView},
    queue::{Requeue, queue, reconcile_all},
};

mod adoption;
mod status;

use status::{events, is_due, next_status};

/// Drain timeout: time for which work on a lease's slices may continue after the slices were taken.
const GRACE: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    #[error(transparent)]
    Api(#[from] ApiError),
    /// Workers did not answer with their inventory. It is needed for a lease that must not be acquired twice.
    #[error("no inventory from {}", .0.join(", "))]
    Inventories(Vec<WorkerName>),
    #[error("spec.slice.vram")]
    Quantity(#[from] sahasra_crds::quantity::QuantityError),
}

impl ReconcileError {
    pub fn category(&self) -> &'static str {
        match self {
            Self::Api(error) => error.category(),
            Self::Inventories(_) => "agent",
            Self::Quantity(_) => "spec",
        }
    }
}

/// State of a lease with a claim in the pool.
struct Held {
    view: watch::Receiver<ClaimView>,
    term: u64,
    /// Number of losses that the status and Events have reported.
    losses_told: u64,
    /// Whether the claim has ever held its minimum.
    granted: bool,
    _watcher: AbortOnDropHandle<()>,
}

struct Reconciler {
    context: Arc<Context>,
    held: Mutex<BTreeMap<String, Held>>,
    changes: Requeue<VramLease>,
}

/// Reconciles all `VramLease`s until dropped.
pub async fn run(context: Arc<Context>) {
    let (changes, store, queue) = queue(Api::<VramLease>::all(context.client.clone()));
    let reconciler = Arc::new(Reconciler {
        context: context.clone(),
        held: Mutex::default(),
        changes,
    });
    let _ = context.caches.leases.set(store.clone());
    let reconciling = reconcile_all(store, queue, reconciler, reconcile, on_error);
    tokio::join!(reconciling, end_orphans(&context));
}

/// Releases the slices that agents hold for leases of sessions that no longer exist.
async fn end_orphans(context: &Context) {
    loop {
        let mut by_namespace: BTreeMap<String, Vec<Owner>> = BTreeMap::new();
        for owner in context.pool.orphans().await {
            by_namespace.entry(owner.namespace.clone()).or_default().push(owner);
        }
        for (namespace, owners) in by_namespace {
            let leases = Api::<VramLease>::namespaced(context.client.clone(), &namespace);
            // A grant whose lease exists will be adopted. If the leases cannot be listed, all grants stay.
            let Ok(standing) = leases.list(&ListParams::default()).await else {
                continue;
            };
            for owner in owners {
                if standing.iter().any(|lease| lease.uid().as_deref() == Some(&owner.uid)) {
                    continue;
                }
                tracing::warn!(
                    owner = owner.name,
                    namespace,
                    "releasing a slice of a session that no longer exists"
                );
                if let Err(error) = context.pool.release_everywhere(&owner).await {
                    tracing::debug!(owner = owner.name, %error, "waiting for the agent to respond, or for the slice to expire");
                }
            }
        }
    }
}

// A root: the span of the runtime has the same name and namespace in another form.
#[tracing::instrument(level = "error", name = "reconcile", parent = None, skip_all, fields(lease = lease.name_any(), namespace = lease.namespace()))]
async fn reconcile(lease: Arc<VramLease>, reconciler: Arc<Reconciler>) -> Result<Action, ReconcileError> {
    // A burst's coordinator manages its lease.
    if controller(&lease, "BurstJob").is_some() {
        return Ok(Action::await_change());
    }
    let began = Instant::now();
    let outcome = reconciler.reconcile(&lease).await;
    reconciler.context.metrics.reconciled("VramLease", began.elapsed());
    outcome
}

#[tracing::instrument(level = "error", name = "reconcile", parent = None, skip_all, fields(lease = lease.name_any(), namespace = lease.namespace()))]
fn on_error(lease: Arc<VramLease>, error: &ReconcileError, reconciler: Arc<Reconciler>) -> Action {
    reconciler.context.metrics.reconcile_failed("VramLease", error.category());
    tracing::warn!(error = %causes(error), "reconcile failed");
    Action::requeue(Duration::from_secs(1))
}

fn controller<'a>(lease: &'a VramLease, kind: &str) -> Option<&'a OwnerReference> {
    let mut owners = lease.owner_references().iter();
    owners.find(|owner| owner.kind == kind && owner.controller == Some(true))
}

fn is_a_sessions(lease: &VramLease) -> bool {
    controller(lease, "GpuSession").is_some()
}

/// Whether slices that the lease has held and lost are not acquired again.
fn is_served_once(lease: &VramLease) -> bool {
    lease.spec.renewal == Renewal::Never || is_a_sessions(lease)
}

/// Whether the lease held its slices, perhaps fewer than a raised minimum, when its status was last written.
fn was_granted(lease: &VramLease) -> bool {
    let status = lease.status.as_ref();
    keeps_fewer(lease) || status.is_some_and(|status| conditions::is_true(&status.conditions, GRANTED))
}

/// Whether the lease waited for the slices that a raised minimum adds when its status was last written.
fn keeps_fewer(lease: &VramLease) -> bool {
    let status = lease.status.as_ref();
    status.is_some_and(|status| GrantedReason::WaitingForMoreSlices.is_in(&status.conditions))
}

impl Reconciler {
    async fn reconcile(self: &Arc<Self>, lease: &VramLease) -> Result<Action, ReconcileError> {
        if lease.metadata.deletion_timestamp.is_some() {
            return self.clean_up(lease).await;
        }
        let uid = lease.uid().unwrap_or_default();
        if is_over(lease) {
            return Ok(Action::await_change());
        }
        let known = self.held.lock().contains_key(&uid);
        if !known {
            self.register(lease).await?;
        } else {
            let Bounds { min, max } = bounds(lease);
            self.context.pool.resize(&uid, min, max, 0);
            self.context.pool.set_renewed(&uid, lease.spec.renewal == Renewal::Automatic);
            self.context.pool.keep(&uid, lease.spec.keep());
        }
        self.report(lease).await
    }

    /// Writes finalizer and term, then registers the claim with the slices that agents already hold for the lease.
    async fn register(self: &Arc<Self>, lease: &VramLease) -> Result<(), ReconcileError> {
        let uid = lease.uid().unwrap_or_default();
        let api_of = self.api(lease);
        let name = lease.name_any();
        let current = objects::add_finalizer(&api_of, lease).await.map_err(api("add the finalizer"))?;
        let term = current.status.as_ref().map_or(0, |status| status.term) + 1;
        let version = current.metadata.resource_version.as_deref();
        let taken = objects::write_status_fields(&api_of, &name, version, json!({"term": term})).await;
        taken.map_err(api("write the new term to the status"))?;
        let term = u64::try_from(term).unwrap_or_default();
        let slice_bytes = lease.spec.slice.vram.bytes()?;
        let (adopted, lost) = if term > 1 {
            adoption::adopt(&self.context, lease, slice_bytes).await?
        } else {
            (Vec::new(), None)
        };
        let Bounds { min, max } = bounds(lease);
        let request = ClaimRequest {
            owner: owner(lease, term),
            kind: if is_a_sessions(lease) {
                ClaimKind::Session
            } else {
                ClaimKind::Lease
            },
            slice_bytes,
            class: lease.spec.slice.class.as_deref().map(Into::into),
            engine: lease.spec.engine,
            min,
            max,
            priority: 0,
            ttl: lease.spec.ttl(),
            grace: GRACE,
            renewed: lease.spec.renewal == Renewal::Automatic,
            served: was_granted(lease),
            keeps: keeps_fewer(lease) || was_granted(lease) && lost.is_none(),
            lost,
            session: session_terms(lease),
        };
        let view = self.context.pool.claim(request, adopted);
        let (mut watched, changes, reference) = (view.clone(), self.changes.clone(), ObjectRef::from_obj(lease));
        let watcher = tasks::spawn(async move {
            while watched.changed().await.is_ok() {
                if changes.send(reference.clone()).is_err() {
                    return;
                }
            }
        });
        let held = Held {
            view,
            term,
            losses_told: 0,
            granted: was_granted(lease),
            _watcher: AbortOnDropHandle::new(watcher),
        };
        self.held.lock().insert(uid, held);
        Ok(())
    }

    /// Writes the status when the held slices, or the reason for missing slices, have changed.
    async fn report(&self, lease: &VramLease) -> Result<Action, ReconcileError> {
        let uid = lease.uid().unwrap_or_default();
        let Some((view, term, told, granted)) = self.held.lock().get_mut(&uid).map(|held| {
            let view = held.view.borrow_and_update().clone();
            held.granted |= view.keeps_fewer || view.slices() >= u64::try_from(lease.spec.slices.min).unwrap_or_default();
            (view, held.term, held.losses_told, held.granted)
        }) else {
            return Ok(Action::await_change());
        };
        if view.fenced {
            // Another operator acts for the lease. This operator forgets the claim, and registers it again if it still leads.
            self.held.lock().remove(&uid);
            self.context.pool.forget(&uid);
            return Ok(Action::requeue(Duration::from_secs(1)));
        }
        let ended = granted && is_served_once(lease) && view.slices() == 0;
        let lost = view.lost.as_ref().filter(|lost| view.losses > told && !is_due(lease, lost));
        if view.acquiring && (view.slices() == 0 || view.keeps_fewer && lost.is_none()) {
            return Ok(Action::await_change());
        }
        let next = next_status(lease, &view, term, ended, lost);
        let old = lease.status.clone().unwrap_or_default();
        let differs = next.slices != old.slices || next.grants != old.grants || next.conditions != old.conditions || lost.is_some();
        if differs {
            let version = lease.metadata.resource_version.as_deref();
            match objects::write_status(&self.api(lease), &lease.name_any(), version, &next).await {
                Ok(_) => {}
                // The cache is outdated: reconcile again when it has caught up.
                Err(error) if matches!(code(&error), 404 | 409) => return Ok(Action::requeue(Duration::from_millis(100))),
                Err(error) => return Err(api("write the status")(error).into()),
            }
            // Sessions have Events of their own.
            if !is_a_sessions(lease) {
                for (warning, reason, note) in events(lease, &next, lost) {
                    self.context.event(lease.object_ref(&()), warning, reason, note);
                }
            }
        }
        if let Some(held) = self.held.lock().get_mut(&uid) {
            held.losses_told = held.losses_told.max(view.losses);
        }
        if ended {
            self.held.lock().remove(&uid);
            self.context.pool.forget(&uid);
        }
        Ok(Action::await_change())
    }

    async fn clean_up(&self, lease: &VramLease) -> Result<Action, ReconcileError> {
        let uid = lease.uid().unwrap_or_default();
        let how = match self.held.lock().remove(&uid) {
            Some(_) => How::Claim,
            None => How::Everywhere,
        };
        if !objects::has_finalizer(lease) {
            return Ok(Action::await_change());
        }
        let owner = owner_above(lease, lease.status.as_ref().map_or(0, |status| status.term));
        if let Release::Again(wait) = self.context.releases.release(&owner, lease.spec.ttl(), how).await {
            return Ok(Action::requeue(wait));
        }
        match objects::remove_finalizer(&self.api(lease), lease).await {
            Ok(()) => Ok(Action::await_change()),
            Err(error) if code(&error) == 409 => Ok(Action::requeue(Duration::from_millis(20))),
            Err(error) => Err(api("remove the finalizer")(error).into()),
        }
    }

    fn api(&self, lease: &VramLease) -> Api<VramLease> {
        Api::namespaced(self.context.client.clone(), &lease.namespace().unwrap_or_default())
    }
}

fn bounds(lease: &VramLease) -> Bounds {
    Bounds::new(lease.spec.slices.min, Some(lease.spec.slices.max))
}

/// The session that the lease is for, with the settings that the agent needs. `None` if the lease is not for a session.
fn session_terms(lease: &VramLease) -> Option<SessionTerms> {
    let session = controller(lease, "GpuSession")?;
    Some(SessionTerms {
        namespace: lease.namespace().unwrap_or_default(),
        name: session.name.clone(),
        uid: session.uid.clone(),
        engine: lease.spec.engine.unwrap_or_default().to_string(),
        keep_milliseconds: milliseconds(lease.spec.keep()),
    })
}

/// Whether the lease has expired or was lost. A lease that is served only once is not claimed again.
fn is_over(lease: &VramLease) -> bool {
    let is_over = |status: &VramLeaseStatus| {
        [GrantedReason::Expired, GrantedReason::Lost]
            .iter()
            .any(|reason| reason.is_in(&status.conditions))
    };
    lease.status.as_ref().is_some_and(is_over)
}

#[cfg(test)]
mod tests;
