//! State shared by the callers of a session and its connection: the protocol state, the callers that wait for answers, and the error that
//! ended the session.

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex, MutexGuard};
use sahasra_memory::shared::SlotPool;
use sahasra_wire::cuda::{Loaded, Printed, Waited};
use sahasra_wire::session::{Close, Compiled, Stats, Welcome, client_frame::Kind};
use tokio::sync::Notify;

use crate::{
    Error, Failure,
    core::{Array, Core, Event, Wanted, Window},
    pending::{Pending, Promise, pending},
    runtime,
    target::{Options, Target},
};

/// Payload bytes in the queue up to which the thread of the caller writes them itself.
const LITTLE_BYTES: u64 = 64 << 10;
/// Maximum size of printed text that is kept for a caller, in bytes; the rest is dropped.
const PRINTED_BYTES: usize = 16 << 20;
/// Number of operations that may wait to be processed by the executor before a call that adds one blocks.
const QUEUED_OPERATIONS: usize = 16_384;
/// Limit like [`QUEUED_OPERATIONS`], for a call that adds a request. It is higher because requests carry no array, and their callers wait
/// for the answer rather than for space in the queue.
const QUEUED_QUESTIONS: usize = 4 * QUEUED_OPERATIONS;

/// Called with the answer to a [`Wait`](sahasra_wire::cuda::Wait) when it arrives, in the order of the answers. It must not block.
pub type Arrived = Arc<dyn Fn(&Waited) + Send + Sync>;

pub(crate) enum Waiting {
    Compiled(u64, Promise<Compiled>),
    Array(Promise<Array>),
    Done(Promise<()>),
    /// Answer to [`Session::finish`](crate::Session::finish), otherwise like `Done`.
    Finished(Promise<()>),
    Stats(Promise<Stats>),
    Read(Promise<Array>),
    /// Rows that come in a slot of shared memory.
    ReadShared(Promise<()>),
    Loaded(Promise<Loaded>),
    Waited(Arrived, Promise<Waited>),
}

impl Waiting {
    /// Returns whether the caller checks the outcome of work. Statistics are independent of work, and `Finished` leaves the end of a
    /// session to [`Session::unreported_end`](crate::Session::unreported_end).
    fn checks_work(&self) -> bool {
        !matches!(self, Self::Finished(_) | Self::Stats(_))
    }

    fn keep(self, answer: Result<Event, Error>) {
        macro_rules! keep {
            ($promise:ident, $event:pat => $value:expr) => {
                $promise.keep(answer.and_then(|event| match event {
                    $event => Ok($value),
                    _ => Err(Error::protocol("unexpected kind of a response")),
                }))
            };
        }
        match self {
            Self::Compiled(_, promise) => keep!(promise, Event::Compiled(compiled) => compiled),
            Self::Array(promise) | Self::Read(promise) => keep!(promise, Event::Array(array) => array),
            Self::Loaded(promise) => keep!(promise, Event::Loaded(loaded) => loaded),
            Self::Waited(_, promise) => keep!(promise, Event::Waited(waited) => waited),
            Self::Done(promise) | Self::Finished(promise) | Self::ReadShared(promise) => keep!(promise, Event::Done => ()),
            Self::Stats(promise) => keep!(promise, Event::Stats(stats) => stats),
        }
    }
}

/// Counts of submitted and finished work: uploads, allocations, compilations and executions.
#[derive(Debug, Default)]
pub(crate) struct Work {
    submitted: u64,
    /// Number of operations, from the first one on, that are known to have succeeded or failed.
    finished: u64,
    /// Number of operations submitted before each unanswered request.
    before: HashMap<u64, u64>,
}

impl Work {
    pub(crate) fn submit(&mut self) {
        self.submitted += 1;
    }

    fn ask(&mut self, request: u64) {
        self.before.insert(request, self.submitted);
    }

    /// Records the answer to a request. `shows_end` says whether the answer proves that all work before the request has ended.
    fn answer(&mut self, request: u64, shows_end: bool) {
        if let Some(before) = self.before.remove(&request)
            && shows_end
        {
            self.finished = self.finished.max(before);
        }
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.submitted == self.finished
    }
}

#[derive(Default)]
pub(crate) struct State {
    pub core: Core,
    pub waiting: HashMap<u64, Waiting>,
    pub ended: Option<Error>,
    /// Number of the `Close` request, if one was submitted.
    pub closing: Option<u64>,
    pub welcome: Option<Welcome>,
    pub first: Option<Promise<()>>,
    /// Number of connections that replaced a broken one.
    pub resumed: u64,
    /// Names of the programs (`programs`), and the program that was submitted last (`run`).
    pub programs: HashMap<u64, String>,
    pub run: Option<u64>,
    pub work: Work,
    /// Text that kernels of each context printed.
    pub printed: HashMap<u64, Vec<u8>>,
    /// Whether a call that submits or checks work has returned the error that ended the session.
    pub end_is_reported: bool,
}

