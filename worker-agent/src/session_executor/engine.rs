//! What runs a session's programs: one trait, and an engine for each way.
//!
//! An engine is asked by one thread, in the client's order. It may let things go on behind that: then a [`Completion`] says
//! when they are done and how they went.

use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use sahasra_pjrt::{ElementType, Shape};
use sahasra_wire::session::{Compiled, FailureCode, Format, Launch};

#[cfg(test)]
pub mod model;
pub mod ptx;
pub mod xla;

/// Why something failed, without the operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// The kind.
    pub code: FailureCode,
    /// For people.
    pub message: String,
}

impl Fault {
    /// Of that kind, in those words.
    pub fn new(code: FailureCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// An operation of the other engine.
    pub fn unsupported(what: &str, engine: &str) -> Self {
        Self::new(
            FailureCode::Unsupported,
            format!("{what} needs a session of the other engine; this one has engine {engine}"),
        )
    }
}

/// What an engine says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// `xla` or `ptx`.
    pub engine: &'static str,
    /// `cpu`, `cuda`.
    pub platform: String,
    /// In its own words.
    pub platform_version: String,
    /// In its own words.
    pub device: String,
    /// Highest version that it reads, as `major.minor.patch`; empty where that means nothing.
    pub stablehlo_version: String,
}

/// Called when something ends, on any thread: it must not block.
pub type Bell = Arc<dyn Fn() + Send + Sync>;

#[derive(Debug, Default)]
struct Outcome {
    told: OnceLock<Result<(), Fault>>,
    waiting: Mutex<()>,
    done: Condvar,
}

/// Something that goes on: whether it is done, and how it went.
#[derive(Clone, Debug)]
pub struct Completion(Arc<Outcome>);

/// The other end of a [`Completion`]: dropped without a word it tells of a fault.
pub struct Completer {
    outcome: Arc<Outcome>,
    bell: Bell,
}

impl Completion {
    /// The two ends; `bell` is rung when it ends.
    pub fn new(bell: Bell) -> (Self, Completer) {
        let outcome = Arc::<Outcome>::default();
        let completer = Completer {
            outcome: Arc::clone(&outcome),
            bell,
        };
        (Self(outcome), completer)
    }

    /// How it went, once it is done.
    pub fn outcome(&self) -> Option<&Result<(), Fault>> {
        self.0.told.get()
    }

    /// Waits until it is done.
    pub fn wait(&self) -> &Result<(), Fault> {
        let mut guard = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(outcome) = self.outcome() {
                return outcome;
            }
            guard = self.0.done.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Completer {
    /// It is done.
    pub fn complete(self, outcome: Result<(), Fault>) {
        self.tell(outcome);
    }

    fn tell(&self, outcome: Result<(), Fault>) {
        {
            let _guard = self.outcome.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            if self.outcome.told.set(outcome).is_err() {
                return;
            }
        }
        self.outcome.done.notify_all();
        (self.bell)();
    }
}

impl Drop for Completer {
    fn drop(&mut self) {
        if self.outcome.told.get().is_none() {
            self.tell(Err(Fault::new(FailureCode::Internal, "nobody said how it ended")));
        }
    }
}

/// What it takes to run a program, in bytes of device memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Its arguments.
    pub arguments: u64,
    /// Its results.
    pub outputs: u64,
    /// Of them, those that take the place of arguments.
    pub aliased: u64,
    /// In between.
    pub temporaries: u64,
    /// The code.
    pub code: u64,
}

/// A program that an engine made.
#[derive(Debug)]
pub struct Compilation<P> {
    /// It.
    pub program: P,
    /// It was made before.
    pub cached: bool,
    /// How long that took now, in milliseconds.
    pub milliseconds: u64,
}

/// What an engine knows of a program.
pub trait Program {
    /// Its results, in order; none for kernels.
    fn outputs(&self) -> &[Shape];
    /// What it takes.
    fn needs(&self) -> Needs;
    /// Floating-point operations of one execution, where they are counted.
    fn flops(&self) -> Option<f64>;
}

/// Runs programs on one device. Tensors and programs are freed when dropped.
pub trait Engine {
    /// An array on the device.
    type Tensor;
    /// A compiled program; clones are the same one.
    type Program: Program + Clone;
    /// A compilation under way.
    type Compiling;
    /// A download under way.
    type Transfer;

