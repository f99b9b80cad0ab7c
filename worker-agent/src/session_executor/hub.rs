//! Where the threads of a session executor meet: connections bring operations and take answers, the engine takes operations
//! and brings answers. One lock, held for moments; whoever has nothing to do sleeps.
//!
//! A client that looks at each result before it goes on would pay for every hand-over between these threads. Its answers the engine's
//! thread therefore writes itself, and reads what comes next where it waits: [`lending`].

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sahasra_wire::session::{
    ClientFrame, Failed, FailureCode, Hello, PartError, Refused, ServerFrame, VERSION, Welcome, client_frame, encodings, server_frame::Kind,
};

use self::lending::{Call, Lending};
use super::connection::Connection;
use super::engine::Description;
use super::link::{Answer, Arrival, Link, Sending, WINDOW};
use super::payload::Payload;
use crate::session::board::Board;

mod lending;

/// Frames that a writer takes at a time.
const BATCH_FRAMES: usize = 64;
/// Bytes of payloads that the engine's thread writes by itself.
pub const LITTLE_BYTES: usize = 32 << 10;
/// The engine does not sleep.
const AWAKE: i64 = -1;

/// What the engine is to do next.
pub enum Input {
    /// The next operation.
    Operation {
        /// Its number.
        sequence: u64,
        /// What it is.
        kind: client_frame::Kind,
        /// Bytes beside it.
        payload: Payload,
        /// What they count for: what they decode to.
        bytes: usize,
    },
    /// A client begins, of that generation, or none (0): what the one before had is to be freed.
    Begin(u64),
    /// Something has ended that was waited for.
    Settle,
}

/// What the engine waits for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waiting {
    /// Bytes of downloads under way.
    pub pending_bytes: u64,
    /// A program compiles: operations wait for it.
    pub is_compiling: bool,
    /// An answer waits for something to end.
    pub is_asked: bool,
    /// It is to be woken when no more than so many executions run.
    pub running: u64,
}

/// What a payload counts for in the window.
fn counted(kind: &client_frame::Kind, payload: &Payload) -> Result<usize, PartError> {
    match kind {
        client_frame::Kind::Part(part) => part.bytes(payload.len()),
        _ => Ok(payload.len()),
    }
}

struct Inner {
    link: Link,
    inbox: VecDeque<Input>,
    /// Generation of the client whose operations are in the inbox.
    generation: u64,
    /// The client's connection.
    current: Option<Arc<Connection>>,
    is_engine_asleep: bool,
    lending: Lending,
    sleeping_writers: usize,
    /// Connection that has bytes which the engine's thread could not write.
    unwritten: Option<u64>,
    /// The last words to a client went out.
    is_told: bool,
    /// The secret by which the agent lets a client in without asking anybody.
    shown: Option<Bytes>,
}

/// See the [module](self).
pub struct Hub {
    inner: Mutex<Inner>,
    engine: Condvar,
    writers: Condvar,
    told: Condvar,
    /// Readers whose connection is lent.
    readers: Condvar,
    /// Wakes the engine where it reads.
    call: Call,
    /// Bytes a second to which the client decodes parts, as it says; 0 where it has decoded none.
    client_decodes: AtomicU64,
    /// Executions that run; the engine, where it sleeps, is woken when no more than `wake_at` do.
    running: AtomicI64,
    wake_at: AtomicI64,
    board: Board,
    description: Description,
    limit_bytes: u64,
}

impl Hub {
    /// For an engine of that description.
    pub fn new(board: Board, description: Description, limit_bytes: u64) -> Self {
        Self {
            inner: Mutex::new(Inner {
                link: Link::default(),
                inbox: VecDeque::new(),
                generation: 0,
                current: None,
                is_engine_asleep: false,
                lending: Lending::default(),
                sleeping_writers: 0,
                unwritten: None,
                is_told: false,
                shown: None,
            }),
            engine: Condvar::new(),
            writers: Condvar::new(),
            told: Condvar::new(),
            readers: Condvar::new(),
            call: Call::new(),
            client_decodes: AtomicU64::new(0),
            running: AtomicI64::new(0),
            wake_at: AtomicI64::new(AWAKE),
            board,
            description,
            limit_bytes,
        }
    }

