//! State of each run at its supervisor, and the causes for which it ends its process.

use std::sync::Arc;
use std::time::Duration;

use sahasra_ranges::AttemptRange;
use sahasra_wire::burst::FailureCode;

use super::outstanding::Stage;
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
    /// Queued chunks in the order of their handover.
    pub(super) waiting: Vec<AttemptRange>,
    /// Queued chunks that must run alone, because they were in flight when a context was poisoned.
    pub(super) suspects: Vec<AttemptRange>,
    /// Revocation of the running chunks: the code with which they fail, and when it was requested by the clock of the status page.
    pub(super) revoked: Option<(FailureCode, Duration)>,
    /// The holder withdrew everything and has submitted nothing since: chunks that the process returns go to the holder, even while the
    /// process makes room.
    pub(super) withdrawn: bool,
    /// The process was asked to return its unstarted chunks in order to make room: these chunks wait for the namespace's next turn.
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
            waiting: Vec::new(),
            suspects: Vec::new(),
            revoked: None,
            withdrawn: false,
            recalled: false,
        }
    }

    /// Returns whether the run needs a process.
    pub(super) fn has_work(&self) -> bool {
        !self.waiting.is_empty() || !self.suspects.is_empty()
    }

    /// Keeps chunks that the process returned for the next handover. Those that ran alone become suspects. Returns `false`, and changes
    /// nothing, unless the process has all of them.
    pub(super) fn keep(&mut self, range: AttemptRange) -> bool {
        let Some(parts) = self.shared.advance(range, Stage::HANDED_OVER, Stage::Queued) else {
            return false;
        };
        for (part, stage) in parts {
            if stage == Stage::Alone {
                &mut self.suspects
            } else {
                &mut self.waiting
            }
            .push(part);
        }
        true
    }

    /// Reports every chunk but the suspects by an event.
    fn settle_all(&mut self, event: impl Fn(AttemptRange) -> Event) {
        for (range, _) in self.shared.chunks.handed_over(self.shared.device) {
            self.shared.settle(Stage::HANDED_OVER, event(range));
        }
        for range in self.waiting.drain(..) {
            self.shared.settle(&[Stage::Queued], event(range));
        }
    }

    /// Returns every chunk but the suspects, unstarted.
    pub(super) fn return_all_but_suspects(&mut self) {
        self.settle_all(|range| Event::Returned { range });
    }

    /// Returns every chunk, unstarted.
    pub(super) fn return_all(&mut self) {
        self.waiting.append(&mut self.suspects);
        self.return_all_but_suspects();
    }

    pub(super) fn fail_all(&mut self, code: FailureCode, message: &str) {
        self.waiting.append(&mut self.suspects);
        self.settle_all(|range| Event::Failed {
            range,
            code,
            message: message.to_owned(),
        });
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
