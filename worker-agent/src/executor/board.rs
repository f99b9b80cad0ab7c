//! The status board: a page that an executor's lanes write and its supervisor reads.
//!
//! Each lane has a slot that says what it does since when. Writing one costs a few stores and no system call; and as
//! the memory outlives the process, the supervisor knows after a crash exactly which chunks were in flight. The memory is
//! a sealed memfd: an executor can write nonsense on its own board, which harms nobody else, but cannot shrink it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};

use crate::shared_page::SharedPage;

/// Lanes an executor may have.
pub const MAX_LANES: usize = 64;
/// Size of the board: a header and the slots.
const BYTES: usize = 8192;
/// 64-bit words from one slot to the next: a cache line, so that lanes do not share one.
const WORDS: usize = 8;

/// What a lane does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// It prepares a run's program.
    Preparing {
        /// The run.
        run: u64,
    },
    /// It runs a chunk.
    Running {
        /// The run.
        run: u64,
        /// The chunk.
        index: u64,
    },
}

impl Activity {
    /// The run that it is for.
    pub const fn run(self) -> u64 {
        match self {
            Self::Preparing { run } | Self::Running { run, .. } => run,
        }
    }
}

/// A lane's activity and when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// What it does.
    pub activity: Activity,
    /// Since when, in nanoseconds of the monotonic clock of the machine.
    pub since: u64,
    /// It runs past its timeout, and the executor gives itself up.
    pub timed_out: bool,
}

/// The board. The file is kept open only where it must be passed on.
#[derive(Debug)]
pub struct Board {
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

impl Board {
    /// A new board and its file.
    ///
    /// # Errors
    /// The system's.
    pub fn create() -> std::io::Result<(Self, OwnedFd)> {
        let (page, file) = SharedPage::create("sahasra-executor-board")?;
        Ok((Self { page }, file))
    }

    /// The board in a file that [`Board::create`] made.
    ///
    /// # Errors
    /// The system's; a file of another size.
    pub fn map(file: impl AsFd) -> std::io::Result<Self> {
        Ok(Self {
            page: SharedPage::map(file)?,
        })
    }

    fn word(&self, slot: usize, word: usize) -> &AtomicU64 {
        assert!(slot <= MAX_LANES && word < WORDS);
        self.page.word(slot * WORDS + word)
    }

    /// A lane begins something, now.
    pub fn begin(&self, lane: usize, activity: Activity) -> u64 {
        let since = monotonic_nanoseconds();
        self.begin_at(lane, activity, since);
        since
    }

    /// A lane begins something at a time in nanoseconds of the board's clock.
    pub fn begin_at(&self, lane: usize, activity: Activity, since: u64) {
        let slot = lane + 1;
        let (state, run, index) = match activity {
            Activity::Preparing { run } => (PREPARING, run, 0),
            Activity::Running { run, index } => (RUNNING, run, index),
        };
        // Idle while the words change, so that a reader never pairs one chunk's index with another's run.
        self.word(slot, STATE).store(IDLE, Ordering::Release);
        self.word(slot, RUN).store(run, Ordering::Release);
        self.word(slot, INDEX).store(index, Ordering::Release);
        self.word(slot, SINCE).store(since, Ordering::Release);
        self.word(slot, STATE).store(state, Ordering::Release);
    }

    /// A lane has ended what it did.
    pub fn end(&self, lane: usize) {
        self.word(lane + 1, STATE).store(IDLE, Ordering::Release);
    }

    /// A lane's chunk ran past its timeout.
    pub fn time_out(&self, lane: usize) {
        self.word(lane + 1, STATE).store(TIMED_OUT, Ordering::Release);
    }

    /// The context is poisoned: those in flight are suspects.
    pub fn poison(&self) {
        self.word(0, STATE).store(1, Ordering::Release);
    }

    /// Whether [`Board::poison`] was called.
    pub fn is_poisoned(&self) -> bool {
        self.word(0, STATE).load(Ordering::Acquire) != 0
    }

    /// What the lanes do that do something.
    pub fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        (1..=MAX_LANES).filter_map(|slot| {
            let read = |word| self.word(slot, word).load(Ordering::Acquire);
            // A lane may move on meanwhile: read until the words belong together. One that writes without end is up to
            // no good; what is read of it then is as good as anything.
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
                    since,
                    timed_out: state == TIMED_OUT,
                });
            }
            None
        })
    }
}

/// The machine's monotonic clock: the same in all its processes.
pub fn monotonic_nanoseconds() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_mapping_sees_what_the_other_writes() {
        let (supervisor, file) = Board::create().unwrap();
        let executor = Board::map(&file).unwrap();
        assert_eq!(supervisor.slots().count(), 0);
        let since = executor.begin(0, Activity::Preparing { run: 7 });
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
    fn an_executor_cannot_shrink_the_board() {
        let (board, file) = Board::create().unwrap();
        assert!(rustix::fs::ftruncate(&file, 0).is_err());
        assert_eq!(board.slots().count(), 0);
    }
}
