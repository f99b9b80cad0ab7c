//! Engine `xla`: compiles and runs StableHLO and HLO through a PJRT plugin.

mod cache;
mod compile_error;

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use bytes::Bytes;
use sahasra_executor_protocol::program_cache::ProgramFolder;
use sahasra_names as names;
use sahasra_pjrt::{
    Buffer, Client, Code, CompileOptions, CompiledMemory, Download, Error, Event, Executable, Format as ProgramFormat, LoadError, Plugin,
    Setting, Shape,
};
use sahasra_wire::session::{FailureCode, Format, Launch};

use self::cache::{Cache, Key};
use crate::device::cuda;
use crate::session::engine::{Compilation, Completer, Description, ENGINE_STACK, Engine, Fault, Properties};
use crate::session::payload::zeros;

const NAME: names::Engine = names::Engine::Xla;
/// Arrays smaller than this are copied for a download instead of being sent directly from their memory: a copy is cheaper than excluding
/// the array from donation.
const SMALL_BYTES: usize = 64 << 10;
/// Plugin attribute with the newest StableHLO version that the plugin reads.
const STABLEHLO: &str = "stablehlo_current_version";

/// Reason why the engine cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error(transparent)]
    Plugin(#[from] LoadError),
    #[error("plugin {plugin:?} failed to open a device")]
    Client { plugin: PathBuf, source: Error },
    #[error("GPU {ordinal} not found: {reason}")]
    Gpu {
        ordinal: u32,
        /// Reason, as the driver reports it.
        reason: String,
    },
}

type Compiled = (Rc<Executable>, Rc<Properties>);

fn compiled(executable: Executable) -> Compiled {
    let outputs = executable.outputs().to_vec();
    let output_bytes = outputs.iter().map(|shape| shape.host_bytes().unwrap_or(0) as u64).sum();
    // Without the compiler's statistics only the size of the outputs is known, from their shapes.
    let memory = executable.memory().unwrap_or(CompiledMemory {
        outputs: output_bytes,
        ..CompiledMemory::default()
    });
    let cost = executable.cost().unwrap_or_default();
    let flops = cost.into_iter().find_map(|(name, value)| match value {
        Setting::Float(flops) if name == "flops" && flops >= 0.0 => Some(f64::from(flops)),
        _ => None,
    });
    (Rc::new(executable), Rc::new(Properties { outputs, memory, flops }))
}

pub(crate) struct XlaEngine {
    client: Client,
    description: Description,
    is_host_memory: bool,
    compile_options: CompileOptions,
    cache: Cache<Compiled>,
}

impl XlaEngine {
    /// Loads the plugin and opens its device: the GPU with this index, or the CPU. At most `limit_bytes` of the device's memory may be
    /// used. Compiled programs are kept in `cache`.
    pub(crate) fn open(path: &Path, gpu: Option<u32>, limit_bytes: u64, cache: Option<ProgramFolder>) -> Result<Self, OpenError> {
        let plugin = Plugin::load(path)?;
        let settings = match gpu {
            Some(ordinal) => gpu_settings(ordinal, limit_bytes)?,
            None => Vec::new(),
        };
        let no_client = |source| OpenError::Client {
            plugin: path.to_owned(),
            source,
        };
        let client = Client::create(&plugin, &settings).map_err(no_client)?;
        let attributes = plugin.attributes().map_err(no_client)?;
        let stablehlo = attributes.iter().find_map(|(name, value)| match value {
            Setting::Integers(numbers) if name == STABLEHLO => Some(version(numbers)),
            _ => None,
        });
        let description = Description {
            engine: NAME,
            platform: client.platform_name().map_err(no_client)?,
            platform_version: client.platform_version().map_err(no_client)?,
            device: client.device_kind().to_owned(),
            stablehlo_version: stablehlo.unwrap_or_default(),
            cuda: None,
        };
        let (major, minor) = plugin.version();
        // Cached programs are machine code that this plugin made for this kind of device.
        let compile_options = CompileOptions::of_platform(&description.platform);
        let salt = format!(
            "{description:?} {major}.{minor} {attributes:?} {compile_options:?} {}",
            identity(path)
        );
        Ok(Self {
            client,
            is_host_memory: gpu.is_none(),
            description,
            compile_options,
            cache: Cache::new(salt, cache),
        })
    }
}

/// Distinguishes different builds of a plugin with the same version, by the file's size and modification time.
fn identity(plugin: &Path) -> String {
    std::fs::metadata(plugin).map_or_else(|_| String::new(), |file| format!("{} {:?}", file.len(), file.modified().ok()))
}

fn version(numbers: &[i64]) -> String {
    let numbers: Vec<String> = numbers.iter().map(i64::to_string).collect();
    numbers.join(".")
}

