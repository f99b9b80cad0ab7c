//! The context that all reconcilers share.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::{
        events::{Event, EventType, Recorder},
        reflector::Store,
    },
};
use sahasra_crds::{BurstJob, GpuSession, VramLease};
use sahasra_service::tasks;
use sahasra_store::StorePolicy;

use crate::{
    agents::{AgentClient, Directory},
    clock::Clock,
    fault::Faults,
    leases::Releases,
    metrics::Metrics,
    objects::cut,
    pool::Pool,
};

/// Caches of the reconcilers. They are set once the reconcilers run, which is on the leader only.
#[derive(Default)]
pub struct Caches {
    pub bursts: OnceLock<Store<BurstJob>>,
    pub sessions: OnceLock<Store<GpuSession>>,
    pub leases: OnceLock<Store<VramLease>>,
}

#[derive(Clone, Debug)]
pub struct Settings {
    /// Name of this operator among several operators.
    pub identity: String,
    pub namespace: String,
    /// Time without a heartbeat after which a worker is stale.
    pub worker_timeout: Duration,
    pub leader_timeout: Duration,
    /// TTL of a session's slice, counted from each renewal. Clamped to the range that the API accepts: 5 s to one day.
    pub session_lease: Duration,
    pub stores: StorePolicy,
    /// Maximum bytes of PTX and inputs that all bursts together hold in memory.
    pub input_bytes: u64,
    pub faults: Faults,
}

/// Dependencies of the reconcilers. Shared behind an `Arc`.
pub struct Context {
    pub client: Client,
    pub agents: AgentClient,
    pub directory: Arc<Directory>,
    pub pool: Arc<Pool>,
    pub(crate) releases: Releases,
    pub metrics: Arc<Metrics>,
    /// Caches of the reconcilers, read by metrics and coordinators.
    pub caches: Caches,
    pub settings: Settings,
    pub clock: Clock,
    pub recorder: Recorder,
}

/// Maximum number of bytes of an Event's note, as the API server requires (events.k8s.io/v1).
const MAX_NOTE: usize = 1024;

impl Context {
    /// Updates the metrics that are computed from the current state. Called at each scrape.
    pub fn update_metrics(&self) {
        let caches = &self.caches;
        let bursts = caches.bursts.get().map(Store::state).unwrap_or_default();
        let sessions = caches.sessions.get().map(Store::state).unwrap_or_default();
        self.metrics
            .update(&self.directory.workers(), &self.pool.waiting(), &bursts, &sessions);
    }

    /// Publishes an Event in the background, with at most [`MAX_NOTE`] bytes of the note. No caller waits for it; a failure is only logged.
    pub fn event(&self, object: ObjectReference, warning: bool, reason: &str, note: String) {
        let recorder = self.recorder.clone();
        let event = Event {
            type_: if warning { EventType::Warning } else { EventType::Normal },
            reason: reason.to_owned(),
            note: Some(cut(&note, MAX_NOTE)),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        tasks::spawn(async move {
            if let Err(error) = recorder.publish(&event, &object).await {
                tracing::debug!(%error, reason = event.reason, "failed to write an Event");
            }
        });
    }
}
