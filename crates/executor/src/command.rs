//! Command line of the executor, and the short-lived processes that examine devices, plugins and the sandbox.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use sahasra_error_chain::causes;
use sahasra_executor_protocol::burst::status_page::StatusPage;
use sahasra_executor_protocol::probe::{PluginPlatform, Probe};
use sahasra_executor_protocol::program_cache::Folder;
use sahasra_executor_protocol::session::status_page::StatusPage as SessionStatusPage;
use sahasra_names::{Backend, Engine};

use crate::burst;
use crate::device::cpu::CpuDevice;
use crate::device::cuda::{self, CudaDevice};
use crate::process::end_on_panic;
use crate::sandbox::{self, Inherited, reach::Reach};
use crate::session::{self, Options};

/// Options of a process that holds a session.
#[derive(Debug, clap::Args)]
struct SessionArguments {
    /// Program interface of the session.
    #[arg(long)]
    engine: Engine,
    /// Library of the PJRT plugin of engine xla.
    #[arg(long, value_name = "FILE")]
    plugin: Option<PathBuf>,
    /// Implementation of the device.
    #[arg(long, default_value = "cpu")]
    backend: Backend,
    /// Index of the device among those of its backend.
    #[arg(long, default_value_t = 0)]
    ordinal: u32,
    /// Maximum device memory of the session in bytes.
    #[arg(long)]
    memory_bytes: u64,
    /// Threads of a CPU device.
    #[arg(long, default_value_t = 1)]
    threads: u32,
    /// Folder for compiled programs of engine xla [default: programs are kept in memory].
    #[arg(long, value_name = "DIR")]
    program_cache_dir: Option<PathBuf>,
    /// Maximum size of this folder in bytes.
    #[arg(long, default_value_t = 1 << 30)]
    program_cache_limit_bytes: u64,
    /// Private folder for temporary files.
    #[arg(long, value_name = "DIR")]
    scratch_dir: Option<PathBuf>,
    /// Process id of the agent.
    #[arg(long)]
    agent_pid: i32,
}

/// Runs chunks on one device for one namespace, or holds one session. Started by the agent.
#[derive(Debug, Parser)]
#[command(name = "executor")]
enum Command {
    /// Runs chunks for the supervisor on standard input.
    Run {
        /// Implementation of the device.
        #[arg(long)]
        backend: Backend,
        /// Index of the device among those of its backend.
        #[arg(long, default_value_t = 0)]
        ordinal: u32,
        /// Memory of a CPU device in bytes.
        #[arg(long, default_value_t = 0)]
        memory_bytes: u64,
        /// Threads of a CPU device.
        #[arg(long, default_value_t = 1)]
        threads: u32,
        /// Process id of the agent.
        #[arg(long)]
        agent_pid: i32,
    },
    /// Holds one session, whose connections arrive over standard input.
    Session(SessionArguments),
    /// Prints the GPUs as JSON.
    Probe {
        /// Enter the sandbox first.
        #[arg(long)]
        sandboxed: bool,
    },
    /// Enters the sandbox and prints which parts of it are in force as JSON.
    CheckSandbox,
    /// Enters the sandbox, loads a PJRT plugin, opens its device, and prints its platform as JSON.
    ProbePlugin {
        /// Library of the plugin.
        path: PathBuf,
    },
}

