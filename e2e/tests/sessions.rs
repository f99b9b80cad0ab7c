//! Sessions: each is placed on one device, stays there and is never moved, and releases its slice at its end.

use std::time::Duration;

use kube::api::DynamicObject;
use sahasra_client::{Options, Session, Target, Token};
use sahasra_e2e::bursts::number;
use sahasra_e2e::{PoolOptions, SharedPool, Turn, condition, eventually, get_with, true_condition};
use sahasra_wire::{Message, inventory::Inventory, path, session::PROTOCOL};
use serde_json::{Value, json};

/// Timeout for a machine under load.
const WITHIN: Duration = Duration::from_secs(240);
/// Timeout for the release of slices: immediate, or at the expiry of their lease.
const FREE_WITHIN: Duration = Duration::from_secs(90);

static POOL: SharedPool = SharedPool::new(PoolOptions::watchful);

/// Pool for tests with an outage of the API server. After its start the API server rejects requests whose roles its authorizer has not read
/// yet, so only tests on the other pool can check that no request is ever forbidden.
static OUTAGE: SharedPool = SharedPool::new(PoolOptions::watchful);

async fn pool() -> Turn {
    POOL.borrow().await.expect("Sahasra starts")
}

/// Applies a session of 256 MiB for PTX, with additional fields in its spec.
async fn apply(pool: &Turn, name: &str, more: Value) {
    let mut spec = json!({"class": "cpu", "vram": "256Mi", "engine": "ptx"});
    for (field, value) in more.as_object().expect("fields") {
        spec[field] = value.clone();
    }
    let session = json!({
        "apiVersion": "sahasra.dev/v1alpha1",
        "kind": "GpuSession",
        "metadata": {"namespace": "default", "name": name},
        "spec": spec,
    });
    pool.control_plane.apply(&session.to_string()).await.expect("applied");
}

async fn wait(pool: &Turn, name: &str, until: impl Fn(&DynamicObject) -> bool) -> DynamicObject {
    let until = |session: Option<&DynamicObject>| session.is_some_and(&until);
    let session = pool.control_plane.wait_until("GpuSession", "default", name, WITHIN, until).await;
    session.expect("it comes to that").expect("it is there")
}

fn is_placed(session: &DynamicObject) -> bool {
    true_condition(session, "Placed").is_some()
}

fn is_ready(session: &DynamicObject) -> bool {
    true_condition(session, "Ready").is_some()
}

/// Reason and message of a condition whose status is not `True`.
fn why(session: &DynamicObject, kind: &str) -> (String, String) {
    let condition = condition(session, kind).expect("a condition");
    let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
    (text("reason"), text("message"))
}

fn text<'a>(session: &'a DynamicObject, field: &str) -> &'a str {
    session.data["status"][field].as_str().unwrap_or_default()
}

/// Deletes a session, waits until its object is deleted, and checks that no slice is leased.
async fn delete(pool: &mut Turn, name: &str) {
    pool.control_plane.delete("GpuSession", "default", name).await.expect("deleted");
    let gone = |session: Option<&DynamicObject>| session.is_none();
    pool.control_plane
        .wait_until("GpuSession", "default", name, WITHIN, gone)
        .await
        .expect("it goes");
    pool.nothing_held(FREE_WITHIN).await.expect("everything is given back");
}

