//! Operations of users on running bursts and leases: suspend, resume, delete, expiry.

use std::time::{Duration, Instant};

use kube::api::DynamicObject;
use sahasra_e2e::bursts::{Burst, number};
use sahasra_e2e::{NAMESPACE, PoolOptions, SharedPool, Turn, condition, eventually, tools, true_condition};
use serde_json::json;

/// Timeout for a machine under load.
const WITHIN: Duration = Duration::from_secs(240);
/// Timeout for the release of slices, which is immediate.
const FREE_WITHIN: Duration = Duration::from_secs(60);
const CHUNKS: u64 = 1000;
/// Steps of a chunk: some milliseconds on one core.
const STEPS: u32 = 100_000;

static POOL: SharedPool = SharedPool::new(|| {
    let agent = ["--no-cuda", "--cpu-device-memory", "4Gi", "--heartbeat-interval", "1s"];
    PoolOptions::default().agents(2).agent_arguments(agent)
});

async fn pool() -> Turn {
    POOL.borrow().await.expect("Sahasra starts")
}

async fn kubectl(pool: &Turn, arguments: &[&str]) -> String {
    let output = pool.control_plane.kubectl(arguments).await.expect("kubectl runs");
    output.success().expect("kubectl succeeds")
}

async fn suspend(pool: &Turn, burst: &str, suspend: bool) {
    let patch = json!({"spec": {"suspend": suspend}}).to_string();
    kubectl(pool, &["patch", "burstjob", burst, "--type=merge", "-p", &patch]).await;
}

/// Number of leased slices of all agents, from the agents' metrics.
async fn lent(pool: &Turn) -> Option<f64> {
    let mut slices = 0.0;
    for agent in &pool.agents {
        slices += agent.metric("sahasra_agent_slices_allocated").await.ok()??;
    }
    Some(slices)
}

#[tokio::test]
async fn a_suspended_burst_releases_its_slices_and_continues_when_resumed() {
    let mut pool = pool().await;
    let burst = Burst::of_steps("default", "held", CHUNKS, STEPS).expect("a burst");
    pool.in_the_middle_of(&burst, 100, WITHIN).await.expect("chunks are done");
    suspend(&pool, "held", true).await;
    let suspended = |job: Option<&DynamicObject>| job.is_some_and(|job| true_condition(job, "Suspended").is_some());
    let job = pool
        .control_plane
        .wait_until("BurstJob", "default", "held", WITHIN, suspended)
        .await
        .expect("it is suspended");
    let job = job.expect("a job");
    assert_eq!(job.data["status"]["state"], "Suspended");
    assert_eq!(number(&job, "/status/slices/held"), 0);
    let done = number(&job, "/status/chunks/succeeded");
    assert!((100..1000).contains(&done), "{done} chunks done");
    eventually(FREE_WITHIN, async || (lent(&pool).await == Some(0.0)).then_some(()))
        .await
        .expect("the slices are back");
    suspend(&pool, "held", false).await;
    let job = pool.completed("default", "held", WITHIN).await.expect("it completes");
    pool.every_index_counted_once(&job, CHUNKS, STEPS).await.expect("exact accounting");
    assert_eq!(number(&job, "/status/chunks/retried"), 0, "what was called back had not begun");
    pool.nothing_held(FREE_WITHIN).await.expect("everything is given back");
}

#[tokio::test]
async fn a_burst_created_suspended_acquires_nothing_until_it_is_resumed() {
    let mut pool = pool().await;
    let burst = Burst::of_steps("default", "later", 100, 10)
        .expect("a burst")
        .with("suspend", json!(true));
    burst.apply(&pool.control_plane).await.expect("applied");
    let suspended = |job: Option<&DynamicObject>| job.is_some_and(|job| true_condition(job, "Suspended").is_some());
    pool.control_plane
        .wait_until("BurstJob", "default", "later", WITHIN, suspended)
        .await
        .expect("it is suspended");
    assert_eq!(lent(&pool).await, Some(0.0));
    suspend(&pool, "later", false).await;
    let job = pool.completed("default", "later", WITHIN).await.expect("it completes");
    pool.every_index_counted_once(&job, 100, 10).await.expect("exact accounting");
    pool.nothing_held(FREE_WITHIN).await.expect("everything is given back");
}

#[tokio::test]
async fn a_finished_burst_is_deleted_after_its_ttl() {
    let mut pool = pool().await;
    let burst = Burst::of_steps("default", "fleeting", 10, 1)
        .expect("a burst")
        .with("ttlSecondsAfterFinished", json!(2));
    burst.apply(&pool.control_plane).await.expect("applied");
    pool.completed("default", "fleeting", WITHIN).await.expect("it completes");
    let gone = |job: Option<&DynamicObject>| job.is_none();
    pool.control_plane
        .wait_until("BurstJob", "default", "fleeting", WITHIN, gone)
        .await
        .expect("it goes");
    pool.nothing_held(FREE_WITHIN).await.expect("everything is given back");
}

