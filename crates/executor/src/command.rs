//! Command line of the executor, and the short-lived processes that examine devices, plugins and the sandbox.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use sahasra_error_chain::causes;
use sahasra_executor_protocol::burst::status_page::StatusPage;
use sahasra_executor_protocol::probe::{PluginPlatform, Probe};
use sahasra_executor_protocol::session::status_page::StatusPage as SessionStatusPage;
use sahasra_names::Backend;

use crate::assigned::Assigned;
use crate::burst;
use crate::device::cpu::CpuDevice;
use crate::device::cuda::{self, CudaDevice};
use crate::process::end_on_panic;
use crate::sandbox::{self, Inherited, reach::Reach};
use crate::session::{self, Options};

/// Runs chunks on one device for one namespace, or holds one session. Started by the agent.
#[derive(Debug, Parser)]
#[command(name = "executor")]
enum Command {
    /// Runs chunks for the supervisor on standard input.
    Run(Assigned),
    /// Holds one session, whose connections arrive over standard input.
    Session(Options),
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
        Command::ProbePlugin { path } => answer(&platform(&path)),
        Command::Run(assigned) => run(&assigned).unwrap_or_else(|code| code),
        Command::Session(options) => session(options).unwrap_or_else(|code| code),
    }
}

/// Enters the sandbox, and maps the status page by `map`. `own_bytes` is the memory of the process if the device is the CPU.
fn enter<P>(
    assigned: &Assigned,
    own_bytes: u64,
    reach: &Reach,
    map: impl FnOnce(&Inherited) -> io::Result<P>,
) -> Result<(Inherited, P), ExitCode> {
    let own_memory = (!assigned.backend.is_gpu()).then_some(own_bytes);
    let inherited = sandbox::enter(assigned.agent_pid, own_memory, reach).map_err(|error| {
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

fn run(assigned: &Assigned) -> Result<ExitCode, ExitCode> {
    let reach = Reach {
        gpu: assigned.backend.is_gpu(),
        ..Reach::default()
    };
    let map = |inherited: &Inherited| StatusPage::map(&inherited.status_page);
    let (inherited, status_page) = enter(assigned, assigned.memory_bytes, &reach, map)?;
    Ok(match assigned.backend {
        Backend::Cpu => {
            let device = CpuDevice::new(assigned.memory_bytes, assigned.threads as usize);
            burst::serve(Ok(device), inherited.socket, status_page)
        }
        Backend::Cuda => burst::serve(CudaDevice::open(assigned.ordinal), inherited.socket, status_page),
    })
}

fn session(mut options: Options) -> Result<ExitCode, ExitCode> {
    options.kernel_boot_id = sahasra_memory::shared::kernel_boot_id().ok();
    let reach = Reach {
        gpu: options.assigned.backend.is_gpu(),
        plugin: options.plugin.clone(),
        program_cache: options.program_cache_dir.clone(),
        scratch: options.scratch_dir.clone(),
    };
    let own_bytes = session::own_memory_bytes(options.assigned.memory_bytes);
    let map = |inherited: &Inherited| SessionStatusPage::map(&inherited.status_page);
    let (inherited, status_page) = enter(&options.assigned, own_bytes, &reach, map)?;
    Ok(session::serve(inherited.socket, status_page, options))
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
