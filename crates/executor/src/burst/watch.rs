//! Enforces the chunk timeout inside an executor: cancels a launch where the device supports it, and ends the process
//! otherwise.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use sahasra_executor_protocol::burst::status_page::{MAX_LANES, StatusPage};
use sahasra_ptx::Cancel;
use sahasra_wire::burst::FailureCode;

/// Time within which a cancelled launch must end; after it the process ends.
const CANCEL_GRACE: Duration = Duration::from_secs(1);
/// Lower bound of the polling interval; the interval is an eighth of the shortest chunk timeout.
const MIN_INTERVAL: Duration = Duration::from_millis(2);
/// Upper bound of the polling interval, and so the longest that a finished result waits for the chunk after it.
const MAX_INTERVAL: Duration = Duration::from_millis(20);

pub(crate) struct Watch {
    lanes: Vec<Mutex<Option<Watched>>>,
    /// Number of lanes that run chunks, so that the watch sleeps while there are none, and the polling interval.
    pace: Mutex<Pace>,
    registered: Condvar,
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
    lanes: usize,
    interval: Duration,
}

impl Watch {
    /// Watch over lanes; `cancels` is whether the device can cancel a launch.
    pub(crate) fn new(cancels: bool) -> Self {
        Self {
            lanes: (0..MAX_LANES).map(|_| Mutex::new(None)).collect(),
            pace: Mutex::new(Pace {
                lanes: 0,
                interval: MAX_INTERVAL,
            }),
            registered: Condvar::new(),
            cancels,
        }
    }

    /// Registers a lane that starts to run chunks with this timeout.
    pub(crate) fn register(&self, timeout: Duration) {
        let mut pace = self.pace.lock();
        pace.lanes += 1;
        pace.interval = pace.interval.min((timeout / 8).max(MIN_INTERVAL));
        self.registered.notify_one();
    }

    pub(crate) fn unregister(&self) {
        let mut pace = self.pace.lock();
        pace.lanes -= 1;
        if pace.lanes == 0 {
            pace.interval = MAX_INTERVAL;
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

    /// Waits until a lane is registered. Returns the polling interval.
    pub(crate) fn wait_for_lanes(&self) -> Duration {
        let mut pace = self.pace.lock();
        self.registered.wait_while(&mut pace, |pace| pace.lanes == 0);
        pace.interval
    }

    /// Cancels the launches that exceed their timeout, where the device supports it. Returns whether a lane does not end its launch, so that
    /// the process must end; the status page then shows the lane.
    pub(crate) fn cancel_overdue(&self, status_page: &StatusPage) -> bool {
        let now = Instant::now();
        let mut has_overrun = false;
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
                    has_overrun = true;
                }
            }
        }
        has_overrun
    }
}
