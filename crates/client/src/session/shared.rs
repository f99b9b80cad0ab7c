//! What a session's callers and its connection share: the stream's state, who waits for what, and the end.

use std::{
    collections::HashMap,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
    time::Duration,
};

use bytes::Bytes;
use sahasra_wire::session::{Close, Compiled, Figures, Welcome, client_frame::Kind};
use tokio::sync::Notify;

use super::{Options, Target};
use crate::{
    Error, Failure,
    core::{Array, Core, Event, Wanted, Window},
    pending::{Pending, Promise, pending},
    runtime,
};

/// Payload bytes in the queue up to which a call may write them itself.
const LITTLE_BYTES: u64 = 64 << 10;
/// Operations that may wait for the executor before a call that adds one waits itself.
const QUEUED_OPERATIONS: usize = 16_384;
/// The same for a call that adds a question: it carries no array, and whoever asks waits for the answer and not for room.
const QUEUED_QUESTIONS: usize = 4 * QUEUED_OPERATIONS;

pub(crate) enum Waiting {
    /// Of this program.
    Compiled(u64, Promise<Compiled>),
    Array(Promise<Array>),
    Done(Promise<()>),
    /// As `Done`, for the question at the end of all work.
    Finished(Promise<()>),
    Figures(Promise<Figures>),
}

impl Waiting {
    /// Whether whoever waits looks for work that was done. Figures are asked for beside it, and the end of a session is what `Finished` is for.
    fn looks_for_work(&self) -> bool {
        matches!(self, Self::Compiled(..) | Self::Array(_) | Self::Done(_))
    }

    fn keep(self, answer: Result<Event, Error>) {
        let other = || Error::protocol("an answer is of another kind");
        match self {
            Self::Compiled(_, promise) => promise.keep(answer.and_then(|event| match event {
                Event::Compiled(compiled) => Ok(compiled),
                _ => Err(other()),
            })),
            Self::Array(promise) => promise.keep(answer.and_then(|event| match event {
                Event::Array(array) => Ok(array),
                _ => Err(other()),
            })),
            Self::Done(promise) | Self::Finished(promise) => promise.keep(answer.and_then(|event| match event {
                Event::Done => Ok(()),
                _ => Err(other()),
            })),
            Self::Figures(promise) => promise.keep(answer.and_then(|event| match event {
                Event::Figures(figures) => Ok(figures),
                _ => Err(other()),
            })),
        }
    }
}

/// Uploads, allocations, compilations and executions, counted.
#[derive(Debug, Default)]
pub(crate) struct Work {
    submitted: u64,
    /// So many of them, the first ones, are known to have happened or failed.
    finished: u64,
    /// How many were submitted before each request that has no answer yet.
    before: HashMap<u64, u64>,
}

impl Work {
    pub fn submit(&mut self) {
        self.submitted += 1;
    }

    fn ask(&mut self, request: u64) {
        self.before.insert(request, self.submitted);
    }

    /// The request is answered, which shows that all before it has ended or shows nothing.
    fn answer(&mut self, request: u64, shows_end: bool) {
        if let Some(before) = self.before.remove(&request)
            && shows_end
        {
            self.finished = self.finished.max(before);
        }
    }

    pub fn is_finished(&self) -> bool {
        self.submitted == self.finished
    }
}

pub(crate) struct State {
    pub core: Core,
    pub waiting: HashMap<u64, Waiting>,
    /// Nothing works any more, for this reason.
    pub ended: Option<Error>,
    /// `Close` is among the operations, as this request.
    pub closing: Option<u64>,
    pub welcome: Option<Welcome>,
    pub first: Option<Promise<()>>,
    /// Connections that took the place of one that broke.
    pub resumed: u64,
    /// What programs are called, and which was to run last.
    pub programs: HashMap<u64, String>,
    pub run: Option<u64>,
    pub work: Work,
    /// A call that was to do or to wait for something was told what ended the session.
    pub end_is_told: bool,
    /// Threads that wait for room in the queue.
    waiting_for_room: usize,
}

