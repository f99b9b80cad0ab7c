//! Engine `ptx`: runs kernels in PTX on one of the worker's devices. Tensors are areas of the device's memory.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sahasra_names::{self as names, Backend};
use sahasra_pjrt::{CompiledMemory, Shape};
use sahasra_ptx::{Cancel, PARAMETER_LIMIT};
use sahasra_wire::session::{FailureCode, Format, Launch, argument};

use crate::device::{Arguments, Device, DeviceError, LaunchShape, rounded_bytes};
use crate::session::engine::{Compilation, Completer, Description, Engine, Fault, Properties};

const NAME: names::Engine = names::Engine::Ptx;
/// Maximum number of prepared kernels that one program keeps.
const MAX_KERNELS: usize = 64;
/// Maximum number of cached modules, and number of programs at which the engine waits for its kernels in order to drop unused programs.
const MAX_MODULES: usize = 64;

/// Cache key of a prepared kernel: entry, launch shape, and sizes of the arguments.
type Use = (String, [u32; 7], Vec<usize>);

/// An instance of a PTX text with its own variables, which keep the values that kernels write, and its prepared kernels.
pub(crate) struct Loaded<D: Device> {
    instance: Arc<D::Instance>,
    kernels: RefCell<HashMap<Use, Rc<D::Kernel>>>,
}

/// A translated PTX text that is not on the device yet.
pub(crate) struct Text<D: Device> {
    module: Arc<D::Module>,
    cached: bool,
    began: Instant,
}

/// Device memory of a tensor, and the tensor's size in bytes.
pub(crate) struct Stored<D: Device> {
    area: D::Area,
    bytes: u64,
}

pub(crate) struct PtxEngine<D: Device> {
    device: D,
    stream: D::Stream,
    /// Empty area that is read to wait for the stream.
    nothing: D::Area,
    description: Description,
    modules: HashMap<Bytes, Arc<D::Module>>,
    /// All programs on the device. A program that the client has dropped stays as long as one of its kernels may be running.
    programs: Vec<Rc<Loaded<D>>>,
    cancel: Cancel,
    is_lost: bool,
}

impl<D: Device> PtxEngine<D> {
    /// Engine on `device`.
    ///
    /// # Errors
    /// If the device cannot create a stream.
    pub(crate) fn new(device: D, backend: Backend) -> Result<Self, DeviceError> {
        let description = Description {
            engine: NAME,
            platform: backend.to_string(),
            platform_version: env!("CARGO_PKG_VERSION").to_owned(),
            device: format!("{backend}, {} lanes", device.lanes()),
            stablehlo_version: String::new(),
            cuda: None,
        };
        Ok(Self {
            stream: device.stream()?,
            nothing: device.allocate(&[])?,
            device,
            description,
            modules: HashMap::new(),
            programs: Vec::new(),
            cancel: Cancel::new(),
            is_lost: false,
        })
    }

    fn fault(&mut self, error: &DeviceError) -> Fault {
        let message = error.to_string();
        let code = match error {
            DeviceError::OutOfMemory(_) => FailureCode::OutOfMemory,
            DeviceError::Load(_) => FailureCode::CompileFailed,
            DeviceError::Unsupported(_) => FailureCode::Incompatible,
            DeviceError::Launch(_) => FailureCode::InvalidArgument,
            DeviceError::Fault { .. } | DeviceError::Cancelled(_) => FailureCode::ExecutionFailed,
            DeviceError::Poisoned { .. } => {
                self.is_lost = true;
                let message = format!("{message}; the device context is lost: close the session's client and create a new one");
                return Fault::new(FailureCode::Internal, message);
            }
            DeviceError::Unavailable(_) | DeviceError::Driver { .. } => FailureCode::Internal,
        };
        Fault::new(code, message)
    }