/// Options of the CUDA plugin: only this GPU, and at most `limit_bytes` of its memory, without preallocation. The plugin would preallocate
/// three quarters of the memory by default.
fn gpu_settings(ordinal: u32, limit_bytes: u64) -> Result<Vec<(&'static str, Setting)>, OpenError> {
    let probe = cuda::probe();
    let Some(gpu) = probe.gpus.iter().find(|gpu| gpu.ordinal == ordinal) else {
        let reason = probe.reason.unwrap_or_else(|| "the driver does not list it".to_owned());
        return Err(OpenError::Gpu { ordinal, reason });
    };
    let fraction = (limit_bytes as f64 / gpu.total_bytes.max(1) as f64).min(1.0);
    Ok(vec![
        ("visible_devices", Setting::Integers(vec![i64::from(ordinal)])),
        ("allocator", Setting::Text("bfc".to_owned())),
        ("preallocate", Setting::Boolean(false)),
        ("memory_fraction", Setting::Float(fraction as f32)),
    ])
}

fn fault(error: &Error, otherwise: FailureCode) -> Fault {
    let code = match error.code {
        Code::InvalidArgument => FailureCode::InvalidArgument,
        Code::ResourceExhausted => FailureCode::OutOfMemory,
        _ => otherwise,
    };
    Fault::new(code, error.to_string())
}

pub(crate) enum Compiling {
    /// The program is in the memory cache. With the time of the request.
    Known(Compiled, Instant),
    /// The program is compiled or read from disk on a thread of its own, while the engine's thread continues to handle background work.
    Thread {
        /// Returns the program, and whether it was read from disk.
        thread: JoinHandle<Result<(Executable, bool), Error>>,
        key: Key,
        /// Code of the program, for explaining a compilation error.
        code: Bytes,
        began: Instant,
    },
}

/// A download in progress.
pub(crate) enum Transfer {
    /// The array is sent directly from its memory once it is ready.
    InPlace(Arc<Buffer>, Event),
    /// The array is copied to host memory.
    Copy(Download),
}

/// Bytes of a ready array, directly from its memory; `None` if they must be copied.
fn in_place(tensor: &Arc<Buffer>) -> Result<Option<Bytes>, Error> {
    // SAFETY: the view shares the array, and executions do not reuse the memory of a shared array: see `XlaEngine::execute`.
    let Some(view) = (unsafe { tensor.view() })? else {
        return Ok(None);
    };
    if view.as_ref().len() < SMALL_BYTES {
        return Ok(Some(Bytes::copy_from_slice(view.as_ref())));
    }
    Ok(Some(Bytes::from_owner(view)))
}

fn complete_when_ready(event: &Event, done: Completer) -> Result<(), Fault> {
    let on_ready = event.on_ready(move |outcome| done.complete(outcome.map_err(|error| fault(&error, FailureCode::ExecutionFailed))));
    on_ready.map_err(|error| fault(&error, FailureCode::Internal))
}

impl Engine for XlaEngine {
    type Tensor = Arc<Buffer>;
    type Program = Rc<Executable>;
    type Compiling = Compiling;
    type Transfer = Transfer;

    fn description(&self) -> Description {
        self.description.clone()
    }

    fn device_bytes(&self, host_bytes: u64) -> u64 {
        host_bytes
    }

    fn stored_bytes(&self, tensor: &Arc<Buffer>) -> u64 {
        tensor.device_bytes().unwrap_or_default()
    }

    fn upload(&mut self, shape: &Shape, data: Bytes) -> Result<Arc<Buffer>, Fault> {
        let uploaded = self.client.upload(shape.element_type, &shape.dimensions, data);
        uploaded.map(Arc::new).map_err(|error| fault(&error, FailureCode::InvalidArgument))
    }

    fn allocate(&mut self, shape: &Shape) -> Result<Arc<Buffer>, Fault> {
        self.upload(shape, zeros(shape.host_bytes().unwrap_or(0)).into())
    }

