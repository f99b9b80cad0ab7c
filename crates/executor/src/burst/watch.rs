//! Enforces the chunk timeout inside an executor: cancels a launch where the device supports it, and ends the process otherwise. Also sends
//! results of lanes that cannot send them while they run a long chunk.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use sahasra_executor_protocol::burst::status_page::{MAX_LANES, StatusPage};
use sahasra_ptx::Cancel;
use sahasra_wire::burst::FailureCode;

/// Time within which a cancelled launch must end; after it the process ends.
const CANCEL_GRACE: Duration = Duration::from_secs(1);
/// Lower bound of the polling interval; the interval is an eighth of the shortest chunk timeout.
const FINEST: Duration = Duration::from_millis(2);
/// Upper bound of the polling interval, and so the longest that a finished result waits for the chunk after it.
const COARSEST: Duration = Duration::from_millis(20);

/// Watches the lanes of this process.
pub(crate) struct Watch {
    lanes: Vec<Mutex<Option<Watched>>>,
    /// Number of lanes that run chunks, so that the watch sleeps while there are none, and the polling interval.
    pace: Mutex<Pace>,
    wake: Condvar,
    cancels: bool,
}

struct Watched {
    run: u64,
    deadline: Instant,
    /// Failure code of the chunk if its slice was revoked.
    revoked: Option<FailureCode>,
    cancel: Cancel,
    cancelled_at: Option<Instant>,
}

struct Pace {
    seated: usize,
    tick: Duration,
}

impl Watch {
    /// Watch over lanes; `cancels` tells whether the device can cancel a launch.
    pub(crate) fn new(cancels: bool) -> Self {
        Self {
            lanes: (0..MAX_LANES).map(|_| Mutex::new(None)).collect(),
            pace: Mutex::new(Pace { seated: 0, tick: COARSEST }),
            wake: Condvar::new(),
            cancels,
        }
    }

    /// Registers a lane that starts to run chunks with this timeout.
    pub(crate) fn sit(&self, timeout: Duration) {
        let mut pace = self.pace.lock();
        pace.seated += 1;
        pace.tick = pace.tick.min((timeout / 8).max(FINEST));
        self.wake.notify_one();
    }

    /// Removes a lane that [`Watch::sit`] registered.
    pub(crate) fn leave(&self) {
        let mut pace = self.pace.lock();
        pace.seated -= 1;
        if pace.seated == 0 {
            pace.tick = COARSEST;
        }
    }

    /// Starts the timeout of a chunk that the lane launches.
    pub(crate) fn begin(&self, lane: usize, run: u64, timeout: Duration, cancel: &Cancel) {
        *self.lanes[lane].lock() = Some(Watched {
            run,
            deadline: Instant::now() + timeout,
            revoked: None,
            cancel: cancel.clone(),
            cancelled_at: None,
        });
    }

    /// Ends the timeout of the lane's chunk. Returns the code that the chunk was revoked with, if any.
    pub(crate) fn end(&self, lane: usize) -> Option<FailureCode> {
        self.lanes[lane].lock().take().and_then(|watched| watched.revoked)
    }

    /// Cancels the running chunks of a run, where the device supports it. Where it does not, the caller ends the process.
    pub(crate) fn revoke(&self, run: u64, code: FailureCode) {
        if !self.cancels {
            return;
        }
        for lane in &self.lanes {
            if let Some(watched) = lane.lock().as_mut().filter(|watched| watched.run == run) {
                watched.revoked = Some(code);
                watched.cancel.cancel();
            }
        }
    }

    /// Watches until the process ends: calls `look` at each tick, and `give_up`, which ends the process, when a lane does not end its
    /// launch.
    pub(crate) fn run(&self, status_page: &StatusPage, look: impl Fn(), give_up: impl Fn()) {
        loop {
            let tick = {
                let mut pace = self.pace.lock();
                while pace.seated == 0 {
                    self.wake.wait(&mut pace);
                }
                pace.tick
            };
            let now = Instant::now();
            let mut lost = false;
            for (lane, watched) in self.lanes.iter().enumerate() {
                // While the guard is held, the lane can neither end its launch nor begin another.
                let mut guard = watched.lock();
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
                        status_page.time_out(lane);
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
