//! Room for executors on a device: its load, and the turns that namespaces take.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use sahasra_executor_protocol::burst::status_page::{Activity, StatusPage};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceLoad {
    pub active_executions: u64,
    pub executors: u32,
    /// Namespaces with work that wait for a turn.
    pub waiting: u32,
    /// Executor processes that ended unexpectedly since the agent started.
    pub lost_executors: u64,
    /// Executors can start on the device: `false` after several failed starts in a row.
    pub healthy: bool,
}

/// Number of consecutive failed starts after which a device counts as unhealthy.
const FAILED_STARTS: u32 = 3;
/// Time after the last failed start at which an unhealthy device may be tried again.
const UNHEALTHY: Duration = Duration::from_secs(60);

/// State that the supervisors of one device share.
#[derive(Debug)]
pub(super) struct DeviceState {
    room: Arc<Semaphore>,
    /// Number of executors that the device has room for.
    capacity: usize,
    held: Arc<AtomicU32>,
    pub(super) waiting: AtomicU32,
    /// Notified when a supervisor starts to wait for room: idle executors then end.
    pub(super) wanted: Notify,
    /// Number of consecutive failed starts, and time of the last one.
    failed_starts: Mutex<(u32, Option<Instant>)>,
    lost: AtomicU64,
    /// Executors in the order of their starts.
    executors: Mutex<Vec<Executor>>,
}

#[derive(Debug)]
struct Executor {
    process: u32,
    status_page: Arc<StatusPage>,
    since: Instant,
    /// Since when the executor makes room. It ends as soon as its running chunks have ended.
    leaving: Option<Instant>,
    /// The executor's chunks have ended, and it is about to end.
    departs: bool,
}

/// Permit to run one executor on a device.
#[derive(Debug)]
pub(super) struct Permit {
    held: Arc<AtomicU32>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Permit {
    fn drop(&mut self) {
        // Decremented before the semaphore gets its permit back: room that is about to be free counts as free.
        self.held.fetch_sub(1, Ordering::SeqCst);
    }
}

impl DeviceState {
    /// Creates the state of a device with room for `executors` executors.
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

    /// Waits for room for one more executor; asks idle executors to end when there is none. Cancel safe.
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
        // In this order: a supervisor that still waits and already holds its permit would count as waiting for another one.
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

    pub(super) fn add(&self, process: u32, status_page: Arc<StatusPage>) {
        self.executors.lock().push(Executor {
            process,
            status_page,
            since: Instant::now(),
            leaving: None,
            departs: false,
        });
    }

    /// Returns the number of waiting supervisors for which no room is about to become free.
    fn lacking(&self, executors: &[Executor]) -> usize {
        let held = self.held.load(Ordering::SeqCst) as usize;
        let departing = executors.iter().filter(|executor| executor.departs).count();
        let waiting = self.waiting.load(Ordering::SeqCst) as usize;
        waiting.saturating_sub(self.capacity.saturating_sub(held) + departing)
    }

    /// Returns whether this executor must make room for a waiting namespace: it is the longest-running executor, and its turn is over. It
    /// counts as leaving from then on, for one turn at most, so that an executor with a longer chunk does not prevent the next one from
    /// being asked.
    pub(super) fn must_make_room(&self, process: u32, turn: Duration) -> bool {
        let mut executors = self.executors.lock();
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

    /// Returns whether an executor that makes room must continue to do so. It counts as staying once nobody waits any more. With
    /// `has_ended`, its chunks have ended and it counts as departing.
    pub(super) fn must_go(&self, process: u32, has_ended: bool) -> bool {
        let mut executors = self.executors.lock();
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

    /// Removes an executor that is gone and has returned its permit.
    pub(super) fn remove(&self, status_page: &Arc<StatusPage>) {
        self.executors.lock().retain(|kept| !Arc::ptr_eq(&kept.status_page, status_page));
    }

    /// Counts an executor that ended unexpectedly.
    pub(super) fn lost(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn processes(&self) -> Vec<u32> {
        let executors = self.executors.lock();
        let remaining = executors.iter().filter(|executor| !executor.departs);
        remaining.map(|executor| executor.process).collect()
    }

    /// Resets the count of failed starts: an executor has opened the device.
    pub(super) fn ready(&self) {
        *self.failed_starts.lock() = (0, None);
    }

    /// Counts an executor that did not open the device.
    pub(super) fn failed_to_start(&self) {
        let mut failed = self.failed_starts.lock();
        *failed = (failed.0 + 1, Some(Instant::now()));
    }

    pub(super) fn load(&self) -> DeviceLoad {
        let (failed, last) = *self.failed_starts.lock();
        let healthy = failed < FAILED_STARTS || last.is_none_or(|last| last.elapsed() >= UNHEALTHY);
        let executors = self.executors.lock();
        let running = |executor: &Executor| {
            let slots = executor.status_page.slots();
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
}
