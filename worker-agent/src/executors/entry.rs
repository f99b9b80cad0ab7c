//! What a supervisor is told, what it keeps of each run, and why it may end its process.

use std::sync::Arc;

use sahasra_wire::burst::FailureCode;

use super::outstanding::WorkRange;
use super::run::Shared;

/// What a supervisor is told.
#[derive(Debug)]
pub(super) enum Command {
    /// A new run.
    Open(Arc<Shared>),
    /// Chunks for a run.
    Submit(u64, Vec<WorkRange>),
    /// At most so many chunks of a run at a time.
    SetConcurrency(u64, u32),
    /// Give back what has not started.
    Withdraw(u64),
    /// Events were taken: go on.
    Resume(u64),
    /// Nobody takes the run's events any more.
    Close(u64),
    /// End what runs of a run, with the process where nothing else does.
    Kill(u64, FailureCode),
    /// End the process and this supervisor.
    ShutDown,
}

/// A run as the supervisor has it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) shared: Arc<Shared>,
    pub(super) concurrency: u32,
    /// Number of the last change of concurrency, and of the last that was answered.
    pub(super) change: u64,
    pub(super) settled: u64,
    /// The process knows it.
    pub(super) opened: bool,
    /// Submitted while there was no process.
    pub(super) waiting: Vec<WorkRange>,
    /// To be run alone: they were in flight when a context was poisoned.
    pub(super) suspects: Vec<WorkRange>,
    /// Handed over to be run alone.
    pub(super) alone: Vec<u64>,
    /// What runs is to end: with what it fails, and since when, in nanoseconds of the board's clock.
    pub(super) revoked: Option<(FailureCode, u64)>,
    /// What the process gives back is the holder's, although the process makes room.
    pub(super) withdrawn: bool,
}

impl Entry {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            concurrency: 0,
            change: 0,
            settled: 0,
            opened: false,
            waiting: Vec::new(),
            suspects: Vec::new(),
            alone: Vec::new(),
            revoked: None,
            withdrawn: false,
        }
    }

    /// Whether a process is needed.
    pub(super) fn has_work(&self) -> bool {
        !self.waiting.is_empty() || !self.suspects.is_empty()
    }

    /// Chunks that no process has.
    pub(super) fn unstarted(&self) -> u64 {
        self.waiting.iter().chain(&self.suspects).map(|range| range.count).sum()
    }

    /// Keeps chunks that a process gave back for the next one. Those that must run alone were handed over in ranges of their own.
    pub(super) fn keep(&mut self, range: WorkRange) {
        let within = |index: &u64| (range.first..range.first + range.count).contains(index);
        if self.alone.iter().any(within) {
            self.alone.retain(|index| !within(index));
            let single = |first| WorkRange { first, count: 1, ..range };
            self.suspects.extend((range.first..range.first + range.count).map(single));
        } else {
            self.waiting.push(range);
        }
    }

    /// What a process had is no longer anywhere.
    pub(super) fn clear_work(&mut self) {
        self.waiting.clear();
        self.alone.clear();
        self.revoked = None;
    }
}

/// Why a process was ended by its supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// A run's holder wanted it.
    Killed {
        /// Which run's.
        run: u64,
        /// What its chunks fail with.
        code: FailureCode,
    },
    /// A chunk, or the preparation of a program, took too long.
    Hung,
    /// It did not become ready in time.
    NotReady,
    /// It said what makes no sense.
    Nonsense(&'static str),
    /// The pool shuts down.
    ShutDown,
}
