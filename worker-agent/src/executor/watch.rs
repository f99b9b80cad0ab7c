//! The chunk timeout inside an executor: cancels a launch where the device can, and ends the process where it cannot. Also
//! looks after results that a lane cannot send, as it runs a long chunk.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sahasra_ptx::Cancel;
use sahasra_wire::burst::FailureCode;

use super::board::{Board, MAX_LANES};

/// A launch that was cancelled must end within this; then the process does.
const CANCEL_GRACE: Duration = Duration::from_secs(1);
/// How late a timeout may be noticed: this, or an eighth of it if that is more,
const FINEST: Duration = Duration::from_millis(2);
/// and never later than this, which is also how long a finished result may wait for a chunk after it.
const COARSEST: Duration = Duration::from_millis(20);

/// Watches the lanes of this process.
pub struct Watch {
    lanes: Vec<Mutex<Option<Watched>>>,
    /// Chunks that run, so that the watch sleeps when there are none; and the shortest timeout seen.
    pace: Mutex<Pace>,
    wake: Condvar,
    cancels: bool,
}

struct Watched {
    run: u64,
    deadline: Instant,
    /// Its slice was taken back: what the chunk fails with.
    revoked: Option<FailureCode>,
    cancel: Cancel,
    cancelled_at: Option<Instant>,
}

struct Pace {
    seated: usize,
    tick: Duration,
}

impl Watch {
    /// A watch over lanes whose launches end when cancelled, or not.
    pub fn new(cancels: bool) -> Self {
        Self {
            lanes: (0..MAX_LANES).map(|_| Mutex::new(None)).collect(),
            pace: Mutex::new(Pace { seated: 0, tick: COARSEST }),
            wake: Condvar::new(),
            cancels,
        }
    }

    fn lane(&self, lane: usize) -> MutexGuard<'_, Option<Watched>> {
        self.lanes[lane].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A lane sits down to chunks of this timeout.
    pub fn sit(&self, timeout: Duration) {
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        pace.seated += 1;
        pace.tick = pace.tick.min((timeout / 8).max(FINEST));
        self.wake.notify_one();
    }

    /// It leaves.
    pub fn leave(&self) {
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        pace.seated -= 1;
        if pace.seated == 0 {
            pace.tick = COARSEST;
        }
    }

    /// A lane launches.
    pub fn begin(&self, lane: usize, run: u64, timeout: Duration, cancel: &Cancel) {
        *self.lane(lane) = Some(Watched {
            run,
            deadline: Instant::now() + timeout,
            revoked: None,
            cancel: cancel.clone(),
            cancelled_at: None,
        });
    }

    /// Its launch has ended. Gives what it was revoked with.
    pub fn end(&self, lane: usize) -> Option<FailureCode> {
        self.lane(lane).take().and_then(|watched| watched.revoked)
    }

    /// Cancels what runs of a run, where the device can; the caller ends the process where that does not help.
    pub fn revoke(&self, run: u64, code: FailureCode) {
        if !self.cancels {
            return;
        }
        for lane in 0..MAX_LANES {
            if let Some(watched) = self.lane(lane).as_mut().filter(|watched| watched.run == run) {
                watched.revoked = Some(code);
                watched.cancel.cancel();
            }
        }
    }

    /// Watches until the process ends: `look` is called at each tick, `give_up` ends it when a lane cannot be saved.
    pub fn run(self: &Arc<Self>, board: &Board, look: impl Fn(), give_up: impl Fn()) {
        loop {
            let tick = {
                let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
                while pace.seated == 0 {
                    pace = self.wake.wait(pace).unwrap_or_else(PoisonError::into_inner);
                }
                pace.tick
            };
            let now = Instant::now();
            let mut lost = false;
            for lane in 0..MAX_LANES {
                // The lane cannot end its launch, nor begin another, while the guard is held.
                let mut guard = self.lane(lane);
                let Some(watched) = guard.as_mut().filter(|watched| now >= watched.deadline) else {
                    continue;
                };
                match watched.cancelled_at {
                    None if self.cancels => {
                        watched.cancel.cancel();
                        watched.cancelled_at = Some(now);
                    }
                    Some(at) if now < at + CANCEL_GRACE => {}
                    _ => {
                        board.time_out(lane);
                        lost = true;
                    }
                }
            }
            if lost {
                give_up();
            }
            look();
            std::thread::sleep(tick);
        }
    }
}
