//! A burst's work on one device: what its holder may do with it, and what comes back.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use sahasra_wire::burst::FailureCode;
use tokio::sync::{Notify, mpsc};

use super::ProgramSpec;
use super::entry::Command;
use super::outstanding::{Outstanding, WorkRange};

/// What comes back. Every index submitted is in exactly one `Succeeded`, `Failed` or `Returned` after its submission,
/// whatever becomes of the executor.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Consecutive chunks that succeeded.
    Succeeded {
        /// Which.
        range: WorkRange,
        /// [`ProgramSpec::output_bytes`] for each, in the order of the index.
        outputs: Bytes,
    },
    /// Consecutive chunks whose attempt failed alike.
    Failed {
        /// Which.
        range: WorkRange,
        /// The cause.
        code: FailureCode,
        /// The cause as the engine tells it.
        message: String,
    },
    /// Chunks that come back unstarted, or whose result was lost without a fault of theirs: costs no attempt.
    Returned {
        /// Which.
        range: WorkRange,
    },
    /// A [`Run::set_concurrency`] has taken effect: from now on no more chunks than this run at a time, and no memory
    /// beyond theirs is held for this run. Said once for every call, in their order (calls may be answered together
    /// by the last one's).
    Settled {
        /// The limit.
        concurrency: u32,
    },
}

/// Why work was refused. Nothing of the submission was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// An index of it is outstanding already, or named twice.
    #[error("chunks {first} to {last} overlap what is outstanding or have no index")]
    Overlap {
        /// First index of the range.
        first: u64,
        /// Its last index.
        last: u64,
    },
    /// More chunks than may be outstanding.
    #[error("{chunks} chunks would be outstanding, at most {limit} may be")]
    TooMany {
        /// How many it would be.
        chunks: u64,
        /// The limit.
        limit: u64,
    },
    /// The pool has shut down.
    #[error("the executors have shut down")]
    ShutDown,
}

/// The holder's end of a run. Clones share it. It ends with its [`Events`].
#[derive(Clone, Debug)]
pub struct Run {
    shared: Arc<Shared>,
}

impl Run {
    pub(super) fn open(shared: Arc<Shared>) -> (Self, Events) {
        (
            Self {
                shared: Arc::clone(&shared),
            },
            Events { shared },
        )
    }

    /// Hands chunks over, to be run in this order. Never waits.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing was taken then.
    pub fn submit(&self, ranges: Vec<WorkRange>) -> Result<(), SubmitError> {
        let mut state = self.shared.state();
        let submitted: u64 = ranges.iter().fold(0, |sum, range| sum.saturating_add(range.count));
        let chunks = state.outstanding.chunks().saturating_add(submitted);
        if chunks > self.shared.max_outstanding {
            return Err(SubmitError::TooMany {
                chunks,
                limit: self.shared.max_outstanding,
            });
        }
        if state.ended {
            return Err(SubmitError::ShutDown);
        }
        for (place, range) in ranges.iter().enumerate() {
            if !state.outstanding.insert(*range) {
                for taken in &ranges[..place] {
                    state.outstanding.remove(*taken);
                }
                return Err(SubmitError::Overlap {
                    first: range.first,
                    last: range.first.saturating_add(range.count.saturating_sub(1)),
                });
            }
        }
        // Sent under the lock: submissions reach the executor in the order in which they were taken.
        self.shared.send(Command::Submit(self.shared.id, ranges));
        Ok(())
    }

    /// At most so many chunks run at a time, each with one slice of memory: 0 at first. What runs beyond a lower limit
    /// goes on to its end (or its timeout); [`Event::Settled`] says when.
    pub fn set_concurrency(&self, slices: u32) {
        self.shared.send(Command::SetConcurrency(self.shared.id, slices));
    }

    /// Gives back what has not started, as [`Event::Returned`]. What runs goes on.
    pub fn withdraw(&self) {
        self.shared.send(Command::Withdraw(self.shared.id));
    }

    /// Ends this run's chunks in flight: they fail with `code`. Where the device cannot end a kernel, the executor process is
    /// ended, and so it is where a chunk does not end within the grace: what other runs of the namespace had in flight there is
    /// returned then, as is what had not started of any, and costs no attempt.
    pub fn kill(&self, code: FailureCode) {
        self.shared.send(Command::Kill(self.shared.id, code));
    }

    /// Chunks submitted whose event has not been put into [`Events`].
    pub fn outstanding(&self) -> u64 {
        self.shared.state().outstanding.chunks()
    }

