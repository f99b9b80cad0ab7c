//! The reconciler of `GpuSession`s. Each session holds one slice of one device through a `VramLease` of its own, from when there is room
//! until the session is deleted, its time is over, or its worker is lost. A session is never moved.
//!
//! 1. Observe: the session, its lease, the agent's last report on it, and the worker's endpoint.
//! 2. Decide ([`decide`]): the next step for the lease, and the new status.
//! 3. Act: write what was decided. A change of the lease requeues the session.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::StreamExt;
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    core::NamespaceResourceScope,
    runtime::{
        WatchStreamExt,
        controller::Action,
        reflector::{
            self, ObjectRef,
            store::{Store, Writer},
        },
        watcher,
    },
};
use parking_lot::Mutex;
use sahasra_crds::{GpuSession, VramLease};
use sahasra_service::causes;
use serde_json::json;
use tokio::time::Instant;

use crate::{
    clock::timestamp,
    context::Context,
    objects::{self, ApiError, api, code},
    queue::{Requeue, queue, reconcile_all},
};

mod decide;

use decide::{Decision, LeaseStep, decide, is_of, lease_of};

/// Wait after a write that the cache does not show yet.
const SOON: Duration = Duration::from_millis(100);

struct Reconciler {
    context: Arc<Context>,
    /// All leases, from a watch.
    leases: Store<VramLease>,
    /// Time at which the statistics in a session's status last changed, by the session's UID.
    statistics_written: Mutex<BTreeMap<String, Timestamp>>,
}

/// Reconciles all `GpuSession`s until dropped.
pub async fn run(context: Arc<Context>) {
    let (changes, store, queue) = queue(Api::<GpuSession>::all(context.client.clone()));
    let (leases, writer) = reflector::store();
    let reconciler = Arc::new(Reconciler {
        context: Arc::clone(&context),
        leases,
        statistics_written: Mutex::default(),
    });
    let _ = context.caches.sessions.set(store.clone());
    let reconciling = reconcile_all(store, queue, reconciler, reconcile, on_error);
    tokio::join!(
        reconciling,
        watch_leases(&context, writer, changes.clone()),
        watch_agents(&context, changes)
    );
}

/// Requeues a session whenever its agent reports a change of its state.
async fn watch_agents(context: &Context, changes: Requeue<GpuSession>) {
    loop {
        for (namespace, name) in context.pool.changed_sessions().await {
            if changes.send(ObjectRef::new(&name).within(&namespace)).is_err() {
                return;
            }
        }
    }
}

/// Keeps the cache of leases, and requeues a session whenever its lease is created, changed or deleted.
async fn watch_leases(context: &Context, writer: Writer<VramLease>, changes: Requeue<GpuSession>) {
    let leases = watcher(Api::<VramLease>::all(context.client.clone()), watcher::Config::default())
        .default_backoff()
        .modify(|lease| lease.managed_fields_mut().clear())
        .reflect(writer);
    let mut touched = std::pin::pin!(leases.touched_objects());
    while let Some(lease) = touched.next().await {
        let Ok(lease) = lease else { continue };
        let namespace = lease.namespace().unwrap_or_default();
        for owner in lease.owner_references() {
            if let Some(session) = ObjectRef::from_owner_ref(Some(&namespace), owner, ())
                && changes.send(session).is_err()
            {
                return;
            }
        }
    }
}

#[tracing::instrument(level = "error", name = "reconcile", parent = None, skip_all, fields(session = session.name_any(), namespace = session.namespace()))]
fn on_error(session: Arc<GpuSession>, error: &ApiError, reconciler: Arc<Reconciler>) -> Action {
    reconciler.context.metrics.reconcile_failed("GpuSession", error.category());
    if error.category() == "conflict" {
        return Action::requeue(SOON);
    }
    tracing::warn!(error = %causes(error), "reconcile failed");
    Action::requeue(Duration::from_secs(1))
}

