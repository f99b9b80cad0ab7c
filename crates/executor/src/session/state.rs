//! State of a client, independent of its connection: tensors and programs by name, failures, work in progress, and device memory in use
//! against the session's limit. It takes operations in order and gives answers in order. One thread uses it.
//!
//! ```text
//!  operation ──► names ──► Engine ──► Completion ─┐
//!                  │                              ▼
//!                  └── answers at once ──► Pending (in order) ──► answers
//! ```

mod compilations;
mod epoch;
mod executions;
mod memory;
mod names;
mod pending;
mod sending;
mod uploads;

#[cfg(test)]
mod tests;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use sahasra_pjrt::Shape;
use sahasra_wire::cuda::{self, Read, Wait};
use sahasra_wire::session::{self, Delete, FailureCode, Stats, client_frame, server_frame::Kind};

use self::compilations::Compiling;
use self::epoch::{Epoch, Failure};
use self::memory::{Account, Charge};
use self::names::{Named, Names};
use self::pending::Pending;
use self::sending::{SENDING_TIMEOUT, Sending, Sent, Watched};
use self::uploads::Incoming;
use super::answer::SessionAnswer;
use super::engine::{Callback, Completion, Engine, Fault, Properties};
use super::engine_thread::ClientState;
use super::hub::Waiting;
use super::payload::Payload;

/// Name of operations of the engine `cuda` in messages.
const CUDA: &str = "an operation of the CUDA driver library";

/// Violation of the protocol by an operation. The client receives the reason, and loses its tensors and programs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("operation {sequence}: {reason}")]
pub(crate) struct Malformed {
    pub sequence: u64,
    pub reason: String,
}

/// An array with its shape and origin.
struct Tensor<E: Engine> {
    array: E::Tensor,
    shape: Shape,
    /// Execution that computes the array; `None` if the client uploaded or allocated it.
    execution: Option<Rc<Execution<E>>>,
    charge: Charge,
    /// Present while the array's bytes are sent directly from its memory.
    sending: RefCell<Weak<Sending>>,
}

impl<E: Engine> Tensor<E> {
    /// Failure because of which the array has no content, if already known.
    fn failure(&self) -> Option<&Rc<Failure>> {
        self.execution.as_ref()?.failure.get()
    }
}

struct Execution<E: Engine> {
    sequence: u64,
    name: Rc<str>,
    completion: Completion,
    epoch: Rc<Epoch>,
    /// Kept while the execution runs, because their memory is in use even if they were deleted.
    arguments: RefCell<Vec<Rc<Tensor<E>>>>,
    temporaries: u64,
    failure: OnceCell<Rc<Failure>>,
    is_finished: Cell<bool>,
}

struct Program<E: Engine> {
    name: Rc<str>,
    program: E::Program,
    properties: Rc<Properties>,
    /// Device memory of each result, in bytes.
    output_bytes: Vec<u64>,
    /// Device memory of the program itself.
    charge: Charge,
}

pub(crate) struct State<E: Engine> {
    engine: E,
    limit_bytes: u64,
    account: Rc<Account>,
    tensors: Names<Tensor<E>>,
    programs: Names<Program<E>>,
    incoming: Option<Incoming>,
    compiling: Option<Compiling<E>>,
    pending: VecDeque<Pending<E>>,
    /// Number of entries in `pending` that produce answers, and of executions that are not finished.
    pending_answers: usize,
    under_way: usize,
    /// Bytes of the downloads in `pending`.
    pending_bytes: u64,
    temporaries: u64,
    sending: Vec<Watched<E>>,
    sent: Arc<Sent>,
    /// Timeout for waiting for the memory of tensors that are being sent.
    sending_timeout: Duration,
    epoch: Rc<Epoch>,
    /// Fault that made the device's context unusable: all further operations on the device fail with it.
    poisoned: Option<Fault>,
    answers: Vec<SessionAnswer>,
    closed: Option<SessionAnswer>,
    callbacks: Callbacks,
}

/// Callbacks for the begin and the end of work.
pub(crate) struct Callbacks {
    pub execution_begins: Callback,
    pub execution_ends: Callback,
    /// Called when a download or a compilation has ended.
    pub download_ends: Callback,
}

impl<E: Engine> ClientState for State<E> {
    fn has_answers(&self) -> bool {
        !self.answers.is_empty() || self.closed.is_some()
    }

    fn take_answers(&mut self) -> (Vec<SessionAnswer>, Option<SessionAnswer>) {
        (std::mem::take(&mut self.answers), self.closed.take())
    }

