//! Tests of the values that `/metrics` shows for a pool, rather than of the metrics' names.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams, PostParams},
};
use sahasra_crds::{BurstJob, GpuSession, GpuWorker, VramLease};
use sahasra_operator::{Operator, agents::AgentClient, context::Context, http as served};
use sahasra_service::{clock::Clock, health::Readiness};
use sahasra_store::StorePolicy;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tower_service::Service;

use crate::{
    agent::Pool,
    harness::{NAMESPACE, client, create, eventually, job, settings},
};

/// Time without a heartbeat after which a worker is stale.
const WORKER_TIMEOUT: Duration = Duration::from_secs(300);

/// The samples of a scrape, by name and labels.
async fn scraped(context: &Arc<Context>) -> BTreeMap<String, f64> {
    let routes = served::routes(context.clone(), Readiness::waiting_for(&[]));
    let request = Request::get("/metrics").body(Full::<Bytes>::default()).expect("a request");
    let response = warp::service(routes).call(request).await.expect("an answer");
    assert_eq!(response.status(), 200);
    let page = response.into_body().collect().await.expect("whole").to_bytes();
    let page = String::from_utf8(page.to_vec()).expect("text");
    let samples = page.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    samples.filter_map(sample).collect()
}

/// The values of `name` by the value of its label, as `value=count` in the order of the labels.
fn by_label(samples: &BTreeMap<String, f64>, name: &str) -> String {
    let prefix = format!("{name}{{");
    let of_name = samples.iter().filter_map(|(sample, value)| {
        let label = sample.strip_prefix(&prefix)?.split('"').nth(1)?;
        Some(format!("{label}={value}"))
    });
    of_name.collect::<Vec<_>>().join(" ")
}

/// Creates an object with a status.
async fn with_status<K>(api: &Api<K>, manifest: Value, status: Value)
where
    K: Resource + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let name = manifest["metadata"]["name"].as_str().expect("a name").to_owned();
    let object = serde_json::from_value(manifest).expect("an object of the kind");
    api.create(&PostParams::default(), &object).await.expect("created");
    let status = Patch::Merge(json!({"status": status}));
    api.patch_status(&name, &PatchParams::default(), &status)
        .await
        .expect("the status is valid");
}

