//! Engine `xla`: StableHLO and HLO through a PJRT plugin.

mod cache;
mod refusals;

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;
use sahasra_pjrt::{
    Buffer, Client, Code, CompileOptions, Download, Error, Executable, Format as ProgramFormat, LoadError, Plugin, Setting, Shape,
};
use sahasra_wire::session::{FailureCode, Format, Launch};

use self::cache::{Cache, Key};
use super::{Compilation, Completer, Description, Engine, Fault, Needs, Program};
use crate::device::cuda;
use crate::program_cache::Folder;
use crate::session_executor::payload::zeros;

const NAME: &str = "xla";
/// Attribute that says which StableHLO the plugin reads.
const STABLEHLO: &str = "stablehlo_current_version";

/// Where programs run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The plugin's file.
    pub plugin: PathBuf,
    /// It drives GPUs: the number of the one to use.
    pub gpu: Option<u32>,
    /// Device memory that may be used, in bytes.
    pub limit_bytes: u64,
    /// Where compiled programs are kept.
    pub cache: Option<Folder>,
}

/// Why there is no engine.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The plugin does not load.
    #[error(transparent)]
    Plugin(#[from] LoadError),
    /// It opens no device.
    #[error("the plugin {plugin:?} opens no device")]
    Client {
        /// Which.
        plugin: PathBuf,
        /// Why.
        source: Error,
    },
    /// The GPU is not there.
    #[error("there is no GPU {ordinal}: {reason}")]
    Gpu {
        /// Its number.
        ordinal: u32,
        /// In the driver's words.
        reason: String,
    },
}

/// A program and what is known of it.
#[derive(Debug)]
pub struct Compiled {
    executable: Executable,
    needs: Needs,
    flops: Option<f64>,
}

impl Program for Rc<Compiled> {
    fn outputs(&self) -> &[Shape] {
        self.executable.outputs()
    }

    fn needs(&self) -> Needs {
        self.needs
    }

    fn flops(&self) -> Option<f64> {
        self.flops
    }
}

impl Compiled {
    fn new(executable: Executable) -> Rc<Self> {
        let outputs = executable.outputs().iter();
        let outputs = outputs.map(|shape| shape.host_bytes().unwrap_or(0) as u64).sum();
        // A compiler that does not count leaves what the shapes say.
        let needs = executable.memory().map_or(
            Needs {
                outputs,
                ..Needs::default()
            },
            |memory| Needs {
                arguments: memory.arguments,
                outputs: memory.outputs,
                aliased: memory.aliased,
                temporaries: memory.temporaries,
                code: memory.code,
            },
        );
        let cost = executable.cost().unwrap_or_default();
        let flops = cost.into_iter().find_map(|(name, value)| match value {
            Setting::Float(flops) if name == "flops" && flops >= 0.0 => Some(f64::from(flops)),
            _ => None,
        });
        Rc::new(Self { executable, needs, flops })
    }
}

/// See the [module](self).
pub struct XlaEngine {
    client: Client,
    description: Description,
    cache: Cache<Rc<Compiled>>,
}

impl XlaEngine {
    /// Loads the plugin and opens its device.
    ///
    /// # Errors
    /// Why not.
    pub fn open(options: &Options) -> Result<Self, OpenError> {
        let plugin = Plugin::load(&options.plugin)?;
        let settings = match options.gpu {
            Some(ordinal) => gpu_settings(ordinal, options.limit_bytes)?,
            None => Vec::new(),
        };
        let no_client = |source| OpenError::Client {
            plugin: options.plugin.clone(),
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
            device: client.device().kind().to_owned(),
            stablehlo_version: stablehlo.unwrap_or_default(),
        };
        let (major, minor) = plugin.version();
        // Programs on disk are machine code of this plugin for this kind of device.
        let salt = format!("{description:?} {major}.{minor} {attributes:?} {}", identity(&options.plugin));
        Ok(Self {
            client,
            description,
            cache: Cache::new(salt, options.cache.clone()),
        })
    }
}

/// What tells one plugin's file from another of the same version.
fn identity(plugin: &Path) -> String {
    std::fs::metadata(plugin).map_or_else(|_| String::new(), |file| format!("{} {:?}", file.len(), file.modified().ok()))
}

fn version(numbers: &[i64]) -> String {
    let numbers: Vec<String> = numbers.iter().map(i64::to_string).collect();
    numbers.join(".")
}

/// Options of the CUDA plugin: this GPU alone, and no more of its memory than that; it would take three quarters at once.
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

