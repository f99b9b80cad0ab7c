//! Tests of what an agent writes about itself to the API server, and of an agent without one.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    agent_process::AgentProcess,
    api_server::{HEARTBEAT, NODE, Objects, WORKER, kubeconfig},
    coordinator::Coordinator,
};

const PACE: [&str; 4] = ["--heartbeat-interval", "0.2s", "--status-update-interval", "0.2s"];

fn ready(worker: &Value) -> (&str, &str) {
    let condition = &worker["status"]["conditions"][0];
    (
        condition["status"].as_str().unwrap_or_default(),
        condition["reason"].as_str().unwrap_or_default(),
    )
}

#[tokio::test]
async fn an_agent_registers_itself_reports_load_and_says_when_it_goes() {
    let directory = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let kubeconfig = kubeconfig(directory.path(), listener.local_addr().unwrap());
    let objects = Objects::default();
    objects.put(
        NODE,
        json!({"metadata": {"name": "node", "uid": "node-uid", "labels": {"size": "big"}}}),
    );
    let stop = CancellationToken::new();
    let server = tokio::spawn({
        let (objects, stop) = (objects.clone(), stop.clone());
        async move { objects.serve(listener, stop).await }
    });
    let classes = directory.path().join("classes.yaml");
    std::fs::write(&classes, "classes: [{class: huge, nodeLabels: {size: b*}, memory: 512Mi}]").unwrap();
    let mut arguments = vec!["--device-classes-file", classes.to_str().unwrap()];
    arguments.extend(PACE);
    let mut agent = AgentProcess::with_kubernetes(&kubeconfig, &arguments);

    let worker = objects.until(WORKER, |worker| ready(worker) == ("True", "Serving")).await;
    let coordinator = Coordinator::new(&agent.url, "a").await;
    assert_eq!(worker["spec"]["nodeName"], "node");
    assert_eq!(worker["metadata"]["ownerReferences"][0]["uid"], "node-uid");
    assert_eq!(worker["status"]["bootId"], coordinator.boot_id.as_str());
    assert_eq!(worker["status"]["endpoint"], agent.url.as_str());
    assert_eq!(worker["status"]["devices"][0]["class"], "huge");
    assert_eq!(worker["status"]["summary"]["allocatableMiB"], 512, "what the table lends of 1 GiB");
    let first = objects.until(HEARTBEAT, |_| true).await;
    assert_eq!(first["metadata"]["ownerReferences"][0]["kind"], "Node");
    objects
        .until(HEARTBEAT, |lease| lease["spec"]["renewTime"] != first["spec"]["renewTime"])
        .await;

    // Without changes, only heartbeats are written.
    let before = objects.writes().len();
    objects.until(HEARTBEAT, |_| objects.writes().len() >= before + 5).await;
    let idle = &objects.writes()[before..];
    assert!(idle.iter().all(|write| write.contains("/leases/")), "{idle:?}");

    coordinator.acquire(100, Duration::from_secs(60)).await;
    objects
        .until(WORKER, |worker| worker["status"]["summary"]["leasedMiB"] == 100)
        .await;

    objects.delete(WORKER);
    objects.until(HEARTBEAT, |_| true).await;
    coordinator.release().await;
    let again = objects.until(WORKER, |worker| ready(worker) == ("True", "Serving")).await;
    assert_eq!(again["status"]["summary"]["leasedMiB"], 0, "made anew");

    agent.terminate();
    objects.until(WORKER, |worker| ready(worker) == ("False", "ShuttingDown")).await;
    assert_eq!(agent.wait().code(), Some(0));
    stop.cancel();
    server.await.unwrap();
}

#[test]
fn an_agent_with_a_wrong_class_table_ends_and_names_the_field() {
    let directory = tempfile::tempdir().unwrap();
    let classes = directory.path().join("classes.yaml");
    std::fs::write(&classes, "classes: [{class: big, model: x, memory: much}]").unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_sahasra-worker"));
    command.args([
        "agent",
        "--node-name",
        "node",
        "--no-kubernetes",
        "--no-cuda",
        "--listen",
        "127.0.0.1:0",
    ]);
    let output = command.arg("--device-classes-file").arg(&classes).env_clear().output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(
        said.contains("classes.yaml: classes[0].memory: invalid quantity \"much\""),
        "{said}"
    );
}