/// Entry point of the subcommand `executor`. The first of `arguments` is the program's name.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let command = match Command::try_parse_from(arguments) {
        Ok(command) => command,
        Err(error) => error.exit(),
    };
    match command {
        Command::Probe { sandboxed: false } => answer(&cuda::probe()),
        Command::Probe { sandboxed: true } => answer(&probe_in_sandbox()),
        Command::CheckSandbox => answer(&sandbox::restrict(&Reach::default()).map_err(|error| causes(&error))),
        Command::Session(arguments) => session(arguments),
        Command::ProbePlugin { path } => answer(&platform(&path)),
        Command::Run {
            backend,
            ordinal,
            memory_bytes,
            threads,
            agent_pid,
        } => {
            let own_memory = (!backend.is_gpu()).then_some(memory_bytes);
            let reach = Reach {
                gpu: backend.is_gpu(),
                ..Reach::default()
            };
            let map = |inherited: &Inherited| StatusPage::map(&inherited.status_page);
            let (inherited, status_page) = match enter(agent_pid, own_memory, &reach, map) {
                Ok(entered) => entered,
                Err(code) => return code,
            };
            match backend {
                Backend::Cpu => burst::serve(Ok(CpuDevice::new(memory_bytes, threads as usize)), inherited.socket, status_page),
                Backend::Cuda => burst::serve(CudaDevice::open(ordinal), inherited.socket, status_page),
            }
        }
    }
}

/// Enters the sandbox. Returns the descriptors and the status page, which `map` maps.
fn enter<P>(
    agent: i32,
    own_memory: Option<u64>,
    reach: &Reach,
    map: impl FnOnce(&Inherited) -> io::Result<P>,
) -> Result<(Inherited, P), ExitCode> {
    let inherited = sandbox::enter(agent, own_memory, reach).map_err(|error| {
        eprintln!("failed to enter the sandbox: {}", causes(&error));
        ExitCode::FAILURE
    })?;
    end_on_panic();
    let status_page = map(&inherited).map_err(|error| {
        eprintln!("failed to map the status page: {error}");
        ExitCode::FAILURE
    })?;
    Ok((inherited, status_page))
}

fn session(arguments: SessionArguments) -> ExitCode {
    let own_memory = (!arguments.backend.is_gpu()).then(|| session::own_memory_bytes(arguments.memory_bytes));
    let reach = Reach {
        gpu: arguments.backend.is_gpu(),
        plugin: arguments.plugin.clone(),
        program_cache: arguments.program_cache_dir.clone(),
        scratch: arguments.scratch_dir,
    };
    let map = |inherited: &Inherited| SessionStatusPage::map(&inherited.status_page);
    let (inherited, status_page) = match enter(arguments.agent_pid, own_memory, &reach, map) {
        Ok(entered) => entered,
        Err(code) => return code,
    };
    let options = Options {
        engine: arguments.engine,
        plugin: arguments.plugin,
        cache: arguments.program_cache_dir.map(|path| Folder {
            path,
            limit_bytes: arguments.program_cache_limit_bytes,
        }),
        backend: arguments.backend,
        ordinal: arguments.ordinal,
        memory_bytes: arguments.memory_bytes,
        threads: arguments.threads,
    };
    session::serve(inherited.socket, status_page, options)
}

/// Prints `answer` to the agent as JSON on standard output.
fn answer(answer: &impl serde::Serialize) -> ExitCode {
    match serde_json::to_writer(std::io::stdout(), answer) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Probes the GPUs from inside the sandbox, as executors will see them.
fn probe_in_sandbox() -> Probe {
    let reach = Reach {
        gpu: true,
        ..Reach::default()
    };
    match sandbox::restrict(&reach) {
        Ok(_) => cuda::probe(),
        Err(error) => Probe::failed(causes(&error)),
    }
}

/// Name and version of the platform that the PJRT plugin at `path` reports after it has opened its device. The sandbox allows GPUs because
/// the plugin may need one.
fn platform(path: &std::path::Path) -> Result<PluginPlatform, String> {
    let reach = Reach {
        gpu: true,
        plugin: Some(path.to_owned()),
        ..Reach::default()
    };
    sandbox::restrict(&reach).map_err(|error| causes(&error))?;
    let plugin = sahasra_pjrt::Plugin::load(path).map_err(|error| causes(&error))?;
    let client = sahasra_pjrt::Client::create(&plugin, &[]).map_err(|error| causes(&error))?;
    Ok(PluginPlatform {
        name: client.platform_name().map_err(|error| causes(&error))?,
        version: client.platform_version().map_err(|error| causes(&error))?,
    })
}
