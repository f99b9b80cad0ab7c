//! A pool whose executors are simulated by the test, on a paused clock.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use sahasra_executor_protocol::burst::messages::{Ended, Pause, Ready, Returned, from_executor, to_executor};
use sahasra_executor_protocol::burst::status_page::{Activity, StatusPage};
use sahasra_names::Backend;
use sahasra_ranges::AttemptRange;
use sahasra_wire::burst::{ChunkRange, Program, ResultRun};
use sha2::{Digest, Sha256};
use tokio::sync::{Mutex, mpsc};

use crate::args::DeviceArguments;
use crate::burst_executors::launch::Launcher;
use crate::burst_executors::{Event, Events, ExecutorPool, OutstandingChunks, PoolConfig, Process, ProgramSpec, Run, SubmitError, TaskEnd};
use crate::devices::DeviceDescription;

pub(crate) const DEVICE: &str = "device-0";
/// Length of a turn of an executor.
pub(crate) const TURN: Duration = Duration::from_secs(10);
/// Time after which a supervisor that sends nothing has nothing to send. Shorter than a turn.
const QUIET: Duration = Duration::from_secs(1);
const NOW: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Stage {
    executors: AtomicU32,
    launched: mpsc::UnboundedSender<Played>,
}

impl Launcher for Stage {
    fn launch<'a>(&'a self, _device: &'a DeviceDescription, namespace: &'a str) -> BoxFuture<'a, io::Result<Process>> {
        Box::pin(async move {
            let number = self.executors.fetch_add(1, Ordering::Relaxed) + 1;
            let status_page = Arc::new(StatusPage::create()?.0);
            let (process, end) = Process::task(number, Arc::clone(&status_page));
            let namespace = namespace.to_owned();
            // A test that has ended does not receive executors any more.
            let _ = self.launched.send(Played {
                namespace,
                status_page,
                end,
            });
            Ok(process)
        })
    }

    fn monotonic_now(&self) -> Duration {
        NOW
    }
}

/// A simulated executor. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Played {
    pub namespace: String,
    pub status_page: Arc<StatusPage>,
    pub end: TaskEnd,
}

pub(crate) struct Theatre {
    pub pool: Arc<ExecutorPool>,
    launched: Mutex<mpsc::UnboundedReceiver<Played>>,
}

pub(crate) fn theatre(kind: Backend, executors: u32) -> Theatre {
    let (sender, launched) = mpsc::unbounded_channel();
    let config = PoolConfig {
        turn: TURN,
        idle_timeout: Duration::from_secs(3600),
        devices: DeviceArguments {
            max_executors_per_device: executors,
            ..DeviceArguments::default()
        },
        ..PoolConfig::default()
    };
    let device = DeviceDescription {
        name: DEVICE.into(),
        kind,
        ordinal: 0,
        model: "test".to_owned(),
        total_bytes: 1 << 30,
        allocatable_bytes: 1 << 30,
        context_bytes: 0,
        lanes: 8,
    };
    let stage = Stage {
        executors: AtomicU32::new(0),
        launched: sender,
    };
    Theatre {
        pool: ExecutorPool::with(config, vec![device], Arc::new(stage)),
        launched: Mutex::new(launched),
    }
}

impl Run {
    /// Adds chunks to the index and starts them.
    pub(crate) fn submit(&self, ranges: Vec<AttemptRange>) -> Result<(), SubmitError> {
        let chunks: Vec<_> = ranges.iter().map(|range| (self.shared.device, *range)).collect();
        self.shared.chunks.submit(&chunks)?;
        self.start(ranges)
    }
}

impl Theatre {
    /// Opens a run with concurrency 2, and submits these chunks.
    pub(crate) fn run(&self, namespace: &str, ranges: &[AttemptRange]) -> (Run, Events) {
        let program = Program {
            digest: Sha256::digest(b"").to_vec().into(),
            grid: vec![1; 3],
            block: vec![1; 3],
            // No chunk exceeds its timeout here.
            chunk_timeout_milliseconds: 86_400_000,
            ..Program::default()
        };
        let chunks = Arc::new(OutstandingChunks::new(1 << 20));
        let program = ProgramSpec::new(program).unwrap();
        let (run, events) = self.pool.open(DEVICE, namespace, program, &chunks).unwrap();
        run.set_concurrency(2);
        run.submit(ranges.to_vec()).unwrap();
        (run, events)
    }