#[tokio::test]
async fn a_session_holds_one_slice_of_one_device_until_it_is_deleted() {
    let mut pool = pool().await;
    apply(&pool, "held", json!({})).await;
    let session = wait(&pool, "held", is_ready).await;
    let worker = text(&session, "worker");
    assert!(
        worker.starts_with("node-") && text(&session, "device") == "cpu-0",
        "{}",
        session.data["status"]
    );
    assert!(text(&session, "endpoint").starts_with("http"), "{}", session.data["status"]);
    assert_eq!(text(&session, "state"), "Ready");
    let lease = pool.control_plane.object("VramLease", "default", text(&session, "lease")).await;
    let lease = lease.expect("an answer").expect("the session's lease");
    assert_eq!(number(&lease, "/status/slices"), 1);
    assert_eq!(lease.data["spec"]["owner"], json!({"kind": "GpuSession", "name": "held"}));
    // The second session is placed on the device with less leased memory.
    apply(&pool, "other", json!({})).await;
    let other = wait(&pool, "other", is_ready).await;
    let mut lent = Vec::new();
    for agent in &pool.agents {
        lent.push(agent.metric("sahasra_agent_vram_allocated_bytes").await.expect("an answer"));
    }
    assert_eq!(lent.iter().flatten().sum::<f64>(), 2.0 * f64::from(256 << 20), "{lent:?}");
    // A restarted operator finds both sessions where they are.
    pool.operator.process.kill().await.expect("killed");
    pool.operator.process.start().await.expect("it starts again");
    let renewed = |object: &DynamicObject| number(object, "/status/term") >= 2;
    let lease_name = text(&session, "lease").to_owned();
    let taken_up = |lease: Option<&DynamicObject>| lease.is_some_and(renewed);
    pool.control_plane
        .wait_until("VramLease", "default", &lease_name, WITHIN, taken_up)
        .await
        .expect("the lease is taken up");
    for (name, before) in [("held", &session), ("other", &other)] {
        let now = pool.control_plane.object("GpuSession", "default", name).await;
        let now = now.expect("an answer").expect("a session");
        assert_eq!(now.data["status"], before.data["status"], "{name}");
    }
    pool.control_plane.delete("GpuSession", "default", "other").await.expect("deleted");
    delete(&mut pool, "held").await;
    pool.nothing_forbidden().await.expect("the chart's rights suffice");
}

#[tokio::test]
async fn a_session_without_room_reports_the_reason_and_is_placed_when_there_is_room() {
    let mut pool = pool().await;
    apply(&pool, "elsewhere", json!({"class": "g5"})).await;
    let waits =
        |session: &DynamicObject| condition(session, "Placed").is_some_and(|placed| placed["message"] != "waiting for its VramLease");
    let session = wait(&pool, "elsewhere", waits).await;
    let (reason, message) = why(&session, "Placed");
    assert_eq!((reason.as_str(), text(&session, "state")), ("WaitingForSlices", "Pending"));
    assert!(message.contains("node-0/cpu-0") && message.contains("class"), "{message}");
    pool.control_plane
        .delete("GpuSession", "default", "elsewhere")
        .await
        .expect("deleted");
    // Two sessions that fill both devices, and a third that does not fit.
    for name in ["first", "second", "third"] {
        apply(&pool, name, json!({"vram": "900Mi"})).await;
        if name != "third" {
            wait(&pool, name, is_placed).await;
        }
    }
    let session = wait(&pool, "third", waits).await;
    assert!(
        why(&session, "Placed").1.contains("needs 1 slice of 900Mi"),
        "{:?}",
        why(&session, "Placed")
    );
    pool.control_plane.delete("GpuSession", "default", "first").await.expect("deleted");
    wait(&pool, "third", is_placed).await;
    pool.control_plane.delete("GpuSession", "default", "second").await.expect("deleted");
    delete(&mut pool, "third").await;
}

#[tokio::test]
async fn a_session_whose_worker_is_lost_fails_and_is_not_moved() {
    let mut pool = pool().await;
    apply(&pool, "pinned", json!({})).await;
    let session = wait(&pool, "pinned", is_placed).await;
    let place = if text(&session, "worker") == "node-0" { 0 } else { 1 };
    pool.agents[place].process.kill().await.expect("killed");
    let failed = wait(&pool, "pinned", |session| true_condition(session, "Failed").is_some()).await;
    let (reason, message) = why(&failed, "Failed");
    assert_eq!((reason.as_str(), text(&failed, "state")), ("WorkerLost", "Failed"));
    assert!(message.contains(text(&session, "worker")), "{message}");
    let other = &pool.agents[1 - place];
    assert_eq!(
        other.metric("sahasra_agent_slices_allocated").await.expect("an answer"),
        Some(0.0),
        "it was moved"
    );
    pool.revive().await.expect("all servers run");
    let gone = eventually(WITHIN, async || {
        let lease = pool
            .control_plane
            .object("VramLease", "default", text(&session, "lease"))
            .await
            .ok()?;
        lease.is_none().then_some(())
    });
    gone.await.expect("its lease goes");
    delete(&mut pool, "pinned").await;
}

