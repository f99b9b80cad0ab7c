//! A pool whose executors are played by the test, on a paused clock.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use sahasra_wire::burst::{ChunkRange, Program, ResultRun};
use sha2::{Digest, Sha256};
use tokio::sync::{Mutex, mpsc};

use crate::executor::board::{Activity, Board};
use crate::executor::protocol::{Ended, Pause, Ready, Returned, from_executor, to_executor};
use crate::executors::launch::{Launched, Launcher, TaskEnd};
use crate::executors::{DeviceConfig, DeviceDescription, DeviceKind, Event, Events, ExecutorPool, PoolConfig, ProgramSpec, Run, WorkRange};

pub const DEVICE: &str = "device-0";
/// How long an executor has its device before it makes room.
pub const TURN: Duration = Duration::from_secs(10);
/// No time in which a supervisor that has something to say is silent, and less than a turn.
const QUIET: Duration = Duration::from_secs(1);
const NOW: u64 = 1_000_000_000;

#[derive(Debug)]
struct Stage {
    executors: AtomicU32,
    launched: mpsc::UnboundedSender<Played>,
}

impl Launcher for Stage {
    fn launch<'a>(&'a self, _device: &'a DeviceDescription, namespace: &'a str) -> BoxFuture<'a, io::Result<Launched>> {
        Box::pin(async move {
            let number = self.executors.fetch_add(1, Ordering::Relaxed) + 1;
            let board = Arc::new(Board::create()?.0);
            let (launched, end) = Launched::task(number, Arc::clone(&board));
            let namespace = namespace.to_owned();
            // A test that has ended needs none.
            let _ = self.launched.send(Played { namespace, board, end });
            Ok(launched)
        })
    }

    fn monotonic_nanoseconds(&self) -> u64 {
        NOW
    }
}

/// An executor. It ends when it is dropped.
#[derive(Debug)]
pub struct Played {
    pub namespace: String,
    pub board: Arc<Board>,
    pub end: TaskEnd,
}

pub struct Theatre {
    pub pool: ExecutorPool,
    launched: Mutex<mpsc::UnboundedReceiver<Played>>,
}

pub fn theatre(kind: DeviceKind, executors: u32) -> Theatre {
    let (sender, launched) = mpsc::unbounded_channel();
    let config = PoolConfig {
        turn: TURN,
        idle_timeout: Duration::from_secs(3600),
        devices: DeviceConfig {
            executors_per_device: executors,
            ..DeviceConfig::default()
        },
        ..PoolConfig::default()
    };
    let device = DeviceDescription {
        name: DEVICE.to_owned(),
        kind,
        ordinal: 0,
        model: "test".to_owned(),
        uuid: String::new(),
        compute_capability: None,
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

impl Theatre {
    /// A run with concurrency 2 and these chunks.
    pub fn run(&self, namespace: &str, ranges: &[WorkRange]) -> (Run, Events) {
        let program = Program {
            digest: Sha256::digest(b"").to_vec().into(),
            grid: vec![1; 3],
            block: vec![1; 3],
            // Nothing takes too long here.
            chunk_timeout_milliseconds: 86_400_000,
            ..Program::default()
        };
        let (run, events) = self.pool.open(DEVICE, namespace, ProgramSpec::new(program).unwrap()).unwrap();
        run.set_concurrency(2);
        run.submit(ranges.to_vec()).unwrap();
        (run, events)
    }

    /// The next executor that was launched; its device is open.
    pub async fn executor(&self) -> Played {
        let played = self.launched.lock().await.recv().await.unwrap();
        played.say(from_executor::Kind::Ready(Ready { lanes: 8 }));
        played
    }

    /// Waits until so many namespaces wait for an executor.
    pub async fn until_waiting(&self, namespaces: u32) {
        while self.pool.load(DEVICE).unwrap().waiting != namespaces {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Whether an executor is launched within a while.
    pub async fn launches(&self) -> bool {
        tokio::time::timeout(QUIET, async { self.launched.lock().await.recv().await })
            .await
            .is_ok()
    }
}

impl Played {
    pub fn say(&self, kind: from_executor::Kind) {
        // A supervisor that has killed it may have gone.
        let _ = self.end.outgoing.send(kind);
    }

    /// What it is told next.
    pub async fn hear(&mut self) -> to_executor::Kind {
        self.end.incoming.recv().await.unwrap()
    }

    /// The next chunks that it is handed, of which run, and whether they are to run alone.
    pub async fn handed(&mut self) -> (u64, Vec<WorkRange>, bool) {
        loop {
            if let to_executor::Kind::Submit(submit) = self.hear().await {
                let ranges = submit.ranges.into_iter().map(|range| WorkRange {
                    first: range.first,
                    count: range.count,
                    attempt: range.attempt,
                });
                return (submit.run, ranges.collect(), submit.alone);
            }
        }
    }

    /// Waits until it is told to give back what has not started of a run, to make room.
    pub async fn recalled(&mut self, run: u64) {
        while self.hear().await != to_executor::Kind::Pause(Pause { run, paused: true }) {}
        assert_eq!(self.hear().await, to_executor::Kind::Withdraw(run));
    }

    /// What it is told within a while.
    pub async fn told(&mut self) -> Vec<to_executor::Kind> {
        let mut told = Vec::new();
        let all = async {
            while let Some(kind) = self.end.incoming.recv().await {
                told.push(kind);
            }
        };
        // It ends by time, or with the supervisor's end of it.
        let _ = tokio::time::timeout(QUIET, all).await;
        told
    }

    pub fn begin(&self, lane: usize, run: u64, index: u64) {
        self.board.begin_at(lane, Activity::Running { run, index }, NOW);
    }

    /// A chunk in its first attempt ended well.
    pub fn succeed(&self, lane: usize, run: u64, index: u64) {
        self.board.end(lane);
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

    pub fn give_back(&self, run: u64, ranges: &[WorkRange]) {
        let ranges = ranges.iter().map(|range| ChunkRange {
            device: String::new(),
            first: range.first,
            count: range.count,
            attempt: range.attempt,
        });
        let ranges = ranges.collect();
        self.say(from_executor::Kind::Returned(Returned { run, ranges }));
    }

    /// Whether it is killed within a while.
    pub async fn is_killed(&self) -> bool {
        tokio::time::timeout(QUIET, self.end.killed.cancelled()).await.is_ok()
    }
}

pub fn range(first: u64, count: u64) -> WorkRange {
    WorkRange { first, count, attempt: 1 }
}

/// Indices of some ranges; each may be there once.
pub fn indices(ranges: &[WorkRange]) -> BTreeSet<u64> {
    let mut indices = BTreeSet::new();
    for range in ranges {
        for index in range.first..range.first + range.count {
            assert!(indices.insert(index), "{index} is there twice");
        }
    }
    indices
}

/// What has come back unstarted so far.
pub fn returned(events: &mut Events) -> BTreeSet<u64> {
    let mut ranges = Vec::new();
    while let Some(event) = events.try_next() {
        if let Event::Returned { range } = event {
            ranges.push(range);
        }
    }
    indices(&ranges)
}

/// Lets everything happen that happens without time.
pub async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}