    /// Waits for the next executor that is started, and reports its device as open.
    pub(crate) async fn executor(&self) -> Played {
        let played = self.launched.lock().await.recv().await.unwrap();
        played.say(from_executor::Kind::Ready(Ready { lanes: 8 }));
        played
    }

    /// Waits until this number of namespaces waits for an executor.
    pub(crate) async fn until_waiting(&self, namespaces: u32) {
        while self.pool.load(DEVICE).unwrap().waiting != namespaces {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Returns whether an executor is started within [`QUIET`].
    pub(crate) async fn launches(&self) -> bool {
        tokio::time::timeout(QUIET, async { self.launched.lock().await.recv().await })
            .await
            .is_ok()
    }
}

impl Played {
    pub(crate) fn say(&self, kind: from_executor::Kind) {
        // A supervisor that has killed the executor may be gone.
        let _ = self.end.outgoing.send(kind);
    }

    /// Waits for the next message to the executor.
    pub(crate) async fn hear(&mut self) -> to_executor::Kind {
        self.end.incoming.recv().await.unwrap()
    }

    /// Waits for the next chunks that are handed over. Returns their run, the chunks, and whether they must run alone.
    pub(crate) async fn handed(&mut self) -> (u64, Vec<AttemptRange>, bool) {
        loop {
            if let to_executor::Kind::Submit(submit) = self.hear().await {
                let ranges = submit.ranges.into_iter().map(|range| AttemptRange::from(&range));
                return (submit.run, ranges.collect(), submit.alone);
            }
        }
    }

    /// Waits until the executor is asked to return the unstarted chunks of a run in order to make room.
    pub(crate) async fn recalled(&mut self, run: u64) {
        while self.hear().await != to_executor::Kind::Pause(Pause { run, paused: true }) {}
        assert_eq!(self.hear().await, to_executor::Kind::Withdraw(run));
    }

    /// Returns the messages that the executor receives within [`QUIET`].
    pub(crate) async fn received(&mut self) -> Vec<to_executor::Kind> {
        let mut received = Vec::new();
        let all = async {
            while let Some(kind) = self.end.incoming.recv().await {
                received.push(kind);
            }
        };
        // Ends by the timeout, or when the supervisor drops its sender.
        let _ = tokio::time::timeout(QUIET, all).await;
        received
    }

    pub(crate) fn begin(&self, lane: usize, run: u64, index: u64) {
        self.status_page.begin_at(lane, Activity::Running { run, index }, NOW);
    }

    /// Reports the success of a chunk's first attempt.
    pub(crate) fn succeed(&self, lane: usize, run: u64, index: u64) {
        self.status_page.end(lane);
        let done = ResultRun {
            first: index,
            count: 1,
            attempt: 1,
            ..ResultRun::default()
        };
        self.say(from_executor::Kind::Ended(Ended {
            run,
            succeeded: vec![done],
            failed: Vec::new(),
        }));
    }

    pub(crate) fn give_back(&self, run: u64, ranges: &[AttemptRange]) {
        let ranges = ranges.iter().map(|range| ChunkRange {
            device: String::new(),
            first: range.first,
            count: range.count,
            attempt: range.attempt,
        });
        let ranges = ranges.collect();
        self.say(from_executor::Kind::Returned(Returned { run, ranges }));
    }

    /// Returns whether the executor is killed within [`QUIET`].
    pub(crate) async fn is_killed(&self) -> bool {
        tokio::time::timeout(QUIET, self.end.killed.cancelled()).await.is_ok()
    }
}

pub(crate) fn range(first: u64, count: u64) -> AttemptRange {
    AttemptRange { first, count, attempt: 1 }
}

/// Returns the indices of ranges, and checks that each occurs once.
pub(crate) fn indices(ranges: &[AttemptRange]) -> BTreeSet<u64> {
    let mut indices = BTreeSet::new();
    for range in ranges {
        for index in range.first..range.first + range.count {
            assert!(indices.insert(index), "{index} is there twice");
        }
    }
    indices
}

/// Returns the indices that have been returned unstarted so far. They may be submitted again.
pub(crate) fn returned(events: &mut Events) -> BTreeSet<u64> {
    let mut ranges = Vec::new();
    while let Some(event) = events.try_next() {
        if let Event::Returned { range } = event {
            assert!(events.shared.chunks.remove(range));
            ranges.push(range);
        }
    }
    indices(&ranges)
}

/// Lets all tasks run that need not wait for time to pass.
pub(crate) async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}