    /// What it is.
    fn description(&self) -> Description;

    /// Bytes that an array of so many bytes in host memory takes on the device, before it is there.
    fn device_bytes(&self, host_bytes: u64) -> u64;

    /// Bytes that this one takes.
    fn stored_bytes(&self, tensor: &Self::Tensor) -> u64;

    /// An array from host memory: dense, row-major, little-endian, as long as the shape says.
    ///
    /// # Errors
    /// Types that it does not take, memory, a lost device.
    fn upload(&mut self, shape: &Shape, data: Bytes) -> Result<Self::Tensor, Fault>;

    /// A zeroed array.
    ///
    /// # Errors
    /// As [`Engine::upload`].
    fn allocate(&mut self, shape: &Shape) -> Result<Self::Tensor, Fault>;

    /// Starts to compile a program; nothing else is asked for meanwhile but what belongs to downloads.
    ///
    /// # Errors
    /// What is found before that starts.
    fn compile(&mut self, format: Format, code: &Bytes, done: Completer) -> Result<Self::Compiling, Fault>;

    /// Bytes of device memory that the program of a compilation that is done takes for as long as it has a name.
    fn program_bytes(&self, _compiling: &Self::Compiling) -> u64 {
        0
    }

    /// The program of a compilation that is done.
    ///
    /// # Errors
    /// Why it cannot run here.
    fn program(&mut self, compiling: Self::Compiling) -> Result<Compilation<Self::Program>, Fault>;

    /// Starts a program. Arguments whose places are in `kept` stay; of the others results may take the memory. The results
    /// can be used at once.
    ///
    /// # Errors
    /// What is found before it starts; the completer is rung all the same.
    fn execute(
        &mut self,
        program: &Self::Program,
        arguments: &[&Self::Tensor],
        kept: &[i64],
        done: Completer,
    ) -> Result<Vec<Self::Tensor>, Fault>;

    /// Launches a kernel; `tensors` are those of its arguments that are tensors, in order.
    ///
    /// # Errors
    /// How it ended, where that is known already.
    fn launch(&mut self, program: &Self::Program, launch: &Launch, tensors: &[&Self::Tensor]) -> Result<(), Fault>;

    /// Waits for what runs without a completion.
    ///
    /// # Errors
    /// How that ended.
    fn synchronise(&mut self) -> Result<(), Fault>;

    /// Whether a fault has ended the device's context: nothing works any more.
    fn is_lost(&self) -> bool;

    /// Starts copying an array to host memory.
    ///
    /// # Errors
    /// What is found before that starts; the completer is rung all the same.
    fn download(&mut self, tensor: &Self::Tensor, shape: &Shape, done: Completer) -> Result<Self::Transfer, Fault>;

    /// Whether its memory is in use by others too: a download that goes on, or bytes that are sent from where they lie. Results of
    /// programs do not take it then.
    fn is_lent(&self, tensor: &Self::Tensor) -> bool;

    /// The bytes of a download that is done.
    ///
    /// # Errors
    /// How it went.
    fn downloaded(&mut self, transfer: Self::Transfer) -> Result<Bytes, Fault>;
}

/// The element type of that name.
pub fn element_type(name: &str) -> Option<ElementType> {
    (1..)
        .map_while(ElementType::of)
        .find(|known| known.name() == name && *known != ElementType::Token)
}

/// [`Compiled`] for a program.
pub fn compiled<P: Program>(request: u64, made: &Compilation<P>, limit_bytes: u64, used_bytes: u64) -> Compiled {
    let needs = made.program.needs();
    let outputs = made.program.outputs().iter().map(|shape| sahasra_wire::session::Shape {
        element_type: shape.element_type.name().to_owned(),
        dimensions: shape.dimensions.clone(),
    });
    Compiled {
        request,
        cached: made.cached,
        milliseconds: made.milliseconds,
        outputs: outputs.collect(),
        argument_bytes: needs.arguments,
        output_bytes: needs.outputs,
        aliased_bytes: needs.aliased,
        temporary_bytes: needs.temporaries,
        code_bytes: needs.code,
        flops: made.program.flops(),
        limit_bytes,
        used_bytes,
    }
}