#[tokio::test]
async fn deleting_a_burst_mid_burst_frees_every_ledger() {
    const TIMES: usize = 20;
    let mut pool = pool().await;
    let mut latencies = Vec::new();
    for round in 0..TIMES {
        let name = format!("deleted-{round}");
        // Chunks that run for seconds: deletion must not wait for them.
        let burst = Burst::of("endless", "default", &name, 200)
            .expect("a burst")
            .with("slices", json!({"max": 200}));
        burst.apply(&pool.control_plane).await.expect("applied");
        let running = eventually(WITHIN, async || {
            let mut active = 0.0;
            for agent in &pool.agents {
                active += agent.metric("sahasra_agent_chunks_running").await.ok()??;
            }
            (lent(&pool).await == Some(200.0) && active >= 2.0).then_some(())
        });
        running.await.expect("it runs on 200 slices");
        let began = Instant::now();
        pool.control_plane.delete("BurstJob", "default", &name).await.expect("deleted");
        let freed = eventually(FREE_WITHIN, async || (lent(&pool).await == Some(0.0)).then_some(began.elapsed()));
        latencies.push(freed.await.expect("the ledgers are empty"));
        let gone = |job: Option<&DynamicObject>| job.is_none();
        pool.control_plane
            .wait_until("BurstJob", "default", &name, WITHIN, gone)
            .await
            .expect("it goes");
    }
    latencies.sort();
    println!(
        "delete to empty ledgers, {TIMES} times: median {:?}, slowest {:?}",
        latencies[TIMES / 2],
        latencies[TIMES - 1]
    );
    pool.nothing_held(FREE_WITHIN).await.expect("everything is given back");
}

#[tokio::test]
async fn a_lease_of_a_users_own_is_granted_renewed_and_released() {
    let mut pool = pool().await;
    let lease = |name: &str, renewal: &str| {
        json!({
            "apiVersion": "sahasra.dev/v1alpha1",
            "kind": "VramLease",
            "metadata": {"namespace": "default", "name": name},
            "spec": {"owner": {"name": "alice"}, "slice": {"vram": "64Mi"}, "slices": {"min": 3, "max": 3}, "ttlSeconds": 5, "renewal": renewal},
        })
        .to_string()
    };
    let granted = |lease: Option<&DynamicObject>| {
        lease.is_some_and(|lease| true_condition(lease, "Granted").is_some() && number(lease, "/status/slices") == 3)
    };
    pool.control_plane.apply(&lease("renewed", "Automatic")).await.expect("applied");
    let renewed = pool
        .control_plane
        .wait_until("VramLease", "default", "renewed", WITHIN, granted)
        .await
        .expect("it is granted")
        .expect("a lease");
    let grants = renewed.data["status"]["grants"].as_array().expect("grants").iter();
    assert_eq!(grants.filter_map(|grant| grant["slices"].as_i64()).sum::<i64>(), 3);
    assert_eq!(lent(&pool).await, Some(3.0));

    // Created later than the other lease, with the same time to live: when this one expires, the other would have expired too without
    // renewals.
    pool.control_plane.apply(&lease("fleeting", "Never")).await.expect("applied");
    pool.control_plane
        .wait_until("VramLease", "default", "fleeting", WITHIN, granted)
        .await
        .expect("it is granted");
    let over = |lease: Option<&DynamicObject>| {
        lease.is_some_and(|lease| {
            number(lease, "/status/slices") == 0 && condition(lease, "Granted").is_some_and(|granted| granted["status"] == "False")
        })
    };
    let fleeting = pool
        .control_plane
        .wait_until("VramLease", "default", "fleeting", WITHIN, over)
        .await
        .expect("it ends")
        .expect("a lease");
    println!("{}", condition(&fleeting, "Granted").expect("a condition"));
    assert_eq!(fleeting.data["status"].get("grants"), None, "no grant is left");
    // The agents' clocks decide about expiry, and may do so later than the operator's.
    let left = eventually(FREE_WITHIN, async || (lent(&pool).await == Some(3.0)).then_some(()));
    left.await.expect("the first is still held, and alone");
    let still = pool
        .control_plane
        .object("VramLease", "default", "renewed")
        .await
        .expect("an answer")
        .expect("a lease");
    assert!(true_condition(&still, "Granted").is_some());

    for name in ["renewed", "fleeting"] {
        kubectl(&pool, &["delete", "vramlease", name, "--timeout=60s"]).await;
    }
    pool.nothing_held(FREE_WITHIN).await.expect("everything is given back");
    pool.nothing_forbidden().await.expect("the chart's rights suffice");
}