    /// Number of tensors with names, and bytes of device memory in use. Does not count deleted tensors that are still being sent.
    fn stored(&self) -> (u64, u64) {
        (self.tensors.there, self.account.used())
    }

    fn waiting(&self) -> Waiting {
        Waiting {
            pending_bytes: self.pending_bytes,
            is_compiling: self.is_compiling(),
            is_asked: self.pending_answers > 0,
            running: self.running_behind(),
        }
    }

    fn can_settle(&self) -> bool {
        self.has_compiled() || self.pending.front().is_some_and(Pending::is_ready)
    }

    fn settle(&mut self) {
        self.settle();
    }

    /// Frees everything and discards all answers. Waits for running executions, because their memory is in use until they end.
    fn reset(&mut self) {
        self.tensors = Names::default();
        self.incoming = None;
        self.finish_compilation();
        self.programs = Names::default();
        while self.finish_oldest() {}
        // The failure of a launch without a completion concerns no call any more.
        let _ = self.engine.synchronise();
        self.pending.clear();
        (self.pending_answers, self.pending_bytes) = (0, 0);
        self.epoch = Rc::default();
        self.answers.clear();
        self.closed = None;
    }

    fn operation(&mut self, sequence: u64, kind: client_frame::Kind, payload: Payload) -> Result<(), Malformed> {
        use client_frame::Kind as Operation;
        let malformed = |reason: &str| Malformed {
            sequence,
            reason: reason.to_owned(),
        };
        // Does not wait, because the caller passes no operation while a program compiles.
        self.finish_compilation();
        if self.incoming.is_some() && !matches!(kind, Operation::Part(_)) {
            return Err(malformed("invalid operation during an upload: expected a part of it"));
        }
        let has_payload = matches!(
            kind,
            Operation::Part(_) | Operation::Compile(_) | Operation::CudaBatch(_) | Operation::CudaWrite(_) | Operation::CudaLoad(_)
        );
        if !payload.is_empty() && !has_payload {
            return Err(malformed("unexpected payload"));
        }
        match kind {
            Operation::Hello(_) => return Err(malformed("duplicate Hello")),
            Operation::Attach(_) => return Err(malformed("Attach on the stream of a session")),
            Operation::CudaBatch(_) | Operation::CudaWrite(_) | Operation::CudaDiscard(_) => {
                self.fail(
                    sequence,
                    || CUDA.to_owned(),
                    Fault::unsupported(CUDA, self.engine.description().engine),
                );
            }
            Operation::CudaRead(Read { request, .. })
            | Operation::CudaLoad(cuda::Load { request, .. })
            | Operation::CudaWait(Wait { request, .. }) => {
                let fault = Fault::unsupported(CUDA, self.engine.description().engine);
                self.answer(SessionAnswer::failed(request, sequence, CUDA, fault.code, fault.message));
            }
            Operation::Upload(upload) => self.upload(sequence, upload),
            Operation::Part(part) => self.part(part, payload).map_err(|error| malformed(&error.to_string()))?,
            Operation::Allocate(allocate) => self.allocate(sequence, &allocate),
            Operation::Compile(compile) => self.compile(sequence, compile, &payload.into_bytes()),
            Operation::Execute(execute) => self.execute(sequence, &execute),
            Operation::Launch(launch) => self.launch(sequence, &launch),
            Operation::Download(download) => self.download(sequence, download),
            Operation::Delete(delete) => self.delete(sequence, &delete),
            Operation::Synchronise(synchronise) => {
                self.synchronise_launches(sequence);
                let epoch = std::mem::take(&mut self.epoch);
                self.push(Pending::Synchronise(synchronise, epoch));
            }
            Operation::Load(load) => {
                let stats = self.stats(load.request);
                self.answer(Kind::Stats(stats).into());
            }
            Operation::Close(close) => {
                self.tensors = Names::default();
                self.programs = Names::default();
                self.synchronise_launches(sequence);
                let epoch = std::mem::take(&mut self.epoch);
                self.push(Pending::Close(close.request, epoch));
            }
        }
        self.settle();
        Ok(())
    }
}

impl<E: Engine> State<E> {
    /// Empty state on `engine`. `limit_bytes` is the device memory that the session may use.
    pub(crate) fn new(engine: E, limit_bytes: u64, callbacks: Callbacks) -> Self {
        Self {
            engine,
            limit_bytes,
            account: Rc::default(),
            tensors: Names::default(),
            programs: Names::default(),
            incoming: None,
            compiling: None,
            pending: VecDeque::new(),
            pending_answers: 0,
            under_way: 0,
            pending_bytes: 0,
            temporaries: 0,
            sending: Vec::new(),
            sent: Arc::default(),
            sending_timeout: SENDING_TIMEOUT,
            epoch: Rc::default(),
            poisoned: None,
            answers: Vec::new(),
            closed: None,
            callbacks,
        }
    }

