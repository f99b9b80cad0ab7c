//! Measures bursts of no-op chunks on a real control plane, as JSON lines: operator, two agents, API server and etcd on this
//! machine. `SAHASRA_BIN_DIR` must name optimised binaries.
//!
//! A no-op chunk: a parameter evaluated at the agent, one launch of an empty kernel in an executor, a result of 4 bytes
//! that is kept and counted.

use std::error::Error;
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, PostParams, WatchEvent, WatchParams};
use kube::core::GroupVersionKind;
use sahasra_e2e::bursts::{Burst, number};
use sahasra_e2e::{Pool, PoolOptions, Server, true_condition};
use serde_json::json;

/// Runs of each burst, after one that starts the executors.
const RUNS: u32 = 7;
/// A burst that takes longer does not end.
const WITHIN: Duration = Duration::from_secs(120);

type Failure = Box<dyn Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let agent = ["--no-cuda", "--cpu-memory", "4Gi"];
    let mut pool = Pool::start(PoolOptions::default().agents(2).agent_arguments(agent)).await?;
    resident(&pool, "start");
    for (name, chunks, runs) in [("noop_1000", 1_000, RUNS), ("noop_100k", 100_000, 3), ("index_100k", 100_000, 3)] {
        let mut seconds = Vec::new();
        let mut from_request = Vec::new();
        for run in 0..=runs {
            let (accepted, requested) = burst(&pool, &format!("{}-{run}", name.replace('_', "-")), chunks).await?;
            pool.nothing_held(WITHIN).await?;
            if run > 0 {
                seconds.push(accepted.as_secs_f64());
                from_request.push(requested.as_secs_f64());
            }
        }
        println!(
            "{}",
            json!({"name": name, "chunks": chunks, "seconds": seconds, "from_request": from_request})
        );
    }
    resident(&pool, "bursts");
    Ok(())
}

/// Prints the memory of the operator and of each agent, executors apart.
fn resident(pool: &Pool, after: &str) {
    let mib = |server: &Server| server.process.resident_kib().unwrap_or(0) as f64 / 1024.0;
    let agents: Vec<f64> = pool.agents.iter().map(mib).collect();
    println!(
        "{}",
        json!({"name": "resident", "after": after, "operator": mib(&pool.operator), "agents": agents})
    );
}

/// Runs one burst: time until a watch shows `Complete`, from the API server's answer and from the request.
async fn burst(pool: &Pool, name: &str, chunks: u64) -> Result<(Duration, Duration), Failure> {
    // Chunks that give their index show by their sum that each of them ran.
    let indices = name.starts_with("index");
    let manifest = if indices {
        Burst::of_steps("default", name, chunks, 0)?.manifest()
    } else {
        let rate = json!({"type": "f32", "cel": "0.001 * double(index % 1000)"});
        Burst::of("empty", "default", name, chunks)?
            .with("chunks", json!({"count": chunks, "parameters": {"rate": rate}}))
            .arguments(json!([{"output": {"type": "f32"}}, {"parameter": "rate"}]))
            .manifest()
    };
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("sahasra.dev", "v1alpha1", "BurstJob"));
    let jobs: Api<DynamicObject> = Api::namespaced_with(pool.control_plane.client().await?, "default", &resource);
    let version = jobs
        .list(&kube::api::ListParams::default())
        .await?
        .metadata
        .resource_version
        .unwrap_or_default();
    let parameters = WatchParams::default().fields(&format!("metadata.name={name}"));
    let mut events = jobs.watch(&parameters, &version).await?.boxed();

    let requested = Instant::now();
    jobs.create(&PostParams::default(), &serde_json::from_value(manifest)?).await?;
    let accepted = Instant::now();
    let job = tokio::time::timeout(WITHIN, async {
        while let Some(event) = events.next().await {
            match event? {
                WatchEvent::Added(job) | WatchEvent::Modified(job) => {
                    if true_condition(&job, "Failed").is_some() {
                        return Err(format!("{name} failed: {}", job.data["status"]).into());
                    }
                    if true_condition(&job, "Complete").is_some() {
                        return Ok(job);
                    }
                }
                _ => {}
            }
        }
        Err(Failure::from("the watch ended"))
    })
    .await??;
    let times = (accepted.elapsed(), requested.elapsed());
    let counted = number(&job, "/status/chunks/succeeded");
    if u64::try_from(counted) != Ok(chunks) {
        return Err(format!("{name} counted {counted} of {chunks} chunks").into());
    }
    let sum = job.data.pointer("/status/aggregate/values/0").and_then(serde_json::Value::as_f64);
    let expected = if indices { (chunks * (chunks - 1) / 2) as f64 } else { 0.0 };
    if sum != Some(expected) {
        return Err(format!("the results of {name} add up to {sum:?}, not to {expected}").into());
    }
    Ok(times)
}
