//! The hub connects the threads of a session executor: connections deliver operations and take answers; the engine's thread takes
//! operations and delivers answers. One lock protects everything and is held only briefly; threads without work sleep.
//!
//! A client that waits for each result would pay for every hand-over between these threads. Therefore the engine's thread writes small
//! answers itself, and reads the next operation itself while it waits: see [`delegation`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use sahasra_executor_protocol::session::status_page::StatusPage;
use sahasra_wire::session::{
    ClientFrame, Failed, FailureCode, Hello, PartError, Refused, ServerFrame, VERSION, Welcome, client_frame, encodings, server_frame::Kind,
};

use self::delegation::{Delegation, Waker};
use self::memory::ClientMemory;
use super::answer::SessionAnswer;
use super::engine::Description;
use super::link::{Arrival, Link, Sending, WINDOW};
use super::payload::Payload;

mod delegation;
mod memory;
mod peer;

pub(crate) use self::memory::Offer;
pub(crate) use self::peer::Peer;

/// Maximum number of frames that a writer takes at once.
const BATCH_FRAMES: usize = 64;
/// Maximum size of the payloads that the engine's thread writes itself, in bytes.
pub(crate) const LITTLE_BYTES: usize = 32 << 10;
/// Value of `wake_at` while the engine's thread does not sleep.
const AWAKE: i64 = -1;

/// Next step for the engine's thread.
pub(crate) enum Input {
    Operation {
        sequence: u64,
        kind: client_frame::Kind,
        /// Bytes beside the operation.
        payload: Payload,
        /// Size of the decoded payload in bytes, which counts against the window.
        bytes: usize,
    },
    /// Free everything of the previous client. A client of this generation begins, or none if it is 0.
    Begin(u64),
    /// Process something that has ended.
    Settle,
}

/// Reasons for the engine's thread to be woken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Waiting {
    /// Size of the downloads in progress, in bytes.
    pub pending_bytes: u64,
    /// Whether a program is being compiled, so that operations must wait.
    pub is_compiling: bool,
    /// Whether an answer waits for something to end.
    pub is_asked: bool,
    /// Wake the engine when at most this number of executions run.
    pub running: u64,
}

/// Bytes of a payload that count against the window.
fn counted(kind: &client_frame::Kind, payload: &Payload) -> Result<usize, PartError> {
    match kind {
        client_frame::Kind::Part(part) => part.bytes(payload.len()),
        _ => Ok(payload.len()),
    }
}

#[derive(Default)]
struct Inner {
    link: Link,
    inbox: VecDeque<Input>,
    /// Generation of the client whose operations are in the inbox.
    generation: u64,
    /// Connection of the client.
    current: Option<Arc<dyn Peer>>,
    is_engine_asleep: bool,
    delegation: Delegation,
    sleeping_writers: usize,
    /// Number of the connection with bytes that the engine's thread could not write.
    unwritten: Option<u64>,
    /// Whether the final message to a client was sent.
    is_ended: bool,
    /// Memory that the client shares, if it has asked for it.
    memory: Option<ClientMemory>,
    /// Secret on the status page that lets the agent admit a returning client without asking the API server.
    published_secret: Option<Bytes>,
}

impl Inner {
    /// Discards the operations of the previous client. The client of `generation` begins, or none if it is 0.
    fn begin(&mut self, generation: u64) {
        self.inbox.clear();
        self.memory = None;
        self.inbox.push_back(Input::Begin(generation));
        self.generation = generation;
    }
}

pub(crate) struct Hub {
    inner: Mutex<Inner>,
    engine: Condvar,
    writers: Condvar,
    ended: Condvar,
    /// Wakes readers that have delegated their connection.
    readers: Condvar,
    /// Wakes the engine's thread while it reads a connection.
    waker: Waker,
    /// Rate at which the client decodes parts, as it reports, in bytes per second; 0 if it has decoded none.
    client_decodes: AtomicU64,
    /// Number of running executions. A sleeping engine's thread is woken when at most `wake_at` are running.
    running: AtomicI64,
    wake_at: AtomicI64,
    /// Status page that the agent reads.
    pub status_page: StatusPage,
    description: Description,
    /// Offer of shared memory to clients that ask for it.
    offer: Option<Offer>,
    /// Whether memory was sent that its client has not taken. Locked while it is sent.
    is_memory_untaken: Mutex<bool>,
    /// Device memory that the session may use, in bytes.
    pub limit_bytes: u64,
}