    /// Waits for all launched kernels. The next `Synchronise` reports a failure.
    fn synchronise_launches(&mut self, sequence: u64) {
        if let Err(fault) = self.engine.synchronise() {
            self.fail(sequence, || "launch".to_owned(), fault);
        }
    }

    fn stats(&self, request: u64) -> Stats {
        Stats {
            request,
            tensors: self.tensors.there,
            used_bytes: self.used(),
            limit_bytes: self.limit_bytes,
            programs: self.programs.there,
            active_executions: self.pending.iter().filter(|pending| pending.runs()).count() as u64,
        }
    }

    /// Records a failure that this operation caused. The next `Synchronise` reports it.
    fn fail(&mut self, sequence: u64, operation: impl FnOnce() -> String, fault: Fault) -> Rc<Failure> {
        let failure = Failure::new(sequence, operation(), fault);
        self.epoch.record(&failure);
        failure
    }

    fn check_context(&self) -> Result<(), Fault> {
        self.poisoned.clone().map_or(Ok(()), Err)
    }

    /// Remembers a fault that made the device's context unusable.
    fn note(&mut self, fault: &Fault) {
        if fault.code == FailureCode::Internal && self.poisoned.is_none() && self.engine.is_lost() {
            self.poisoned = Some(fault.clone());
        }
    }

    fn tensor(&self, array: E::Tensor, shape: Shape, execution: Option<Rc<Execution<E>>>) -> Tensor<E> {
        let charge = self.account.charge(self.engine.stored_bytes(&array));
        Tensor {
            array,
            shape,
            execution,
            charge,
            sending: RefCell::default(),
        }
    }

    fn name_tensor(&mut self, name: u64, outcome: Result<Tensor<E>, Rc<Failure>>) {
        let named = outcome.map_or_else(Named::Failed, |tensor| Named::There(Rc::new(tensor)));
        self.tensors.set(name, named);
    }

    fn allocate(&mut self, sequence: u64, allocate: &session::Allocate) {
        let operation = || format!("allocation of tensor {}", allocate.tensor);
        let made = uploads::shape(&allocate.element_type, &allocate.dimensions).and_then(|(shape, bytes)| {
            self.check_context()?;
            let bytes = self.engine.device_bytes(bytes);
            self.reserve(bytes, 0)?;
            let array = self.engine.allocate(&shape)?;
            Ok(self.tensor(array, shape, None))
        });
        let made = made.map_err(|fault| {
            self.note(&fault);
            self.fail(sequence, operation, fault)
        });
        self.name_tensor(allocate.tensor, made);
    }

    fn download(&mut self, sequence: u64, download: session::Download) {
        let operation = || format!("download of tensor {}", download.tensor);
        let started = match self.tensors.get(download.tensor) {
            Some(Err(failure)) => Err(Rc::clone(failure)),
            Some(Ok(tensor)) => match (tensor.failure(), &self.poisoned) {
                (Some(failure), _) => Err(Rc::clone(failure)),
                (None, Some(fault)) => Err(Failure::new(sequence, operation(), fault.clone())),
                (None, None) => {
                    let tensor = Rc::clone(tensor);
                    let (completion, done) = Completion::new(Arc::clone(&self.callbacks.download_ends));
                    match self.engine.download(&tensor.array, &tensor.shape, done) {
                        Ok(transfer) => Ok((tensor, transfer, completion)),
                        Err(fault) => {
                            self.note(&fault);
                            let own = || Failure::new(sequence, operation(), fault);
                            Err(tensor.failure().cloned().unwrap_or_else(own))
                        }
                    }
                }
            },
            None => {
                let message = format!("tensor {} not found", download.tensor);
                let fault = Fault::new(FailureCode::InvalidArgument, message);
                Err(Failure::new(sequence, operation(), fault))
            }
        };
        match started {
            Ok((tensor, transfer, completion)) => {
                let bytes = tensor.shape.host_bytes().unwrap_or(0) as u64;
                self.pending_bytes += bytes;
                self.push(Pending::Download {
                    request: download.request,
                    sequence,
                    name: download.tensor,
                    tensor,
                    transfer,
                    completion,
                    bytes,
                });
            }
            Err(failure) => self.answer(failure.report(download.request).into()),
        }
    }

    fn delete(&mut self, sequence: u64, delete: &Delete) {
        for name in &delete.tensors {
            self.tensors.remove(*name);
        }
        self.free_programs(sequence, &delete.programs);
    }
}
