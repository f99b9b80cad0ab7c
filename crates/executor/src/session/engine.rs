//! Engines that run a session's programs: the trait [`Engine`] and its implementations.
//!
//! One thread calls an engine, in the client's order. An engine may finish work in the background; then a [`Completion`] reports
//! when the work is done and whether it failed.

use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use sahasra_names as names;
use sahasra_pjrt::{CompiledMemory, ElementType, Shape};
use sahasra_wire::cuda::DeviceProperties;
use sahasra_wire::session::{Compiled, FailureCode, Format, Launch};

#[cfg(test)]
pub(crate) mod model;

/// Stack size of the engine's thread and of compiler threads, in bytes: compilers recurse deeply.
pub(super) const ENGINE_STACK: usize = 64 << 20;

/// Failure of an engine's operation, without the operation's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Fault {
    pub code: FailureCode,
    pub message: String,
}

impl Fault {
    pub(crate) fn new(code: FailureCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// Fault for an operation that only another engine supports. `what` names the operation, `engine` the engine of this session.
    pub(crate) fn unsupported(what: &str, engine: names::Engine) -> Self {
        Self::new(
            FailureCode::Unsupported,
            format!("{what} requires a session of another engine: this session has engine {engine}"),
        )
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Description {
    pub engine: names::Engine,
    /// Name of the platform, such as `cpu` or `cuda`.
    pub platform: String,
    pub platform_version: String,
    /// Description of the device, as the engine reports it.
    pub device: String,
    /// Newest StableHLO version that the engine reads, as `major.minor.patch`; empty if the engine does not read StableHLO.
    pub stablehlo_version: String,
    pub cuda: Option<Box<DeviceProperties>>,
}

/// Callback for the end of an operation. It is called on any thread and must not block.
pub(crate) type Callback = Arc<dyn Fn() + Send + Sync>;

type Outcome = OnceLock<Result<(), Fault>>;

/// Receiving end of an operation's outcome: whether the operation is done, and whether it failed.
#[derive(Clone, Debug)]
pub(crate) struct Completion(Arc<Outcome>);

/// Sending end of a [`Completion`]. If it is dropped without an outcome, the operation counts as failed.
pub(crate) struct Completer {
    outcome: Arc<Outcome>,
    callback: Callback,
}

impl Completion {
    /// Creates both ends. `callback` is called when the operation ends.
    pub(crate) fn new(callback: Callback) -> (Self, Completer) {
        let outcome = Arc::<Outcome>::default();
        let completer = Completer {
            outcome: Arc::clone(&outcome),
            callback,
        };
        (Self(outcome), completer)
    }

    /// Outcome of the operation once it is done.
    pub(crate) fn outcome(&self) -> Option<&Result<(), Fault>> {
        self.0.get()
    }

    /// Blocks until the operation is done.
    pub(crate) fn wait(&self) -> &Result<(), Fault> {
        self.0.wait()
    }
}

impl Completer {
    pub(crate) fn complete(self, outcome: Result<(), Fault>) {
        // Nothing else sets the outcome, and this consumes the completer.
        let _ = self.outcome.set(outcome);
    }
}

impl Drop for Completer {
    fn drop(&mut self) {
        let none = || Err(Fault::new(FailureCode::Internal, "the engine reported no outcome"));
        self.outcome.get_or_init(none);
        (self.callback)();
    }
}

/// Program that an engine has produced from a text.
#[derive(Debug)]
pub(crate) struct Compilation<P> {
    pub program: P,
    pub properties: Rc<Properties>,
    pub cached: bool,
    /// Time that producing the program took this time.
    pub took: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct Properties {
    /// Shapes of the results, in order; empty for kernels.
    pub outputs: Vec<Shape>,
    pub memory: CompiledMemory,
    /// Number of floating-point operations of one execution, if the compiler counts them.
    pub flops: Option<f64>,
}

/// Runs programs on one device. Dropping a tensor or a program frees it.
pub(crate) trait Engine {
    type Tensor;
    type Program;
    type Compiling;
    /// A download in progress.
    type Transfer;

    fn description(&self) -> Description;

    /// Device memory that an array of `host_bytes` bytes of host memory will need, in bytes.
    fn device_bytes(&self, host_bytes: u64) -> u64;

    /// Device memory of `tensor`, in bytes.
    fn stored_bytes(&self, tensor: &Self::Tensor) -> u64;

    /// Creates an array from `data` in host memory: dense, row-major, little-endian, of the size that the shape implies.
    ///
    /// # Errors
    /// An element type that the engine does not support, insufficient memory, a lost device.
    fn upload(&mut self, shape: &Shape, data: Bytes) -> Result<Self::Tensor, Fault>;

    /// Creates a zeroed array.
    ///
    /// # Errors
    /// As [`Engine::upload`].
    fn allocate(&mut self, shape: &Shape) -> Result<Self::Tensor, Fault>;

    /// Starts to compile a program. Until it is done, only the methods for downloads are called.
    ///
    /// # Errors
    /// Errors found before the compilation starts.
    fn compile(&mut self, format: Format, code: &Bytes, done: Completer) -> Result<Self::Compiling, Fault>;

    /// Device memory that the program of a finished compilation needs for its whole life, in bytes.
    fn program_bytes(&self, _compiling: &Self::Compiling) -> u64 {
        0
    }

    /// Program of a finished compilation.
    fn program(&mut self, compiling: Self::Compiling) -> Result<Compilation<Self::Program>, Fault>;

    /// Starts a program. Results may reuse the memory of the arguments, except of those whose indices are in `kept`. The results can be
    /// used immediately.
    ///
    /// # Errors
    /// Errors found before the program starts.
    fn execute(
        &mut self,
        program: &Self::Program,
        arguments: &[&Self::Tensor],
        kept: &[i64],
        done: Completer,
    ) -> Result<Vec<Self::Tensor>, Fault>;

    /// Launches a kernel. `tensors` are the tensors among its arguments, in order.
    ///
    /// # Errors
    /// The failure of the kernel, if already known.
    fn launch(&mut self, program: &Self::Program, launch: &Launch, tensors: &[&Self::Tensor]) -> Result<(), Fault>;

    /// Waits for all work that has no completion.
    fn synchronise(&mut self) -> Result<(), Fault>;

    /// Whether a fault has made the device's context permanently unusable.
    fn is_lost(&self) -> bool;

    /// Starts to copy an array to host memory.
    ///
    /// # Errors
    /// Errors found before the copy starts.
    fn download(&mut self, tensor: &Self::Tensor, shape: &Shape, done: Completer) -> Result<Self::Transfer, Fault>;

    /// Whether the memory of `tensor` is also used by a download in progress or by bytes that are sent directly from it. Results of
    /// programs do not reuse the memory in this case.
    fn is_shared(&self, tensor: &Self::Tensor) -> bool;

    /// Bytes of a finished download.
    fn downloaded(&mut self, transfer: Self::Transfer) -> Result<Bytes, Fault>;
}

/// The element type with this name, or `None` if there is none. Tokens are not accepted.
pub(crate) fn element_type(name: &str) -> Option<ElementType> {
    (1..)
        .map_while(ElementType::of)
        .find(|known| known.name() == name && *known != ElementType::Token)
}

/// Builds the [`Compiled`] message for a program. `limit_bytes` and `used_bytes` are the session's device memory.
pub(crate) fn compiled<P>(request: u64, made: &Compilation<P>, limit_bytes: u64, used_bytes: u64) -> Compiled {
    let memory = made.properties.memory;
    let outputs = made.properties.outputs.iter().map(|shape| sahasra_wire::session::Shape {
        element_type: shape.element_type.name().to_owned(),
        dimensions: shape.dimensions.clone(),
    });
    Compiled {
        request,
        cached: made.cached,
        milliseconds: sahasra_wire::milliseconds(made.took),
        outputs: outputs.collect(),
        argument_bytes: memory.arguments,
        output_bytes: memory.outputs,
        aliased_bytes: memory.aliased,
        temporary_bytes: memory.temporaries,
        code_bytes: memory.code,
        flops: made.properties.flops,
        limit_bytes,
        used_bytes,
    }
}
