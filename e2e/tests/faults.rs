//! Processes that are killed during a burst: every index is counted exactly once, whichever process ends.
//!
//! A fault is injected in a certain state and not at a certain time: after a number of chunks of a burst that takes long enough.

use std::time::Duration;

use kube::api::DynamicObject;
use sahasra_e2e::bursts::{Burst, number};
use sahasra_e2e::{Descendant, PoolOptions, SharedPool, Signal, Turn, eventually, is_alive, signal, true_condition};
use serde_json::json;

/// Timeout for a machine under load.
const WITHIN: Duration = Duration::from_secs(240);
/// Timeout for the release of slices: immediate, or at the expiry of their lease.
const FREE_WITHIN: Duration = Duration::from_secs(60);
/// Number of chunks of each burst.
const CHUNKS: u64 = 1000;
/// Steps of a chunk: some milliseconds on one core.
const STEPS: u32 = 100_000;
/// Number of chunks after which a burst counts as in the middle.
const SOME: u64 = 100;

static POOL: SharedPool = SharedPool::new(|| {
    let agent = ["--no-cuda", "--cpu-device-memory", "4Gi", "--heartbeat-interval", "1s"];
    PoolOptions::default()
        .agents(2)
        .agent_arguments(agent)
        .operator_environment("SAHASRA_HEARTBEAT_TIMEOUT", "5s")
        .operator_environment("SAHASRA_LEADER_ELECT_LEASE_DURATION", "5s")
});

async fn pool() -> Turn {
    POOL.borrow().await.expect("Sahasra starts")
}

/// Applies a burst and waits until some of its chunks are done.
async fn in_the_middle(pool: &Turn, name: &str) {
    let burst = Burst::of_steps("default", name, CHUNKS, STEPS).expect("a burst");
    pool.in_the_middle_of(&burst, SOME, WITHIN).await.expect("chunks are done");
}

/// Checks that the burst completes with every index counted once, then deletes it and checks that no slice is leased.
async fn completes_exactly(pool: &mut Turn, name: &str) -> DynamicObject {
    let job = pool.completed("default", name, WITHIN).await.expect("it completes");
    pool.every_index_counted_once(&job, CHUNKS, STEPS).await.expect("exact accounting");
    pool.revive().await.expect("all servers run");
    pool.nothing_held(FREE_WITHIN).await.expect("everything is given back");
    pool.nothing_forbidden().await.expect("the chart's rights suffice");
    job
}

fn executors(pool: &Turn, agent: usize) -> Vec<Descendant> {
    let children = pool.agents[agent].process.children();
    children.into_iter().filter(|child| child.command.contains(" executor")).collect()
}

/// The executors of an agent, stopped while at least one chunk runs on them, so that none ends before the next signal.
async fn executors_with_chunks(pool: &Turn, agent: usize) -> Vec<Descendant> {
    let stopped = eventually(WITHIN, async || {
        let found = executors(pool, agent);
        // An executor may end between its listing and the signal.
        let send = |to_all| found.iter().all(|child| signal(child.pid, to_all).is_ok());
        if send(Signal::STOP) && !found.is_empty() {
            let running = pool.agents[agent].metric("sahasra_agent_chunks_running").await.expect("a scrape");
            if running > Some(0.0) {
                return Some(found);
            }
        }
        send(Signal::CONT);
        None
    });
    stopped.await.expect("a chunk runs on the agent")
}

#[tokio::test]
async fn an_agent_killed_mid_burst_and_started_again_costs_only_repetitions() {
    let mut pool = pool().await;
    in_the_middle(&pool, "agent-restart").await;
    let orphans = executors_with_chunks(&pool, 0).await;
    pool.agents[0].process.kill().await.expect("killed");
    let gone = eventually(WITHIN, async || orphans.iter().all(|orphan| !is_alive(orphan.pid)).then_some(()));
    gone.await.expect("executors die with their agent");
    pool.agents[0].process.start().await.expect("it starts again");
    let job = completes_exactly(&mut pool, "agent-restart").await;
    assert!(number(&job, "/status/chunks/retried") > 0, "{}", job.data["status"]["chunks"]);
}