// A root: the span of the runtime has the same name and namespace in another form.
#[tracing::instrument(level = "error", name = "reconcile", parent = None, skip_all, fields(session = session.name_any(), namespace = session.namespace()))]
async fn reconcile(session: Arc<GpuSession>, reconciler: Arc<Reconciler>) -> Result<Action, ApiError> {
    let began = Instant::now();
    let context = &reconciler.context;
    let written = reconciler
        .statistics_written
        .lock()
        .get(&session.uid().unwrap_or_default())
        .copied();
    let endpoint = |worker: &str| context.directory.worker(worker).map(|worker| worker.endpoint);
    let decide = |lease: Option<&VramLease>| {
        let seen = lease.and_then(|lease| context.pool.session(&lease.uid()?));
        decide(&session, lease, seen.as_ref(), written, endpoint, timestamp())
    };
    let cached = reconciler.cached_lease(&session);
    let is_cached = cached.is_some();
    let mut lease = match cached {
        Some(lease) => Some(lease),
        None => reconciler.read_lease(&session).await?,
    };
    let mut decision = decide(lease.as_ref());
    // A watch that resumes after an outage repeats the past, so the cache may contain the lease as it was before its slice was granted.
    if is_cached && decision.ends() {
        lease = reconciler.read_lease(&session).await?;
        decision = decide(lease.as_ref());
    }
    let outcome = reconciler.act(&session, lease.as_ref(), decision).await;
    context.metrics.reconciled("GpuSession", began.elapsed());
    outcome
}

impl Reconciler {
    /// The API client for objects in the session's namespace.
    fn api<K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>>(&self, session: &GpuSession) -> Api<K> {
        Api::namespaced(self.context.client.clone(), &session.namespace().unwrap_or_default())
    }

    /// The session's lease from the cache, which may be behind.
    fn cached_lease(&self, session: &GpuSession) -> Option<VramLease> {
        let reference = ObjectRef::new(&decide::lease_name(session)).within(&session.namespace().unwrap_or_default());
        let lease = self.leases.get(&reference).filter(|lease| is_of(lease, session));
        lease.map(|lease| VramLease::clone(&lease))
    }

    /// The session's lease from the API server.
    async fn read_lease(&self, session: &GpuSession) -> Result<Option<VramLease>, ApiError> {
        let found = self.api::<VramLease>(session).get_opt(&decide::lease_name(session)).await;
        let found = found.map_err(api("read the VramLease"))?;
        Ok(found.filter(|lease| is_of(lease, session)))
    }

    async fn act(&self, session: &GpuSession, lease: Option<&VramLease>, decision: Decision) -> Result<Action, ApiError> {
        let (sessions, leases): (Api<GpuSession>, Api<VramLease>) = (self.api(session), self.api(session));
        match (decision.lease, lease) {
            (LeaseStep::Create, _) => {
                // The finalizer is added before the lease exists, so that the session stays until the lease is deleted.
                let held = objects::add_finalizer(&sessions, session).await;
                held.map_err(api("add the finalizer"))?;
                let lease = lease_of(session, self.context.settings.session_lease);
                match leases.create(&PostParams::default(), &lease).await {
                    // With 409, an earlier create succeeded, but its answer was lost.
                    Err(error) if code(&error) != 409 => return Err(api("create the VramLease")(error)),
                    _ => {}
                }
                // The next reconcile evaluates the lease's status.
                return Ok(Action::requeue(SOON));
            }
            (LeaseStep::Update, Some(lease)) => {
                let patch = json!({"spec": {"keepSeconds": session.spec.ttl_seconds}});
                let patched = leases.patch(&lease.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await;
                patched.map_err(api("update the VramLease with the session's times"))?;
            }
            (LeaseStep::Delete, Some(lease)) if lease.metadata.deletion_timestamp.is_none() => {
                let deleted = objects::delete_exactly(&leases, lease, DeleteParams::default()).await;
                deleted.map_err(api("delete the VramLease"))?;
            }
            _ => {}
        }
        if let Some(status) = &decision.status {
            let version = session.metadata.resource_version.as_deref();
            match objects::write_status(&sessions, &session.name_any(), version, status).await {
                Ok(_) if decision.statistics => {
                    let uid = session.uid().unwrap_or_default();
                    self.statistics_written.lock().insert(uid, timestamp());
                }
                Ok(_) => {}
                // The cache is outdated: reconcile again when it has caught up.
                Err(error) if matches!(code(&error), 404 | 409) => return Ok(Action::requeue(SOON)),
                Err(error) => return Err(api("write the status")(error)),
            }
        }
        if let Some((warning, reason, note)) = decision.event {
            self.context.event(session.object_ref(&()), warning, reason, note);
        }
        if decision.remove_finalizer {
            self.statistics_written.lock().remove(&session.uid().unwrap_or_default());
            let gone = objects::remove_finalizer(&sessions, session).await;
            gone.map_err(api("remove the finalizer"))?;
        }
        Ok(decision.again.map_or_else(Action::await_change, Action::requeue))
    }
}
