//! API of a session: tensors, programs, and calls that return without waiting for an answer.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use sahasra_wire::session::{
    Allocate, Compile, Compiled, Execute, Format, Launch, Load, PART_BYTES, Part, Stats, Synchronise, Upload, Welcome, argument,
    client_frame::Kind, element_width, frame,
};

use crate::{
    Error,
    core::{Core, Wanted},
    element::array_bytes,
    link,
    pending::{Pending, Promise, pending},
    runtime,
    state::{Shared, Waiting},
    target::{Options, Target},
};

mod cuda;
mod handles;
#[cfg(test)]
mod tests;

pub use handles::{Argument, Program, Tensor};

use handles::Named;

/// Bytes transferred on a session's connections, without greetings and transport overhead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes that were sent again after a connection broke count again.
    pub sent_bytes: u64,
    pub received_bytes: u64,
    /// Payload bytes sent (tensors and code), counted before compression.
    pub uploaded_bytes: u64,
}

/// A session, with its connection and everything that this client has in it. Clones refer to the same session. Dropping the last clone
/// closes the session in the background.
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
    /// Connects to a session, within [`Options::connect`].
    pub async fn connect(target: Target, options: Options) -> Result<Self, Error> {
        let (session, connected) = Self::begin(target, options)?;
        connected.await?;
        Ok(session)
    }

    /// Starts to connect. Operations may be submitted at once. Fails if the system provides no thread.
    pub fn begin(target: Target, options: Options) -> Result<(Self, Pending<()>), Error> {
        let (first, connected) = pending();
        let shared = Arc::new(Shared::new(options, first, &target));
        runtime::start(link::run(shared.clone(), target))?;
        Ok((Self(Arc::new(Owner(shared))), connected))
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.0.0
    }

    /// Returns the executor's most recent [`Welcome`], or `None` before the first connection.
    pub fn welcome(&self) -> Option<Welcome> {
        self.shared().lock().welcome.clone()
    }

    pub fn resumed(&self) -> u64 {
        self.shared().lock().resumed
    }

    pub fn traffic(&self) -> Traffic {
        let shared = self.shared();
        Traffic {
            sent_bytes: shared.sent.load(Ordering::Relaxed),
            received_bytes: shared.received.load(Ordering::Relaxed),
            uploaded_bytes: shared.uploaded.load(Ordering::Relaxed),
        }
    }

    /// Returns the error that ended the session, if work may have been lost and no call has returned the error yet. Work means uploads,
    /// allocations, compilations and executions; it is known to have ended when a later download or [`Self::synchronise`] was answered.
    /// Returns `None` if this client closed the session.
    pub fn unreported_end(&self) -> Option<Error> {
        let state = self.shared().lock();
        let is_unreported = !state.end_is_reported && !state.work.is_finished();
        state.ended.clone().filter(|error| is_unreported && !matches!(error, Error::Closed))
    }

    /// Returns the error that ended the session, or `None` while the session works.
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

    /// Blocks for at most `time` until an operation could be submitted without blocking, for callers that have to do something else from
    /// time to time. Returns whether it could; always true after the session has ended.
    pub fn room_within(&self, time: Duration) -> bool {
        self.shared().room_within(time)
    }

    /// Uploads a tensor: dense, row-major, little-endian. The bytes are written to the socket without a copy, or compressed as
    /// [`Options::compression`] says, and are kept until they have arrived. Blocks only while the queue is full, for example with more than
    /// [`Options::queued_bytes`]. Fails with [`Error::Invalid`] when type, dimensions and length of the data do not match, or with the error
    /// that ended the session.
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
            state.work.submit();
            let name = state.core.name();
            let upload = Upload {
                tensor: name,
                element_type: element_type.to_owned(),
                dimensions: dimensions.to_vec(),
                bytes,
            };
            state.core.submit(Kind::Upload(upload), Bytes::new());
            // All parts are submitted under one lock, so that no other operation comes between them.
            for start in (0..data.len()).step_by(PART_BYTES) {
                let payload = data.slice(start..data.len().min(start + PART_BYTES));
                let part = Part::raw(payload.len(), element_width(element_type));
                state.core.submit(Kind::Part(part), payload);
            }
            name
        })?;
        Ok(self.tensor(name))
    }

    /// Creates a zeroed tensor. Fails like [`Self::put`].
    pub fn allocate(&self, element_type: &str, dimensions: &[i64]) -> Result<Tensor, Error> {
        array_bytes(element_type, dimensions)?;
        let name = self.shared().submit(|state| {
            state.work.submit();
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

    /// Compiles a program. A failed compilation is reported by operations that need the program's results. Fails with [`Error::Invalid`] when
    /// the code exceeds the maximum payload of a frame, or with the error that ended the session.
    pub fn compile(&self, name: &str, format: Format, code: impl Into<Bytes>) -> Result<Program, Error> {
        self.compile_with(name, format, code.into(), None)
    }

    /// Compiles a program like [`Self::compile`]. The answer contains its requirements, or the failure of the compilation.
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
            // The answer to the request shows whether the program compiled, so this does not count as unfinished work.
            if promise.is_none() {
                state.work.submit();
            }
            let program = state.core.name();
            let request = promise.map_or(0, |promise| {
                let request = state.core.request(Wanted::Compiled);
                state.waiting.insert(request, Waiting::Compiled(program, promise));
                request
            });
            let compile = Compile {
                program,
                name: name.to_owned(),
                format: format as i32,
                request,
            };
            state.core.submit(Kind::Compile(compile), code);
            state.programs.insert(program, name.to_owned());
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

    /// Executes a program of the engine `xla` that has `outputs` results. The tensors at the indices in `donated` are deleted, so that
    /// results can reuse their memory. Fails with [`Error::Invalid`] for tensors of another session, an index without an argument, a donated
    /// tensor that is passed twice, or a message that exceeds its size limit; nothing is donated then.
    pub fn execute(&self, program: &Program, arguments: &[&Tensor], outputs: usize, donated: &[u32]) -> Result<Vec<Tensor>, Error> {
        self.own(&program.0)?;
        for tensor in arguments {
            self.own(&tensor.0)?;
        }
        if let Some(place) = donated.iter().find(|&&place| place as usize >= arguments.len()) {
            let count = arguments.len();
            return Err(Error::Invalid(format!(
                "invalid donated index {place}: {count} arguments were passed"
            )));
        }
        let is_given_twice = |place: u32| {
            let name = arguments[place as usize].0.name;
            arguments.iter().filter(|argument| argument.0.name == name).count() > 1
        };
        if let Some(place) = donated.iter().find(|&&place| is_given_twice(place)) {
            return Err(Error::Invalid(format!(
                "argument {place} is donated and passed twice: pass another tensor, or donate neither"
            )));
        }
        // The varint of a number has at most ten bytes.
        if (arguments.len() + outputs + donated.len()) * 10 > frame::MAX_MESSAGE_BYTES - 1024 {
            return Err(Error::Invalid(format!(
                "{} arguments and {outputs} results are too many",
                arguments.len()
            )));
        }
        let names = self.shared().submit(|state| {
            state.work.submit();
            let names: Vec<u64> = (0..outputs).map(|_| state.core.name()).collect();
            let execute = Execute {
                program: program.0.name,
                arguments: arguments.iter().map(|tensor| tensor.0.name).collect(),
                outputs: names.clone(),
                donated: donated.to_vec(),
            };
            state.core.submit(Kind::Execute(execute), Bytes::new());
            state.run = Some(program.0.name);
            names
        })?;
        Ok(names.into_iter().map(|name| self.tensor(name)).collect())
    }

    /// Launches a kernel of the engine `ptx`. `grid` is the number of blocks, `block` the number of threads per block, in x, y and z. The
    /// arguments are in the order of the kernel's parameters. Fails with [`Error::Invalid`] for tensors of another session or a message that
    /// exceeds its size limit.
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
        self.shared().submit(|state| {
            state.work.submit();
            state.core.submit(Kind::Launch(launch), Bytes::new());
            state.run = Some(program.0.name);
        })
    }

    fn own(&self, named: &Named) -> Result<(), Error> {
        if Arc::ptr_eq(&named.shared, self.shared()) {
            Ok(())
        } else {
            Err(Error::Invalid("a tensor or program belongs to another session".to_owned()))
        }
    }

    /// Waits for all preceding operations. The answer is the first failure since the last call.
    pub fn synchronise(&self) -> Pending<()> {
        let kind = |_: &mut Core, request| Kind::Synchronise(Synchronise::new(request));
        self.shared().ask(Wanted::Done, Waiting::Done, kind)
    }

    /// Waits for all preceding operations like [`Self::synchronise`], but the answer is the first failure since the last call that no other
    /// answer has reported. If the session ends before the answer, [`Self::unreported_end`] says whether the end must be reported.
    pub fn finish(&self) -> Pending<()> {
        let kind = |_: &mut Core, request| {
            Kind::Synchronise(Synchronise {
                request,
                only_unreported: true,
            })
        };
        self.shared().ask(Wanted::Done, Waiting::Finished, kind)
    }

    /// Requests statistics of the session.
    pub fn load(&self) -> Pending<Stats> {
        let kind = |_: &mut Core, request| Kind::Load(Load { request });
        self.shared().ask(Wanted::Stats, Waiting::Stats, kind)
    }

    /// Closes the session and frees everything that this client has in it. The answer arrives when this is done.
    pub fn close(&self) -> Pending<()> {
        self.shared().close()
    }
}