fn condition(kind: &str, status: &str) -> Value {
    json!({"type": kind, "status": status, "reason": "Tested", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

async fn worker(client: &Client, name: &str, ready: &str, health: &str) {
    let manifest =
        json!({"apiVersion": "sahasra.dev/v1alpha1", "kind": "GpuWorker", "metadata": {"name": name}, "spec": {"nodeName": name}});
    let device = json!({
        "name": "cpu0", "model": "CPU", "class": "cpu", "totalMiB": 4, "allocatableMiB": 4, "leasedMiB": 0,
        "activeExecutions": 0, "tensorCount": 0, "storedTensorBytes": 0, "health": health, "engines": ["ptx"],
    });
    let status = json!({"conditions": [condition("Ready", ready)], "devices": [device]});
    with_status(&Api::<GpuWorker>::all(client.clone()), manifest, status).await;
}

async fn ended_burst(client: &Client, name: &str, end: &str) {
    let manifest = serde_json::to_value(job(name, |_| {})).expect("JSON");
    let status = json!({"state": end, "completionTime": "2026-01-01T00:00:00Z", "conditions": [condition(end, "True")]});
    with_status(&Api::<BurstJob>::namespaced(client.clone(), NAMESPACE), manifest, status).await;
}

fn session(name: &str) -> Value {
    json!({
        "apiVersion": "sahasra.dev/v1alpha1", "kind": "GpuSession", "metadata": {"name": name},
        "spec": {"vram": "1Mi", "engine": "ptx"},
    })
}

/// Starts an operator that leads once no other operator does.
fn operator(client: &Client, identity: &str, stop: &CancellationToken) -> (Arc<Context>, Readiness, tokio::task::JoinHandle<()>) {
    let mut settings = settings(StorePolicy::default(), 0);
    (settings.identity, settings.worker_timeout) = (identity.to_owned(), WORKER_TIMEOUT);
    let operator = Operator::new(client.clone(), AgentClient::default(), Clock::default(), settings).expect("a registry of its own");
    let (context, readiness) = (operator.context().clone(), Readiness::waiting_for(&["leader", "workers"]));
    let (shown, stop) = (readiness.clone(), stop.clone());
    let running = tokio::spawn(async move { operator.run(shown, &stop).await.expect("it leads until it is stopped") });
    (context, readiness, running)
}

async fn leading(readiness: &Readiness) {
    while !readiness.is_ready() {
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn gauges_show_the_current_state() {
    let client = client();
    worker(&client, "node-a", "True", "Healthy").await;
    worker(&client, "node-b", "True", "Unhealthy").await;
    worker(&client, "node-c", "False", "Healthy").await;
    worker(&client, "node-d", "False", "Healthy").await;
    ended_burst(&client, "done", "Complete").await;
    ended_burst(&client, "wrong", "Failed").await;
    ended_burst(&client, "worse", "Failed").await;
    let sessions = Api::<GpuSession>::namespaced(client.clone(), NAMESPACE);
    let over = json!({"state": "Failed", "conditions": [condition("Failed", "True")]});
    with_status(&sessions, session("over"), over).await;

    let stop = CancellationToken::new();
    let (context, readiness, _running) = operator(&client, "one", &stop);
    let nothing = scraped(&context).await;
    assert_eq!(nothing["sahasra_operator_leader"], 0.0);
    assert_eq!(by_label(&nothing, "sahasra_workers"), "healthy=0 not_ready=0 stale=0 unhealthy=0");
    leading(&readiness).await;
    // No device is available, so the claims wait.
    create(&client, &job("waits", |_| {})).await;
    create(&client, &job("held", |manifest| manifest["spec"]["suspend"] = json!(true))).await;
    let waits = serde_json::from_value(session("waits")).expect("a session");
    sessions.create(&PostParams::default(), &waits).await.expect("created");
    let leases = Api::<VramLease>::namespaced(client.clone(), NAMESPACE);
    for (name, after) in [("first", 40), ("second", 20)] {
        let lease = json!({
            "apiVersion": "sahasra.dev/v1alpha1", "kind": "VramLease", "metadata": {"name": name},
            "spec": {"slice": {"vram": "1Mi"}, "slices": {"min": 1, "max": 1}},
        });
        let lease = serde_json::from_value(lease).expect("a lease");
        leases.create(&PostParams::default(), &lease).await.expect("created");
        sleep(Duration::from_secs(after)).await;
    }
    let shown = scraped(&context).await;
    assert_eq!(shown["sahasra_operator_leader"], 1.0);
    assert_eq!(by_label(&shown, "sahasra_workers"), "healthy=1 not_ready=2 stale=0 unhealthy=1");
    assert_eq!(
        by_label(&shown, "sahasra_burst_jobs"),
        "Complete=1 Failed=2 Pending=1 Running=0 Suspended=1"
    );
    assert_eq!(by_label(&shown, "sahasra_gpu_sessions"), "Failed=1 Pending=1 Placed=0 Ready=0");
    assert_eq!(
        by_label(&shown, "sahasra_operator_pending_claims"),
        "BurstJob=1 GpuSession=1 VramLease=2"
    );
    for kind in ["BurstJob", "VramLease", "GpuSession"] {
        // The oldest is the first of the two.
        let oldest = shown[&format!("sahasra_operator_oldest_pending_claim_age_seconds{{kind=\"{kind}\"}}")];
        assert!((58.0..=61.0).contains(&oldest), "{kind}: {oldest} s");
    }

    sleep(WORKER_TIMEOUT).await;
    let later = scraped(&context).await;
    assert_eq!(by_label(&later, "sahasra_workers"), "healthy=0 not_ready=0 stale=4 unhealthy=0");
    stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn metrics_show_the_leader_and_the_changes_of_leadership() {
    let client = client();
    let mut before: Option<(Arc<Context>, CancellationToken, tokio::task::JoinHandle<()>)> = None;
    for (transitions, identity) in ["one", "two", "three"].into_iter().enumerate() {
        let stop = CancellationToken::new();
        let (context, readiness, running) = operator(&client, identity, &stop);
        if let Some((other, stop, ran)) = before {
            sleep(Duration::from_secs(60)).await;
            let (leads, waits) = (scraped(&other).await, scraped(&context).await);
            assert_eq!(
                (leads["sahasra_operator_leader"], waits["sahasra_operator_leader"]),
                (1.0, 0.0),
                "{identity}"
            );
            stop.cancel();
            ran.await.expect("it ends in order");
            assert_eq!(scraped(&other).await["sahasra_operator_leader"], 0.0);
        }
        leading(&readiness).await;
        let shown = scraped(&context).await;
        assert_eq!(shown["sahasra_operator_leader"], 1.0, "{identity}");
        assert_eq!(shown["sahasra_operator_leader_transitions_total"], transitions as f64, "{identity}");
        before = Some((context, stop, running));
    }
}

#[tokio::test(start_paused = true)]
async fn a_burst_that_runs_is_shown_with_its_slices() {
    let mut pool = Pool::start(0, StorePolicy::default()).await;
    create(&pool.client, &job("running", |_| {})).await;
    let mut stream = pool.stream().await;
    stream.accept(&[], 0).await;
    stream.submitted(4).await;
    let jobs = Api::<BurstJob>::namespaced(pool.client.clone(), NAMESPACE);
    eventually(&jobs, "running", |job| {
        (job.status.as_ref()?.state.as_deref() == Some("Running")).then_some(())
    })
    .await;
    let shown = scraped(&pool.context).await;
    assert_eq!(
        by_label(&shown, "sahasra_burst_jobs"),
        "Complete=0 Failed=0 Pending=0 Running=1 Suspended=0"
    );
    assert_eq!(
        by_label(&shown, "sahasra_operator_pending_claims"),
        "BurstJob=0 GpuSession=0 VramLease=0"
    );
    assert_eq!(by_label(&shown, "sahasra_workers"), "healthy=1 not_ready=0 stale=0 unhealthy=0");
    assert_eq!(
        (shown["gpu_leases_active"], shown["gpu_vram_allocated_bytes"]),
        (4.0, f64::from(4 << 20))
    );
}
