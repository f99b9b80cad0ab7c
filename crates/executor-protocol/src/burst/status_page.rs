//! The status page of an executor: shared memory that the executor's lanes write and its supervisor reads.
//!
//! Each lane has a slot with its activity and the time at which the activity began. An update costs a few stores and no system call. The
//! memory outlives the process, so after a crash the supervisor knows exactly which chunks were in flight. The memory is a sealed memfd: an
//! executor can write invalid data only to its own status page, which harms nobody else, and it cannot shrink the memory.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::{monotonic_now, to_word};
use crate::shared_page::SharedPage;

pub const MAX_LANES: usize = 64;
/// Size of the status page in bytes: a header and the slots.
const BYTES: usize = 8192;
/// Distance between two slots in 64-bit words: one cache line, so that lanes do not share one.
const WORDS: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    Preparing { run: u64 },
    Running { run: u64, index: u64 },
}

impl Activity {
    /// Number of the run that the lane works for.
    pub const fn run(self) -> u64 {
        match self {
            Self::Preparing { run } | Self::Running { run, .. } => run,
        }
    }
}

/// A lane's activity and when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub activity: Activity,
    /// Begin of the activity by the machine's monotonic clock.
    pub since: Duration,
    /// Whether the chunk exceeded its timeout and the executor is about to end itself.
    pub timed_out: bool,
}

/// Mapping of a status page. The file is kept open only where it must be passed to another process.
#[derive(Debug)]
pub struct StatusPage {
    page: SharedPage<{ BYTES / size_of::<u64>() }>,
}

const IDLE: u64 = 0;
const PREPARING: u64 = 1;
const RUNNING: u64 = 2;
const TIMED_OUT: u64 = 3;

const STATE: usize = 0;
const RUN: usize = 1;
const INDEX: usize = 2;
const SINCE: usize = 3;

impl StatusPage {
    /// Creates a status page. Returns its mapping and its file.
    pub fn create() -> std::io::Result<(Self, OwnedFd)> {
        let (page, file) = SharedPage::create("sahasra-burst-status")?;
        Ok((Self { page }, file))
    }

    /// Maps the status page from a file that [`StatusPage::create`] made.
    ///
    /// # Errors
    /// Errors of the system calls; a file of another size, or one that can be shrunk.
    pub fn map(file: impl AsFd) -> std::io::Result<Self> {
        Ok(Self {
            page: SharedPage::map(file)?,
        })
    }

    fn word(&self, slot: usize, word: usize) -> &AtomicU64 {
        assert!(slot <= MAX_LANES && word < WORDS);
        self.page.word(slot * WORDS + word)
    }

    #[inline]
    pub fn begin(&self, lane: usize, activity: Activity) {
        self.begin_at(lane, activity, monotonic_now());
    }

    /// Records that a lane began an activity at `since` by the machine's monotonic clock.
    #[inline]
    pub fn begin_at(&self, lane: usize, activity: Activity, since: Duration) {
        let slot = lane + 1;
        let (state, run, index) = match activity {
            Activity::Preparing { run } => (PREPARING, run, 0),
            Activity::Running { run, index } => (RUNNING, run, index),
        };
        // The slot is idle while its words change, so that a reader never combines one chunk's index with another chunk's run.
        self.word(slot, STATE).store(IDLE, Ordering::Release);
        self.word(slot, RUN).store(run, Ordering::Release);
        self.word(slot, INDEX).store(index, Ordering::Release);
        self.word(slot, SINCE).store(to_word(since), Ordering::Release);
        self.word(slot, STATE).store(state, Ordering::Release);
    }

    #[inline]
    pub fn end(&self, lane: usize) {
        self.word(lane + 1, STATE).store(IDLE, Ordering::Release);
    }

    /// Records that a lane's chunk exceeded its timeout.
    #[inline]
    pub fn time_out(&self, lane: usize) {
        self.word(lane + 1, STATE).store(TIMED_OUT, Ordering::Release);
    }

    /// Records that the context is poisoned: every chunk in flight may have caused it.
    pub fn poison(&self) {
        self.word(0, STATE).store(1, Ordering::Release);
    }

    #[inline]
    pub fn is_poisoned(&self) -> bool {
        self.word(0, STATE).load(Ordering::Acquire) != 0
    }

    /// Slots of the lanes that are active.
    pub fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        (1..=MAX_LANES).filter_map(|slot| {
            let read = |word| self.word(slot, word).load(Ordering::Acquire);
            // The lane may change its slot during the read: retry until the words are consistent. A lane that changes its slot endlessly is
            // misbehaving, so the values that were read last are used.
            for attempt in 0.. {
                let (state, run, index, since) = (read(STATE), read(RUN), read(INDEX), read(SINCE));
                if attempt < 64 && (read(STATE) != state || read(SINCE) != since) {
                    continue;
                }
                let activity = match state {
                    IDLE => return None,
                    PREPARING => Activity::Preparing { run },
                    _ => Activity::Running { run, index },
                };
                return Some(Slot {
                    activity,
                    since: Duration::from_nanos(since),
                    timed_out: state == TIMED_OUT,
                });
            }
            None
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_mapping_sees_what_the_other_writes() {
        let (supervisor, file) = StatusPage::create().unwrap();
        let executor = StatusPage::map(&file).unwrap();
        assert_eq!(supervisor.slots().count(), 0);
        let since = monotonic_now();
        executor.begin_at(0, Activity::Preparing { run: 7 }, since);
        executor.begin(MAX_LANES - 1, Activity::Running { run: 7, index: 1 << 40 });
        assert_eq!(
            supervisor.slots().next(),
            Some(Slot {
                activity: Activity::Preparing { run: 7 },
                since,
                timed_out: false
            })
        );
        executor.end(0);
        executor.time_out(MAX_LANES - 1);
        let left: Vec<_> = supervisor.slots().collect();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].activity, Activity::Running { run: 7, index: 1 << 40 });
        assert!(left[0].timed_out);
        assert!(!supervisor.is_poisoned());
        executor.poison();
        assert!(supervisor.is_poisoned());
    }

    #[test]
    fn an_executor_cannot_shrink_the_status_page() {
        let (status_page, file) = StatusPage::create().unwrap();
        assert!(rustix::fs::ftruncate(&file, 0).is_err());
        assert_eq!(status_page.slots().count(), 0);
    }
}