#[tokio::test]
async fn an_agent_serves_without_an_api_server_and_registers_once_there_is_one() {
    let directory = tempfile::tempdir().unwrap();
    // Nobody accepts on this port: connections are established, but no response arrives.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let kubeconfig = kubeconfig(directory.path(), listener.local_addr().unwrap());
    let agent = AgentProcess::with_kubernetes(&kubeconfig, &PACE);
    let coordinator = Coordinator::new(&agent.url, "a").await;
    coordinator.acquire(1, Duration::from_secs(1)).await;
    coordinator.until_free().await;

    let objects = Objects::default();
    // Status of an earlier boot, which the operator has marked as stale.
    objects.put(
        WORKER,
        json!({
            "apiVersion": "sahasra.dev/v1alpha1", "kind": "GpuWorker",
            "metadata": {"name": "node"}, "spec": {"nodeName": "node"},
            "status": {"bootId": "earlier", "conditions": [{
                "type": "Ready", "status": "False", "reason": "HeartbeatLost", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]},
        }),
    );
    let serving = objects.clone();
    tokio::spawn(async move { serving.serve(listener, CancellationToken::new()).await });
    let worker = objects.until(WORKER, |worker| ready(worker) == ("True", "Serving")).await;
    assert_eq!(worker["status"]["bootId"], coordinator.boot_id.as_str());
    assert_ne!(worker["status"]["conditions"][0]["lastTransitionTime"], "2026-01-01T00:00:00Z");

    // The operator marked the worker again during the outage: the agent notices the gap by its own clock.
    let stale = json!([{
        "type": "Ready", "status": "False", "reason": "HeartbeatLost", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]);
    agent.pause();
    let mut marked = objects.get(WORKER).unwrap();
    marked["status"]["conditions"] = stale;
    objects.put(WORKER, marked);
    std::thread::sleep(Duration::from_millis(1_000));
    agent.resume();
    objects.until(WORKER, |worker| ready(worker) == ("True", "Serving")).await;
}

/// Starts an API server. Returns its objects, a kubeconfig, and the folder that keeps the kubeconfig.
async fn api_server() -> (Objects, std::path::PathBuf, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let kubeconfig = kubeconfig(directory.path(), listener.local_addr().unwrap());
    let objects = Objects::default();
    let serving = objects.clone();
    tokio::spawn(async move { serving.serve(listener, CancellationToken::new()).await });
    (objects, kubeconfig, directory)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_agent_of_a_node_ends_and_the_first_goes_on() {
    let (objects, kubeconfig, _directory) = api_server().await;
    let first = AgentProcess::with_kubernetes(&kubeconfig, &PACE);
    objects.until(WORKER, |worker| ready(worker) == ("True", "Serving")).await;
    let registered = objects.get(WORKER).unwrap();
    let mut second = AgentProcess::with_kubernetes(&kubeconfig, &PACE);
    assert_eq!(second.wait().code(), Some(1), "it is refused");
    assert_eq!(objects.get(WORKER), Some(registered), "and has written nothing");
    // The first agent still holds the heartbeat.
    let boot = Coordinator::new(&first.url, "a").await.boot_id;
    let held = objects.get(HEARTBEAT).unwrap();
    objects
        .until(HEARTBEAT, |lease| {
            lease["spec"]["renewTime"] != held["spec"]["renewTime"] && lease["spec"]["holderIdentity"] == boot.as_str()
        })
        .await;
}

/// Returns the URL of a port at which nothing listens: it was released just now.
async fn refusing() -> String {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    format!("http://{gone}")
}

/// Returns the URL of a port at which connections are neither accepted nor refused, as where a NetworkPolicy drops them, and the value that
/// keeps it so.
async fn silent() -> (String, impl Sized) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    while let Ok(accepted) = timeout(Duration::from_millis(200), TcpStream::connect(address)).await {
        waiting.push(accepted.unwrap());
        assert!(waiting.len() < 64, "the queue of the listener has no end");
    }
    (format!("http://{address}"), (listener, waiting))
}

/// Creates the objects of an agent that ended without releasing its heartbeat.
fn earlier_agent(objects: &Objects, endpoint: &str, lease_seconds: u32) {
    objects.put(
        WORKER,
        json!({
            "apiVersion": "sahasra.dev/v1alpha1", "kind": "GpuWorker",
            "metadata": {"name": "node"}, "spec": {"nodeName": "node"},
            "status": {"bootId": "earlier", "endpoint": endpoint, "conditions": []},
        }),
    );
    objects.put(
        HEARTBEAT,
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "sahasra-worker-node", "resourceVersion": "7"},
            "spec": {"holderIdentity": "earlier", "leaseDurationSeconds": lease_seconds, "renewTime": "2026-01-01T00:00:00.000000Z"},
        }),
    );
}

