//! The control plane under test, and requests to it.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::core::{GroupVersionKind, response::Status};
use kube::{Api, Client};
use serde_json::{Value, json};

/// Timeout of asynchronous operations, such as garbage collection.
pub const WITHIN: Duration = Duration::from_secs(30);

/// A control plane, and the namespace of one case in it.
#[derive(Clone)]
pub struct Subject {
    pub client: Client,
    pub namespace: String,
}

impl Subject {
    #[must_use]
    pub fn config_maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Client of one of Sahasra's namespaced kinds.
    #[must_use]
    pub fn own(&self, kind: &str) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("sahasra.dev", "v1alpha1", kind));
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource)
    }

    #[must_use]
    pub fn sessions(&self) -> Api<DynamicObject> {
        self.own("GpuSession")
    }

    #[must_use]
    pub fn bursts(&self) -> Api<DynamicObject> {
        self.own("BurstJob")
    }

    /// Creates a session of 1 GiB.
    pub async fn session(&self, name: &str) -> DynamicObject {
        let session = object(json!({
            "apiVersion": "sahasra.dev/v1alpha1", "kind": "GpuSession",
            "metadata": {"name": name}, "spec": {"vram": "1Gi"},
        }));
        self.sessions().create(&PostParams::default(), &session).await.unwrap()
    }

    /// Creates a ConfigMap with `data`.
    pub async fn config_map(&self, name: &str, data: Value) -> ConfigMap {
        let config_map = typed(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}));
        self.config_maps().create(&PostParams::default(), &config_map).await.unwrap()
    }

    /// Sends a request with a JSON body. `path` is relative to the namespace: `configmaps/a?dryRun=All`.
    pub async fn send(&self, method: &str, path: &str, content_type: &str, body: &Value) -> Result<Value, Status> {
        // Paths of other groups begin with the group and version: `sahasra.dev/v1alpha1:gpusessions/a`.
        let uri = match path.split_once(':') {
            Some((group, rest)) => format!("/apis/{group}/namespaces/{}/{rest}", self.namespace),
            None => format!("/api/v1/namespaces/{}/{path}", self.namespace),
        };
        self.send_to(method, &uri, content_type, body.to_string().into_bytes()).await
    }

    /// Sends a request to any path.
    pub async fn send_to(&self, method: &str, uri: &str, content_type: &str, body: Vec<u8>) -> Result<Value, Status> {
        let request = http::Request::builder()
            .method(method)
            .uri(uri)
            .header("content-type", content_type);
        match self.client.request::<Value>(request.body(body).unwrap()).await {
            Ok(value) => Ok(value),
            Err(kube::Error::Api(status)) => Err(*status),
            Err(other) => panic!("{method} {uri}: {other}"),
        }
    }

    /// Creates an object of one of Sahasra's namespaced kinds.
    pub async fn create_own(&self, kind: &str, name: &str, spec: Value) -> Result<DynamicObject, Status> {
        let made = object(json!({
            "apiVersion": "sahasra.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec,
        }));
        answered(self.own(kind).create(&PostParams::default(), &made).await)
    }
}

/// A valid spec of a burst.
#[must_use]
pub fn burst() -> Value {
    json!({
        "kernel": {"ptx": {"inline": "// no code"}, "entry": "empty"},
        "chunks": {"count": 10},
        "slice": {"vram": "1Mi"},
    })
}

/// Deserializes a value as `K`.
#[must_use]
pub fn typed<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

/// Deserializes a value as a dynamic object.
#[must_use]
pub fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).unwrap()
}

/// Converts a client's result: the response, or the status of the rejection. Panics for any other error.
pub fn answered<T>(result: Result<T, kube::Error>) -> Result<T, Status> {
    match result {
        Ok(value) => Ok(value),
        Err(kube::Error::Api(status)) => Err(*status),
        Err(other) => panic!("{other}"),
    }
}

/// The status of a rejection. Panics if the request was accepted.
pub fn refused<T>(result: Result<T, kube::Error>) -> Status {
    match answered(result) {
        Ok(_) => panic!("it was not refused"),
        Err(status) => status,
    }
}

/// Code, reason and message of a rejection, for comparisons.
#[must_use]
pub fn summary(status: &Status) -> (u16, &str, &str) {
    (status.code, &status.reason, &status.message)
}

/// Reason, field and message of each cause of a rejection, sorted.
#[must_use]
pub fn causes(status: &Status) -> Vec<(String, String, String)> {
    let causes = status.details.clone().map(|details| details.causes).unwrap_or_default();
    let mut causes: Vec<_> = causes.into_iter().map(|cause| (cause.reason, cause.field, cause.message)).collect();
    causes.sort();
    causes
}

/// Polls `ask` until it returns a value, up to [`WITHIN`].
pub async fn eventually<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = tokio::time::Instant::now() + WITHIN;
    loop {
        if let Some(found) = ask().await {
            return found;
        }
        assert!(tokio::time::Instant::now() < deadline, "{what}: not within {WITHIN:?}");
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}
