//! Measures dispatch alone: no-op chunks through one agent over loopback, as JSON lines.
//!
//! A no-op chunk consists of one parameter, one launch of an empty kernel in an executor, and a result of 4 bytes that is returned and
//! counted. `load --agent http://127.0.0.1:8471` uses a running agent; without the option one is started beside this program.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::Parser;

#[path = "../tests/api/coordinator.rs"]
#[allow(dead_code, clippy::unwrap_used, reason = "shared with tests")]
mod coordinator;
#[path = "../tests/api/programs.rs"]
#[allow(dead_code, clippy::unwrap_used, reason = "shared with tests")]
mod programs;

use coordinator::{Collected, Coordinator, range};

/// Runs no-op chunks through an agent and prints how many it does a second.
#[derive(Parser)]
struct Arguments {
    /// URL of an agent [default: one is started].
    #[arg(long)]
    agent_url: Option<String>,
    /// Chunks of one run.
    #[arg(long, default_value_t = 100_000)]
    chunks: u64,
    #[arg(long, default_value_t = 1_000)]
    slices: u32,
    /// Number of measured runs, after one that warms up.
    #[arg(long, default_value_t = 5)]
    measured_runs: u32,
    /// Maximum number of outstanding chunks [default: the limit of the agent].
    #[arg(long)]
    max_outstanding: Option<u64>,
}

/// An agent that this program has started; killed on drop.
struct Own(Child);

impl Drop for Own {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start() -> anyhow::Result<(Own, String)> {
    let folder = std::env::current_exe()?;
    let program = folder.ancestors().nth(2).context("no folder")?.join("sahasra-worker");
    let mut child = Command::new(&program)
        .args(["agent", "--no-kubernetes", "--node-name", "load", "--listen", "127.0.0.1:0"])
        .args(["--no-cuda", "--cpu-device-memory", "4Gi"])
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let stderr = child.stderr.take().context("no stderr")?;
    let own = Own(child);
    let mut lines = BufReader::new(stderr).lines();
    for line in lines.by_ref() {
        let line = line?;
        if let Some(rest) = line.split("serving address=").nth(1) {
            let url = format!("http://{}", rest.split(' ').next().unwrap_or_default());
            std::thread::spawn(move || lines.for_each(drop));
            return Ok((own, url));
        }
    }
    anyhow::bail!("the agent did not serve")
}

/// Runs all chunks once. Returns the seconds from the first submission to the last result.
async fn run(coordinator: &Coordinator, arguments: &Arguments, term: u64) -> anyhow::Result<f64> {
    let coordinator = coordinator.of_term(term);
    coordinator.acquire(arguments.slices, Duration::from_secs(600)).await;
    let mut stream = coordinator.stream(programs::zeros(arguments.chunks, 4)).await;
    let limit = stream.opened().await.max_outstanding_chunks;
    let limit = arguments.max_outstanding.map_or(limit, |most| most.min(limit));
    let mut collected = Collected::default();
    let began = Instant::now();
    let (mut submitted, mut covered) = (0, 0);
    while collected.answered() < arguments.chunks {
        let room = limit - (submitted - collected.answered());
        let next = room.min(arguments.chunks - submitted);
        // In portions, so that the agent has work while further chunks are submitted.
        if next > 0 && (next >= limit / 4 || submitted + next == arguments.chunks) {
            stream.submit(vec![range(submitted, next, 1)]).await;
            submitted += next;
        }
        let frame = stream.next().await.context("the stream ended")?;
        collected.add(frame);
        if collected.sequence >= covered + 16 {
            covered = collected.sequence;
            stream.acknowledge(covered).await;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    anyhow::ensure!(collected.failures.is_empty(), "chunks failed: {:?}", collected.causes());
    anyhow::ensure!(
        collected.results.values().all(|(_, outputs)| outputs == &[0; 4]),
        "a result is wrong"
    );
    coordinator.release().await;
    drop(stream);
    coordinator.until_free().await;
    Ok(seconds)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let (_own, url) = match &arguments.agent_url {
        Some(url) => (None, url.clone()),
        None => {
            let (own, url) = start()?;
            (Some(own), url)
        }
    };
    let coordinator = Coordinator::new(&url, &format!("load-{}", std::process::id())).await;
    for place in 0..=arguments.measured_runs {
        let seconds = run(&coordinator, &arguments, u64::from(place) + 1).await?;
        if place > 0 {
            println!(
                "{}",
                serde_json::json!({
                    "name": "noop_chunks_per_second",
                    "value": arguments.chunks as f64 / seconds,
                    "chunks": arguments.chunks,
                    "slices": arguments.slices,
                })
            );
        }
    }
    Ok(())
}