#[tokio::test]
async fn a_session_ends_at_its_ttl_or_idle_timeout() {
    let mut pool = pool().await;
    for (name, more, expected) in [
        ("idle", json!({"idleTimeoutSeconds": 1}), "IdleTimeout"),
        ("old", json!({"idleTimeoutSeconds": 10, "ttlSeconds": 10}), "TtlExpired"),
    ] {
        apply(&pool, name, more).await;
        let session = wait(&pool, name, |session| true_condition(session, "Failed").is_some()).await;
        let (reason, message) = why(&session, "Failed");
        assert_eq!(reason, expected, "{message}");
        // The condition stays as long as the session exists, and the session has no slice.
        pool.nothing_held(FREE_WITHIN).await.expect("everything is given back");
        delete(&mut pool, name).await;
    }
}

/// Status of the answer of the worker at `endpoint` to a request for a session's stream.
async fn status(endpoint: &str, name: &str, token: &str, upgrade: bool) -> u16 {
    let (url, bearer) = (format!("{endpoint}{}", path::stream("default", name)), format!("Bearer {token}"));
    let mut headers = vec![("authorization", bearer.as_str())];
    if upgrade {
        headers.extend([("connection", "upgrade"), ("upgrade", PROTOCOL)]);
    }
    let (status, _) = get_with(&url, &headers).await.expect("an answer");
    status.as_u16()
}

/// Creates a ServiceAccount without rights; returns its token.
async fn account(pool: &Turn, name: &str) -> String {
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"namespace": "default", "name": name}});
    pool.control_plane.apply(&account.to_string()).await.expect("an account");
    let kubeconfig = pool.control_plane.kubeconfig_for("default", name).await.expect("its token");
    let text = std::fs::read_to_string(kubeconfig).expect("it is there");
    let token = text.split("token").nth(1).expect("a token").trim_start_matches(['"', ':', ' ']);
    token
        .chars()
        .take_while(|letter| !letter.is_whitespace() && *letter != '"')
        .collect()
}

/// Allows an account to connect to one session.
async fn allow(pool: &Turn, account: &str, session: &str) {
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"namespace": "default", "name": account},
        "rules": [{"apiGroups": ["sahasra.dev"], "resources": ["gpusessions/stream"], "resourceNames": [session], "verbs": ["create"]}],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"namespace": "default", "name": account},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": account},
        "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": account}],
    });
    for object in [role, binding] {
        pool.control_plane.apply(&object.to_string()).await.expect("applied");
    }
}

#[tokio::test]
async fn a_stream_opens_only_for_callers_that_rbac_allows() {
    let mut pool = pool().await;
    apply(&pool, "guarded", json!({})).await;
    apply(&pool, "next-door", json!({})).await;
    let session = wait(&pool, "guarded", is_ready).await;
    let endpoint = text(&session, "endpoint");
    let token = account(&pool, "visitor").await;
    assert_eq!(status(endpoint, "guarded", "nobody-s-token", true).await, 401);
    assert_eq!(status(endpoint, "guarded", &token, true).await, 403);
    allow(&pool, "visitor", "guarded").await;
    // The caches of the API server and of the agent delay the new right by a second or two. A request without an upgrade starts no executor.
    let let_in = eventually(WITHIN, async || {
        (status(endpoint, "guarded", &token, false).await == 426).then_some(())
    });
    let_in.await.expect("it may connect");
    assert_eq!(status(endpoint, "next-door", &token, true).await, 403, "that one alone");
    allow(&pool, "visitor", "not-there").await;
    let unknown = eventually(WITHIN, async || {
        (status(endpoint, "not-there", &token, true).await == 404).then_some(())
    });
    unknown.await.expect("there is none");
    pool.control_plane
        .delete("GpuSession", "default", "next-door")
        .await
        .expect("deleted");
    delete(&mut pool, "guarded").await;
    pool.nothing_forbidden().await.expect("the chart's rights suffice");
}