impl State {
    /// What somebody waits for, in words: the last that was to run before it may be what did not end.
    fn operation(&self, waiting: Option<&Waiting>, is_close: bool) -> String {
        let called = |program: &u64| self.programs.get(program).map_or("a program", String::as_str);
        let what = match waiting {
            Some(Waiting::Compiled(program, _)) => return format!("compile {}", called(program)),
            Some(Waiting::Array(_)) => Some("download"),
            Some(Waiting::Done(_)) if is_close => Some("close"),
            Some(Waiting::Done(_) | Waiting::Finished(_)) => Some("synchronise"),
            Some(Waiting::Figures(_)) => Some("load"),
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
    /// There is something to write.
    pub wake: Arc<Notify>,
    /// There is room in the queue.
    room: Condvar,
    /// Bytes of frames, in each direction.
    pub sent: AtomicU64,
    pub received: AtomicU64,
    /// Of what was sent, payloads as they were before they were encoded.
    pub uploaded: AtomicU64,
    pub options: Options,
    /// Which session it is and where, for errors.
    session: String,
    worker: String,
}

impl Shared {
    /// What there is before the first connection, which keeps `first`.
    pub(super) fn new(options: Options, first: Promise<()>, target: &Target) -> Self {
        Self {
            state: Mutex::new(State {
                core: Core::new(Window {
                    frames: options.window_frames,
                    bytes: options.window_bytes,
                })
                .compressing(options.compression),
                waiting: HashMap::new(),
                ended: None,
                closing: None,
                welcome: None,
                first: Some(first),
                resumed: 0,
                programs: HashMap::new(),
                run: None,
                work: Work::default(),
                end_is_told: false,
                waiting_for_room: 0,
            }),
            wake: Arc::default(),
            room: Condvar::new(),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            uploaded: AtomicU64::new(0),
            options,
            session: target.session.clone(),
            worker: target.worker.clone(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anybody waits for the executor: for an answer, or for it to take what is queued.
    pub(crate) fn is_awaited(&self) -> bool {
        let state = self.lock();
        !state.waiting.is_empty() || state.core.queued().0 > 0
    }

    /// Everything that waits, and everything to come, gets this error; the first one counts.
    pub(crate) fn end(&self, error: Error) {
        let about = |operation: &str| error.clone().about(&self.session, &self.worker, operation);
        let (waiting, first) = {
            let mut state = self.lock();
            let waiting = std::mem::take(&mut state.waiting);
            let closing = state.closing;
            if state.ended.is_none() {
                // Of what comes later the first that waited is the best that is known.
                let oldest = waiting.iter().min_by_key(|(request, _)| **request);
                let operation = state.operation(oldest.map(|(_, waiting)| waiting), oldest.map(|(request, _)| *request) == closing);
                state.ended = Some(about(&operation));
            }
            let told = waiting.into_iter().map(|(request, waiting)| {
                let is_close = Some(request) == closing;
                let operation = state.operation(Some(&waiting), is_close);
                (is_close, operation, waiting)
            });
            let told: Vec<_> = told.collect();
            state.end_is_told |= told.iter().any(|(is_close, _, waiting)| !is_close && waiting.looks_for_work());
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
            // A download is answered when all before it has ended; one that fails may be answered earlier.
            let shows_end = match &waiting {
                Some(Waiting::Done(_) | Waiting::Finished(_)) => true,
                Some(Waiting::Array(_)) => answer.is_ok(),
                _ => false,
            };
            state.work.answer(request, shows_end);
            (waiting, state.closing == Some(request))
        };
        // The session has ended when `close` returns.
        if closed {
            self.end(Error::Closed);
        }
        if let Some(waiting) = waiting {
            waiting.keep(answer.map_err(Error::Failed));
        }
    }

    /// The queue of this state has become shorter.
    pub(crate) fn room(&self, state: &State) {
        if state.waiting_for_room > 0 {
            self.room.notify_all();
        }
    }

    fn has_room(&self, operations: usize, bytes: u64) -> bool {
        operations < QUEUED_OPERATIONS && bytes <= self.options.queued_bytes
    }

    /// Runs `submit` when the queue has room for an operation.
    pub(super) fn submit<R>(&self, submit: impl FnOnce(&mut State) -> R) -> Result<R, Error> {
        let submitted = self.submit_into(
            |operations, bytes| self.has_room(operations, bytes),
            |state| {
                let result = submit(state);
                (result, state.core.queued().1 <= LITTLE_BYTES)
            },
        );
        let (result, is_little) = submitted.inspect_err(|_| self.lock().end_is_told = true)?;
        // An executor that waits for a caller that waits for it begins at once.
        if is_little {
            runtime::turn();
        } else {
            runtime::call();
        }
        Ok(result)
    }

    /// Waits, no longer than so, until an operation would not have to wait. Gives whether it would not.
    pub(super) fn room_within(&self, time: Duration) -> bool {
        let waits = |state: &mut State| {
            let (operations, bytes) = state.core.queued();
            state.ended.is_none() && state.closing.is_none() && !self.has_room(operations, bytes)
        };
        let mut state = self.lock();
        if waits(&mut state) && !time.is_zero() {
            runtime::call();
            state.waiting_for_room += 1;
            let waited = self.room.wait_timeout_while(state, time, waits);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            state.waiting_for_room -= 1;
        }
        !waits(&mut state)
    }

    /// As [`Self::submit`], where `has_room` says of operations and bytes that are queued whether there is room.
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
            state.waiting_for_room += 1;
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting_for_room -= 1;
        }
        let result = submit(&mut state);
        drop(state);
        runtime::wake(&self.wake);
        Ok(result)
    }

    /// Asks something. Behind uploads that fill the queue it waits in the queue, not before it: callers such as the Python package hold
    /// more than their own thread meanwhile.
    pub(super) fn ask<T>(
        &self,
        wanted: Wanted,
        waiting: fn(Promise<T>) -> Waiting,
        kind: impl FnOnce(&mut Core, u64) -> Kind,
    ) -> Pending<T> {
        let (promise, answer) = pending();
        let mut promise = Some(promise);
        let submitted = self.submit_into(
            |operations, _| operations < QUEUED_QUESTIONS,
            |state| {
                let request = state.core.request(wanted);
                if let Some(promise) = promise.take() {
                    state.waiting.insert(request, waiting(promise));
                }
                state.work.ask(request);
                let kind = kind(&mut state.core, request);
                state.core.submit(kind, Bytes::new());
            },
        );
        if let (Err(error), Some(promise)) = (submitted, promise) {
            let waiting = waiting(promise);
            if waiting.looks_for_work() {
                self.lock().end_is_told = true;
            }
            waiting.keep(Err(error));
        }
        answer
    }

    /// Closes it, whether the queue has room or not: there is one of these, and a session that is dropped waits for nothing.
    pub(super) fn close(&self) -> Pending<()> {
        let (promise, answer) = pending();
        let mut promise = Some(promise);
        let submitted = self.submit_into(
            |_, _| true,
            |state| {
                let request = state.core.request(Wanted::Done);
                if let Some(promise) = promise.take() {
                    state.waiting.insert(request, Waiting::Done(promise));
                }
                state.core.submit(Kind::Close(Close { request }), Bytes::new());
                state.closing = Some(request);
            },
        );
        runtime::call();
        if let Some(promise) = promise {
            promise.keep(match submitted {
                // It is closed, or about to be.
                Ok(()) | Err(Error::Closed) => Ok(()),
                Err(error) => Err(error),
            });
        }
        answer
    }
}
