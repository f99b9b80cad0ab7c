//! A run is a burst's work on one device: the calls of its holder, and the events that come back.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use sahasra_ranges::AttemptRange;
use sahasra_wire::burst::FailureCode;
use tokio::sync::{Notify, mpsc};

use super::outstanding::{OutstandingChunks, Stage, SubmitError};
use super::program::ProgramSpec;

#[derive(Debug)]
pub(super) enum Command {
    Open(Arc<Shared>),
    Submit(u64, Vec<AttemptRange>),
    /// Limits the number of a run's chunks that run concurrently.
    SetConcurrency(u64, u32),
    /// Returns the chunks that have not started.
    Withdraw(u64),
    /// Resumes a run after its events were taken.
    Resume(u64),
    /// Removes a run whose events have no receiver any more.
    Close(u64),
    /// Ends the running chunks of a run, together with the process if nothing else can end them.
    Kill(u64, FailureCode),
    /// Ends the process and the supervisor.
    ShutDown,
}

/// Event of a run. Every submitted index is in exactly one `Succeeded`, `Failed` or `Returned` after its submission, whatever happens to
/// the executor.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Consecutive chunks that succeeded.
    Succeeded {
        range: AttemptRange,
        /// The outputs of all chunks, concatenated in the order of their indices.
        outputs: Bytes,
    },
    /// Consecutive chunks whose attempt failed for the same reason.
    Failed {
        range: AttemptRange,
        code: FailureCode,
        /// Reason as the engine reports it.
        message: String,
    },
    /// Chunks that did not start, or whose result was lost through no fault of theirs. They cost no attempt.
    Returned {
        /// Consecutive indices, with the attempt that did not count.
        range: AttemptRange,
    },
    /// A [`Run::set_concurrency`] has taken effect: from now on no more chunks than this run concurrently, and no memory beyond theirs is
    /// held for this run. Sent once for every call, in the order of the calls; one event may answer several calls with the limit of the
    /// last one.
    Settled {
        /// Limit of concurrent chunks that has taken effect.
        concurrency: u32,
    },
}

/// The holder's end of a run. Clones share the run. It ends with its [`Events`].
#[derive(Clone, Debug)]
pub struct Run {
    pub(super) shared: Arc<Shared>,
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

    /// Starts chunks that were submitted to the index for this device. They run in this order. Never blocks.
    ///
    /// # Errors
    /// [`SubmitError::ShutDown`]; the chunks stay in the index.
    pub fn start(&self, ranges: Vec<AttemptRange>) -> Result<(), SubmitError> {
        let state = self.shared.state.lock();
        let submit = Command::Submit(self.shared.id, ranges);
        if state.ended || self.shared.commands.send(submit).is_err() {
            return Err(SubmitError::ShutDown);
        }
        Ok(())
    }

    /// Limits the number of chunks that run concurrently, each with one slice of memory. The initial limit is 0. Running chunks beyond a
    /// lower limit continue to their end (or their timeout); [`Event::Settled`] reports when they have ended.
    pub fn set_concurrency(&self, slices: u32) {
        self.shared.send(Command::SetConcurrency(self.shared.id, slices));
    }

    /// Returns the chunks that have not started, as [`Event::Returned`]. Running chunks continue.
    pub fn withdraw(&self) {
        self.shared.send(Command::Withdraw(self.shared.id));
    }

    /// Ends the run's chunks in flight: they fail with `code`. The executor process is killed if the device cannot end a kernel, or if a
    /// chunk does not end within the grace. In this case the process's other chunks in flight and unstarted chunks, of this and of other
    /// runs of the namespace, are returned and cost no attempt.
    pub fn kill(&self, code: FailureCode) {
        self.shared.send(Command::Kill(self.shared.id, code));
    }

    /// Returns the number of submitted chunks that have no event in [`Events`] yet.
    pub fn outstanding(&self) -> u64 {
        self.shared.outstanding()
    }

    pub fn program(&self) -> &ProgramSpec {
        &self.shared.program
    }
}