#[tokio::test]
async fn a_lease_survives_a_restart_of_the_operator() {
    let mut pool = pool().await;
    let lease = json!({
        "apiVersion": "sahasra.dev/v1alpha1",
        "kind": "VramLease",
        "metadata": {"namespace": "default", "name": "lasting"},
        "spec": {"slice": {"vram": "64Mi"}, "slices": {"min": 4, "max": 4}, "ttlSeconds": 30},
    });
    pool.control_plane.apply(&lease.to_string()).await.expect("applied");
    let granted = |lease: Option<&DynamicObject>| lease.is_some_and(|lease| number(lease, "/status/slices") == 4);
    let before = pool
        .control_plane
        .wait_until("VramLease", "default", "lasting", WITHIN, granted)
        .await
        .expect("granted")
        .expect("a lease");
    pool.operator.process.kill().await.expect("killed");
    pool.operator.process.start().await.expect("it starts again");
    let taken = |lease: Option<&DynamicObject>| {
        lease.is_some_and(|lease| number(lease, "/status/term") == 2 && number(lease, "/status/slices") == 4)
    };
    let after = pool
        .control_plane
        .wait_until("VramLease", "default", "lasting", WITHIN, taken)
        .await
        .expect("adopted")
        .expect("a lease");
    assert_eq!(after.data["status"]["grants"], before.data["status"]["grants"], "the same grants");
    assert_eq!(lent(&pool).await, Some(4.0));

    // More slices than the pool has: the lease keeps those that it holds, also across a restart.
    let raise = r#"{"spec": {"slices": {"min": 100000, "max": 100000}}}"#;
    kubectl(&pool, &["patch", "vramlease", "lasting", "--type=merge", "--patch", raise]).await;
    let waits = |term| {
        move |lease: Option<&DynamicObject>| {
            lease.is_some_and(|lease| {
                number(lease, "/status/term") == term
                    && condition(lease, "Granted").is_some_and(|granted| granted["reason"] == "WaitingForMoreSlices")
            })
        }
    };
    for term in [2, 3] {
        let waiting = pool
            .control_plane
            .wait_until("VramLease", "default", "lasting", WITHIN, waits(term))
            .await
            .expect("it waits")
            .expect("a lease");
        let message = condition(&waiting, "Granted").expect("a condition")["message"].to_string();
        assert!(message.contains("needs 99996 more slices of 64Mi"), "{message}");
        assert_eq!(waiting.data["status"]["grants"], before.data["status"]["grants"], "the same grants");
        assert_eq!(lent(&pool).await, Some(4.0));
        if term == 2 {
            pool.operator.process.kill().await.expect("killed");
            pool.operator.process.start().await.expect("it starts again");
        }
    }
    kubectl(&pool, &["delete", "vramlease", "lasting", "--timeout=60s"]).await;
    pool.nothing_held(FREE_WITHIN).await.expect("everything is given back");
}

/// Runs the chart's uninstall check with the operator's rights; returns whether an uninstall is allowed, and the output.
async fn uninstall_check(pool: &Turn) -> (bool, String) {
    let kubeconfig = pool.control_plane.kubeconfig_for(NAMESPACE, "sahasra-operator").await;
    let program = tools::binaries().await.expect("binaries").join("sahasra-operator");
    let output = tokio::process::Command::new(program)
        .args(["uninstall-check", "--timeout=1ms"])
        .env("KUBECONFIG", kubeconfig.expect("the operator's identity"))
        .output()
        .await
        .expect("it runs");
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

#[tokio::test]
async fn the_operator_is_not_uninstalled_while_a_burst_runs() {
    let mut pool = pool().await;
    pool.nothing_held(FREE_WITHIN)
        .await
        .expect("earlier bursts have given everything back");
    let burst = Burst::of_steps("default", "unmoved", CHUNKS, STEPS).expect("a burst");
    pool.in_the_middle_of(&burst, 10, WITHIN).await.expect("chunks are done");
    let (may_go, said) = uninstall_check(&pool).await;
    assert!(
        !may_go && said.contains("1 objects hold VRAM or wait for it: BurstJob default/unmoved"),
        "{said}"
    );
    let job = pool.completed("default", "unmoved", WITHIN).await.expect("it goes on");
    pool.every_index_counted_once(&job, CHUNKS, STEPS).await.expect("exact accounting");
    pool.nothing_held(FREE_WITHIN).await.expect("everything is given back");
    // A finished burst holds no slices, so it does not prevent an uninstall.
    let (may_go, said) = uninstall_check(&pool).await;
    assert!(may_go, "{said}");
}