#[tokio::test]
async fn chunks_of_a_permanently_killed_agent_run_on_the_others() {
    let mut pool = pool().await;
    in_the_middle(&pool, "agent-gone").await;
    executors_with_chunks(&pool, 1).await;
    pool.agents[1].process.kill().await.expect("killed");
    let job = completes_exactly(&mut pool, "agent-gone").await;
    assert!(number(&job, "/status/chunks/retried") > 0, "{}", job.data["status"]["chunks"]);
}

#[tokio::test]
async fn an_executor_killed_mid_burst_is_replaced_and_its_chunks_are_retried() {
    let mut pool = pool().await;
    in_the_middle(&pool, "executor").await;
    let agent = pool.agents[0].process.pid();
    for victim in &executors_with_chunks(&pool, 0).await {
        signal(victim.pid, Signal::KILL).expect("killed");
    }
    let job = completes_exactly(&mut pool, "executor").await;
    assert!(number(&job, "/status/chunks/retried") > 0, "{}", job.data["status"]["chunks"]);
    assert_eq!(pool.agents[0].process.pid(), agent, "the agent lives");
    assert!(pool.agents[0].process.is_running());
}

#[tokio::test]
async fn an_operator_killed_during_a_burst_continues_it_after_its_restart() {
    let mut pool = pool().await;
    in_the_middle(&pool, "operator").await;
    pool.operator.process.kill().await.expect("killed");
    pool.operator.process.start().await.expect("it starts again");
    let job = completes_exactly(&mut pool, "operator").await;
    assert!(number(&job, "/status/term") >= 2, "{}", job.data["status"]);
}

#[tokio::test]
async fn an_operator_killed_after_any_step_completes_the_burst_with_the_same_aggregate() {
    let mut pool = pool().await;
    for step in ["intent", "grant", "dispatch", "checkpoint", "completion"] {
        pool.operator.process.kill().await.expect("killed");
        pool.operator.process.set_environment("SAHASRA_FAILPOINT", Some(step));
        pool.operator.process.start().await.expect("it starts");
        let name = format!("dies-after-{step}");
        let burst = Burst::of_steps("default", &name, CHUNKS, STEPS).expect("a burst");
        burst.apply(&pool.control_plane).await.expect("applied");
        pool.operator
            .process
            .wait(WITHIN)
            .await
            .unwrap_or_else(|error| panic!("{step}: {error}"));
        pool.operator.process.set_environment("SAHASRA_FAILPOINT", None);
        pool.operator.process.start().await.expect("it starts again");
        let job = completes_exactly(&mut pool, &name).await;
        println!(
            "{step}: term {}, retried {}",
            number(&job, "/status/term"),
            number(&job, "/status/chunks/retried")
        );
    }
}

#[tokio::test]
async fn a_burst_suspended_without_a_running_operator_releases_its_slices_once_one_runs() {
    let mut pool = pool().await;
    let burst = Burst::of_steps("default", "suspended-alone", CHUNKS, STEPS).expect("a burst");
    // The grants outlast this test, so that they are not released by expiry.
    let burst = burst.with("lease", json!({"ttlSeconds": 3600}));
    pool.in_the_middle_of(&burst, SOME, WITHIN).await.expect("chunks are done");
    pool.operator.process.kill().await.expect("killed");
    let suspend = |suspend: bool| json!({"spec": {"suspend": suspend}}).to_string();
    let patch = async |pool: &Turn, patch: String| {
        let arguments = ["patch", "burstjob", "suspended-alone", "--type=merge", "-p", &patch];
        let output = pool.control_plane.kubectl(arguments).await.expect("kubectl runs");
        output.success().expect("patched");
    };
    patch(&pool, suspend(true)).await;
    pool.operator.process.start().await.expect("it starts again");
    let suspended = |job: Option<&DynamicObject>| job.is_some_and(|job| true_condition(job, "Suspended").is_some());
    pool.control_plane
        .wait_until("BurstJob", "default", "suspended-alone", WITHIN, suspended)
        .await
        .expect("it is suspended");
    pool.nothing_held(FREE_WITHIN).await.expect("everything is given back");
    patch(&pool, suspend(false)).await;
    completes_exactly(&mut pool, "suspended-alone").await;
}