/// Events of a run, in order. The queue is bounded: an executor pauses when its results are not taken. Dropping it closes the run:
/// unstarted chunks are dropped, and the results of running chunks are lost. To wait until the device holds nothing for the run, withdraw,
/// set the concurrency to 0 and wait for [`Event::Settled`] before dropping.
#[derive(Debug)]
pub struct Events {
    pub(super) shared: Arc<Shared>,
}

impl Events {
    /// Waits for the next event. Returns `None` after the pool has shut down. Cancel safe.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.try_next() {
                return Some(event);
            }
            if self.shared.state.lock().ended {
                return self.try_next();
            }
            // Only one task waits: a notification between the check above and this line is kept.
            self.shared.ready.notified().await;
        }
    }

    pub fn try_next(&mut self) -> Option<Event> {
        let mut state = self.shared.state.lock();
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
        let mut state = self.shared.state.lock();
        state.ended = true;
        state.events.clear();
        state.event_bytes = 0;
        self.shared.send(Command::Close(self.shared.id));
    }
}

/// Returns the size in bytes for which a queued event counts.
fn weight(event: &Event) -> usize {
    const ENTRY: usize = 128;
    ENTRY
        + match event {
            Event::Succeeded { outputs, .. } => outputs.len(),
            Event::Failed { message, .. } => message.len(),
            Event::Returned { .. } | Event::Settled { .. } => 0,
        }
}

/// State that the holder of a run and the executor's supervisor share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) id: u64,
    pub(super) device: usize,
    pub(super) program: Arc<ProgramSpec>,
    pub(super) chunks: Arc<OutstandingChunks>,
    max_event_bytes: usize,
    commands: mpsc::UnboundedSender<Command>,
    state: Mutex<State>,
    ready: Notify,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<Event>,
    event_bytes: usize,
    /// The executor was asked to start nothing more until events are taken.
    paused: bool,
    /// No more events follow: the holder closed the run, or the pool has shut down.
    ended: bool,
}

impl Shared {
    pub(super) fn new(
        id: u64,
        device: usize,
        program: Arc<ProgramSpec>,
        chunks: Arc<OutstandingChunks>,
        max_event_bytes: usize,
        commands: mpsc::UnboundedSender<Command>,
    ) -> Self {
        Self {
            id,
            device,
            program,
            chunks,
            max_event_bytes,
            commands,
            state: Mutex::default(),
            ready: Notify::new(),
        }
    }

    /// Sends a command to the supervisor, which outlives its runs unless the runtime shuts down: then nobody receives the command.
    fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }

    /// Returns the number of chunks that have not come back.
    pub(super) fn outstanding(&self) -> u64 {
        self.chunks.count(self.device, Stage::UNENDED)
    }

    /// Moves chunks of the device to another stage, see [`OutstandingChunks::advance`].
    pub(super) fn advance(&self, range: AttemptRange, from: &[Stage], to: Stage) -> Option<Vec<(AttemptRange, Stage)>> {
        self.chunks.advance(self.device, range, from, to)
    }

    /// Ends chunks by an event. Returns `false`, and queues nothing, unless all are at a stage of `from` on the device.
    pub(super) fn settle(&self, from: &[Stage], event: Event) -> bool {
        let mut state = self.state.lock();
        let (Event::Succeeded { range, .. } | Event::Failed { range, .. } | Event::Returned { range }) = &event else {
            return false;
        };
        let ended = self.advance(*range, from, Stage::Ended).is_some();
        if ended {
            self.push(&mut state, event);
        }
        ended
    }

    /// Queues the answer to a change of concurrency.
    pub(super) fn settled(&self, concurrency: u32) {
        self.push(&mut self.state.lock(), Event::Settled { concurrency });
    }

    /// Ends the events after those that are queued.
    pub(super) fn end(&self) {
        self.state.lock().ended = true;
        self.ready.notify_one();
    }

    /// Returns whether the executor must pause because too many bytes of events wait. Returns `true` once per pause.
    pub(super) fn must_pause(&self) -> bool {
        let mut state = self.state.lock();
        let must = !state.paused && !state.ended && state.event_bytes > self.max_event_bytes;
        state.paused |= must;
        must
    }

    /// Returns whether the executor must not start chunks of this run.
    pub(super) fn is_paused(&self) -> bool {
        self.state.lock().paused
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
