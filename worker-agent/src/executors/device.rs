//! What the agent knows of its devices.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::executor::board::{Activity, Board};

/// Which engine runs a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// The CPU engine, `sahasra-ptx`.
    Cpu,
    /// A GPU through the CUDA driver.
    Cuda,
}

impl DeviceKind {
    /// Whether a kernel that runs can be ended without its process.
    pub const fn cancels(self) -> bool {
        matches!(self, Self::Cpu)
    }
}

/// A device as it was found when the agent started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceDescription {
    /// Name on this worker: `cpu-0`, `cuda-1`.
    pub name: String,
    /// Engine.
    pub kind: DeviceKind,
    /// Its number among those of its kind: for CUDA the driver's ordinal.
    pub ordinal: u32,
    /// Model as the driver tells it.
    pub model: String,
    /// The driver's UUID; empty for the CPU engine.
    pub uuid: String,
    /// Compute capability, major and minor; absent for the CPU engine.
    pub compute_capability: Option<(u32, u32)>,
    /// All memory in bytes.
    pub total_bytes: u64,
    /// What may be lent, in bytes: what was free, less the contexts of as many executors as there may be.
    pub allocatable_bytes: u64,
    /// What an executor's context itself takes, in bytes.
    pub context_bytes: u64,
    /// Chunks that gain from running at a time: cores, or streams.
    pub lanes: u32,
}

/// When the CPU engine is a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpuEngine {
    /// When there is no GPU.
    #[default]
    WithoutGpu,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Which devices the agent offers.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Look for GPUs.
    pub cuda: bool,
    /// When the CPU engine is a device.
    pub cpu: CpuEngine,
    /// How many devices the CPU engine plays, each with the memory below.
    pub cpu_devices: u32,
    /// Memory of one of them in bytes; absent: half of what the machine (or the container) has, divided among them.
    pub cpu_memory_bytes: Option<u64>,
    /// Threads of each; absent: as many as there are cores.
    pub cpu_threads: Option<u32>,
    /// Executors (namespaces) that one device serves at a time; further ones take turns with them.
    pub executors_per_device: u32,
    /// The probe of the driver must answer within this.
    pub probe_timeout: Duration,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self {
            cuda: true,
            cpu: CpuEngine::default(),
            cpu_devices: 1,
            cpu_memory_bytes: None,
            cpu_threads: None,
            executors_per_device: 4,
            probe_timeout: Duration::from_secs(60),
        }
    }
}

/// Load of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceLoad {
    /// Chunks running now.
    pub active_executions: u64,
    /// Executor processes alive.
    pub executors: u32,
    /// Namespaces with work that wait for a turn.
    pub waiting: u32,
    /// Executor processes that ended while they were of use, since the agent began.
    pub lost_executors: u64,
    /// Executors start on it: `false` after several in a row did not.
    pub healthy: bool,
}

/// Starts in a row that may fail before a device counts as unhealthy,
const FAILED_STARTS: u32 = 3;
/// until so long after the last of them: then it may be tried again.
const UNHEALTHY: Duration = Duration::from_secs(60);

/// What the supervisors of one device share.
#[derive(Debug)]
pub(super) struct DeviceState {
    room: Arc<Semaphore>,
    /// Executors that there is room for.
    capacity: usize,
    /// Permits in use.
    held: Arc<AtomicU32>,
    /// Supervisors that wait for room.
    pub(super) waiting: AtomicU32,
    /// Somebody waits for room: idle executors end.
    pub(super) wanted: Notify,
    /// Failed starts in a row, and when the last was.
    failed_starts: Mutex<(u32, Option<Instant>)>,
    lost: AtomicU64,
    /// In the order of their starts.
    executors: Mutex<Vec<Executor>>,
}

/// An executor of a device.
#[derive(Debug)]
struct Executor {
    process: u32,
    board: Arc<Board>,
    since: Instant,
    /// Since when it makes room: it ends as soon as its running chunks have.
    leaving: Option<Instant>,
    /// Its chunks have ended, and it does.
    departs: bool,
}

/// Room for one executor.
#[derive(Debug)]
pub(super) struct Permit {
    held: Arc<AtomicU32>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Permit {
    fn drop(&mut self) {
        // Before the semaphore has it back: what is about to be free counts as free.
        self.held.fetch_sub(1, Ordering::SeqCst);
    }
}

impl DeviceState {
    /// For a device with room for so many executors.
    pub(super) fn new(executors: u32) -> Self {
        let capacity = executors.max(1) as usize;
        Self {
            room: Arc::new(Semaphore::new(capacity)),
            capacity,
            held: Arc::default(),
            waiting: AtomicU32::new(0),
            wanted: Notify::new(),
            failed_starts: Mutex::default(),
            lost: AtomicU64::new(0),
            executors: Mutex::default(),
        }
    }

