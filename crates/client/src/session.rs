//! A session as a caller sees it: tensors, programs, calls that return at once.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use sahasra_wire::session::{
    Allocate, Compile, Compiled, Execute, Figures, Format, Launch, Load, PART_BYTES, Part, Synchronise, Upload, Welcome, argument,
    client_frame::Kind, element_width, frame,
};

use crate::{
    Error,
    core::{Core, Wanted},
    element::array_bytes,
    link,
    pending::{Pending, Promise, pending},
    runtime,
};

mod handles;
mod shared;
mod target;
#[cfg(test)]
mod tests;

pub use handles::{Argument, Program, Tensor};
pub(crate) use shared::Shared;
pub use target::{Options, Target};

use handles::Named;
use shared::Waiting;

/// Bytes that went over a session's connections: everything but the greetings and what carries the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// To the executor; what was sent again after a connection broke counts again.
    pub sent_bytes: u64,
    /// From it.
    pub received_bytes: u64,
    /// Of what was sent, bytes of tensors and code, as they were before any were compressed.
    pub uploaded_bytes: u64,
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
        let shared = Arc::new(Shared::new(options, first, &target));
        runtime::start(link::run(shared.clone(), target))?;
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
            uploaded_bytes: shared.uploaded.load(Ordering::Relaxed),
        }
    }

    /// What ended the session, where something was asked for that is not known to have happened, and no call was told of the end: uploads, allocations,
    /// compilations and executions are, when a later download or [`Self::synchronise`] was answered. None where this client closed it.
    pub fn unreported_end(&self) -> Option<Error> {
        let state = self.shared().lock();
        let is_unreported = !state.end_is_told && !state.work.is_finished();
        state.ended.clone().filter(|error| is_unreported && !matches!(error, Error::Closed))
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

    /// Waits until an operation that is added would not have to wait for those before it, for a caller that has to look after something
    /// else now and then. Gives whether that is so; when the session is over it is.
    pub fn room_within(&self, time: Duration) -> bool {
        self.shared().room_within(time)
    }

    /// A tensor with these bytes: dense, row-major, little-endian. They go to the socket as they are, or compressed where
    /// [`Options::compression`] says so, and are held until they have arrived. It waits only while more than [`Options::queued_bytes`] are on their way.
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
            state.work.submit();
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
                let part = Part::raw(payload.len(), element_width(element_type));
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
            // Whoever asks waits for it.
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

    /// Runs a program of engine `xla` that has so many results. The tensors at the places in `donated` end: their memory may become
    /// the results'.
    ///
    /// # Errors
    /// [`Error::Invalid`] for tensors of another session, places that are none, a donated tensor that is given twice, or a message beyond its
    /// limit: nothing is donated then. What ended the session.
    pub fn execute(&self, program: &Program, arguments: &[&Tensor], outputs: usize, donated: &[u32]) -> Result<Vec<Tensor>, Error> {
        self.own(&program.0)?;
        for tensor in arguments {
            self.own(&tensor.0)?;
        }
        if donated.iter().any(|&place| place as usize >= arguments.len()) {
            return Err(Error::Invalid("a place that is donated has no argument".to_owned()));
        }
        let is_given_twice = |place: u32| {
            let name = arguments[place as usize].0.name;
            arguments.iter().filter(|argument| argument.0.name == name).count() > 1
        };
        if let Some(place) = donated.iter().find(|&&place| is_given_twice(place)) {
            return Err(Error::Invalid(format!(
                "argument {place} is donated and given twice: give another tensor, or donate neither"
            )));
        }
        // A name takes ten bytes at the most.
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
            Err(Error::Invalid("a tensor or program is of another session".to_owned()))
        }
    }

    /// Waits for everything before it: the answer is the first failure since the last time.
    pub fn synchronise(&self) -> Pending<()> {
        let kind = |_: &mut Core, request| Kind::Synchronise(Synchronise::new(request));
        self.shared().ask(Wanted::Done, Waiting::Done, kind)
    }

    /// Waits for everything before it, as [`Self::synchronise`]: the answer is the first failure since the last time that no other answer has
    /// told. When the session ends before that, [`Self::unreported_end`] says whether that is to be told.
    pub fn finish(&self) -> Pending<()> {
        let kind = |_: &mut Core, request| {
            Kind::Synchronise(Synchronise {
                request,
                only_untold: true,
            })
        };
        self.shared().ask(Wanted::Done, Waiting::Finished, kind)
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
