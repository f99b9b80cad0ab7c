//! Those who ask, change their minds and delete: their requests always get through.

use std::{sync::Arc, time::Duration};

use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use sahasra_crds::{BurstJob, GpuSession, VramLease};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    check, kernel,
    plan::{BurstPlan, LeasePlan, NAMESPACE, SessionPlan},
    world::World,
};

/// How often a session is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// Those who ask: their requests always get through.
#[derive(Clone)]
pub struct Users {
    /// The API server.
    pub client: Client,
    /// Where they live.
    pub world: Arc<World>,
}

/// Name of a plan's burst.
pub fn burst_name(place: usize) -> String {
    format!("burst-{place}")
}

fn lease_name(place: usize) -> String {
    format!("lease-{place}")
}

fn session_name(place: usize) -> String {
    format!("session-{place}")
}

impl Users {
    /// Their bursts.
    pub fn bursts(&self) -> Api<BurstJob> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Their leases.
    pub fn leases(&self) -> Api<VramLease> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Creates an object, which nothing forbids.
    async fn ask<K>(&self, api: &Api<K>, name: &str, object: Value)
    where
        K: Clone + std::fmt::Debug + DeserializeOwned + Serialize,
    {
        let object = serde_json::from_value(object).map_err(|error| error.to_string());
        let created = match object {
            Ok(object) => api.create(&PostParams::default(), &object).await.map_err(|error| error.to_string()),
            Err(error) => Err(error),
        };
        match created {
            Ok(_) => self.world.note(format_args!("{name} is asked for")),
            Err(error) => self.world.broken(format!("create {name}: {error}")),
        }
    }

    /// Their sessions.
    pub fn sessions(&self) -> Api<GpuSession> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Asks for a burst, and deletes it if that is planned.
    pub async fn burst(self, place: usize, plan: BurstPlan, calm: bool) {
        sleep_until(self.world.instant(plan.at)).await;
        let name = burst_name(place);
        let aggregate = if plan.argmin { "argmin" } else { "sum" };
        let job = json!({
            "apiVersion": "sahasra.dev/v1alpha1",
            "kind": "BurstJob",
            "metadata": {"name": name},
            "spec": {
                "kernel": {
                    "ptx": {"inline": kernel::PTX},
                    "entry": kernel::ENTRY,
                    "block": [1],
                    "args": [
                        {"output": {"type": "u32"}},
                        {"chunkIndex": {"type": "u32"}},
                        {"scalar": {"type": "u32", "value": plan.salt}},
                    ],
                },
                "chunks": {"count": plan.chunks},
                "slice": {"vram": format!("{}Mi", plan.mebibytes)},
                "slices": {"min": plan.slices.0, "max": plan.slices.1},
                "priority": plan.priority,
                "lease": {"ttlSeconds": plan.ttl},
                "chunkTimeoutSeconds": 6,
                "maxFailedChunks": 100,
                "retryPolicy": {"maxRetries": 50, "initialBackoffSeconds": 0, "maxBackoffSeconds": 1},
                "aggregate": {aggregate: {"output": 0}},
            },
        });
        self.ask(&self.bursts(), &name, job).await;
        let Some(deleted) = plan.deleted else { return };
        sleep_until(self.world.instant(deleted)).await;
        let uid = self.bursts().get_opt(&name).await.ok().flatten().and_then(|job| job.uid());
        let _ = self.bursts().delete(&name, &DeleteParams::default()).await;
        self.world.note(format_args!("{name} is deleted"));
        if calm && let Some(uid) = uid {
            sleep(check::FREED_WITHIN).await;
            check::freed(&self.world, &uid, &name);
        }
    }

    /// Asks for a lease, and deletes it.
    pub async fn lease(self, place: usize, plan: LeasePlan) {
        sleep_until(self.world.instant(plan.at)).await;
        let name = lease_name(place);
        let lease = json!({
            "apiVersion": "sahasra.dev/v1alpha1",
            "kind": "VramLease",
            "metadata": {"name": name},
            "spec": {
                "owner": {"name": "simulation"},
                "slice": {"vram": format!("{}Mi", plan.mebibytes)},
                "slices": {"min": plan.slices.0, "max": plan.slices.1},
                "ttlSeconds": plan.ttl,
                "renewal": if plan.never_renewed { "Never" } else { "Automatic" },
            },
        });
        self.ask(&self.leases(), &name, lease).await;
        sleep_until(self.world.instant(plan.deleted)).await;
        let _ = self.leases().delete(&name, &DeleteParams::default()).await;
        self.world.note(format_args!("{name} is deleted"));
    }

    /// Asks for a session, looks whether it stays where it was placed and holds one slice, and deletes it.
    pub async fn session(self, place: usize, plan: SessionPlan) {
        sleep_until(self.world.instant(plan.at)).await;
        let name = session_name(place);
        let session = json!({
            "apiVersion": "sahasra.dev/v1alpha1",
            "kind": "GpuSession",
            "metadata": {"name": name},
            "spec": {
                "vram": format!("{}Mi", plan.mebibytes),
                "engine": "ptx",
                "ttlSeconds": plan.ttl,
                "idleTimeoutSeconds": plan.ttl,
            },
        });
        self.ask(&self.sessions(), &name, session).await;
        let mut placed = None;
        while self.world.instant(plan.deleted) > Instant::now() {
            let session = self.sessions().get_opt(&name).await.ok().flatten();
            let status = session.and_then(|session| session.status).unwrap_or_default();
            let where_it_is = status.worker.zip(status.device);
            if placed.is_some() && where_it_is != placed {
                self.world.broken(format!("{name} was moved from {placed:?} to {where_it_is:?}"));
            }
            placed = where_it_is;
            let lease = match &status.lease {
                Some(lease) => self.leases().get_opt(lease).await.ok().flatten(),
                None => None,
            };
            let held = lease.and_then(|lease| lease.status).map_or(0, |status| status.slices);
            if held > 1 {
                self.world.broken(format!("{name} holds {held} slices"));
            }
            sleep(LOOK).await;
        }
        let _ = self.sessions().delete(&name, &DeleteParams::default()).await;
        self.world.note(format_args!("{name} is deleted"));
    }

    /// Writes a burst, which may not be there yet, or not any more.
    pub async fn patch(&self, place: usize, patch: Value) {
        let name = burst_name(place);
        let _ = self.bursts().patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        self.world.note(format_args!("{name} is written: {patch}"));
    }
}