    /// The program.
    pub fn program(&self) -> &ProgramSpec {
        &self.shared.program
    }
}

/// What comes back from a run, in order. Bounded: an executor pauses when its results are not taken. Dropping it closes
/// the run: what has not started is dropped, the results of what runs are lost. To know when the device holds nothing
/// for it any more, withdraw, set the concurrency to 0 and wait for [`Event::Settled`] before dropping.
#[derive(Debug)]
pub struct Events {
    shared: Arc<Shared>,
}

impl Events {
    /// The next one; `None` after the pool has shut down. Safe to cancel.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.try_next() {
                return Some(event);
            }
            if self.shared.state().ended {
                return self.try_next();
            }
            // There is one taker: a notification between the look and here is kept.
            self.shared.ready.notified().await;
        }
    }

    /// The next one if it is there.
    pub fn try_next(&mut self) -> Option<Event> {
        let mut state = self.shared.state();
        let event = state.events.pop_front()?;
        state.event_bytes -= weight(&event);
        if state.paused && state.event_bytes <= self.shared.max_event_bytes / 2 {
            state.paused = false;
            self.shared.send(Command::Resume(self.shared.id));
        }
        Some(event)
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.ended = true;
        state.events.clear();
        state.event_bytes = 0;
        self.shared.send(Command::Close(self.shared.id));
    }
}

/// Bytes that an event waiting to be taken is counted for.
fn weight(event: &Event) -> usize {
    const ENTRY: usize = 128;
    ENTRY
        + match event {
            Event::Succeeded { outputs, .. } => outputs.len(),
            Event::Failed { message, .. } => message.len(),
            Event::Returned { .. } | Event::Settled { .. } => 0,
        }
}

/// What a run's holder and its executor's supervisor share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) id: u64,
    pub(super) program: ProgramSpec,
    max_outstanding: u64,
    max_event_bytes: usize,
    commands: mpsc::UnboundedSender<Command>,
    state: Mutex<State>,
    ready: Notify,
}

#[derive(Debug, Default)]
struct State {
    outstanding: Outstanding,
    events: VecDeque<Event>,
    event_bytes: usize,
    /// The executor was told to start nothing more until events are taken.
    paused: bool,
    /// Nothing comes any more: closed by the holder, or the pool has shut down.
    ended: bool,
}

impl Shared {
    pub(super) fn new(
        id: u64,
        program: ProgramSpec,
        max_outstanding: u64,
        max_event_bytes: usize,
        commands: mpsc::UnboundedSender<Command>,
    ) -> Self {
        Self {
            id,
            program,
            max_outstanding,
            max_event_bytes,
            commands,
            state: Mutex::default(),
            ready: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The supervisor outlives its runs unless the runtime itself ends: then there is nobody to tell.
    fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }

    /// Chunks that have not come back.
    pub(super) fn outstanding(&self) -> u64 {
        self.state().outstanding.chunks()
    }

    /// Puts an event about chunks that are outstanding; `false` when they are not.
    pub(super) fn settle(&self, event: Event) -> bool {
        let mut state = self.state();
        let (Event::Succeeded { range, .. } | Event::Failed { range, .. } | Event::Returned { range }) = &event else {
            return false;
        };
        if !state.outstanding.remove(*range) {
            return false;
        }
        self.push(&mut state, event);
        true
    }

    /// Puts the answer to a change of concurrency.
    pub(super) fn settled(&self, concurrency: u32) {
        self.push(&mut self.state(), Event::Settled { concurrency });
    }

    /// Gives everything outstanding back, unstarted: also what the supervisor has not heard of yet.
    pub(super) fn return_all(&self) {
        let mut state = self.state();
        for range in state.outstanding.drain() {
            self.push(&mut state, Event::Returned { range });
        }
    }

    /// Nothing comes after what is there.
    pub(super) fn end(&self) {
        self.state().ended = true;
        self.ready.notify_one();
    }

    /// Whether so much waits to be taken that the executor must pause; says so once until it was taken.
    pub(super) fn must_pause(&self) -> bool {
        let mut state = self.state();
        let must = !state.paused && !state.ended && state.event_bytes > self.max_event_bytes;
        state.paused |= must;
        must
    }

    /// Whether the executor must not start anything for this run.
    pub(super) fn is_paused(&self) -> bool {
        self.state().paused
    }

    fn push(&self, state: &mut State, event: Event) {
        if state.ended {
            return;
        }
        state.event_bytes += weight(&event);
        state.events.push_back(event);
        self.ready.notify_one();
    }
}
