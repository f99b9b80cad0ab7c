//! State of each run at its supervisor, and the causes for which it ends its process.

use std::sync::Arc;

use sahasra_ranges::AttemptRange;
use sahasra_wire::burst::FailureCode;

use super::outstanding::Outstanding;
use super::run::{Event, Shared};

/// State of a run at the supervisor.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) shared: Arc<Shared>,
    pub(super) concurrency: u32,
    /// Number of the last change of concurrency; `settled` is the number of the last one that was answered.
    pub(super) change: u64,
    pub(super) settled: u64,
    /// The process knows the run.
    pub(super) opened: bool,
    /// Chunks handed over to the process that it has neither ended nor returned.
    pub(super) handed: Outstanding,
    /// Chunks submitted while there was no process.
    pub(super) waiting: Vec<AttemptRange>,
    /// Chunks that must run alone, because they were in flight when a context was poisoned.
    pub(super) suspects: Vec<AttemptRange>,
    /// Chunks handed over to run alone.
    pub(super) alone: Vec<u64>,
    /// Revocation of the running chunks: the code with which they fail, and when it was requested, in nanoseconds of the board's clock.
    pub(super) revoked: Option<(FailureCode, u64)>,
    /// The holder withdrew everything and has submitted nothing since: chunks that the process returns go to the holder, even while the
    /// process makes room.
    pub(super) withdrawn: bool,
    /// The process was told to return its unstarted chunks in order to make room: these chunks wait for the namespace's next turn.
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

    /// Returns whether the run needs a process.
    pub(super) fn has_work(&self) -> bool {
        !self.waiting.is_empty() || !self.suspects.is_empty()
    }

    /// Removes chunks from those that the process has. Returns `false`, and removes nothing, unless the process has all of them.
    pub(super) fn take_back(&mut self, range: AttemptRange) -> bool {
        self.handed.remove(range)
    }

    /// Ends the rule that chunks run alone, because they ended or were returned to the run's holder.
    pub(super) fn forget_alone(&mut self, range: AttemptRange) {
        self.alone.retain(|index| !range.indices().contains(index));
    }

    /// Keeps chunks that the process returned for the next handover. Those that must run alone become suspects.
    pub(super) fn keep(&mut self, range: AttemptRange) {
        let part = |first, end| AttemptRange {
            first,
            count: end - first,
            ..range
        };
        let mut alone: Vec<u64> = self.alone.extract_if(.., |index| range.indices().contains(index)).collect();
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
        if first < range.indices().end {
            self.waiting.push(part(first, range.indices().end));
        }
    }

    /// Returns every chunk but the suspects, unstarted.
    pub(super) fn return_all_but_suspects(&mut self) {
        for range in self.handed.drain().into_iter().chain(self.waiting.drain(..)) {
            self.shared.settle(Event::Returned { range });
        }
    }

    /// Returns every chunk, unstarted.
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

/// Reason why a supervisor ended its process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The holder of a run asked for it.
    Killed {
        /// Id of the holder's run.
        run: u64,
        /// Code with which the run's chunks fail.
        code: FailureCode,
    },
    /// A chunk, or the preparation of a program, exceeded its time.
    Hung,
    /// The process did not become ready in time.
    NotReady,
    /// The process sent an invalid message.
    Nonsense(&'static str),
    ShutDown,
}