    fn compile(&mut self, format: Format, code: &Bytes, done: Completer) -> Result<Compiling, Fault> {
        let format = match format {
            Format::StableHlo => ProgramFormat::StableHlo,
            Format::Hlo => ProgramFormat::Hlo,
            Format::Ptx | Format::Unspecified => return Err(Fault::unsupported("PTX", NAME)),
        };
        let began = Instant::now();
        let key = Key::of(self.cache.salt(), format, code);
        if let Some(program) = self.cache.get(&key) {
            done.complete(Ok(()));
            return Ok(Compiling::Known(program, began));
        }
        let written = self.cache.read(&key);
        let (client, options) = (self.client.clone(), self.compile_options.clone());
        let program = sahasra_pjrt::Program {
            format,
            code: code.to_vec(),
        };
        let builder = std::thread::Builder::new()
            .name("session-compile".to_owned())
            .stack_size(ENGINE_STACK);
        let thread = builder.spawn(move || {
            let read = written.and_then(|written| client.deserialize(&written).ok());
            let made = match read {
                Some(executable) => Ok((executable, true)),
                None => {
                    let compiled = client.compile(&program, &options);
                    compiled.map(|executable| (executable, false))
                }
            };
            done.complete(Ok(()));
            made
        });
        match thread {
            Ok(thread) => Ok(Compiling::Thread {
                thread,
                key,
                code: code.clone(),
                began,
            }),
            Err(error) => Err(Fault::new(
                FailureCode::Internal,
                format!("failed to spawn the compiler thread: {error}"),
            )),
        }
    }

    fn program(&mut self, compiling: Compiling) -> Result<Compilation<Rc<Executable>>, Fault> {
        let (thread, key, code, began) = match compiling {
            Compiling::Known((program, properties), began) => {
                return Ok(Compilation {
                    program,
                    properties,
                    cached: true,
                    took: began.elapsed(),
                });
            }
            Compiling::Thread { thread, key, code, began } => (thread, key, code, began),
        };
        let Ok(made) = thread.join() else {
            return Err(Fault::new(FailureCode::Internal, "the compiler thread ended without a result"));
        };
        let (executable, cached) = made.map_err(|error| compile_error::fault(&error, &code, &self.description))?;
        if !cached
            && self.cache.is_on_disk()
            && let Ok(written) = executable.serialize()
        {
            self.cache.write(&key, &written);
        }
        let (program, properties) = compiled(executable);
        self.cache.insert(key, (Rc::clone(&program), Rc::clone(&properties)));
        Ok(Compilation {
            program,
            properties,
            cached,
            took: began.elapsed(),
        })
    }

    fn execute(
        &mut self,
        program: &Rc<Executable>,
        arguments: &[&Arc<Buffer>],
        kept: &[i64],
        done: Completer,
    ) -> Result<Vec<Arc<Buffer>>, Fault> {
        // An array that is being sent from its memory is in use: results must not reuse its memory.
        let is_sent = |place: &usize| self.is_shared(arguments[*place]) && !kept.contains(&(*place as i64));
        let sent = (0..arguments.len()).filter(is_sent).map(|place| place as i64);
        let kept: Vec<i64> = kept.iter().copied().chain(sent).collect();
        let buffers: Vec<&Buffer> = arguments.iter().map(AsRef::as_ref).collect();
        let started = program.execute(&buffers, &kept);
        let (outputs, event) = started.map_err(|error| fault(&error, FailureCode::ExecutionFailed))?;
        // The event is dropped after it has called the callback, or when the plugin rejects the callback.
        complete_when_ready(&event, done)?;
        Ok(outputs.into_iter().map(Arc::new).collect())
    }

    fn launch(&mut self, _program: &Rc<Executable>, _launch: &Launch, _tensors: &[&Arc<Buffer>]) -> Result<(), Fault> {
        Err(Fault::unsupported("a launch of a kernel", NAME))
    }

    fn synchronise(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    fn is_lost(&self) -> bool {
        false
    }

    fn download(&mut self, tensor: &Arc<Buffer>, _shape: &Shape, done: Completer) -> Result<Transfer, Fault> {
        let started = if self.is_host_memory {
            tensor.ready().map(|ready| Transfer::InPlace(Arc::clone(tensor), ready))
        } else {
            tensor.start_download().map(Transfer::Copy)
        };
        let transfer = started.map_err(|error| fault(&error, FailureCode::ExecutionFailed))?;
        let event = match &transfer {
            Transfer::InPlace(_, ready) => ready,
            Transfer::Copy(download) => download.done(),
        };
        complete_when_ready(event, done)?;
        Ok(transfer)
    }

    fn is_shared(&self, tensor: &Arc<Buffer>) -> bool {
        Arc::strong_count(tensor) > 1
    }

    fn downloaded(&mut self, transfer: Transfer) -> Result<Bytes, Fault> {
        let bytes = match transfer {
            Transfer::Copy(download) => download.finish().map(Bytes::from),
            // The array is ready: `wait` only returns the outcome.
            Transfer::InPlace(tensor, ready) => ready.wait().and_then(|()| match in_place(&tensor)? {
                Some(bytes) => Ok(bytes),
                None => tensor.download().map(Bytes::from),
            }),
        };
        bytes.map_err(|error| fault(&error, FailureCode::ExecutionFailed))
    }
}
