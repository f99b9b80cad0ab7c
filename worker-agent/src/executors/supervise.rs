//! The supervisor of one executor process.

use std::collections::HashMap;
use std::sync::Arc;

use sahasra_wire::burst::FailureCode;
use tokio::sync::mpsc;

use super::device::{DeviceDescription, DeviceKind};
use super::outstanding::WorkRange;
use super::run::Shared;
use super::{Pool, PoolConfig};

/// What a supervisor is told.
#[derive(Debug)]
pub(super) enum Command {
    /// A new run.
    Open(Arc<Shared>),
    /// Chunks for a run.
    Submit(u64, Vec<WorkRange>),
    /// At most so many chunks of a run at a time.
    SetConcurrency(u64, u32),
    /// Give back what has not started.
    Withdraw(u64),
    /// Events were taken: go on.
    Resume(u64),
    /// Nobody takes the run's events any more.
    Close(u64),
    /// End the process.
    Kill(u64, FailureCode),
    /// End the process and this supervisor.
    ShutDown,
}

pub(super) async fn discover(config: &PoolConfig) -> Vec<DeviceDescription> {
    let bytes = config.devices.cpu_memory_bytes.unwrap_or(8 << 30);
    (0..config.devices.cpu_devices)
        .map(|ordinal| DeviceDescription {
            name: format!("cpu-{ordinal}"),
            kind: DeviceKind::Cpu,
            ordinal,
            model: "CPU".to_owned(),
            uuid: String::new(),
            compute_capability: None,
            total_bytes: bytes,
            allocatable_bytes: bytes,
            context_bytes: 0,
            lanes: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32),
        })
        .collect()
}

/// Starts a supervisor. Executor processes are not made yet: every chunk fails with `ExecutorLost`.
pub(super) fn start(_pool: Arc<Pool>, _place: usize, _namespace: String) -> mpsc::UnboundedSender<Command> {
    let (sender, mut commands) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut runs: HashMap<u64, Arc<Shared>> = HashMap::new();
        while let Some(command) = commands.recv().await {
            match command {
                Command::Open(shared) => {
                    runs.insert(shared.id, shared);
                }
                Command::Submit(id, _) => {
                    if let Some(run) = runs.get(&id) {
                        run.fail_all(FailureCode::ExecutorLost, "there is no executor");
                    }
                }
                Command::SetConcurrency(id, concurrency) => {
                    if let Some(run) = runs.get(&id) {
                        run.settled(concurrency);
                    }
                }
                Command::Close(id) => drop(runs.remove(&id)),
                Command::Withdraw(_) | Command::Resume(_) | Command::Kill(..) => {}
                Command::ShutDown => break,
            }
        }
        for run in runs.values() {
            run.return_all();
            run.end();
        }
    });
    sender
}