/// Starts an agent that the others cannot reach at the address in its status.
async fn living_agent_at(objects: &Objects, kubeconfig: &std::path::Path, endpoint: &str) -> (AgentProcess, String) {
    let mut arguments = vec!["--advertise-url", endpoint];
    arguments.extend(PACE);
    let agent = AgentProcess::with_kubernetes(kubeconfig, &arguments);
    objects.until(WORKER, |worker| ready(worker) == ("True", "Serving")).await;
    let boot = Coordinator::new(&agent.url, "a").await.boot_id;
    (agent, boot)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_agent_whose_connections_to_the_first_are_dropped_takes_nothing() {
    let (objects, kubeconfig, _directory) = api_server().await;
    let (endpoint, _kept) = silent().await;
    let (_first, boot) = living_agent_at(&objects, &kubeconfig, &endpoint).await;
    let mut second = AgentProcess::with_kubernetes(&kubeconfig, &PACE);
    assert_eq!(second.wait().code(), Some(1), "it is refused");
    assert!(
        second.log().iter().any(|line| line.contains("watching its heartbeat")),
        "{:?}",
        second.log()
    );
    assert_eq!(objects.get(HEARTBEAT).unwrap()["spec"]["holderIdentity"], boot.as_str());
    assert!(objects.boots().iter().all(|known| *known == boot), "{:?}", objects.boots());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_took_a_heartbeat_from_a_living_one_gives_way_before_it_writes_a_status() {
    let (objects, kubeconfig, _directory) = api_server().await;
    // A network may refuse connections on behalf of an agent.
    let (first, boot) = living_agent_at(&objects, &kubeconfig, &refusing().await).await;
    let pace = ["--heartbeat-interval", "2s", "--status-update-interval", "0.2s"];
    let mut second = AgentProcess::with_kubernetes(&kubeconfig, &pace);
    objects
        .until(HEARTBEAT, |lease| lease["spec"]["holderIdentity"] != boot.as_str())
        .await;
    assert_eq!(second.wait().code(), Some(1));
    objects
        .until(HEARTBEAT, |lease| lease["spec"]["holderIdentity"] == boot.as_str())
        .await;
    assert!(objects.boots().iter().all(|known| *known == boot), "{:?}", objects.boots());
    assert!(
        first
            .log()
            .iter()
            .any(|line| line.contains("Lease sahasra-worker-node was written by another holder")),
        "{:?}",
        first.log()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_that_others_annotate_is_not_renewed_by_that() {
    let (objects, kubeconfig, _directory) = api_server().await;
    let (endpoint, _kept) = silent().await;
    earlier_agent(&objects, &endpoint, 2);
    let agent = AgentProcess::with_kubernetes(&kubeconfig, &PACE);
    while !agent.log().iter().any(|line| line.contains("watching its heartbeat")) {
        tokio::task::yield_now().await;
    }
    let mut annotated = objects.get(HEARTBEAT).unwrap();
    annotated["metadata"]["annotations"] = json!({"seen": "yes"});
    annotated["metadata"]["resourceVersion"] = json!("8");
    objects.put(HEARTBEAT, annotated);
    let boot = Coordinator::new(&agent.url, "a").await.boot_id;
    objects.until(WORKER, |worker| worker["status"]["bootId"] == boot.as_str()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_takes_over_at_once_from_one_that_said_that_it_ends() {
    let (objects, kubeconfig, _directory) = api_server().await;
    // The same as when the pod of the earlier agent is gone, together with its address.
    let (endpoint, _kept) = silent().await;
    earlier_agent(&objects, &endpoint, 3600);
    let mut worker = objects.get(WORKER).unwrap();
    worker["status"]["conditions"] = json!([{
        "type": "Ready", "status": "False", "reason": "ShuttingDown", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]);
    objects.put(WORKER, worker);
    let agent = AgentProcess::with_kubernetes(&kubeconfig, &PACE);
    objects.until(WORKER, |worker| ready(worker) == ("True", "Serving")).await;
    assert!(
        !agent.log().iter().any(|line| line.contains("watching its heartbeat")),
        "{:?}",
        agent.log()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_takes_over_at_once_from_one_whose_port_is_closed() {
    let (objects, kubeconfig, _directory) = api_server().await;
    earlier_agent(&objects, &refusing().await, 3600);
    // A takeover whose write failed is retried.
    objects.break_beats(2);
    let agent = AgentProcess::with_kubernetes(&kubeconfig, &PACE);
    let worker = objects.until(WORKER, |worker| ready(worker) == ("True", "Serving")).await;
    assert_eq!(worker["status"]["bootId"], Coordinator::new(&agent.url, "a").await.boot_id.as_str());

    // The agent that seemed gone continues: this agent gives way.
    let mut back = objects.get(HEARTBEAT).unwrap();
    back["spec"]["holderIdentity"] = json!("earlier");
    back["metadata"]["resourceVersion"] = json!("1000");
    objects.put(HEARTBEAT, back);
    let mut agent = agent;
    assert_eq!(agent.wait().code(), Some(1));
}