/// Creates an account that may connect, and connects with it.
async fn visit(pool: &Turn, name: &str, session: &DynamicObject) -> Session {
    let endpoint = text(session, "endpoint");
    let token = account(pool, "guest").await;
    allow(pool, "guest", name).await;
    let let_in = eventually(WITHIN, async || (status(endpoint, name, &token, false).await == 426).then_some(()));
    let_in.await.expect("it may connect");
    let target = Target::direct(endpoint, Token::text(token), None, "default", name).expect("an endpoint");
    let connected = Session::connect(target, Options::default()).await;
    connected.expect("it is welcomed")
}

/// Milliseconds until the expiry of an agent's only grant; `None` when it has none.
async fn left(agent: &sahasra_e2e::Server) -> Option<u64> {
    let url = format!("{}{}", agent.url(), path::INVENTORY);
    let (_, body) = get_with(&url, &[]).await.expect("an answer");
    let inventory = Inventory::decode(body).expect("an inventory");
    inventory.grants.first().map(|grant| grant.expires_in_milliseconds)
}

#[tokio::test]
async fn a_connected_session_survives_outages_of_operator_and_api_server() {
    let mut pool = OUTAGE.borrow().await.expect("Sahasra starts");
    apply(&pool, "kept", json!({})).await;
    let session = wait(&pool, "kept", is_ready).await;
    let place = if text(&session, "worker") == "node-0" { 0 } else { 1 };
    let client = visit(&pool, "kept", &session).await;
    pool.operator.process.kill().await.expect("killed");
    pool.control_plane.stop_api_server().await.expect("stopped");
    // Without extensions the remaining time of the grant would only decrease; the test sees it decrease and increase again, twice.
    for _ in 0..2 {
        let shorter = eventually(WITHIN, async || left(&pool.agents[place]).await.filter(|left| *left < 59_700));
        let before = shorter.await.expect("time passes");
        let longer = eventually(WITHIN, async || {
            let now = left(&pool.agents[place]).await.expect("it is held");
            (now > before).then_some(())
        });
        longer.await.expect("its agent extends it");
    }
    pool.control_plane.start_api_server().await.expect("it starts again");
    pool.operator.process.start().await.expect("it starts again");
    let gone = pool.control_plane.delete("GpuSession", "default", "kept").await;
    gone.expect("deleted");
    let ended = eventually(WITHIN, async || client.ended());
    ended.await.expect("the client hears of the end");
    pool.nothing_held(FREE_WITHIN).await.expect("everything is given back");
}

#[tokio::test]
async fn a_session_whose_executor_ends_fails_with_the_cause() {
    let mut pool = pool().await;
    apply(&pool, "crashed", json!({})).await;
    let session = wait(&pool, "crashed", is_ready).await;
    let place = if text(&session, "worker") == "node-0" { 0 } else { 1 };
    let _client = visit(&pool, "crashed", &session).await;
    let processes = pool.agents[place].process.children();
    let executor = processes
        .iter()
        .find(|process| process.command.contains("executor session"))
        .expect("it runs");
    sahasra_e2e::signal(executor.pid, sahasra_e2e::Signal::KILL).expect("it is killed");
    let failed = wait(&pool, "crashed", |session| true_condition(session, "Failed").is_some()).await;
    let (reason, message) = why(&failed, "Failed");
    assert_eq!(reason, "ExecutorLost", "{message}");
    assert!(message.contains("signal 9"), "{message}");
    assert_eq!(why(&failed, "Ready").0, "ExecutorLost");
    pool.nothing_held(FREE_WITHIN).await.expect("everything is given back");
    delete(&mut pool, "crashed").await;
}
