//! Leases and idle sessions while operators are replaced: an operator is killed repeatedly, and an API server is unavailable for longer
//! than half of the leader election's timeout. etcd writes to the disk as in production.
//!
//! `SAHASRA_E2E_KILL_COUNT` is the number of times that the operator is killed (default 6); from 24 on the test has 50 leases and 20 sessions.

use std::{collections::BTreeMap, time::Duration};

use sahasra_e2e::{Options, PoolOptions, SharedPool, Turn, audit::Write, condition, eventually, true_condition};
use serde_json::{Value, json};

/// Timeout for a machine under load.
const WITHIN: Duration = Duration::from_secs(300);
/// Time after which an operator is killed.
const LIFE: Duration = Duration::from_secs(5);
/// Number of kills from which the test has its full size.
const LONG: u32 = 24;
/// Duration of the API server's outage.
const OUTAGE: Duration = Duration::from_secs(12);

// The tests wait most of the time: each has a pool of its own, so that they wait at the same time.
static KILLED: SharedPool = SharedPool::new(options);
static AWAY: SharedPool = SharedPool::new(options);
static IDLE: SharedPool = SharedPool::new(options);

fn options() -> PoolOptions {
    let (_, _, ttl, _) = size();
    PoolOptions::default()
        .agents(3)
        .control_plane(Options::default().durable())
        .agent_arguments(["--no-cuda", "--cpu-device-memory", "4Gi"])
        .operator_environment("SAHASRA_SESSION_LEASE_TTL", &format!("{ttl}s"))
}

/// Number of leases, number of sessions, seconds for which their slices last without renewal, and number of kills.
fn size() -> (usize, usize, u64, u32) {
    let kills = std::env::var("SAHASRA_E2E_KILL_COUNT").ok().and_then(|text| text.parse().ok());
    match kills.unwrap_or(6) {
        kills if kills >= LONG => (50, 20, 60, kills),
        kills => (10, 4, 20, kills),
    }
}

/// Applies leases and sessions, and waits until all are granted; returns their grants by kind and name.
async fn stand(pool: &Turn, prefix: &str) -> BTreeMap<(&'static str, String), Value> {
    let (leases, sessions, ttl, _) = size();
    let mut names = Vec::new();
    for index in 0..leases {
        names.push(("VramLease", format!("{prefix}-lease-{index}")));
    }
    for index in 0..sessions {
        names.push(("GpuSession", format!("{prefix}-session-{index}")));
    }
    for (kind, name) in &names {
        let spec = match *kind {
            "VramLease" => json!({"owner": {"name": "failover"}, "slice": {"vram": "8Mi"}, "ttlSeconds": ttl}),
            _ => json!({"class": "cpu", "vram": "8Mi", "engine": "ptx"}),
        };
        let object = json!({
            "apiVersion": "sahasra.dev/v1alpha1",
            "kind": kind,
            "metadata": {"namespace": "default", "name": name},
            "spec": spec,
        });
        pool.control_plane.apply(&object.to_string()).await.expect("applied");
    }
    let mut held = BTreeMap::new();
    for (kind, name) in names {
        let wanted = if kind == "VramLease" { "Granted" } else { "Ready" };
        let object = pool.control_plane.wait_until(kind, "default", &name, WITHIN, |object| {
            object.is_some_and(|object| true_condition(object, wanted).is_some())
        });
        let object = object.await.expect("it is granted").expect("it is there");
        held.insert((kind, name), place(&object.data));
    }
    held
}

/// Current grants of an object, and its last loss.
fn place(data: &Value) -> Value {
    let status = &data["status"];
    json!({"grants": status["grants"], "lastLoss": status["lastLoss"], "worker": status["worker"], "device": status["device"]})
}

/// Checks that every object still has its grants.
async fn still_stands(pool: &Turn, held: &BTreeMap<(&'static str, String), Value>) {
    for ((kind, name), before) in held {
        let object = pool.control_plane.object(kind, "default", name).await.expect("an answer");
        let object = object.expect("it is there");
        let failed = condition(&object, "Failed");
        assert!(failed.is_none(), "{kind} {name}: {failed:?}");
        assert_eq!(&place(&object.data), before, "{kind} {name}");
    }
}

async fn delete(pool: &mut Turn, held: &BTreeMap<(&'static str, String), Value>) {
    for (kind, name) in held.keys() {
        pool.control_plane.delete(kind, "default", name).await.expect("deleted");
    }
    pool.nothing_held(WITHIN).await.expect("everything is given back");
}

#[tokio::test]
async fn an_operator_that_is_killed_every_five_seconds_loses_no_lease_and_no_session() {
    let mut pool = KILLED.borrow().await.expect("Sahasra starts");
    let held = stand(&pool, "killed").await;
    let (.., kills) = size();
    for _ in 0..kills {
        tokio::time::sleep(LIFE).await;
        pool.operator.process.kill().await.expect("killed");
        pool.operator.process.spawn().expect("started again");
    }
    pool.operator.process.wait_ready().await.expect("it leads");
    // Lost grants would be visible after this time.
    let (_, _, ttl, _) = size();
    tokio::time::sleep(Duration::from_secs(ttl)).await;
    still_stands(&pool, &held).await;
    for agent in &pool.agents {
        let expired = agent.metric("sahasra_agent_grants_expired_total").await.expect("an answer");
        assert_eq!(expired.unwrap_or_default(), 0.0, "{}", agent.process.name());
    }
    delete(&mut pool, &held).await;
}

#[tokio::test]
async fn the_leader_continues_after_an_outage_of_the_api_server_of_twelve_seconds() {
    let mut pool = AWAY.borrow().await.expect("Sahasra starts");
    let held = stand(&pool, "outage").await;
    let leader = pool.operator.process.pid();
    pool.control_plane.without_api_server(OUTAGE).await.expect("suspended and resumed");
    let more = stand(&pool, "after").await;
    assert!(pool.operator.process.is_running(), "it went on");
    assert_eq!(pool.operator.process.pid(), leader);
    still_stands(&pool, &held).await;
    delete(&mut pool, &held.into_iter().chain(more).collect()).await;
}

#[tokio::test]
async fn standing_leases_and_idle_sessions_cost_no_writes() {
    let mut pool = IDLE.borrow().await.expect("Sahasra starts");
    let held = stand(&pool, "idle").await;
    let (_, _, ttl, _) = size();
    let ours = |write: &Write| matches!(write.resource.as_str(), "vramleases" | "gpusessions" | "events");
    let count = async || pool.control_plane.audited_writes(ours).await.expect("an audit log").len();
    // Events and the last status of the sessions may still be written.
    let mut before = 0;
    let settled = eventually(WITHIN, async || {
        before = count().await;
        tokio::time::sleep(Duration::from_secs(15)).await;
        (count().await == before).then_some(())
    });
    settled.await.expect("the writes of new objects end");
    // Every grant is renewed several times in this time.
    tokio::time::sleep(Duration::from_secs(70.max(ttl))).await;
    let writes = pool.control_plane.audited_writes(ours).await.expect("an audit log");
    assert!(writes.len() == before, "{:?}", &writes[before..]);
    delete(&mut pool, &held).await;
}