#[tokio::test]
async fn the_lease_of_a_running_burst_is_created_again_after_its_deletion() {
    let mut pool = pool().await;
    let burst = Burst::of_steps("default", "lease-deleted", CHUNKS, STEPS).expect("a burst");
    // One slice, so that most of the burst remains when its lease is deleted.
    let burst = burst.with("slices", json!({"min": 1, "max": 1}));
    pool.in_the_middle_of(&burst, 1, WITHIN).await.expect("chunks are done");
    let is_granted = |lease: Option<&DynamicObject>| lease.is_some_and(|lease| true_condition(lease, "Granted").is_some());
    let find = async |pool: &Turn| {
        let found = pool
            .control_plane
            .wait_until("VramLease", "default", "lease-deleted", WITHIN, is_granted)
            .await;
        found.expect("a lease").expect("it exists")
    };
    let before = find(&pool).await;
    let output = pool
        .control_plane
        .kubectl(["delete", "vramlease", "lease-deleted"])
        .await
        .expect("kubectl runs");
    output.success().expect("deleted");
    let after = find(&pool).await;
    assert_ne!(after.metadata.uid, before.metadata.uid);
    assert_eq!(after.metadata.owner_references, before.metadata.owner_references);
    let all = json!({"spec": {"slices": {"max": 8}}}).to_string();
    let arguments = ["patch", "burstjob", "lease-deleted", "--type=merge", "-p", &all];
    pool.control_plane
        .kubectl(arguments)
        .await
        .expect("kubectl runs")
        .success()
        .expect("patched");
    completes_exactly(&mut pool, "lease-deleted").await;
    pool.nothing_held(FREE_WITHIN).await.expect("everything is given back");
}

#[tokio::test]
async fn a_second_operator_takes_over_when_the_first_is_killed() {
    let mut pool = pool().await;
    // The operator is ready only when it leads.
    let first = pool.operator.process.pid();
    in_the_middle(&pool, "takeover").await;
    pool.operator.process.kill().await.expect("killed");
    let second = pool
        .start_operator("operator-b")
        .await
        .expect("a second operator leads after the first");
    assert_ne!(second.process.pid(), first);
    let job = pool.completed("default", "takeover", WITHIN).await.expect("it completes");
    pool.every_index_counted_once(&job, CHUNKS, STEPS).await.expect("exact accounting");
    let mut second = second;
    second.process.terminate(FREE_WITHIN).await.expect("it ends");
    pool.revive().await.expect("the first leads again");
    pool.nothing_held(FREE_WITHIN).await.expect("everything is given back");
}

#[tokio::test]
async fn an_agent_that_hangs_is_marked_as_lost_and_recovers() {
    let mut pool = pool().await;
    in_the_middle(&pool, "hang").await;
    pool.agents[1].process.signal(Signal::STOP).expect("stopped");
    let lost = |worker: Option<&DynamicObject>| worker.is_some_and(|worker| ready(worker) == ("False", "HeartbeatLost"));
    pool.control_plane
        .wait_until("GpuWorker", "", "node-1", WITHIN, lost)
        .await
        .expect("it is marked");
    let workers = pool.operator.get_json("/workers").await.expect("an answer");
    let status = workers
        .as_array()
        .expect("a list")
        .iter()
        .find(|worker| worker["id"] == "node-1")
        .map(|worker| worker["status"].clone());
    assert_eq!(status, Some(json!("stale")));
    let job = pool
        .completed("default", "hang", WITHIN)
        .await
        .expect("it completes without the agent");
    pool.every_index_counted_once(&job, CHUNKS, STEPS).await.expect("exact accounting");
    pool.agents[1].process.signal(Signal::CONT).expect("it goes on");
    let back = |worker: Option<&DynamicObject>| worker.is_some_and(|worker| ready(worker).0 == "True");
    pool.control_plane
        .wait_until("GpuWorker", "", "node-1", WITHIN, back)
        .await
        .expect("it is ready again");
    pool.nothing_held(FREE_WITHIN).await.expect("everything is given back");
}