    /// Room for one more executor; asks idle ones to end when there is none. Safe to cancel.
    pub(super) async fn permit(&self) -> Permit {
        struct Waiting<'a>(&'a AtomicU32);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        if let Ok(permit) = Arc::clone(&self.room).try_acquire_owned() {
            return self.hold(permit);
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let waiting = Waiting(&self.waiting);
        self.wanted.notify_waiters();
        let permit = Arc::clone(&self.room).acquire_owned().await.expect("the semaphore is never closed");
        // In this order: one that waits and has its permit would count as waiting for a further one.
        drop(waiting);
        self.hold(permit)
    }

    fn hold(&self, permit: OwnedSemaphorePermit) -> Permit {
        self.held.fetch_add(1, Ordering::SeqCst);
        Permit {
            held: Arc::clone(&self.held),
            _permit: permit,
        }
    }

    /// An executor is there.
    pub(super) fn add(&self, process: u32, board: Arc<Board>) {
        self.executors().push(Executor {
            process,
            board,
            since: Instant::now(),
            leaving: None,
            departs: false,
        });
    }

    /// Supervisors that wait and for which no room becomes free yet.
    fn lacking(&self, executors: &[Executor]) -> usize {
        let held = self.held.load(Ordering::SeqCst) as usize;
        let departing = executors.iter().filter(|executor| executor.departs).count();
        let waiting = self.waiting.load(Ordering::SeqCst) as usize;
        waiting.saturating_sub(self.capacity.saturating_sub(held) + departing)
    }

    /// Whether this executor is the one to make room for a namespace that waits: the one that has been there longest of those
    /// whose turn is over. It counts as leaving from then on, but for no longer than a turn: one that has a longer chunk to end
    /// does not keep the next from being asked.
    pub(super) fn must_make_room(&self, process: u32, turn: Duration) -> bool {
        let mut executors = self.executors();
        let leaving = |executor: &&Executor| !executor.departs && executor.leaving.is_some_and(|since| since.elapsed() < turn);
        if executors.iter().filter(leaving).count() >= self.lacking(&executors) {
            return false;
        }
        match executors.iter_mut().find(|executor| executor.leaving.is_none()) {
            Some(first) if first.process == process && first.since.elapsed() >= turn => {
                first.leaving = Some(Instant::now());
                true
            }
            _ => false,
        }
    }

    /// Whether an executor that makes room must go on doing so; it counts as staying where nobody waits any more. One whose chunks
    /// have ended departs.
    pub(super) fn must_go(&self, process: u32, has_ended: bool) -> bool {
        let mut executors = self.executors();
        let must_go = self.lacking(&executors) > 0;
        if let Some(executor) = executors.iter_mut().find(|executor| executor.process == process) {
            if must_go {
                executor.departs = has_ended;
            } else {
                executor.leaving = None;
            }
        }
        must_go
    }

    /// It is gone, and its permit free.
    pub(super) fn remove(&self, board: &Arc<Board>) {
        self.executors().retain(|kept| !Arc::ptr_eq(&kept.board, board));
    }

    /// An executor ended before it was told to.
    pub(super) fn lost(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Process ids of the executors.
    pub(super) fn processes(&self) -> Vec<u32> {
        let executors = self.executors();
        let remaining = executors.iter().filter(|executor| !executor.departs);
        remaining.map(|executor| executor.process).collect()
    }

    /// An executor's device is open.
    pub(super) fn ready(&self) {
        *self.failed_starts() = (0, None);
    }

    /// An executor did not come so far.
    pub(super) fn failed_to_start(&self) {
        let mut failed = self.failed_starts();
        *failed = (failed.0 + 1, Some(Instant::now()));
    }

    /// Load now.
    pub(super) fn load(&self) -> DeviceLoad {
        let (failed, last) = *self.failed_starts();
        let healthy = failed < FAILED_STARTS || last.is_none_or(|last| last.elapsed() >= UNHEALTHY);
        let executors = self.executors();
        let running = |executor: &Executor| {
            let slots = executor.board.slots();
            slots.filter(|slot| matches!(slot.activity, Activity::Running { .. })).count()
        };
        DeviceLoad {
            active_executions: executors.iter().map(running).sum::<usize>() as u64,
            executors: executors.iter().filter(|executor| !executor.departs).count() as u32,
            waiting: self.waiting.load(Ordering::SeqCst),
            lost_executors: self.lost.load(Ordering::Relaxed),
            healthy,
        }
    }

    fn failed_starts(&self) -> MutexGuard<'_, (u32, Option<Instant>)> {
        self.failed_starts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn executors(&self) -> MutexGuard<'_, Vec<Executor>> {
        self.executors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
