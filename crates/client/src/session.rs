//! A session as a caller sees it: tensors, programs, calls that return at once.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use sahasra_wire::session::{
    Allocate, Close, Compile, Compiled, Download, Execute, Figures, Format, Launch, Load, PART_BYTES, Part, Synchronise, Upload, Welcome,
    argument, client_frame::Kind, frame,
};
use tokio::sync::Notify;

use crate::{
    Error, Failure, Gateway,
    core::{Array, Core, Event, Wanted, Window},
    credentials::Token,
    element::array_bytes,
    link,
    pending::{Pending, Promise, pending},
    rest,
    transport::{Peer, Way},
};

#[cfg(test)]
mod tests;

/// Operations that may wait for the executor before a call that adds one waits itself.
const QUEUED_OPERATIONS: usize = 16_384;

/// Where a session is.
#[derive(Clone, Debug)]
pub struct Target {
    pub(crate) peer: Peer,
    pub(crate) way: Way,
    pub(crate) token: Token,
    pub(crate) path: String,
    pub(crate) gateway: Option<(Gateway, String, String)>,
}

impl Target {
    /// Through a gateway, over a WebSocket.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn through(gateway: &Gateway, namespace: &str, name: &str) -> Result<Self, Error> {
        Ok(Self {
            peer: gateway.peer.clone(),
            way: Way::WebSocket,
            token: gateway.token.clone(),
            path: rest::stream_path(namespace, name)?,
            gateway: Some((gateway.clone(), namespace.to_owned(), name.to_owned())),
        })
    }

    /// Straight to the worker at this URL, the `status.endpoint` of the session; verified as in [`Gateway::new`].
    ///
    /// # Errors
    /// [`Error::Configuration`], [`Error::Invalid`].
    pub fn direct(endpoint: &str, token: Token, authorities_pem: Option<&str>, namespace: &str, name: &str) -> Result<Self, Error> {
        Ok(Self {
            peer: Peer::new(endpoint, authorities_pem)?,
            way: Way::Direct,
            token,
            path: rest::stream_path(namespace, name)?,
            gateway: None,
        })
    }

    /// Asks this gateway, too, why the session is no more.
    #[must_use]
    pub fn explained_by(mut self, gateway: &Gateway, namespace: &str, name: &str) -> Self {
        self.gateway = Some((gateway.clone(), namespace.to_owned(), name.to_owned()));
        self
    }
}

/// How a session is spoken to.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Begin although another client is connected: what it had is freed.
    pub replace: bool,
    /// How long what this client has in the session is kept after its connection broke, 10 minutes at most.
    pub grace: Duration,
    /// How long the first connection may take: the worker may still be about to learn of the session.
    pub connect: Duration,
    /// Frames that may be on their way here.
    pub window_frames: u32,
    /// Bytes of payload that may be on their way here.
    pub window_bytes: u64,
    /// Bytes of tensors that may wait for the executor before a call that adds more waits itself.
    pub queued_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            replace: false,
            grace: Duration::from_secs(60),
            connect: Duration::from_secs(30),
            window_frames: 4096,
            window_bytes: 64 << 20,
            queued_bytes: 256 << 20,
        }
    }
}

/// Bytes that went over a session's connections: everything but the greetings and what carries the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// To the executor; what was sent again after a connection broke counts again.
    pub sent_bytes: u64,
    /// From it.
    pub received_bytes: u64,
}

pub(crate) enum Waiting {
    Compiled(Promise<Compiled>),
    Array(Promise<Array>),
    Done(Promise<()>),
    Figures(Promise<Figures>),
}

