//! Measures bursts of no-op chunks on a real control plane, with operator, two agents, API server and etcd on this machine, and prints JSON
//! lines. etcd waits for the disk at every write. `SAHASRA_E2E_BIN_DIR` must name optimised binaries.
//!
//! Each run is timed from the client's request until the client has received and decoded every result: `results`. Parts of this time are
//! `request` (until a watch shows `Complete`) and `accepted` (the same, from the API server's answer).
//!
//! A no-op chunk is a parameter evaluated at the agent, one launch of an empty kernel in an executor, and a result of 4 bytes that is kept
//! and counted.

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, PostParams, WatchEvent, WatchParams};
use kube::core::GroupVersionKind;
use sahasra_e2e::bursts::{Burst, number};
use sahasra_e2e::{Options, Pool, PoolOptions, Server, true_condition};
use serde_json::json;

/// Number of measured runs of each burst, after one run that starts the executors.
const RUNS: u32 = 7;
/// Timeout of a burst.
const WITHIN: Duration = Duration::from_secs(120);

type Failure = Box<dyn Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let agent = ["--no-cuda", "--cpu-device-memory", "4Gi"];
    let durable = Options::default().durable();
    let options = PoolOptions::default().agents(2).agent_arguments(agent).control_plane(durable);
    let mut pool = Pool::start(options).await?;
    println!("{}", json!({"name": "fsync", "seconds": fsyncs(pool.control_plane.directory())?}));
    resident(&pool, "start");
    for (name, chunks, runs) in [("noop_1000", 1_000, RUNS), ("noop_100k", 100_000, 3), ("index_100k", 100_000, 3)] {
        let mut seconds: [Vec<f64>; 3] = Default::default();
        for run in 0..=runs {
            let times = burst(&pool, &format!("{}-{run}", name.replace('_', "-")), chunks).await?;
            pool.nothing_held(WITHIN).await?;
            if run > 0 {
                for (all, time) in seconds.iter_mut().zip(times) {
                    all.push(time.as_secs_f64());
                }
            }
        }
        let [accepted, request, results] = seconds;
        println!(
            "{}",
            json!({"name": name, "chunks": chunks, "accepted": accepted, "request": request, "results": results})
        );
    }
    resident(&pool, "bursts");
    Ok(())
}

/// Seconds that a synchronised write of 4 KiB takes on etcd's disk, for which each write of an object waits.
fn fsyncs(folder: &Path) -> Result<Vec<f64>, Failure> {
    let path = folder.join("fsync");
    let mut file = std::fs::File::create(&path)?;
    let mut seconds = Vec::new();
    for _ in 0..50 {
        let began = Instant::now();
        file.write_all(&[1; 4096])?;
        file.sync_data()?;
        seconds.push(began.elapsed().as_secs_f64());
    }
    std::fs::remove_file(path)?;
    Ok(seconds)
}

/// Prints the memory of the operator and of each agent, without executors.
fn resident(pool: &Pool, after: &str) {
    let mib = |server: &Server| server.process.resident_kib().unwrap_or(0) as f64 / 1024.0;
    let agents: Vec<f64> = pool.agents.iter().map(mib).collect();
    println!(
        "{}",
        json!({"name": "resident", "after": after, "operator": mib(&pool.operator), "agents": agents})
    );
}

/// Runs one burst. Returns the times from the API server's answer until a watch shows `Complete`, from the request until then, and from the
/// request until the results are received.
async fn burst(pool: &Pool, name: &str, chunks: u64) -> Result<[Duration; 3], Failure> {
    // The outputs of these chunks are their indices, so their sum shows that each chunk ran.
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
    let client = pool.control_plane.client().await?;
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let jobs: Api<DynamicObject> = Api::namespaced_with(client, "default", &resource);
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
    let (accepted, request) = (accepted.elapsed(), requested.elapsed());
    let results = config_maps.get(&format!("{name}-results")).await?;
    let results = results.binary_data.and_then(|mut data| data.remove("results"));
    let results = results.ok_or("the ConfigMap has no results")?.0;
    let values: Vec<[u8; 4]> = results.chunks_exact(4).filter_map(|value| value.try_into().ok()).collect();
    let sum_here: f64 = match indices {
        true => values.iter().map(|value| f64::from(u32::from_le_bytes(*value))).sum(),
        false => values.iter().map(|value| f64::from(f32::from_le_bytes(*value))).sum(),
    };
    let times = [accepted, request, requested.elapsed()];
    if values.len() as u64 != chunks {
        return Err(format!("{} of {chunks} results of {name} came", values.len()).into());
    }
    let counted = number(&job, "/status/chunks/succeeded");
    if u64::try_from(counted) != Ok(chunks) {
        return Err(format!("{name} counted {counted} of {chunks} chunks").into());
    }
    let sum = job.data.pointer("/status/aggregate/values/0").and_then(serde_json::Value::as_f64);
    let expected = if indices { (chunks * (chunks - 1) / 2) as f64 } else { 0.0 };
    if sum != Some(expected) || sum_here != expected {
        return Err(format!("the results of {name} add up to {sum:?} and here to {sum_here}, not to {expected}").into());
    }
    Ok(times)
}
