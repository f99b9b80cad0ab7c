//! Writes of operator and agents to the API server, idle and for a burst.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use kube::api::DynamicObject;
use sahasra_e2e::audit::{Tally, Write};
use sahasra_e2e::bursts::Burst;
use sahasra_e2e::{NAMESPACE, Pool, eventually};
use serde_json::Value;

use super::{FREE_WITHIN, WITHIN, pool};

/// Writes of the operator and the agents, without heartbeats.
async fn writes(pool: &Pool) -> Vec<Write> {
    let ours = format!("system:serviceaccount:{NAMESPACE}:");
    let wanted = |write: &Write| write.is_stored() && !write.is_heartbeat() && write.user.starts_with(&ours);
    pool.control_plane.audited_writes(wanted).await.expect("the audit log is read")
}

/// Waits until every agent has written `count` more heartbeats.
async fn observe_heartbeats(pool: &Pool, count: usize) {
    let heartbeats = async || {
        let written = pool
            .control_plane
            .audit()
            .expect("an audit log")
            .writes(|write| write.is_stored() && write.is_heartbeat());
        let written = written.expect("the audit log is read");
        let of = |index: usize| written.iter().filter(|write| write.name.contains(&format!("node-{index}"))).count();
        (0..pool.agents.len()).map(of).min().unwrap_or(0)
    };
    let before = heartbeats().await;
    let seen = eventually(Duration::from_secs(60), async || {
        (heartbeats().await >= before + count).then_some(())
    });
    seen.await.expect("the agents' hearts beat");
}

/// Number of heartbeats in a period that includes several writes of a worker's load.
const SETTLING: usize = 7;

/// Checks that nothing but heartbeats is written for this period.
async fn is_quiet(pool: &Pool) {
    let before = writes(pool).await.len();
    observe_heartbeats(pool, SETTLING).await;
    let idle = writes(pool).await;
    assert!(idle.len() == before, "written while idle:\n{}", Tally::of(&idle[before..]));
}

#[tokio::test]
async fn an_idle_system_writes_only_heartbeats_and_a_burst_stays_within_its_budget() {
    /// Default of the agents' `--status-update-interval`.
    const STATUS_UPDATE_INTERVAL: Duration = Duration::from_secs(5);
    let mut pool = pool().await;
    observe_heartbeats(&pool, SETTLING).await;
    is_quiet(&pool).await;

    for (name, steps) in [("quick", 10), ("slow", 60_000)] {
        let (before, began) = (writes(&pool).await.len(), Instant::now());
        let burst = Burst::of_steps("default", name, 1000, steps).expect("a burst");
        burst.apply(&pool.control_plane).await.expect("applied");
        let job = pool.completed("default", name, WITHIN).await.expect("it completes");
        pool.every_index_counted_once(&job, 1000, steps).await.expect("exact accounting");
        pool.nothing_held(FREE_WITHIN).await.expect("everything is given back");
        observe_heartbeats(&pool, SETTLING).await;
        let written = writes(&pool).await.split_off(before);
        let observed = began.elapsed();
        let seconds = seconds_between(&job, "/metadata/creationTimestamp", "/status/completionTime");
        let allowed = 20.0 + seconds / 5.0;
        let (operator, mut agents): (Vec<_>, Vec<_>) = written.into_iter().partition(|write| write.is_by(NAMESPACE, "sahasra-operator"));
        println!(
            "burst {name}: {} writes in {seconds} s, {allowed} allowed\n{}",
            operator.len(),
            Tally::of(&operator)
        );
        assert!(operator.len() as f64 <= allowed, "{seconds} s:\n{}", Tally::of(&operator));
        let updates = observed.as_secs_f64() / STATUS_UPDATE_INTERVAL.as_secs_f64() + 1.0;
        for agent in 0..pool.agents.len() {
            let of_agent: Vec<_> = agents
                .extract_if(.., |write| write.name.contains(&format!("node-{agent}")))
                .collect();
            assert!(of_agent.len() as f64 <= updates, "{observed:?}:\n{}", Tally::of(&of_agent));
        }
        assert!(
            agents.is_empty(),
            "neither by the operator nor by an agent about itself:\n{}",
            Tally::of(&agents)
        );
        is_quiet(&pool).await;
    }
    every_write_names_its_program(&pool).await;
}

/// Checks that operator and agents set a user agent of their own, by which audit logs and metrics of the API server distinguish them.
async fn every_write_names_its_program(pool: &Pool) {
    for program in ["sahasra-operator", "sahasra-worker"] {
        let wanted = |write: &Write| write.is_by(NAMESPACE, program);
        let written = pool.control_plane.audited_writes(wanted).await.expect("the audit log is read");
        let agents: BTreeSet<&str> = written.iter().map(|write| write.user_agent.as_str()).collect();
        let expected = format!("{program}/{}", env!("CARGO_PKG_VERSION"));
        assert_eq!(agents, BTreeSet::from([expected.as_str()]));
    }
}

/// Whole seconds between two timestamps of an object.
fn seconds_between(job: &DynamicObject, from: &str, to: &str) -> f64 {
    let object = serde_json::to_value(job).expect("an object");
    let time = |pointer: &str| {
        let text = object.pointer(pointer).and_then(Value::as_str).expect(pointer);
        text.parse::<k8s_openapi::jiff::Timestamp>().expect("a time").as_second()
    };
    (time(to) - time(from)) as f64
}
