//! What a supervisor is told, what it keeps of each run, and why it may end its process.

use std::sync::Arc;

use sahasra_wire::burst::FailureCode;

use super::outstanding::{Outstanding, WorkRange};
use super::run::{Event, Shared};

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
    /// Chunks that the process has: it was handed them and has neither ended nor returned them.
    pub(super) handed: Outstanding,
    /// Submitted while there was no process.
    pub(super) waiting: Vec<WorkRange>,
    /// To be run alone: they were in flight when a context was poisoned.
    pub(super) suspects: Vec<WorkRange>,
    /// Handed over to be run alone.
    pub(super) alone: Vec<u64>,
    /// What runs is to end: with what it fails, and since when, in nanoseconds of the board's clock.
    pub(super) revoked: Option<(FailureCode, u64)>,
    /// Everything was withdrawn, and nothing submitted since: what the process returns is the holder's, although it makes room.
    pub(super) withdrawn: bool,
    /// The process was told to give back what it had not started so that it can make room: that waits for the next turn.
    pub(super) recalled: bool,
}

impl Entry {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            concurrency: 0,
            change: 0,
            settled: 0,
            opened: false,
            handed: Outstanding::default(),
            waiting: Vec::new(),
            suspects: Vec::new(),
            alone: Vec::new(),
            revoked: None,
            withdrawn: false,
            recalled: false,
        }
    }

    /// Whether a process is needed.
    pub(super) fn has_work(&self) -> bool {
        !self.waiting.is_empty() || !self.suspects.is_empty()
    }

    /// Takes chunks out of what the process has; `false`, and nothing taken, unless it has all of them.
    pub(super) fn take_back(&mut self, range: WorkRange) -> bool {
        self.handed.remove(range)
    }

    /// Chunks that ended or go back to the run's holder need not run alone any more.
    pub(super) fn forget_alone(&mut self, range: WorkRange) {
        self.alone.retain(|index| !(range.first..range.end()).contains(index));
    }

    /// Keeps chunks that were taken back for the next handing over: those that must run alone as suspects.
    pub(super) fn keep(&mut self, range: WorkRange) {
        let part = |first, end| WorkRange {
            first,
            count: end - first,
            ..range
        };
        let mut alone: Vec<u64> = self
            .alone
            .extract_if(.., |index| (range.first..range.end()).contains(index))
            .collect();
        alone.sort_unstable();
        alone.dedup();
        let mut first = range.first;
        for index in alone {
            if first < index {
                self.waiting.push(part(first, index));
            }
            self.suspects.push(part(index, index + 1));
            first = index + 1;
        }
        if first < range.end() {
            self.waiting.push(part(first, range.end()));
        }
    }

    /// Gives back every chunk but the suspects, unstarted.
    pub(super) fn return_all_but_suspects(&mut self) {
        for range in self.handed.drain().into_iter().chain(self.waiting.drain(..)) {
            self.shared.settle(Event::Returned { range });
        }
    }

    /// Gives back every chunk, unstarted.
    pub(super) fn return_all(&mut self) {
        self.waiting.append(&mut self.suspects);
        self.return_all_but_suspects();
    }

    /// Fails every chunk.
    pub(super) fn fail_all(&mut self, code: FailureCode, message: &str) {
        self.waiting.append(&mut self.suspects);
        for range in self.handed.drain().into_iter().chain(self.waiting.drain(..)) {
            let message = message.to_owned();
            self.shared.settle(Event::Failed { range, code, message });
        }
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
