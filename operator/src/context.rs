//! What every reconciler shares.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder},
};

use sahasra_service::part;
use sahasra_store::StorePolicy;

use crate::{
    agents::{AgentClient, Directory},
    burst::intake::Intake,
    clock::Clock,
    fault::Faults,
    metrics::{Caches, Metrics},
    pool::Pool,
};

/// Shared behind an `Arc`.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// Calls to agents.
    pub agents: AgentClient,
    /// The workers.
    pub directory: Arc<Directory>,
    /// Devices and grants.
    pub pool: Arc<Pool>,
    /// Metrics of this operator, as `/metrics` serves them.
    pub metrics: Arc<Metrics>,
    /// What the reconcilers have seen of their kinds, for metrics.
    pub caches: Caches,
    /// How long a session's slice lasts from each renewal.
    pub session_lease: Duration,
    /// Which stores jobs may name.
    pub stores: StorePolicy,
    /// What fetches and checks bursts.
    pub intake: Intake,
    /// Where to die, in tests.
    pub faults: Faults,
    /// Monotonic time.
    pub clock: Clock,
    /// Writes Events.
    pub recorder: Recorder,
}

impl Context {
    /// Writes an Event in the background: nothing waits for it, and one that is lost is only logged.
    pub fn event(&self, object: ObjectReference, warning: bool, reason: &str, note: String) {
        let recorder = self.recorder.clone();
        let event = Event {
            type_: if warning { EventType::Warning } else { EventType::Normal },
            reason: reason.to_owned(),
            note: Some(note),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        part::spawn(async move {
            if let Err(error) = recorder.publish(&event, &object).await {
                tracing::debug!(%error, reason = event.reason, "an Event was not written");
            }
        });
    }
}