    /// The prepared kernel for a launch, from the program's cache or newly prepared.
    fn kernel(
        &mut self,
        program: &Loaded<D>,
        launch: &Launch,
        shape: LaunchShape,
        arguments: &Arguments,
    ) -> Result<Rc<D::Kernel>, DeviceError> {
        let sizes = (0..arguments.len()).map(|place| arguments.get(place).len()).collect();
        let [x, y, z] = shape.grid;
        let [a, b, c] = shape.block;
        let key = (launch.entry.clone(), [x, y, z, a, b, c, shape.dynamic_shared_bytes], sizes);
        if let Some(kernel) = program.kernels.borrow().get(&key) {
            return Ok(Rc::clone(kernel));
        }
        let kernel = Rc::new(self.device.kernel(&program.instance, &launch.entry, shape, arguments)?);
        if program.kernels.borrow().len() >= MAX_KERNELS {
            // One of the cached kernels may be running.
            self.wait()?;
            program.kernels.borrow_mut().clear();
        }
        program.kernels.borrow_mut().insert(key, Rc::clone(&kernel));
        Ok(kernel)
    }

    fn start(&mut self, program: &Loaded<D>, launch: &Launch, tensors: &[&Stored<D>]) -> Result<(), DeviceError> {
        let shape = LaunchShape {
            grid: three(&launch.grid, "grid")?,
            block: three(&launch.block, "block")?,
            dynamic_shared_bytes: launch.dynamic_shared_bytes,
        };
        let mut sizes = Vec::with_capacity(launch.arguments.len());
        for (place, argument) in launch.arguments.iter().enumerate() {
            sizes.push(match &argument.kind {
                Some(argument::Kind::Tensor(_)) => size_of::<u64>(),
                Some(argument::Kind::Scalar(bytes)) if (1..=PARAMETER_LIMIT).contains(&bytes.len()) => bytes.len(),
                Some(argument::Kind::Scalar(bytes)) => {
                    let message = format!("invalid argument {place}: {} bytes, expected 1 to {PARAMETER_LIMIT}", bytes.len());
                    return Err(DeviceError::Launch(message));
                }
                None => return Err(DeviceError::Launch(format!("argument {place} is neither a tensor nor a scalar"))),
            });
        }
        let mut arguments = Arguments::new(&sizes);
        let mut tensors = tensors.iter();
        for (place, argument) in launch.arguments.iter().enumerate() {
            if let Some(argument::Kind::Scalar(bytes)) = &argument.kind {
                arguments.set(place, bytes);
            } else if let Some(tensor) = tensors.next() {
                arguments.set(place, &self.device.address(&tensor.area, 0).to_le_bytes());
            }
        }
        let kernel = self.kernel(program, launch, shape, &arguments)?;
        self.device.launch(&mut self.stream, &kernel, &arguments, &self.cancel)
    }

    fn module(&mut self, code: &Bytes) -> Result<Arc<D::Module>, Fault> {
        let text = std::str::from_utf8(code).map_err(|_| Fault::new(FailureCode::CompileFailed, "the PTX is not UTF-8"))?;
        let module = Arc::new(self.device.load(text).map_err(|error| self.fault(&error))?);
        if self.modules.len() >= MAX_MODULES {
            self.modules.clear();
        }
        // The key is a copy because `code` may be a part of a large buffer.
        self.modules.insert(Bytes::copy_from_slice(code), Arc::clone(&module));
        Ok(module)
    }

    /// Waits for all launched kernels, then drops the programs that nobody uses.
    fn wait(&mut self) -> Result<(), DeviceError> {
        self.device.read(&mut self.stream, &self.nothing, &mut Vec::new())?;
        self.programs.retain(|program| Rc::strong_count(program) > 1);
        Ok(())
    }
}

fn three(sizes: &[u32], what: &str) -> Result<[u32; 3], DeviceError> {
    match sizes {
        [x] => Ok([*x, 1, 1]),
        [x, y] => Ok([*x, *y, 1]),
        [x, y, z] => Ok([*x, *y, *z]),
        _ => Err(DeviceError::Launch(format!(
            "invalid {what}: {} dimensions, expected 1 to 3",
            sizes.len()
        ))),
    }
}

impl<D: Device> Engine for PtxEngine<D> {
    type Tensor = Stored<D>;
    type Program = Rc<Loaded<D>>;
    type Compiling = Text<D>;
    type Transfer = Bytes;