    /// Device memory that the session may use, in bytes.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// What the agent sees.
    pub fn board(&self) -> &Board {
        &self.board
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_engine(&self, inner: &mut Inner) {
        if std::mem::take(&mut inner.is_engine_asleep) {
            if inner.lending.is_reading {
                self.call.ring();
            } else {
                self.engine.notify_one();
            }
        }
    }

    fn wake_writers(&self, inner: &Inner) {
        if inner.sleeping_writers > 0 {
            self.writers.notify_all();
        }
    }

    /// Shows the agent who may come back, where that has changed.
    fn show_secret(&self, inner: &mut Inner) {
        let secret = inner.link.secret();
        if inner.shown.as_ref() != secret {
            self.board.set_secret(secret.map(|secret| &secret[..]));
            inner.shown = secret.cloned();
        }
    }

    /// A connection says hello: its answer, and whether it stands.
    ///
    /// # Errors
    /// The refusal.
    pub fn hello(&self, connection: &Arc<Connection>, hello: &Hello, received: u64, secret: Bytes) -> Result<ServerFrame, Refused> {
        let mut inner = self.lock();
        let welcomed = inner.link.hello(connection.number, hello, received, secret, Instant::now())?;
        if welcomed.replaced.is_some()
            && let Some(old) = inner.current.take()
        {
            old.shut_down();
        }
        inner.current = Some(Arc::clone(connection));
        if !welcomed.resumed {
            self.client_decodes.store(0, Ordering::Relaxed);
            inner.inbox.clear();
            inner.inbox.push_back(Input::Begin(welcomed.generation));
            inner.generation = welcomed.generation;
            self.wake_engine(&mut inner);
        }
        self.wake_writers(&inner);
        self.show_secret(&mut inner);
        self.board.set_connected(true);
        let here = &self.description;
        let welcome = Welcome {
            version: VERSION,
            resume: welcomed.resume,
            resumed: welcomed.resumed,
            grace_milliseconds: welcomed.grace.as_millis() as u64,
            window_frames: WINDOW.frames,
            window_bytes: WINDOW.bytes,
            engine: here.engine.to_owned(),
            platform: here.platform.clone(),
            platform_version: here.platform_version.clone(),
            device: here.device.clone(),
            limit_bytes: self.limit_bytes,
            stablehlo_version: here.stablehlo_version.clone(),
            encodings: encodings(),
        };
        Ok(ServerFrame {
            sequence: 0,
            received: welcomed.received,
            kind: Some(Kind::Welcome(welcome)),
            ..ServerFrame::default()
        })
    }

    /// Frames came on a connection. Gives whether it is the client's still and makes sense. With `lends` the engine may read what comes next,
    /// until [`Hub::lent`] returns.
    pub fn frames(&self, connection: u64, frames: &mut Vec<(ClientFrame, Payload)>, lends: bool) -> bool {
        self.board.touch();
        let mut inner = self.lock();
        for (frame, payload) in frames.drain(..) {
            if frame.decoding_rate > 0 {
                self.client_decodes.store(frame.decoding_rate, Ordering::Relaxed);
            }
            let heard = inner.link.confirmed(connection, frame.received);
            let arrival = match (heard, frame.kind) {
                (Ok(false), _) => return false,
                (Err(error), _) => Err(error.to_string()),
                (Ok(true), None) if frame.sequence == 0 && payload.is_empty() => continue,
                (Ok(true), Some(kind)) if frame.sequence > 0 => match counted(&kind, &payload) {
                    Ok(bytes) => {
                        let arrival = inner.link.arrived(connection, frame.sequence, bytes);
                        arrival.map(|arrival| (arrival, kind, bytes)).map_err(|error| error.to_string())
                    }
                    Err(error) => Err(format!("operation {}: {error}", frame.sequence)),
                },
                (Ok(true), _) => Err(format!("frame {} is neither an operation nor none", frame.sequence)),
            };
            match arrival {
                Ok((Arrival::New, kind, bytes)) => inner.inbox.push_back(Input::Operation {
                    sequence: frame.sequence,
                    kind,
                    payload,
                    bytes,
                }),
                Ok((Arrival::Again, ..)) => {}
                Ok((Arrival::Stale, ..)) => return false,
                Err(reason) => {
                    self.break_off(&mut inner, connection, &reason);
                    return false;
                }
            }
        }
        if lends {
            inner.lending.connection = Some(connection);
        }
        self.wake_engine(&mut inner);
        // What was confirmed makes room.
        if inner.link.has_to_send(connection) {
            self.wake_writers(&inner);
        }
        true
    }

    /// What came on a connection makes no sense.
    pub fn malformed(&self, connection: u64, reason: &str) {
        self.break_off(&mut self.lock(), connection, reason);
    }

    fn break_off(&self, inner: &mut Inner, connection: u64, reason: &str) {
        self.dismiss(inner, connection, FailureCode::Malformed, reason);
    }

    /// The session is over: whoever is connected is told, if it takes no longer than that.
    pub fn end(&self, reason: &str, longest: Duration) {
        let mut inner = self.lock();
        let Some(connection) = inner.current.as_ref().map(|current| current.number) else {
            return;
        };
        inner.is_told = false;
        if self.dismiss(&mut inner, connection, FailureCode::Ended, reason) {
            let is_told = self.told.wait_timeout_while(inner, longest, |inner| !inner.is_told);
            drop(is_told.unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// A writer has sent what nothing comes after.
    pub fn told(&self) {
        self.lock().is_told = true;
        self.told.notify_all();
    }

    /// Takes leave of the client of that connection, if it is one. Gives whether it was.
    fn dismiss(&self, inner: &mut Inner, connection: u64, code: FailureCode, reason: &str) -> bool {
        let failed = Failed {
            request: 0,
            code: code.into(),
            sequence: 0,
            operation: String::new(),
            message: reason.to_owned(),
        };
        let is_dismissed = inner.link.breaks(connection, Kind::Failed(failed)).is_some();
        if is_dismissed {
            self.show_secret(inner);
            inner.inbox.clear();
            inner.inbox.push_back(Input::Begin(0));
            inner.generation = 0;
            self.wake_engine(inner);
            self.wake_writers(inner);
        }
        is_dismissed
    }

    /// An operation of this client makes no sense.
    pub fn malformed_operation(&self, generation: u64, reason: &str) {
        let mut inner = self.lock();
        if inner.generation == generation {
            if let Some(connection) = inner.current.as_ref().map(|current| current.number) {
                self.break_off(&mut inner, connection, reason);
            } else {
                // Nobody is there to be told; and nobody can resume.
                inner.link.forget();
                self.show_secret(&mut inner);
                inner.inbox.clear();
                inner.inbox.push_back(Input::Begin(0));
                inner.generation = 0;
            }
        }
    }

    /// A connection is over.
    pub fn disconnected(&self, connection: u64) {
        let mut inner = self.lock();
        if inner.current.as_ref().is_some_and(|current| current.number == connection) {
            inner.current = None;
        }
        if inner.link.disconnected(connection, Instant::now()) {
            self.board.set_connected(false);
        }
        // It has to see to the grace, and writers that theirs is over.
        self.wake_engine(&mut inner);
        self.wake_writers(&inner);
    }

    /// Waits until there is something to write on this connection. Gives whether that was not so at once.
    pub fn wait_to_send(&self, connection: u64) -> bool {
        let mut inner = self.lock();
        let mut has_waited = false;
        loop {
            if inner.unwritten.take_if(|unwritten| *unwritten == connection).is_some() || inner.link.has_to_send(connection) {
                return has_waited;
            }
            has_waited = true;
            inner.sleeping_writers += 1;
            inner = self.writers.wait(inner).unwrap_or_else(PoisonError::into_inner);
            inner.sleeping_writers -= 1;
        }
    }

    /// Bytes a second to which the client decodes parts, as it says; 0 where it has decoded none.
    pub fn client_decodes(&self) -> u64 {
        self.client_decodes.load(Ordering::Relaxed)
    }

    /// Whether there is something to send on this connection.
    pub fn has_to_send(&self, connection: u64) -> bool {
        self.lock().link.has_to_send(connection)
    }

    /// Frames to send on this connection, if there are any, about so many bytes at the most.
    pub fn send(&self, connection: u64, most_bytes: u64, into: &mut Vec<(ServerFrame, Bytes)>) -> Sending {
        self.lock().link.send(connection, BATCH_FRAMES, most_bytes, into)
    }

    /// Answers for a client; `last` is the one after which nothing comes. Little goes out on this thread, where nobody writes already.
    pub fn answer(&self, generation: u64, answers: Vec<Answer>, last: Option<Answer>) {
        let connection = {
            let mut inner = self.lock();
            let bytes: usize = answers.iter().map(|answer| answer.payload.len()).sum();
            for answer in answers {
                inner.link.answer(generation, answer);
            }
            let is_last = last.is_some();
            if let Some(last) = last {
                inner.link.close(generation, last);
                self.show_secret(&mut inner);
                self.board.set_connected(inner.link.is_connected());
            }
            if is_last || bytes > LITTLE_BYTES || inner.sleeping_writers == 0 {
                return self.wake_writers(&inner);
            }
            inner.current.clone()
        };
        if let Some(connection) = connection
            && connection.write_now(self)
        {
            let mut inner = self.lock();
            inner.unwritten = Some(connection.number);
            self.wake_writers(&inner);
        }
    }

    /// What the engine is to do next; waits for it. `can_settle` says whether something has ended that it waits for.
    pub fn next(&self, waiting: Waiting, can_settle: impl Fn() -> bool) -> Input {
        let mut inner = self.lock();
        loop {
            if can_settle() {
                return Input::Settle;
            }
            let now = Instant::now();
            let is_congested = waiting.is_compiling || waiting.pending_bytes > WINDOW.bytes || inner.link.is_congested();
            match inner.inbox.front() {
                Some(Input::Operation { bytes, .. }) if !is_congested => {
                    let (bytes, generation) = (*bytes, inner.generation);
                    if inner.link.take(generation, bytes) {
                        self.wake_writers(&inner);
                    }
                    if let Some(input) = inner.inbox.pop_front() {
                        return input;
                    }
                }
                Some(Input::Begin(_) | Input::Settle) => {
                    if let Some(input) = inner.inbox.pop_front() {
                        return input;
                    }
                }
                _ => {}
            }
            if inner.link.expire(now) {
                self.show_secret(&mut inner);
                inner.inbox.clear();
                inner.generation = 0;
                return Input::Begin(0);
            }
            // Whoever ends something from here on sees that it has to wake, or has ended it before the question below.
            let lent = inner.lent();
            // An engine that reads comes back soon, and then sees what has ended that no answer waits for.
            let is_woken = waiting.is_asked || waiting.is_compiling || lent.is_none();
            self.wake_at
                .store(if is_woken { waiting.running as i64 } else { AWAKE }, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            if !can_settle() {
                inner.is_engine_asleep = true;
                inner = match (lent, inner.link.expires()) {
                    (Some(connection), _) => self.read(inner, &connection, waiting),
                    (None, Some(until)) => {
                        let left = until.saturating_duration_since(now);
                        self.engine.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0
                    }
                    (None, None) => self.engine.wait(inner).unwrap_or_else(PoisonError::into_inner),
                };
                inner.is_engine_asleep = false;
            }
            self.wake_at.store(AWAKE, Ordering::SeqCst);
        }
    }

    /// An execution begins.
    pub fn execution_begins(&self) {
        self.running.fetch_add(1, Ordering::SeqCst);
        self.board.execution_begins();
    }

    /// An execution has ended.
    pub fn execution_ends(&self) {
        let running = self.running.fetch_sub(1, Ordering::SeqCst) - 1;
        self.board.execution_ends();
        fence(Ordering::SeqCst);
        if running <= self.wake_at.load(Ordering::SeqCst) {
            self.wake_engine(&mut self.lock());
        }
    }

    /// A download or a compilation has ended.
    pub fn download_ends(&self) {
        fence(Ordering::SeqCst);
        if self.wake_at.load(Ordering::SeqCst) != AWAKE {
            self.wake_engine(&mut self.lock());
        }
    }
}