impl Waiting {
    fn keep(self, answer: Result<Event, Error>) {
        let other = || Error::protocol("an answer is of another kind");
        match self {
            Self::Compiled(promise) => promise.keep(answer.and_then(|event| match event {
                Event::Compiled(compiled) => Ok(compiled),
                _ => Err(other()),
            })),
            Self::Array(promise) => promise.keep(answer.and_then(|event| match event {
                Event::Array(array) => Ok(array),
                _ => Err(other()),
            })),
            Self::Done(promise) => promise.keep(answer.and_then(|event| match event {
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
}

pub(crate) struct Shared {
    state: Mutex<State>,
    /// There is something to write.
    pub wake: Notify,
    /// There is room in the queue.
    room: Condvar,
    /// Bytes of frames, in each direction.
    pub sent: AtomicU64,
    pub received: AtomicU64,
    pub options: Options,
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything that waits, and everything to come, gets this error; the first one counts.
    pub(crate) fn end(&self, error: Error) {
        let (waiting, first, closing) = {
            let mut state = self.lock();
            if state.ended.is_none() {
                state.ended = Some(error.clone());
            }
            (std::mem::take(&mut state.waiting), state.first.take(), state.closing)
        };
        for (request, waiting) in waiting {
            let closed = Some(request) == closing && matches!(error, Error::Closed);
            waiting.keep(if closed { Ok(Event::Done) } else { Err(error.clone()) });
        }
        if let Some(first) = first {
            first.keep(Err(error));
        }
        self.room.notify_all();
        self.wake.notify_one();
    }

    pub(crate) fn answer(&self, request: u64, answer: Result<Event, Failure>) {
        let (waiting, closed) = {
            let mut state = self.lock();
            (state.waiting.remove(&request), state.closing == Some(request))
        };
        if let Some(waiting) = waiting {
            waiting.keep(answer.map_err(Error::Failed));
        }
        if closed {
            self.end(Error::Closed);
        }
    }

    pub(crate) fn room(&self) {
        self.room.notify_all();
    }

    /// Runs `submit` when the queue has room.
    fn submit<R>(&self, submit: impl FnOnce(&mut State) -> R) -> Result<R, Error> {
        let mut state = self.lock();
        loop {
            if let Some(error) = &state.ended {
                return Err(error.clone());
            }
            if state.closing.is_some() {
                return Err(Error::Closed);
            }
            let (operations, bytes) = state.core.queued();
            if operations < QUEUED_OPERATIONS && bytes <= self.options.queued_bytes {
                break;
            }
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let result = submit(&mut state);
        drop(state);
        self.wake.notify_one();
        Ok(result)
    }

    fn ask<T>(&self, wanted: Wanted, waiting: fn(Promise<T>) -> Waiting, kind: impl FnOnce(&mut Core, u64) -> Kind) -> Pending<T> {
        let (promise, answer) = pending();
        let mut promise = Some(promise);
        let submitted = self.submit(|state| {
            let request = state.core.request(wanted);
            if let Some(promise) = promise.take() {
                state.waiting.insert(request, waiting(promise));
            }
            let kind = kind(&mut state.core, request);
            state.core.submit(kind, Bytes::new());
        });
        if let (Err(error), Some(promise)) = (submitted, promise) {
            promise.keep(Err(error));
        }
        answer
    }

    fn close(&self) -> Pending<()> {
        let (promise, answer) = pending();
        let mut promise = Some(promise);
        let submitted = self.submit(|state| {
            let request = state.core.request(Wanted::Done);
            if let Some(promise) = promise.take() {
                state.waiting.insert(request, Waiting::Done(promise));
            }
            state.core.submit(Kind::Close(Close { request }), Bytes::new());
            state.closing = Some(request);
        });
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

/// A connection to a session, and all that this client has there. Clones are the same session; when the last one is dropped the
/// session is closed without anybody waiting for it.
#[derive(Clone)]
pub struct Session(Arc<Owner>);

struct Owner(Arc<Shared>);

impl Drop for Owner {
    fn drop(&mut self) {
        let over = {
            let state = self.0.lock();
            state.closing.is_some() || state.ended.is_some()
        };
        if !over {
            drop(self.0.close());
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Session").finish_non_exhaustive()
    }
}

impl Session {
    /// Connects, within [`Options::connect`].
    ///
    /// # Errors
    /// [`Error`].
    pub async fn connect(target: Target, options: Options) -> Result<Self, Error> {
        let (session, connected) = Self::begin(target, options)?;
        connected.await?;
        Ok(session)
    }

    /// As [`Self::connect`], for a thread that may block.
    ///
    /// # Errors
    /// [`Error`].
    pub fn connect_blocking(target: Target, options: Options) -> Result<Self, Error> {
        let (session, connected) = Self::begin(target, options)?;
        connected.wait()?;
        Ok(session)
    }

    /// Begins to connect: operations may be added at once.
    ///
    /// # Errors
    /// [`Error::Configuration`].
    pub fn begin(target: Target, options: Options) -> Result<(Self, Pending<()>), Error> {
        let (first, connected) = pending();
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                core: Core::new(Window {
                    frames: options.window_frames,
                    bytes: options.window_bytes,
                }),
                waiting: HashMap::new(),
                ended: None,
                closing: None,
                welcome: None,
                first: Some(first),
                resumed: 0,
            }),
            wake: Notify::new(),
            room: Condvar::new(),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            options,
        });
        crate::runtime()?.spawn(link::run(shared.clone(), target));
        Ok((Self(Arc::new(Owner(shared))), connected))
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.0.0
    }

    /// What the executor said of itself when it was connected last.
    pub fn welcome(&self) -> Option<Welcome> {
        self.shared().lock().welcome.clone()
    }

    /// How many connections took the place of one that broke.
    pub fn resumed(&self) -> u64 {
        self.shared().lock().resumed
    }

    /// What went over the connections so far.
    pub fn traffic(&self) -> Traffic {
        let shared = self.shared();
        Traffic {
            sent_bytes: shared.sent.load(Ordering::Relaxed),
            received_bytes: shared.received.load(Ordering::Relaxed),
        }
    }

    /// Why nothing works any more, if so.
    pub fn ended(&self) -> Option<Error> {
        self.shared().lock().ended.clone()
    }

    fn tensor(&self, name: u64) -> Tensor {
        Tensor(Arc::new(Named {
            name,
            program: false,
            shared: self.shared().clone(),
        }))
    }

    /// A tensor with these bytes: dense, row-major, little-endian. They go to the socket as they are, and are held until they
    /// have arrived. It waits only while more than [`Options::queued_bytes`] are on their way.
    ///
    /// # Errors
    /// [`Error::Invalid`] when type, dimensions and bytes do not agree; what ended the session.
    pub fn put(&self, data: impl Into<Bytes>, element_type: &str, dimensions: &[i64]) -> Result<Tensor, Error> {
        let data = data.into();
        let bytes = array_bytes(element_type, dimensions)?;
        if bytes != data.len() as u64 {
            return Err(Error::Invalid(format!(
                "an array of {element_type} with dimensions {dimensions:?} has {bytes} bytes, not {}",
                data.len()
            )));
        }
        let name = self.shared().submit(|state| {
            let name = state.core.name();
            let upload = Upload {
                tensor: name,
                element_type: element_type.to_owned(),
                dimensions: dimensions.to_vec(),
                bytes,
            };
            state.core.submit(Kind::Upload(upload), Bytes::new());
            // No other operation comes between the parts: they are added under one lock.
            for start in (0..data.len()).step_by(PART_BYTES) {
                let payload = data.slice(start..data.len().min(start + PART_BYTES));
                let part = Part {
                    encoding: 0,
                    decoded_bytes: payload.len() as u64,
                };
                state.core.submit(Kind::Part(part), payload);
            }
            name
        })?;
        Ok(self.tensor(name))
    }

    /// A zeroed tensor.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn allocate(&self, element_type: &str, dimensions: &[i64]) -> Result<Tensor, Error> {
        array_bytes(element_type, dimensions)?;
        let name = self.shared().submit(|state| {
            let name = state.core.name();
            let allocate = Allocate {
                tensor: name,
                element_type: element_type.to_owned(),
                dimensions: dimensions.to_vec(),
            };
            state.core.submit(Kind::Allocate(allocate), Bytes::new());
            name
        })?;
        Ok(self.tensor(name))
    }

    /// A program. Whether it compiles shows when its results are looked at.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the code is larger than a frame; what ended the session.
    pub fn compile(&self, name: &str, format: Format, code: impl Into<Bytes>) -> Result<Program, Error> {
        self.compile_with(name, format, code.into(), None)
    }

    /// A program, and what it takes to run it.
    ///
    /// # Errors
    /// As [`Self::compile`]; the answer has what the compiler said.
    pub fn compile_and_ask(&self, name: &str, format: Format, code: impl Into<Bytes>) -> Result<(Program, Pending<Compiled>), Error> {
        let (promise, answer) = pending();
        let program = self.compile_with(name, format, code.into(), Some(promise))?;
        Ok((program, answer))
    }

    fn compile_with(&self, name: &str, format: Format, code: Bytes, promise: Option<Promise<Compiled>>) -> Result<Program, Error> {
        if code.len() > frame::MAX_PAYLOAD_BYTES {
            let limit = frame::MAX_PAYLOAD_BYTES;
            return Err(Error::Invalid(format!(
                "{name} has {} bytes of code, more than {limit}: pass large constants as arguments",
                code.len()
            )));
        }
        let program = self.shared().submit(|state| {
            let program = state.core.name();
            let request = promise.map_or(0, |promise| {
                let request = state.core.request(Wanted::Compiled);
                state.waiting.insert(request, Waiting::Compiled(promise));
                request
            });
            let compile = Compile {
                program,
                name: name.to_owned(),
                format: format as i32,
                request,
            };
            state.core.submit(Kind::Compile(compile), code);
            program
        })?;
        let shared = self.shared().clone();
        let named = Named {
            name: program,
            program: true,
            shared,
        };
        Ok(Program(Arc::new(named)))
    }

    /// Runs a program of engine `xla` that has so many results. The tensors at the places in `donated` end: their memory may become
    /// the results'.
    ///
    /// # Errors
    /// [`Error::Invalid`] for tensors of another session, places that are none, or a message beyond its limit; what ended the session.
    pub fn execute(&self, program: &Program, arguments: &[&Tensor], outputs: usize, donated: &[u32]) -> Result<Vec<Tensor>, Error> {
        self.own(&program.0)?;
        for tensor in arguments {
            self.own(&tensor.0)?;
        }
        if donated.iter().any(|&place| place as usize >= arguments.len()) {
            return Err(Error::Invalid("a place that is donated has no argument".to_owned()));
        }
        // A name takes ten bytes at the most.
        if (arguments.len() + outputs + donated.len()) * 10 > frame::MAX_MESSAGE_BYTES - 1024 {
            return Err(Error::Invalid(format!(
                "{} arguments and {outputs} results are too many",
                arguments.len()
            )));
        }
        let names = self.shared().submit(|state| {
            let names: Vec<u64> = (0..outputs).map(|_| state.core.name()).collect();
            let execute = Execute {
                program: program.0.name,
                arguments: arguments.iter().map(|tensor| tensor.0.name).collect(),
                outputs: names.clone(),
                donated: donated.to_vec(),
            };
            state.core.submit(Kind::Execute(execute), Bytes::new());
            names
        })?;
        Ok(names.into_iter().map(|name| self.tensor(name)).collect())
    }

    /// Launches a kernel of engine `ptx`: blocks, threads, bytes of dynamic shared memory, arguments in the kernel's order.
    ///
    /// # Errors
    /// As [`Self::execute`].
    pub fn launch(
        &self,
        program: &Program,
        entry: &str,
        grid: [u32; 3],
        block: [u32; 3],
        dynamic_shared_bytes: u32,
        arguments: &[Argument<'_>],
    ) -> Result<(), Error> {
        self.own(&program.0)?;
        let mut listed = Vec::with_capacity(arguments.len());
        for argument in arguments {
            let kind = match argument {
                Argument::Tensor(tensor) => {
                    self.own(&tensor.0)?;
                    argument::Kind::Tensor(tensor.0.name)
                }
                Argument::Scalar(bytes) => argument::Kind::Scalar(Bytes::copy_from_slice(bytes)),
            };
            listed.push(sahasra_wire::session::Argument { kind: Some(kind) });
        }
        let launch = Launch {
            program: program.0.name,
            entry: entry.to_owned(),
            grid: grid.to_vec(),
            block: block.to_vec(),
            dynamic_shared_bytes,
            arguments: listed,
        };
        if sahasra_wire::Message::encoded_len(&launch) > frame::MAX_MESSAGE_BYTES - 1024 {
            return Err(Error::Invalid(format!("the arguments of {entry} are too large")));
        }
        self.shared().submit(|state| state.core.submit(Kind::Launch(launch), Bytes::new()))
    }

    fn own(&self, named: &Named) -> Result<(), Error> {
        if Arc::ptr_eq(&named.shared, self.shared()) {
            Ok(())
        } else {
            Err(Error::Invalid("a tensor or program is of another session".to_owned()))
        }
    }

    /// Waits for everything before it: the answer is the first failure since the last time.
    pub fn synchronise(&self) -> Pending<()> {
        let kind = |_: &mut Core, request| Kind::Synchronise(Synchronise { request });
        self.shared().ask(Wanted::Done, Waiting::Done, kind)
    }

    /// What the session has.
    pub fn load(&self) -> Pending<Figures> {
        let kind = |_: &mut Core, request| Kind::Load(Load { request });
        self.shared().ask(Wanted::Figures, Waiting::Figures, kind)
    }

    /// Frees everything that this client has in the session. The answer comes when it is free.
    pub fn close(&self) -> Pending<()> {
        self.shared().close()
    }
}

/// One argument of a launch.
#[derive(Clone, Copy, Debug)]
pub enum Argument<'a> {
    /// The address of a tensor, which the kernel may read and write.
    Tensor(&'a Tensor),
    /// Little-endian bytes of a scalar, as many as the parameter has.
    Scalar(&'a [u8]),
}

struct Named {
    name: u64,
    program: bool,
    shared: Arc<Shared>,
}

impl fmt::Debug for Named {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.name)
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let first = {
            let mut state = self.shared.lock();
            if state.ended.is_some() || state.closing.is_some() {
                return;
            }
            let quiet = !state.core.has_only_deleted();
            if self.program {
                state.core.delete_program(self.name);
            } else {
                state.core.delete_tensor(self.name);
            }
            quiet
        };
        // Later ones go with the first.
        if first {
            self.shared.wake.notify_one();
        }
    }
}

/// A tensor on the session's device. It is freed when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Tensor(Arc<Named>);

impl Tensor {
    /// Its bytes, when everything before has happened.
    pub fn download(&self) -> Pending<Array> {
        self.download_expecting(None)
    }

    /// As [`Self::download`]; an answer of another size is an error before any memory is taken for it.
    pub fn download_expecting(&self, bytes: Option<u64>) -> Pending<Array> {
        let tensor = self.0.name;
        let kind = move |_: &mut Core, request| Kind::Download(Download { tensor, request });
        self.0.shared.ask(Wanted::Array(bytes), Waiting::Array, kind)
    }
}

/// A program in a session. It is forgotten when the last clone is dropped; results are not.
#[derive(Clone, Debug)]
pub struct Program(Arc<Named>);