impl State {
    /// Describes the operation for which a caller waits, for error messages. Includes the program that was submitted last before it, which
    /// may be what did not end.
    fn operation(&self, waiting: Option<&Waiting>, is_close: bool) -> String {
        let called = |program: &u64| self.programs.get(program).map_or("a program", String::as_str);
        let what = match waiting {
            Some(Waiting::Compiled(program, _)) => return format!("compile {}", called(program)),
            Some(Waiting::Array(_)) => Some("download"),
            Some(Waiting::Done(_)) if is_close => Some("close"),
            Some(Waiting::Done(_) | Waiting::Finished(_)) => Some("synchronise"),
            Some(Waiting::Stats(_)) => Some("load"),
            Some(Waiting::Read(_) | Waiting::ReadShared(_)) => Some("read memory"),
            Some(Waiting::Loaded(_)) => Some("load a module"),
            Some(Waiting::Waited(..)) => Some("wait for operations"),
            None => None,
        };
        match (what, &self.run) {
            (Some(what), Some(run)) => format!("{what} after execute {}", called(run)),
            (Some(what), None) => what.to_owned(),
            (None, Some(run)) => format!("execute {}", called(run)),
            (None, None) => String::new(),
        }
    }
}

pub(crate) struct Shared {
    state: Mutex<State>,
    /// Whether [`State::ended`] is set, for callers that check it often.
    pub has_ended: AtomicBool,
    pub wake: Arc<Notify>,
    /// Notified when space in the queue may have become free.
    pub room: Condvar,
    /// Bytes of frames sent and received.
    pub sent: AtomicU64,
    pub received: AtomicU64,
    /// Payload bytes sent, counted before compression.
    pub uploaded: AtomicU64,
    /// Memory that this client shares with the session's executor.
    pub memory: OnceLock<Arc<SlotPool>>,
    pub options: Options,
    /// Name (`session`) and location (`worker`) of the session, for error messages.
    session: String,
    worker: String,
}

