//! An operator's reconcilers on an embedded control plane, and objects for tests.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{self, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt, TryStreamExt, future::BoxFuture};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Either, Full};
use kube::{
    Api, Client,
    api::{PostParams, WatchEvent, WatchParams},
    client::Body,
};
use parking_lot::Mutex;
use sahasra_crds::{BurstJob, BurstJobSpec};
use sahasra_local::{ControlPlane, Options, ResponseBody};
use sahasra_operator::{
    Operator, Settings,
    agents::AgentClient,
    burst::observe::{ObserveError, Observed, survey},
    context::Context,
    fault::Faults,
};
use sahasra_service::clock::Clock;
use sahasra_store::StorePolicy;
use serde_json::{Value, json};
use tower_service::Service;

pub(crate) const NAMESPACE: &str = "default";
/// Timeout of the tests: far longer than any test takes on a busy machine, and than any wait of the operator.
pub(crate) const LIMIT: Duration = Duration::from_secs(600);

pub(crate) const PTX: &str = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 out) { ret; }";

/// A `BurstJob` of four chunks on slices of 1 MiB each, changed by `change`.
pub(crate) fn job(name: &str, change: impl FnOnce(&mut Value)) -> BurstJob {
    let mut manifest = json!({
        "apiVersion": "sahasra.dev/v1alpha1",
        "kind": "BurstJob",
        "metadata": {"name": name},
        "spec": {
            "kernel": {"ptx": {"inline": PTX}, "entry": "k", "args": [{"output": {"type": "u8"}}]},
            "chunks": {"count": 4},
            "slice": {"vram": "1Mi"},
            "aggregate": {"sum": {}},
        },
    });
    change(&mut manifest);
    serde_json::from_value(manifest).expect("the manifest is a BurstJob")
}

/// Fetches everything that the spec refers to.
pub(crate) async fn observe(client: &Client, stores: &StorePolicy, namespace: &str, spec: &BurstJobSpec) -> Result<Observed, ObserveError> {
    survey(client, stores, namespace, spec).await?.read().await?.fetch().await
}

/// An operator's context without agents.
pub(crate) fn context(client: &Client) -> Arc<Context> {
    context_with(client, AgentClient::default(), StorePolicy::default(), 0)
}

pub(crate) fn context_with(client: &Client, agents: AgentClient, stores: StorePolicy, input_bytes: u64) -> Arc<Context> {
    let settings = settings(stores, input_bytes);
    let operator = Operator::new(client.clone(), agents, Clock::default(), settings).expect("each operator has a registry of its own");
    operator.context().clone()
}

pub(crate) fn settings(stores: StorePolicy, input_bytes: u64) -> Settings {
    Settings {
        identity: "one".to_owned(),
        namespace: NAMESPACE.to_owned(),
        // Longer than a test, because the test's workers have no heartbeats.
        worker_timeout: 2 * LIMIT,
        leader_timeout: Duration::from_secs(15),
        session_lease: Duration::from_secs(60),
        input_bytes,
        stores,
        faults: Faults::default(),
    }
}

/// Sum of the operator's counter `name` over the series with `label` among the values of their labels.
pub(crate) fn counted(context: &Context, name: &str, label: &str) -> f64 {
    let families = context.metrics.registry().gather();
    let family = families
        .iter()
        .find(|family| family.name() == name)
        .expect("the metric is registered");
    let series = family
        .get_metric()
        .iter()
        .filter(|series| series.get_label().iter().any(|pair| pair.value() == label));
    series.map(|series| series.get_counter().get_value()).sum()
}

pub(crate) fn client() -> Client {
    ControlPlane::new(Options::default()).client(NAMESPACE)
}

/// Returns the status with which a request with this method, path and body is rejected, if it is rejected.
type Refuses = Box<dyn Fn(&Method, &str, &str) -> Option<StatusCode> + Send>;

/// An embedded control plane and an operator's connection to it, on which requests can be rejected.
#[derive(Clone)]
pub(crate) struct ApiServer {
    control_plane: ControlPlane,
    refuses: Arc<Mutex<Option<Refuses>>>,
    /// Whether rejected requests are carried out nevertheless.
    carries_out: Arc<AtomicBool>,
}

impl ApiServer {
    pub(crate) fn new() -> Self {
        Self {
            control_plane: ControlPlane::new(Options::default()),
            refuses: Arc::default(),
            carries_out: Arc::default(),
        }
    }

    /// A client whose requests are never rejected.
    pub(crate) fn client(&self) -> Client {
        self.control_plane.client(NAMESPACE)
    }

    /// A client whose requests are rejected by the function set with [`ApiServer::refuse`].
    pub(crate) fn refusing_client(&self) -> Client {
        Client::new(self.clone(), NAMESPACE)
    }

    /// Rejects the requests for which `refuses` returns a status, from now on.
    pub(crate) fn refuse(&self, refuses: impl Fn(&Method, &str, &str) -> Option<StatusCode> + Send + 'static) {
        *self.refuses.lock() = Some(Box::new(refuses));
    }

    /// Carries out the requests for which `loses` returns a status, and answers with this status, from now on.
    pub(crate) fn lose_answers(&self, loses: impl Fn(&Method, &str, &str) -> Option<StatusCode> + Send + 'static) {
        self.carries_out.store(true, Ordering::Relaxed);
        self.refuse(loses);
    }

    fn refused(&self, method: &Method, path: &str, body: &[u8]) -> Option<StatusCode> {
        let refuses = self.refuses.lock();
        refuses.as_ref()?(method, path, &String::from_utf8_lossy(body))
    }
}

impl Service<Request<Body>> for ApiServer {
    type Response = Response<Either<ResponseBody, Full<Bytes>>>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut task::Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let api = self.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.expect("requests are whole").to_bytes();
            if let Some(code) = api.refused(&head.method, head.uri.path(), &body) {
                if api.carries_out.load(Ordering::Relaxed) {
                    let Ok(_) = api.control_plane.service().call(Request::from_parts(head, Full::new(body))).await;
                }
                let status = json!({
                    "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "message": "refused by the test", "reason": "Invalid", "code": code.as_u16(),
                });
                let mut refusal = Response::new(Either::Right(Full::from(status.to_string())));
                *refusal.status_mut() = code;
                return Ok(refusal);
            }
            let request = Request::from_parts(head, Full::new(body));
            let Ok(response) = api.control_plane.service().call(request).await;
            Ok(response.map(Either::Left))
        }
        .boxed()
    }
}

pub(crate) async fn create(client: &Client, job: &BurstJob) -> BurstJob {
    Api::namespaced(client.clone(), NAMESPACE)
        .create(&PostParams::default(), job)
        .await
        .expect("created")
}

/// Waits for the first version of the object for which `wanted` returns a value, and returns this value.
pub(crate) async fn eventually<K, T>(api: &Api<K>, name: &str, wanted: impl Fn(&K) -> Option<T>) -> T
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let search = async {
        let parameters = WatchParams::default().fields(&format!("metadata.name={name}"));
        let mut events = std::pin::pin!(api.watch(&parameters, "0").await.expect("watched"));
        while let Some(event) = events.try_next().await.expect("no watch breaks") {
            if let WatchEvent::Added(object) | WatchEvent::Modified(object) = event
                && let Some(found) = wanted(&object)
            {
                return found;
            }
        }
        panic!("the watch ended");
    };
    tokio::time::timeout(LIMIT, search).await.expect("in time")
}
