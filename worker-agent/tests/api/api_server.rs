//! The part of an API server that an agent uses: objects by path that are created, read and patched.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, sync::Arc};

use http::{Method, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use warp::Filter;

pub(crate) const WORKER: &str = "/apis/sahasra.dev/v1alpha1/gpuworkers/node";
pub(crate) const HEARTBEAT: &str = "/apis/coordination.k8s.io/v1/namespaces/sahasra-system/leases/sahasra-worker-node";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
pub(crate) const NODE: &str = "/api/v1/nodes/node";

#[derive(Clone, Default)]
pub(crate) struct Objects {
    objects: Arc<Mutex<BTreeMap<String, Value>>>,
    /// Method and path of every write.
    writes: Arc<Mutex<Vec<String>>>,
    /// Every status that was written for the `GpuWorker`.
    statuses: Arc<Mutex<Vec<Value>>>,
    /// Number of the next heartbeat patches that are answered with 500.
    broken_beats: Arc<Mutex<u32>>,
}

fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut target[key.as_str()], value);
        }
    }
}

impl Objects {
    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        self.objects.lock().get(path).cloned()
    }

    pub(crate) fn put(&self, path: &str, object: Value) {
        self.objects.lock().insert(path.to_owned(), object);
    }

    pub(crate) fn delete(&self, path: &str) {
        self.objects.lock().remove(path);
    }

    pub(crate) fn writes(&self) -> Vec<String> {
        self.writes.lock().clone()
    }

    /// Returns the `bootId` of every status that was written for the `GpuWorker`.
    pub(crate) fn boots(&self) -> Vec<String> {
        let statuses = self.statuses.lock();
        let boots = statuses.iter().map(|status| status["bootId"].as_str().unwrap_or_default());
        boots.map(str::to_owned).collect()
    }

    pub(crate) fn break_beats(&self, count: u32) {
        *self.broken_beats.lock() = count;
    }

    fn breaks(&self, method: &Method, path: &str) -> bool {
        let mut left = self.broken_beats.lock();
        let breaks = *left > 0 && method == Method::PATCH && path == HEARTBEAT;
        *left -= u32::from(breaks);
        breaks
    }

    /// Waits until `wanted` accepts the object, and returns it.
    pub(crate) async fn until(&self, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let start = tokio::time::Instant::now();
        loop {
            if let Some(object) = self.get(path).filter(|object| wanted(object)) {
                return object;
            }
            assert!(start.elapsed() < super::coordinator::TIMEOUT, "{:?}", self.get(path));
            tokio::task::yield_now().await;
        }
    }

    /// Reviews a token: `right` may do everything, `known` nothing, and every other token is unknown.
    fn review(token: &str) -> (StatusCode, Value) {
        let allowed = match token {
            "Bearer right" => true,
            "Bearer known" => false,
            _ => {
                let refused = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Unauthorized", "code": 401});
                return (StatusCode::UNAUTHORIZED, refused);
            }
        };
        let review = json!({
            "kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "spec": {}, "status": {"allowed": allowed},
        });
        (StatusCode::CREATED, review)
    }

    fn answer(&self, method: &Method, path: &str, body: &[u8]) -> (StatusCode, Value) {
        let missing = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404});
        let object = path.strip_suffix("/status").unwrap_or(path);
        if method != Method::GET {
            self.writes.lock().push(format!("{method} {path}"));
        }
        if self.breaks(method, path) {
            let broken = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "InternalError", "code": 500});
            return (StatusCode::INTERNAL_SERVER_ERROR, broken);
        }
        let mut objects = self.objects.lock();
        match method.as_str() {
            "POST" => {
                let mut created: Value = serde_json::from_slice(body).unwrap();
                created["metadata"]["uid"] = json!("uid");
                created["metadata"]["resourceVersion"] = json!("1");
                let name = created["metadata"]["name"].as_str().unwrap();
                objects.insert(format!("{path}/{name}"), created.clone());
                (StatusCode::CREATED, created)
            }
            "PATCH" => match objects.get_mut(object) {
                Some(found) => {
                    let patch: Value = serde_json::from_slice(body).unwrap();
                    assert_eq!(
                        path.ends_with("/status"),
                        patch.get("status").is_some(),
                        "a status has its own path"
                    );
                    let version = found["metadata"]["resourceVersion"].clone();
                    let meant = &patch["metadata"]["resourceVersion"];
                    if !meant.is_null() && *meant != version {
                        let conflict =
                            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Conflict", "code": 409});
                        return (StatusCode::CONFLICT, conflict);
                    }
                    merge(found, &patch);
                    if object == WORKER && path != object {
                        self.statuses.lock().push(patch["status"].clone());
                    }
                    let version: u64 = version.as_str().and_then(|version| version.parse().ok()).unwrap_or(0);
                    found["metadata"]["resourceVersion"] = json!((version + 1).to_string());
                    (StatusCode::OK, found.clone())
                }
                None => (StatusCode::NOT_FOUND, missing),
            },
            _ => match objects.get(object) {
                Some(found) => (StatusCode::OK, found.clone()),
                None => (StatusCode::NOT_FOUND, missing),
            },
        }
    }

    /// Serves on the listener until cancelled.
    pub(crate) async fn serve(&self, listener: TcpListener, stop: CancellationToken) {
        let objects = self.clone();
        let token = warp::header::optional::<String>("authorization");
        let routes = warp::method().and(warp::path::full()).and(token).and(warp::body::bytes()).map(
            move |method: Method, path: warp::path::FullPath, token: Option<String>, body: bytes::Bytes| {
                let (status, object) = match path.as_str() {
                    REVIEWS => Self::review(token.as_deref().unwrap_or_default()),
                    path => objects.answer(&method, path, &body),
                };
                warp::reply::with_status(warp::reply::json(&object), status)
            },
        );
        let limits = sahasra_service::server::Limits {
            drain_timeout: std::time::Duration::ZERO,
            ..Default::default()
        };
        sahasra_service::server::serve(listener, sahasra_service::server::Cleartext, warp::service(routes), limits, stop).await;
    }
}

/// Writes a kubeconfig for a server at this address.
pub(crate) fn kubeconfig(directory: &std::path::Path, address: SocketAddr) -> PathBuf {
    let path = directory.join("kubeconfig");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": format!("http://{address}")}}],
        "users": [{"name": "test", "user": {"token": "test"}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    });
    std::fs::write(&path, config.to_string()).unwrap();
    path
}