impl Engine for XlaEngine {
    type Tensor = Buffer;
    type Program = Rc<Compiled>;
    type Transfer = Download;

    fn description(&self) -> Description {
        self.description.clone()
    }

    fn device_bytes(&self, host_bytes: u64) -> u64 {
        host_bytes
    }

    fn stored_bytes(&self, tensor: &Buffer) -> u64 {
        tensor.device_bytes().unwrap_or_default()
    }

    fn upload(&mut self, shape: &Shape, data: Bytes) -> Result<Buffer, Fault> {
        let uploaded = self.client.upload(shape.element_type, &shape.dimensions, data);
        uploaded.map_err(|error| fault(&error, FailureCode::InvalidArgument))
    }

    fn allocate(&mut self, shape: &Shape) -> Result<Buffer, Fault> {
        self.upload(shape, zeros(shape.host_bytes().unwrap_or(0)).into())
    }

    fn compile(&mut self, format: Format, code: &Bytes) -> Result<Compilation<Rc<Compiled>>, Fault> {
        let format = match format {
            Format::StableHlo => ProgramFormat::StableHlo,
            Format::Hlo => ProgramFormat::Hlo,
            Format::Ptx | Format::Unspecified => return Err(Fault::unsupported("PTX", NAME)),
        };
        let began = Instant::now();
        let key = Key::of(self.cache.salt(), format, code);
        let mut cached = true;
        let program = match self.cache.get(&key) {
            Some(program) => program,
            None => {
                let read = self.cache.read(&key).and_then(|written| self.client.deserialize(&written).ok());
                let executable = match read {
                    Some(executable) => executable,
                    None => {
                        cached = false;
                        let program = sahasra_pjrt::Program {
                            format,
                            code: code.to_vec(),
                        };
                        let compiled = self.client.compile(&program, &CompileOptions::default());
                        let executable = compiled.map_err(|error| refusals::fault(&error, code, &self.description))?;
                        if self.cache.is_on_disk()
                            && let Ok(written) = executable.serialize()
                        {
                            self.cache.write(&key, &written);
                        }
                        executable
                    }
                };
                let program = Compiled::new(executable);
                self.cache.insert(key, Rc::clone(&program));
                program
            }
        };
        Ok(Compilation {
            program,
            cached,
            milliseconds: began.elapsed().as_millis() as u64,
        })
    }

    fn execute(&mut self, program: &Rc<Compiled>, arguments: &[&Buffer], kept: &[i64], done: Completer) -> Result<Vec<Buffer>, Fault> {
        let (outputs, event) = match program.executable.execute(arguments, kept) {
            Ok(started) => started,
            Err(error) => {
                let fault = fault(&error, FailureCode::ExecutionFailed);
                done.complete(Err(fault.clone()));
                return Err(fault);
            }
        };
        // The event goes when it was told, or with the plugin's refusal to tell.
        let told = event.on_ready(move |outcome| done.complete(outcome.map_err(|error| fault(&error, FailureCode::ExecutionFailed))));
        match told {
            Ok(()) => Ok(outputs),
            Err(error) => Err(fault(&error, FailureCode::Internal)),
        }
    }

    fn launch(&mut self, _program: &Rc<Compiled>, _launch: &Launch, _tensors: &[&Buffer]) -> Result<(), Fault> {
        Err(Fault::unsupported("a launch of a kernel", NAME))
    }

    fn synchronise(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    fn is_lost(&self) -> bool {
        false
    }

    fn download(&mut self, tensor: &Buffer, shape: &Shape, done: Completer) -> Result<Download, Fault> {
        let download = match tensor.start_download(zeros(shape.host_bytes().unwrap_or(0))) {
            Ok(download) => download,
            Err(error) => {
                let fault = fault(&error, FailureCode::ExecutionFailed);
                done.complete(Err(fault.clone()));
                return Err(fault);
            }
        };
        let told = download
            .done()
            .on_ready(move |outcome| done.complete(outcome.map_err(|error| fault(&error, FailureCode::ExecutionFailed))));
        match told {
            Ok(()) => Ok(download),
            Err(error) => Err(fault(&error, FailureCode::Internal)),
        }
    }

    fn downloaded(&mut self, transfer: Download) -> Result<Bytes, Fault> {
        match transfer.finish() {
            Ok(bytes) => Ok(bytes.into()),
            Err(error) => Err(fault(&error, FailureCode::ExecutionFailed)),
        }
    }
}