    fn description(&self) -> Description {
        self.description.clone()
    }

    fn device_bytes(&self, host_bytes: u64) -> u64 {
        rounded_bytes(&[host_bytes])
    }

    fn stored_bytes(&self, tensor: &Stored<D>) -> u64 {
        self.device_bytes(tensor.bytes)
    }

    fn upload(&mut self, shape: &Shape, data: Bytes) -> Result<Stored<D>, Fault> {
        let stored = self.allocate(shape)?;
        let written = self.device.write(&mut self.stream, &stored.area, 0, &data);
        written.map_err(|error| self.fault(&error))?;
        Ok(stored)
    }

    fn allocate(&mut self, shape: &Shape) -> Result<Stored<D>, Fault> {
        let bytes = shape.host_bytes().unwrap_or(usize::MAX) as u64;
        let area = self.device.allocate(&[bytes]).map_err(|error| self.fault(&error))?;
        Ok(Stored { area, bytes })
    }

    fn compile(&mut self, format: Format, code: &Bytes, done: Completer) -> Result<Self::Compiling, Fault> {
        if format != Format::Ptx {
            return Err(Fault::unsupported("StableHLO or HLO", NAME));
        }
        let began = Instant::now();
        let known = self.modules.get(code).cloned();
        let cached = known.is_some();
        // Translated on this thread, because that takes only milliseconds.
        let module = known.map_or_else(|| self.module(code), Ok);
        done.complete(Ok(()));
        Ok(Text {
            module: module?,
            cached,
            began,
        })
    }

    fn program_bytes(&self, text: &Text<D>) -> u64 {
        self.device.instance_bytes(&text.module)
    }

    fn program(&mut self, text: Text<D>) -> Result<Compilation<Rc<Loaded<D>>>, Fault> {
        let Text { module, cached, began } = text;
        // The variables of a new instance have the initial values of the text.
        let instance = self.device.instantiate(&module, false).map_err(|error| self.fault(&error))?;
        let program = Rc::new(Loaded {
            instance: Arc::new(instance),
            kernels: RefCell::default(),
        });
        if self.programs.len() >= MAX_MODULES {
            self.wait().map_err(|error| self.fault(&error))?;
        }
        self.programs.push(Rc::clone(&program));
        let (text, variables) = (self.device.module_bytes(&module), self.device.variable_bytes(&module));
        let memory = CompiledMemory {
            code: text.saturating_add(variables),
            ..CompiledMemory::default()
        };
        Ok(Compilation {
            program,
            properties: Rc::new(Properties {
                memory,
                ..Properties::default()
            }),
            cached,
            took: if cached { Duration::ZERO } else { began.elapsed() },
        })
    }

    fn execute(
        &mut self,
        _program: &Rc<Loaded<D>>,
        _arguments: &[&Stored<D>],
        _kept: &[i64],
        _done: Completer,
    ) -> Result<Vec<Stored<D>>, Fault> {
        Err(Fault::unsupported("an execution of a program", NAME))
    }

    fn launch(&mut self, program: &Rc<Loaded<D>>, launch: &Launch, tensors: &[&Stored<D>]) -> Result<(), Fault> {
        self.start(program, launch, tensors).map_err(|error| self.fault(&error))
    }

    fn synchronise(&mut self) -> Result<(), Fault> {
        self.wait().map_err(|error| self.fault(&error))
    }

    fn is_lost(&self) -> bool {
        self.is_lost
    }

    fn download(&mut self, tensor: &Stored<D>, _shape: &Shape, done: Completer) -> Result<Bytes, Fault> {
        let mut bytes = Vec::with_capacity(tensor.bytes as usize);
        let read = self.device.read(&mut self.stream, &tensor.area, &mut bytes);
        read.map_err(|error| self.fault(&error))?;
        done.complete(Ok(()));
        Ok(bytes.into())
    }

    fn is_shared(&self, _tensor: &Stored<D>) -> bool {
        false
    }

    fn downloaded(&mut self, transfer: Bytes) -> Result<Bytes, Fault> {
        Ok(transfer)
    }
}