impl Hub {
    /// Hub for an engine with this description. `limit_bytes` is the device memory that the session may use.
    pub(crate) fn new(status_page: StatusPage, description: Description, limit_bytes: u64) -> Self {
        Self {
            inner: Mutex::default(),
            engine: Condvar::new(),
            writers: Condvar::new(),
            ended: Condvar::new(),
            readers: Condvar::new(),
            waker: Waker::new(),
            client_decodes: AtomicU64::new(0),
            running: AtomicI64::new(0),
            wake_at: AtomicI64::new(AWAKE),
            status_page,
            description,
            offer: None,
            is_memory_untaken: Mutex::default(),
            limit_bytes,
        }
    }

    /// Offers shared memory to clients.
    pub(crate) fn offering(self, offer: Option<Offer>) -> Self {
        Self { offer, ..self }
    }

    fn wake_engine(&self, inner: &mut Inner) {
        if std::mem::take(&mut inner.is_engine_asleep) {
            if inner.delegation.is_reading {
                self.waker.wake();
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

    /// Publishes the secret of the resumable client to the agent if it has changed.
    fn publish_secret(&self, inner: &mut Inner) {
        let secret = inner.link.secret();
        if inner.published_secret.as_ref() != secret {
            self.status_page.set_secret(secret.map(|secret| &secret[..]));
            inner.published_secret = secret.cloned();
        }
    }

    /// Processes the `Hello` of a connection and makes it the client's current one. Returns the answer.
    pub(crate) fn hello(&self, connection: Arc<dyn Peer>, hello: &Hello, received: u64, secret: Bytes) -> Result<ServerFrame, Refused> {
        let mut inner = self.inner.lock();
        let welcomed = inner.link.hello(connection.number(), hello, received, secret, Instant::now())?;
        if welcomed.replaced.is_some()
            && let Some(old) = inner.current.take()
        {
            old.shut_down();
        }
        inner.current = Some(connection);
        if !welcomed.resumed {
            self.client_decodes.store(0, Ordering::Relaxed);
            inner.begin(welcomed.generation);
            self.wake_engine(&mut inner);
        }
        self.wake_writers(&inner);
        self.publish_secret(&mut inner);
        self.status_page.set_connected(true);
        let here = &self.description;
        let offer = self.offer.as_ref().filter(|_| hello.shares_memory);
        let welcome = Welcome {
            shared_memory: offer.map(|offer| offer.to_client(&welcomed.resume)),
            version: VERSION,
            resume: welcomed.resume,
            resumed: welcomed.resumed,
            grace_milliseconds: sahasra_wire::milliseconds(welcomed.grace),
            window_frames: WINDOW.frames,
            window_bytes: WINDOW.bytes,
            engine: here.engine.to_string(),
            platform: here.platform.clone(),
            platform_version: here.platform_version.clone(),
            device: here.device.clone(),
            limit_bytes: self.limit_bytes,
            stablehlo_version: here.stablehlo_version.clone(),
            encodings: encodings(),
            cuda: here.cuda.clone(),
        };
        Ok(ServerFrame {
            received: welcomed.received,
            kind: Some(Kind::Welcome(welcome)),
            ..ServerFrame::default()
        })
    }

    /// Processes frames of a connection. Returns whether the connection is still the client's and the frames are valid. With `delegates`
    /// the engine's thread may read the connection until [`Hub::wait_while_delegated`] returns.
    pub(crate) fn frames(&self, connection: u64, frames: &mut Vec<(ClientFrame, Payload)>, delegates: bool) -> bool {
        self.status_page.touch();
        let mut inner = self.inner.lock();
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
                (Ok(true), _) => Err(format!(
                    "invalid frame {}: sequence number and content do not match",
                    frame.sequence
                )),
            };
            match arrival {
                Ok((Arrival::New, kind, bytes)) => match inner.payload(&kind, payload) {
                    Ok(payload) => inner.inbox.push_back(Input::Operation {
                        sequence: frame.sequence,
                        kind,
                        payload,
                        bytes,
                    }),
                    Err(reason) => {
                        let reason = format!("operation {}: {reason}", frame.sequence);
                        self.dismiss(&mut inner, connection, FailureCode::Malformed, &reason);
                        return false;
                    }
                },
                Ok((Arrival::Again, ..)) => {}
                Ok((Arrival::Stale, ..)) => return false,
                Err(reason) => {
                    self.dismiss(&mut inner, connection, FailureCode::Malformed, &reason);
                    return false;
                }
            }
        }
        if delegates {
            inner.delegation.connection = Some(connection);
        }
        self.wake_engine(&mut inner);
        // Confirmed frames make room in the window.
        if inner.link.has_to_send(connection) {
            self.wake_writers(&inner);
        }
        true
    }

    /// Closes a connection because the frames it received are malformed.
    pub(crate) fn malformed(&self, connection: u64, reason: &str) {
        self.dismiss(&mut self.inner.lock(), connection, FailureCode::Malformed, reason);
    }

    /// Ends the session: sends the reason to the connected client, and waits up to `longest` until it is sent.
    pub(crate) fn end(&self, reason: &str, longest: Duration) {
        let mut inner = self.inner.lock();
        let Some(connection) = inner.current.as_ref().map(|current| current.number()) else {
            return;
        };
        inner.is_ended = false;
        if self.dismiss(&mut inner, connection, FailureCode::Ended, reason) {
            self.ended.wait_while_for(&mut inner, |inner| !inner.is_ended, longest);
        }
    }

    /// Records that a writer has sent the final message of a connection.
    pub(crate) fn record_end(&self) {
        self.inner.lock().is_ended = true;
        self.ended.notify_all();
    }

    /// Sends the final message to the client of a connection and discards its operations. Returns whether the connection is the client's.
    fn dismiss(&self, inner: &mut Inner, connection: u64, code: FailureCode, reason: &str) -> bool {
        let failed = Failed {
            code: code.into(),
            message: reason.to_owned(),
            ..Failed::default()
        };
        let is_dismissed = inner.link.breaks(connection, Kind::Failed(failed)).is_some();
        if is_dismissed {
            self.publish_secret(inner);
            inner.begin(0);
            self.wake_engine(inner);
            self.wake_writers(inner);
        }
        is_dismissed
    }

    /// Ends the client of `generation` because it sent a malformed operation.
    pub(crate) fn malformed_operation(&self, generation: u64, reason: &str) {
        let mut inner = self.inner.lock();
        if inner.generation == generation {
            if let Some(connection) = inner.current.as_ref().map(|current| current.number()) {
                self.dismiss(&mut inner, connection, FailureCode::Malformed, reason);
            } else {
                // The client is disconnected and cannot be informed, and it must not resume.
                inner.link.forget();
                self.publish_secret(&mut inner);
                inner.begin(0);
            }
        }
    }

    pub(crate) fn disconnected(&self, connection: u64) {
        let mut inner = self.inner.lock();
        if inner.current.as_ref().is_some_and(|current| current.number() == connection) {
            inner.current = None;
        }
        if inner.link.disconnected(connection, Instant::now()) {
            self.status_page.set_connected(false);
        }
        // The engine's thread must watch the grace period, and the connection's writer must end.
        self.wake_engine(&mut inner);
        self.wake_writers(&inner);
    }

    /// Waits until there is something to write on this connection. Returns whether it had to wait.
    pub(crate) fn wait_to_send(&self, connection: u64) -> bool {
        let mut inner = self.inner.lock();
        let mut has_waited = false;
        loop {
            if inner.unwritten.take_if(|unwritten| *unwritten == connection).is_some() || inner.link.has_to_send(connection) {
                return has_waited;
            }
            has_waited = true;
            inner.sleeping_writers += 1;
            self.writers.wait(&mut inner);
            inner.sleeping_writers -= 1;
        }
    }

    /// Rate at which the client decodes parts, as it reports, in bytes per second; 0 if it has decoded none.
    pub(crate) fn client_decodes(&self) -> u64 {
        self.client_decodes.load(Ordering::Relaxed)
    }

    /// Whether there is something to send on this connection.
    pub(crate) fn has_to_send(&self, connection: u64) -> bool {
        self.inner.lock().link.has_to_send(connection)
    }

    /// Appends the next frames for this connection to `into`, with at most about `most_bytes` bytes of payloads.
    pub(crate) fn send(&self, connection: u64, most_bytes: u64, into: &mut Vec<(ServerFrame, Bytes)>) -> Sending {
        self.inner.lock().link.send(connection, BATCH_FRAMES, most_bytes, into)
    }

    /// Queues answers for the client of `generation`; nothing follows `last`. Small answers are written on this thread if the connection's
    /// writer sleeps.
    pub(crate) fn answer(&self, generation: u64, answers: Vec<SessionAnswer>, last: Option<SessionAnswer>) {
        let connection = {
            let mut inner = self.inner.lock();
            let bytes: usize = answers.iter().map(|answer| answer.payload.len()).sum();
            for answer in answers {
                inner.link.answer(generation, answer);
            }
            let is_last = last.is_some();
            if let Some(last) = last {
                inner.link.close(generation, last);
                if inner.generation == generation {
                    inner.memory = None;
                }
                self.publish_secret(&mut inner);
                self.status_page.set_connected(inner.link.is_connected());
            }
            if is_last || bytes > LITTLE_BYTES || inner.sleeping_writers == 0 {
                return self.wake_writers(&inner);
            }
            inner.current.clone()
        };
        if let Some(connection) = connection
            && connection.write_now(self)
        {
            let mut inner = self.inner.lock();
            inner.unwritten = Some(connection.number());
            self.wake_writers(&inner);
        }
    }

    /// Waits for the next step of the engine's thread. `can_settle` returns whether something has ended that the engine waits for.
    pub(crate) fn next(&self, waiting: Waiting, can_settle: impl Fn() -> bool) -> Input {
        let mut inner = self.inner.lock();
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
                self.publish_secret(&mut inner);
                inner.begin(0);
                continue;
            }
            // From here on, an operation that ends either sees that it must wake the engine, or has ended before `can_settle` is called
            // below.
            let delegated = inner.delegated();
            // An engine that reads a connection returns soon, and then sees ended operations that no answer waits for.
            let is_woken = waiting.is_asked || waiting.is_compiling || delegated.is_none();
            self.wake_at
                .store(if is_woken { waiting.running as i64 } else { AWAKE }, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            if !can_settle() {
                inner.is_engine_asleep = true;
                match (delegated, inner.link.expires()) {
                    (Some(connection), _) => self.read(&mut inner, &connection, waiting),
                    (None, Some(until)) => {
                        self.engine.wait_until(&mut inner, until);
                    }
                    (None, None) => self.engine.wait(&mut inner),
                }
                inner.is_engine_asleep = false;
            }
            self.wake_at.store(AWAKE, Ordering::SeqCst);
        }
    }

    pub(crate) fn execution_begins(&self) {
        self.running.fetch_add(1, Ordering::SeqCst);
        self.status_page.execution_begins();
    }

    pub(crate) fn execution_ends(&self) {
        let running = self.running.fetch_sub(1, Ordering::SeqCst) - 1;
        self.status_page.execution_ends();
        fence(Ordering::SeqCst);
        if running <= self.wake_at.load(Ordering::SeqCst) {
            self.wake_engine(&mut self.inner.lock());
        }
    }

    /// Records that a download or a compilation has ended.
    pub(crate) fn download_ends(&self) {
        fence(Ordering::SeqCst);
        if self.wake_at.load(Ordering::SeqCst) != AWAKE {
            self.wake_engine(&mut self.inner.lock());
        }
    }
}