fn ready(worker: &DynamicObject) -> (&str, &str) {
    let conditions = worker.data.pointer("/status/conditions").and_then(serde_json::Value::as_array);
    let ready = conditions.into_iter().flatten().find(|condition| condition["type"] == "Ready");
    ready.map_or(("", ""), |ready| {
        (ready["status"].as_str().unwrap_or(""), ready["reason"].as_str().unwrap_or(""))
    })
}

#[tokio::test]
async fn an_agent_that_is_terminated_drains_and_returns_its_chunks() {
    let mut pool = pool().await;
    in_the_middle(&pool, "drain").await;
    let status = pool.agents[0].process.terminate(FREE_WITHIN).await.expect("it ends");
    assert!(status.success(), "{status}");
    pool.agents[0].process.start().await.expect("it starts again");
    completes_exactly(&mut pool, "drain").await;
}

#[tokio::test]
async fn a_kernel_that_traps_fails_the_burst_at_once_with_code_message_and_index() {
    let mut pool = pool().await;
    let burst = Burst::of("trap_at", "default", "traps", 100).expect("a burst").scalar(42);
    burst.apply(&pool.control_plane).await.expect("applied");
    let job = pool.ended("default", "traps", WITHIN).await.expect("it ends");
    let failed = true_condition(&job, "Failed").expect("it failed");
    assert_eq!(failed["reason"], "Trap");
    assert!(failed["message"].as_str().expect("a message").contains("chunk 42"), "{failed}");
    let failure = &job.data["status"]["failures"][0];
    assert_eq!(
        (&failure["index"], &failure["attempts"], &failure["code"]),
        (&json!(42), &json!(1), &json!("Trap"))
    );
    assert!(failure["message"].as_str().expect("a message").contains("trap"), "{failure}");
    assert_eq!(
        (number(&job, "/status/chunks/failed"), number(&job, "/status/chunks/retried")),
        (1, 0)
    );
    assert_eq!(job.data["status"]["failedIndexes"], "42");
    pool.nothing_held(FREE_WITHIN).await.expect("everything is given back");
}

#[tokio::test]
async fn as_many_chunks_may_fail_as_the_burst_allows() {
    let mut pool = pool().await;
    let burst = Burst::of("trap_at", "default", "lenient", 100).expect("a burst").scalar(42);
    burst
        .with("maxFailedChunks", json!(1))
        .apply(&pool.control_plane)
        .await
        .expect("applied");
    let job = pool.completed("default", "lenient", WITHIN).await.expect("it completes");
    assert_eq!(
        (number(&job, "/status/chunks/succeeded"), number(&job, "/status/chunks/failed")),
        (99, 1)
    );
    let sum = f64::from((0..100).sum::<u32>() - 42);
    let found = job.data.pointer("/status/aggregate/values/0").and_then(serde_json::Value::as_f64);
    assert_eq!(found, Some(sum));
    pool.nothing_held(FREE_WITHIN).await.expect("everything is given back");
}

#[tokio::test]
async fn only_a_chunk_that_never_ends_fails_and_only_after_its_retries() {
    let mut pool = pool().await;
    let burst = Burst::of("endless_at", "default", "endless", 100).expect("a burst").scalar(7);
    let burst = burst
        .with("chunkTimeoutSeconds", json!(1))
        .with(
            "retryPolicy",
            json!({"maxRetries": 1, "initialBackoffSeconds": 0, "maxBackoffSeconds": 0}),
        )
        .with("maxFailedChunks", json!(1));
    burst.apply(&pool.control_plane).await.expect("applied");
    let job = pool.completed("default", "endless", WITHIN).await.expect("it completes");
    assert_eq!(
        (number(&job, "/status/chunks/succeeded"), number(&job, "/status/chunks/failed")),
        (99, 1)
    );
    assert!(number(&job, "/status/chunks/retried") >= 1, "{}", job.data["status"]["chunks"]);
    let failure = &job.data["status"]["failures"][0];
    assert_eq!((&failure["index"], &failure["attempts"]), (&json!(7), &json!(2)));
    println!("{failure}");
    pool.nothing_held(FREE_WITHIN).await.expect("everything is given back");
}