impl Shared {
    /// Creates the state before the first connection, which resolves `first`.
    pub(crate) fn new(options: Options, first: Promise<()>, target: &Target) -> Self {
        let window = Window {
            frames: options.window_frames,
            bytes: options.window_bytes,
        };
        Self {
            state: Mutex::new(State {
                core: Core::new(window, options.compression, options.shares_memory),
                first: Some(first),
                ..State::default()
            }),
            has_ended: AtomicBool::new(false),
            wake: Arc::default(),
            room: Condvar::new(),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            uploaded: AtomicU64::new(0),
            memory: OnceLock::new(),
            options,
            session: target.session.clone(),
            worker: target.worker.clone(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns whether a caller waits for an answer, or an operation has not been processed by the executor.
    pub(crate) fn is_awaited(&self) -> bool {
        let state = self.lock();
        !state.waiting.is_empty() || state.core.queued().0 > 0
    }

    /// Ends the session with this error, unless it has ended before. All waiting callers receive the error.
    pub(crate) fn end(&self, error: Error) {
        let about = |operation: &str| error.clone().about(&self.session, &self.worker, operation);
        let (waiting, first) = {
            let mut state = self.lock();
            let waiting = std::mem::take(&mut state.waiting);
            let closing = state.closing;
            state.core.abandon();
            if state.ended.is_none() {
                // For later callers, the oldest waiting request is the best known description of the operation.
                let oldest = waiting.iter().min_by_key(|(request, _)| **request);
                let operation = state.operation(oldest.map(|(_, waiting)| waiting), oldest.map(|(request, _)| *request) == closing);
                state.ended = Some(about(&operation));
                self.has_ended.store(true, Ordering::Release);
            }
            let told = waiting.into_iter().map(|(request, waiting)| {
                let is_close = Some(request) == closing;
                let operation = state.operation(Some(&waiting), is_close);
                (is_close, operation, waiting)
            });
            let told: Vec<_> = told.collect();
            state.end_is_reported |= told.iter().any(|(is_close, _, waiting)| !is_close && waiting.checks_work());
            (told, state.first.take())
        };
        for (is_close, operation, waiting) in waiting {
            let closed = is_close && matches!(error, Error::Closed);
            waiting.keep(if closed { Ok(Event::Done) } else { Err(about(&operation)) });
        }
        if let Some(first) = first {
            first.keep(Err(about("")));
        }
        self.room.notify_all();
        runtime::wake(&self.wake);
    }

    pub(crate) fn answer(&self, request: u64, answer: Result<Event, Failure>) {
        let (waiting, closed) = {
            let mut state = self.lock();
            let waiting = state.waiting.remove(&request);
            // A download succeeds only after all work before it has ended; a failure may be reported earlier.
            let shows_end = match &waiting {
                Some(Waiting::Done(_) | Waiting::Finished(_)) => true,
                Some(Waiting::Array(_)) => answer.is_ok(),
                _ => false,
            };
            state.work.answer(request, shows_end);
            (waiting, state.closing == Some(request))
        };
        if let (Some(Waiting::Waited(arrived, _)), Ok(Event::Waited(waited))) = (&waiting, &answer) {
            arrived(waited);
        }
        // The session must have ended before `close` returns.
        if closed {
            self.end(Error::Closed);
        }
        if let Some(waiting) = waiting {
            waiting.keep(answer.map_err(Error::Failed));
        }
    }

    pub(crate) fn print(&self, printed: Printed) {
        let mut state = self.lock();
        let text = state.printed.entry(printed.context).or_default();
        let room = PRINTED_BYTES.saturating_sub(text.len()).min(printed.text.len());
        text.extend_from_slice(&printed.text[..room]);
    }

    fn has_room(&self, operations: usize, bytes: u64) -> bool {
        operations < QUEUED_OPERATIONS && bytes <= self.options.queued_bytes
    }

    /// Calls `submit` as soon as the queue has space for an operation.
    pub(crate) fn submit<R>(&self, submit: impl FnOnce(&mut State) -> R) -> Result<R, Error> {
        let submitted = self.submit_into(
            |operations, bytes| self.has_room(operations, bytes),
            |state| {
                let result = submit(state);
                (result, state.core.queued().1 <= LITTLE_BYTES)
            },
        );
        let (result, is_little) = submitted.inspect_err(|_| self.lock().end_is_reported = true)?;
        // Small operations are written at once, because the executor may be idle while the caller waits for its results.
        if is_little {
            runtime::turn();
        } else {
            runtime::call();
        }
        Ok(result)
    }

    /// Blocks for at most `time` until an operation could be submitted without blocking. Returns whether it could.
    pub(crate) fn room_within(&self, time: Duration) -> bool {
        let waits = |state: &mut State| {
            let (operations, bytes) = state.core.queued();
            state.ended.is_none() && state.closing.is_none() && !self.has_room(operations, bytes)
        };
        let mut state = self.lock();
        if waits(&mut state) && !time.is_zero() {
            runtime::call();
            self.room.wait_while_for(&mut state, waits, time);
        }
        !waits(&mut state)
    }

    /// Submits like [`Self::submit`]. `has_room` decides, from the number of queued operations and their bytes, whether there is space.
    fn submit_into<R>(&self, has_room: impl Fn(usize, u64) -> bool, submit: impl FnOnce(&mut State) -> R) -> Result<R, Error> {
        let mut state = self.lock();
        loop {
            if let Some(error) = &state.ended {
                return Err(error.clone());
            }
            if state.closing.is_some() {
                return Err(Error::Closed);
            }
            let (operations, bytes) = state.core.queued();
            if has_room(operations, bytes) {
                break;
            }
            runtime::call();
            self.room.wait(&mut state);
        }
        let result = submit(&mut state);
        drop(state);
        runtime::wake(&self.wake);
        Ok(result)
    }

    /// Submits a request with `submit` as soon as fewer than `limit` operations are queued. If the session has ended, returns the caller that
    /// waits and the error.
    fn request<T>(
        &self,
        limit: usize,
        wanted: Wanted,
        waiting: impl FnOnce(Promise<T>) -> Waiting,
        submit: impl FnOnce(&mut State, u64),
    ) -> (Pending<T>, Option<(Waiting, Error)>) {
        let (promise, answer) = pending();
        let mut waiting = Some(waiting(promise));
        let submitted = self.submit_into(
            |operations, _| operations < limit,
            |state| {
                let request = state.core.request(wanted);
                state.waiting.extend(waiting.take().map(|waiting| (request, waiting)));
                submit(state, request);
            },
        );
        (answer, waiting.zip(submitted.err()))
    }

    /// Submits a request. It is queued behind uploads even if they fill the queue, instead of blocking: callers such as the Python package
    /// hold more than their own thread while they block.
    pub(crate) fn ask<T>(
        &self,
        wanted: Wanted,
        waiting: impl FnOnce(Promise<T>) -> Waiting,
        kind: impl FnOnce(&mut Core, u64) -> Kind,
    ) -> Pending<T> {
        self.ask_with(wanted, waiting, Bytes::new(), kind)
    }

    /// Submits a request like [`Self::ask`], with a payload.
    pub(crate) fn ask_with<T>(
        &self,
        wanted: Wanted,
        waiting: impl FnOnce(Promise<T>) -> Waiting,
        payload: Bytes,
        kind: impl FnOnce(&mut Core, u64) -> Kind,
    ) -> Pending<T> {
        let (answer, refused) = self.request(QUEUED_QUESTIONS, wanted, waiting, |state, request| {
            state.work.ask(request);
            let kind = kind(&mut state.core, request);
            state.core.submit(kind, payload);
        });
        if let Some((waiting, error)) = refused {
            if waiting.checks_work() {
                self.lock().end_is_reported = true;
            }
            waiting.keep(Err(error));
        }
        answer
    }

    /// Closes the session. Does not wait for space in the queue, because there is only one `Close`, and dropping a session must not block.
    pub(crate) fn close(&self) -> Pending<()> {
        let (answer, refused) = self.request(usize::MAX, Wanted::Done, Waiting::Done, |state, request| {
            state.core.submit(Kind::Close(Close { request }), Bytes::new());
            state.closing = Some(request);
        });
        runtime::call();
        if let Some((waiting, error)) = refused {
            // The session is closed, or is being closed.
            let closed = matches!(error, Error::Closed);
            waiting.keep(if closed { Ok(Event::Done) } else { Err(error) });
        }
        answer
    }
}
