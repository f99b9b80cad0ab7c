//! Users, who create, change and delete objects. Their requests always reach the API server.

use std::{borrow::Cow, fmt, sync::Arc};

use k8s_openapi::{
    ByteString, NamespaceResourceScope,
    api::core::v1::{Namespace, Secret},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use sahasra_crds::{BurstJob, VramLease};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::time::{sleep, sleep_until};

use crate::{
    check, kernel,
    plan::{BurstPlan, LeasePlan, NAMESPACES},
    store,
    world::World,
};

/// Name of the Secrets with the settings of the object store.
const SECRET: &str = "store";

/// Client and world of the users. Their requests always reach the API server.
#[derive(Clone)]
pub struct Users {
    pub client: Client,
    pub world: Arc<World>,
}

/// Namespace and name of an object of a plan. The users of different namespaces give their objects the same names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub namespace: &'static str,
    pub name: Cow<'static, str>,
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl Named {
    fn of(kind: &str, index: usize) -> Self {
        Self {
            namespace: NAMESPACES[index % NAMESPACES.len()],
            name: format!("{kind}-{}", index / NAMESPACES.len()).into(),
        }
    }

    /// Returns the name of the burst with this index in the plan.
    pub fn burst(index: usize) -> Self {
        Self::of("burst", index)
    }

    fn lease(index: usize) -> Self {
        Self::of("lease", index)
    }

    pub(crate) fn session(index: usize) -> Self {
        Self::of("session", index)
    }
}

impl Users {
    /// Returns the API of a kind in a namespace.
    pub fn objects<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Creates a namespace, unless it exists.
    pub async fn namespace(&self, name: &str) {
        let namespaces = Api::<Namespace>::all(self.client.clone());
        if namespaces.get_opt(name).await.is_ok_and(|namespace| namespace.is_some()) {
            return;
        }
        let namespace = Namespace {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        };
        if let Err(error) = namespaces.create(&PostParams::default(), &namespace).await {
            self.world.broken(format!("create the namespace {name}: {error}"));
        }
    }

    /// Creates the Secret with the settings of the object store.
    pub async fn secret(&self, namespace: &str) {
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(SECRET.to_owned()),
                ..ObjectMeta::default()
            },
            data: Some([("region".to_owned(), ByteString(b"us-east-1".to_vec()))].into()),
            ..Secret::default()
        };
        if let Err(error) = self.objects::<Secret>(namespace).create(&PostParams::default(), &secret).await {
            self.world.broken(format!("create the Secret of {namespace}: {error}"));
        }
    }

    /// Creates an object, which must succeed.
    pub(crate) async fn ask<K>(&self, api: &Api<K>, name: &Named, object: Value)
    where
        K: Clone + fmt::Debug + DeserializeOwned + Serialize,
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

    /// Creates a burst, and deletes it if planned.
    pub async fn burst(self, index: usize, plan: BurstPlan, calm: bool) {
        sleep_until(self.world.instant(plan.at)).await;
        let name = Named::burst(index);
        let bursts = self.objects::<BurstJob>(name.namespace);
        let aggregate = if plan.argmin { "argmin" } else { "sum" };
        let mut job = json!({
            "apiVersion": "sahasra.dev/v1alpha1",
            "kind": "BurstJob",
            "metadata": {"name": name.name},
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
                "results": plan.results(),
            },
        });
        if let Some(bucket) = plan.bucket {
            let url = format!("s3://{}/{}", bucket.name(), store::URL_PREFIX);
            job["spec"]["output"] = json!({"store": {"url": url, "secretRef": {"name": SECRET}}});
            // An outage of the store lasts longer than one of an executor, so it needs more attempts.
            let retries = if plan.is_refused() { 5 } else { 50 };
            job["spec"]["retryPolicy"] = json!({"maxRetries": retries, "initialBackoffSeconds": 1, "maxBackoffSeconds": 2});
        }
        if calm {
            self.world.maxima.lock().announce(name.to_string(), plan.slices.1);
        }
        self.ask(&bursts, &name, job).await;
        let Some(deleted) = plan.deleted else { return };
        sleep_until(self.world.instant(deleted)).await;
        let uid = bursts.get_opt(&name.name).await.ok().flatten().and_then(|job| job.uid());
        let _ = bursts.delete(&name.name, &DeleteParams::default()).await;
        self.world.note(format_args!("{name} is deleted"));
        if calm && let Some(uid) = uid {
            sleep(check::FREED_WITHIN).await;
            check::freed(&self.world, &uid, &name);
        }
    }

    /// Creates a lease, and deletes it.
    pub async fn lease(self, index: usize, plan: LeasePlan, calm: bool) {
        sleep_until(self.world.instant(plan.at)).await;
        let name = Named::lease(index);
        let leases = self.objects::<VramLease>(name.namespace);
        let lease = json!({
            "apiVersion": "sahasra.dev/v1alpha1",
            "kind": "VramLease",
            "metadata": {"name": name.name},
            "spec": {
                "owner": {"name": "simulation"},
                "slice": {"vram": format!("{}Mi", plan.mebibytes)},
                "slices": {"min": plan.slices.0, "max": plan.slices.1},
                "ttlSeconds": plan.ttl,
                "renewal": if plan.never_renewed { "Never" } else { "Automatic" },
            },
        });
        if calm {
            self.world.maxima.lock().announce(name.to_string(), plan.slices.1);
        }
        self.ask(&leases, &name, lease).await;
        sleep_until(self.world.instant(plan.deleted)).await;
        let _ = leases.delete(&name.name, &DeleteParams::default()).await;
        self.world.note(format_args!("{name} is deleted"));
    }

    /// Patches a burst, which may not exist yet or any more.
    pub async fn patch(&self, index: usize, patch: Value) {
        let name = Named::burst(index);
        let bursts = self.objects::<BurstJob>(name.namespace);
        let _ = bursts.patch(&name.name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        self.world.note(format_args!("{name} is written: {patch}"));
    }
}
