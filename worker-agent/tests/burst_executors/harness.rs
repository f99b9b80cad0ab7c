//! Programs, pools and outcomes for the tests of executors.

#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use sahasra_ranges::AttemptRange;
use sahasra_wire::burst::{Argument, FailureCode, Program};
use sahasra_worker::args::CpuMode;
use sahasra_worker::burst_executors::{self, Event, ExecutorPool, OutstandingChunks, PoolConfig, PoolError, ProgramSpec, SubmitError};
use sha2::{Digest, Sha256};

/// Kernels for the tests.
pub(crate) const KERNELS: &str = include_str!("../../../crates/executor/tests/kernels.ptx");
/// Longer than any step of these tests takes.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Configuration of a pool with one CPU device of two threads.
pub(crate) fn config() -> PoolConfig {
    let mut config = PoolConfig {
        program: env!("CARGO_BIN_EXE_sahasra-worker").into(),
        ..PoolConfig::default()
    };
    config.devices.no_cuda = true;
    config.devices.cpu_backend = CpuMode::Always;
    config.devices.cpu_device_memory = Some(1 << 30);
    config.devices.cpu_device_threads = Some(2);
    config
}

/// A pool whose runs each have an index of chunks of their own.
pub(crate) struct TestPool(Arc<ExecutorPool>);

impl Deref for TestPool {
    type Target = ExecutorPool;

    fn deref(&self) -> &ExecutorPool {
        &self.0
    }
}

impl TestPool {
    pub(crate) fn open(&self, device: &str, namespace: &str, program: Arc<ProgramSpec>) -> Result<(Run, Events), PoolError> {
        let chunks = Arc::new(OutstandingChunks::new(1 << 20));
        let (run, events) = self.0.open(device, namespace, program, &chunks)?;
        let run = Run {
            run,
            device: self.0.place(device).unwrap(),
            chunks: Arc::clone(&chunks),
        };
        Ok((run, Events { events, chunks }))
    }
}

/// A run, with its index of chunks.
pub(crate) struct Run {
    run: burst_executors::Run,
    device: usize,
    chunks: Arc<OutstandingChunks>,
}

impl Deref for Run {
    type Target = burst_executors::Run;

    fn deref(&self) -> &burst_executors::Run {
        &self.run
    }
}

impl Run {
    /// Adds chunks to the index and starts them.
    pub(crate) fn submit(&self, ranges: Vec<AttemptRange>) -> Result<(), SubmitError> {
        let chunks: Vec<_> = ranges.iter().map(|range| (self.device, *range)).collect();
        self.chunks.submit(&chunks)?;
        self.run.start(ranges)
    }
}

/// Events of a run. Chunks whose event was taken may be submitted again.
pub(crate) struct Events {
    events: burst_executors::Events,
    chunks: Arc<OutstandingChunks>,
}

impl Events {
    pub(crate) async fn next(&mut self) -> Option<Event> {
        let event = self.events.next().await;
        event.inspect(|event| self.taken(event))
    }

    pub(crate) fn try_next(&mut self) -> Option<Event> {
        let event = self.events.try_next();
        event.inspect(|event| self.taken(event))
    }

    fn taken(&self, event: &Event) {
        if let Event::Succeeded { range, .. } | Event::Failed { range, .. } | Event::Returned { range } = event {
            assert!(self.chunks.remove(*range));
        }
    }
}

pub(crate) async fn pool() -> TestPool {
    pool_with(config()).await
}

pub(crate) async fn pool_with(config: PoolConfig) -> TestPool {
    static LOGGING: std::sync::Once = std::sync::Once::new();
    LOGGING.call_once(|| drop(sahasra_service::logging::start("info", sahasra_service::logging::LogFormat::Text)));
    TestPool(ExecutorPool::start(config).await.unwrap())
}

/// Builders for the arguments of kernels.
pub(crate) mod argument {
    use sahasra_wire::burst::{Argument, Input, argument::Kind};

    fn argument(kind: Kind) -> Argument {
        Argument { kind: Some(kind) }
    }

    pub(crate) fn output(bytes: u64) -> Argument {
        argument(Kind::OutputBytes(bytes))
    }

    pub(crate) fn index(bytes: u32) -> Argument {
        argument(Kind::ChunkIndexBytes(bytes))
    }

    pub(crate) fn parameter(name: &str) -> Argument {
        argument(Kind::Parameter(name.to_owned()))
    }

    pub(crate) fn scalar(bytes: &[u8]) -> Argument {
        argument(Kind::Scalar(bytes.to_vec().into()))
    }

    pub(crate) fn constant(bytes: Vec<u8>) -> Argument {
        argument(Kind::Constant(bytes.into()))
    }

    pub(crate) fn input_per_chunk(bytes: Vec<u8>, bytes_per_chunk: u64) -> Argument {
        argument(Kind::Input(Input {
            bytes: bytes.into(),
            bytes_per_chunk,
        }))
    }
}

/// Builder of a program.
pub(crate) struct Work(Program);

