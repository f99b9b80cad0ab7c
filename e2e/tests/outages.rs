//! Outages of the API server in the middle of a burst.
//!
//! These tests are separate from the other faults: an API server that has just started rejects requests whose roles its authorizer has not
//! read yet, so tests with such an outage cannot check that no request is ever forbidden.

use std::time::Duration;

use sahasra_e2e::bursts::Burst;
use sahasra_e2e::{PoolOptions, SharedPool, Turn, eventually};
use serde_json::json;

/// Timeout for a machine under load.
const WITHIN: Duration = Duration::from_secs(240);
/// Timeout for the release of slices: immediate, or at the expiry of their lease.
const FREE_WITHIN: Duration = Duration::from_secs(60);
/// Number of chunks of each burst.
const CHUNKS: u64 = 1000;
/// Steps of a chunk: some tens of milliseconds on one core. The burst must outlast the shutdown of an API server, which takes seconds on a
/// machine under load.
const STEPS: u32 = 300_000;
/// Number of chunks after which a burst counts as in the middle.
const SOME: u64 = 100;

static POOL: SharedPool = SharedPool::new(|| {
    let agent = ["--no-cuda", "--cpu-device-memory", "4Gi", "--heartbeat-interval", "1s"];
    // Time after which an operator that cannot renew its leadership gives it up: longer than the outages in these tests.
    PoolOptions::default()
        .agents(2)
        .agent_arguments(agent)
        .operator_environment("SAHASRA_LEADER_ELECT_LEASE_DURATION", "2m")
});

async fn pool() -> Turn {
    POOL.borrow().await.expect("Sahasra starts")
}

/// Checks that the burst completes with every index counted once, and that no slice is leased.
async fn completes_exactly(pool: &mut Turn, name: &str) {
    let job = pool.completed("default", name, WITHIN).await.expect("it completes");
    pool.every_index_counted_once(&job, CHUNKS, STEPS).await.expect("exact accounting");
    pool.nothing_held(FREE_WITHIN).await.expect("everything is given back");
}

#[tokio::test]
async fn agents_free_everything_at_expiry_with_operator_and_api_server_stopped() {
    let mut pool = pool().await;
    let burst = Burst::of_steps("default", "alone", CHUNKS, STEPS).expect("a burst");
    let burst = burst.with("lease", json!({"ttlSeconds": 5})).with("chunkTimeoutSeconds", json!(5));
    pool.in_the_middle_of(&burst, SOME, WITHIN).await.expect("chunks are done");
    pool.operator.process.kill().await.expect("killed");
    pool.control_plane.stop_api_server().await.expect("stopped");
    let free = eventually(FREE_WITHIN, async || {
        for agent in &pool.agents {
            let active = agent.metric("sahasra_agent_slices_allocated").await.ok()??;
            let bytes = agent.metric("sahasra_agent_vram_allocated_bytes").await.ok()??;
            if active != 0.0 || bytes != 0.0 {
                return None;
            }
        }
        Some(())
    });
    free.await.expect("agents free everything by themselves");
    let mut expired = 0.0;
    for agent in &pool.agents {
        expired += agent
            .metric("sahasra_agent_grants_expired_total")
            .await
            .expect("an answer")
            .unwrap_or(0.0);
    }
    assert!(expired >= 1.0, "nothing expired");
    pool.control_plane.start_api_server().await.expect("it starts again");
    pool.operator.process.start().await.expect("it starts again");
    completes_exactly(&mut pool, "alone").await;
}

#[tokio::test]
async fn a_burst_continues_during_an_outage_of_the_api_server() {
    let mut pool = pool().await;
    let burst = Burst::of_steps("default", "outage", CHUNKS, STEPS).expect("a burst");
    pool.in_the_middle_of(&burst, SOME, WITHIN).await.expect("chunks are done");
    pool.control_plane.stop_api_server().await.expect("stopped");
    let before = pool
        .operator
        .metric("chunks_done")
        .await
        .expect("the operator lives")
        .unwrap_or(0.0);
    pool.operator_metric_grows("chunks_done", before, SOME as f64, WITHIN)
        .await
        .expect("chunks go on");
    pool.control_plane.start_api_server().await.expect("it starts again");
    completes_exactly(&mut pool, "outage").await;
}
