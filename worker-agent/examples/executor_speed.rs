//! Measures the executor pool alone: submits chunks of an empty kernel (one thread, three formulas, an output of 4 bytes) as one range, and
//! waits until the last result is back in this process. Prints one JSON object per line: `{"name","value","unit"}`.
//!
//!     cargo build --release --workspace --bins --example executor_speed
//!     target/release/examples/executor_speed [CHUNKS] [SLICES]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use sahasra_ranges::AttemptRange;
use sahasra_wire::burst::{Argument, Program, argument::Kind};
use sahasra_worker::args::CpuMode;
use sahasra_worker::burst_executors::{Event, ExecutorPool, OutstandingChunks, PoolConfig, ProgramSpec};
use sha2::{Digest, Sha256};

const PTX: &str = include_str!("../../crates/executor/tests/kernels.ptx");

fn program(chunks: u64) -> anyhow::Result<Arc<ProgramSpec>> {
    let argument = |kind| Argument { kind: Some(kind) };
    let parameter = |name: &str| argument(Kind::Parameter(name.to_owned()));
    Ok(ProgramSpec::new(Program {
        ptx: PTX.into(),
        digest: Sha256::digest(PTX).to_vec().into(),
        entry: "nothing".to_owned(),
        grid: vec![1, 1, 1],
        block: vec![1, 1, 1],
        arguments: vec![
            argument(Kind::OutputBytes(4)),
            parameter("learningRate"),
            parameter("batchSize"),
            parameter("dropout"),
        ],
        chunks_json: format!(
            r#"{{"count": {chunks}, "parameters": {{
                "learningRate": {{"type": "f32", "cel": "0.0001 * (1.0 + double(index % 100) * 0.01)"}},
                "batchSize": {{"type": "u32", "cel": "32 * (1 + index / 100)"}},
                "dropout": {{"type": "f32", "cel": "0.1 + double(index % 10) * 0.05"}}}}}}"#
        )
        .into(),
        slice_bytes: 1 << 20,
        chunk_timeout_milliseconds: 10_000,
        ..Program::default()
    })?)
}

fn resident_kibibytes(process: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

fn tell(name: &str, value: f64, unit: &str) {
    println!(r#"{{"name":"{name}","value":{value:.3},"unit":"{unit}"}}"#);
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let chunks: u64 = arguments.next().map_or(Ok(100_000), |text| text.parse())?;
    let slices: u32 = arguments.next().map_or(Ok(1000), |text| text.parse())?;
    let own: PathBuf = std::env::current_exe()?;
    let program_file = own
        .parent()
        .and_then(|examples| examples.parent())
        .context("no folder above the examples'")?
        .join("sahasra-worker");
    let mut config = PoolConfig {
        program: program_file,
        ..PoolConfig::default()
    };
    config.devices.cpu_backend = CpuMode::Always;
    config.devices.cpu_device_memory = Some(1 << 30);
    config.devices.no_cuda = true;
    let pool = ExecutorPool::start(config).await?;
    let device = pool.devices()[0].name.clone();

    let began = Instant::now();
    let outstanding = Arc::new(OutstandingChunks::new(chunks));
    let (run, mut events) = pool.open(&device, "bench", program(chunks)?, &outstanding)?;
    run.set_concurrency(slices);
    for round in 0..4 {
        let started = if round == 0 { began } else { Instant::now() };
        let count = if round == 0 { 1 } else { chunks };
        let range = AttemptRange {
            first: 0,
            count,
            attempt: 1,
        };
        outstanding.submit(&[(0, range)])?;
        run.start(vec![range])?;
        let (mut done, mut batches) = (0, 0u64);
        while done < count {
            match events.next().await.context("the pool ended")? {
                Event::Succeeded { range, outputs } => {
                    ensure!(outputs.len() as u64 == 4 * range.count, "outputs of another size");
                    outstanding.remove(range);
                    done += range.count;
                    batches += 1;
                }
                Event::Settled { .. } => {}
                other => anyhow::bail!("{other:?}"),
            }
        }
        let took: Duration = started.elapsed();
        if round == 0 {
            tell("executor_first_chunk", took.as_secs_f64() * 1e3, "ms");
        } else {
            tell("executor_noop_chunks", count as f64 / took.as_secs_f64(), "chunks/s");
            tell("executor_chunks_per_event", count as f64 / batches as f64, "chunks");
        }
    }
    for process in pool.processes(&device) {
        if let Some(resident) = resident_kibibytes(&process.to_string()) {
            tell("executor_resident", resident as f64 / 1024.0, "MiB");
        }
    }
    if let Some(resident) = resident_kibibytes("self") {
        tell("pool_resident", resident as f64 / 1024.0, "MiB");
    }
    Ok(())
}