pub(crate) fn kernel(entry: &str, count: u64, arguments: Vec<Argument>) -> Work {
    Work(Program {
        entry: entry.to_owned(),
        grid: vec![1, 1, 1],
        block: vec![1, 1, 1],
        arguments,
        chunks_json: format!(r#"{{"count": {count}}}"#).into(),
        slice_bytes: 64 << 20,
        chunk_timeout_milliseconds: 60_000,
        ..Program::default()
    })
    .ptx(KERNELS)
}

/// Program whose chunks return three times their index plus one.
pub(crate) fn affine(count: u64) -> Arc<ProgramSpec> {
    kernel("affine", count, vec![argument::output(4), argument::index(4)]).spec()
}

/// Program whose chunks return their index, except the chunk `endless`, which never ends.
pub(crate) fn spin(count: u64, endless: u32) -> Work {
    let arguments = vec![argument::output(4), argument::index(4), argument::scalar(&endless.to_le_bytes())];
    kernel("spin", count, arguments)
}

/// Range of chunks in their first attempt.
pub(crate) fn range(first: u64, count: u64) -> AttemptRange {
    AttemptRange { first, count, attempt: 1 }
}

impl Work {
    pub(crate) fn ptx(mut self, ptx: &str) -> Self {
        self.0.ptx = ptx.as_bytes().to_vec().into();
        self.0.digest = Sha256::digest(ptx).to_vec().into();
        self
    }

    pub(crate) fn grid(mut self, grid: [u32; 3]) -> Self {
        self.0.grid = grid.to_vec();
        self
    }

    pub(crate) fn block(mut self, block: [u32; 3]) -> Self {
        self.0.block = block.to_vec();
        self
    }

    pub(crate) fn chunks(mut self, json: &str) -> Self {
        self.0.chunks_json = json.to_owned().into();
        self
    }

    pub(crate) fn slice_bytes(mut self, bytes: u64) -> Self {
        self.0.slice_bytes = bytes;
        self
    }

    pub(crate) fn timeout(mut self, milliseconds: u64) -> Self {
        self.0.chunk_timeout_milliseconds = milliseconds;
        self
    }

    pub(crate) fn program(self) -> Program {
        self.0
    }

    pub(crate) fn spec(&self) -> Arc<ProgramSpec> {
        ProgramSpec::new(self.0.clone()).unwrap()
    }
}

pub(crate) fn u32s(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Outcome of a chunk.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    Succeeded(Vec<u8>),
    Failed(FailureCode, String),
    Returned,
}

/// Records the outcomes of an event. Each index may occur only once.
pub(crate) fn note(outcome: &mut BTreeMap<u64, Outcome>, event: Event) {
    let (range, of): (_, Box<dyn Fn(u64) -> Outcome>) = match event {
        Event::Settled { .. } => return,
        Event::Returned { range } => (range, Box::new(|_| Outcome::Returned)),
        Event::Failed { range, code, message } => (range, Box::new(move |_| Outcome::Failed(code, message.clone()))),
        Event::Succeeded { range, outputs } => {
            let bytes = outputs.len() / range.count as usize;
            (
                range,
                Box::new(move |place| Outcome::Succeeded(outputs[place as usize * bytes..][..bytes].to_vec())),
            )
        }
    };
    for place in 0..range.count {
        let before = outcome.insert(range.first + place, of(place));
        assert_eq!(before, None, "chunk {} came twice", range.first + place);
    }
}

/// Takes events until `chunks` chunks have an outcome.
pub(crate) async fn collect(events: &mut Events, chunks: u64) -> BTreeMap<u64, Outcome> {
    let mut outcome = BTreeMap::new();
    collect_into(&mut outcome, events, chunks).await;
    outcome
}

pub(crate) async fn collect_into(outcome: &mut BTreeMap<u64, Outcome>, events: &mut Events, chunks: u64) {
    let all = async {
        while (outcome.len() as u64) < chunks {
            note(outcome, events.next().await.expect("the pool is there"));
        }
    };
    let done = tokio::time::timeout(TIMEOUT, all).await;
    assert!(done.is_ok(), "{} of {chunks} chunks came back", outcome.len());
}

pub(crate) fn all_succeeded(outcome: &BTreeMap<u64, Outcome>) -> bool {
    outcome.values().all(|outcome| matches!(outcome, Outcome::Succeeded(_)))
}

pub(crate) fn failed_with(outcome: &BTreeMap<u64, Outcome>, code: FailureCode) -> usize {
    let failed = |outcome: &&Outcome| matches!(outcome, Outcome::Failed(seen, _) if *seen == code);
    outcome.values().filter(failed).count()
}

/// Waits until `is_so` returns true.
pub(crate) async fn until(what: &str, is_so: impl Fn() -> bool) {
    let waited = tokio::time::timeout(TIMEOUT, async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    assert!(waited.await.is_ok(), "{what}: not within {TIMEOUT:?}");
}

/// Waits until at least `chunks` chunks are running.
pub(crate) async fn until_active(pool: &ExecutorPool, chunks: u64) {
    until("chunks run", || pool.load("cpu-0").unwrap().active_executions >= chunks).await;
}

/// Waits for the next event.
pub(crate) async fn next(events: &mut Events) -> Option<Event> {
    tokio::time::timeout(TIMEOUT, events.next()).await.expect("something happens")
}

/// Process ids of the executors of the process `parent`.
pub(crate) fn executors_of(parent: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        // After the name in parentheses: the state, then the parent.
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let state = fields.next().unwrap_or_default();
        if fields.next().is_some_and(|number| number == parent.to_string()) && !matches!(state, "Z" | "X") {
            found.push(id);
        }
    }
    found
}

fn signal(id: u32, signal: rustix::process::Signal) {
    let id = rustix::process::Pid::from_raw(id as i32).unwrap();
    rustix::process::kill_process(id, signal).unwrap();
}

pub(crate) fn kill(id: u32) {
    signal(id, rustix::process::Signal::KILL);
}

pub(crate) fn stop(id: u32) {
    signal(id, rustix::process::Signal::STOP);
}
