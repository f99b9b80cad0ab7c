//! The executor: a child process in which one tenant's chunks run on one device.
//!
//! ```text
//!  supervisor ──Open, Submit, SetConcurrency…──► main thread ──► Queue ──► lanes ──► Device
//!      ▲  ▲                                                                 │ │
//!      │  └──────────────── frames: runs of results ◄── Reporter ◄──────────┘ │
//!      └──────────────────────────── status page (shared memory) ◄────────────┘
//! ```
//!
//! The process is this program, called with the subcommand `executor`. It keeps one device context open and caches loaded modules by the
//! hash of their text. It evaluates parameters itself, so that a tenant's formulas stay in the tenant's process, and reports results in
//! runs of consecutive chunks. It trusts only its supervisor; the supervisor trusts nothing that the executor reports. The process ends
//! when its socket closes.

mod lane;
mod program;
mod queue;
mod report;
mod results;
pub mod sandbox;
mod watch;

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, ValueEnum};
use sahasra_error_chain::causes;
use sahasra_executor_protocol::probe::{PluginPlatform, Probe};
use sahasra_wire::frame::Decoder;

pub(crate) use self::report::end_process;

use self::queue::message;
use self::report::Reporter;
use self::sandbox::Reach;
use crate::device::cpu::CpuDevice;
use crate::device::cuda::{self, CudaDevice};
use crate::device::{Device, DeviceError};
use crate::session_executor::{self, EngineChoice, Options, Platform};
use sahasra_executor_protocol::burst::messages::{Ready, ToExecutor, from_executor::Kind, to_executor};
use sahasra_executor_protocol::burst::status_page::{Board, MAX_LANES};
use sahasra_executor_protocol::program_cache::Folder;

/// Stack size of a lane's thread, in bytes. The engine keeps its own state on the heap; the compiler of a GPU driver needs the most stack.
const LANE_STACK: usize = 4 << 20;

/// Engine of the device.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Engine {
    Cpu,
    Cuda,
}

/// Engine of a session.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum SessionEngine {
    Xla,
    Ptx,
}

/// What a session executor is to be.
#[derive(Debug, clap::Args)]
struct SessionArguments {
    /// Engine of the session.
    #[arg(long)]
    engine: SessionEngine,
    /// The PJRT plugin of engine xla.
    #[arg(long, required_if_eq("engine", "xla"))]
    plugin: Option<PathBuf>,
    /// Kind of the device.
    #[arg(long, default_value = "cpu")]
    device: Engine,
    /// The device's number among those of its kind.
    #[arg(long, default_value_t = 0)]
    ordinal: u32,
    /// Device memory that the session may use, in bytes.
    #[arg(long)]
    memory_bytes: u64,
    /// Threads of a CPU device.
    #[arg(long, default_value_t = 1)]
    threads: u32,
    /// Folder for programs that engine xla compiled; in memory alone when absent.
    #[arg(long)]
    program_cache: Option<PathBuf>,
    /// Most that may lie there, in bytes.
    #[arg(long, default_value_t = 1 << 30)]
    program_cache_bytes: u64,
    /// Folder of its own for files that live as long as it.
    #[arg(long)]
    scratch: Option<PathBuf>,
    /// Process id of the agent.
    #[arg(long)]
    parent: i32,
}

/// Runs chunks on one device for one namespace, or holds one session. Started by the agent.
#[derive(Debug, Parser)]
#[command(name = "executor")]
enum Command {
    /// Serves the supervisor on standard input.
    Run {
        /// Engine of the device.
        #[arg(long)]
        engine: Engine,
        /// The device's number among those of its engine.
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
        parent: i32,
    },
    /// Serves one session, whose connections come over standard input.
    Session(SessionArguments),
    /// Prints the GPUs as JSON and ends.
    Probe {
        /// As an executor's walls let it see them.
        #[arg(long)]
        within_walls: bool,
    },
    /// Puts up an executor's walls, prints which of them stand as JSON and ends.
    Walls,
    /// Loads a PJRT plugin within an executor's walls, opens its device, prints what it is as JSON and ends.
    Plugin {
        /// The library.
        path: std::path::PathBuf,
    },
}

/// Entry point of the subcommand `executor`. The first of `arguments` is the program's name.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let command = match Command::try_parse_from(arguments) {
        Ok(command) => command,
        Err(error) => error.exit(),
    };
    match command {
        Command::Probe { within_walls: false } => answer(&cuda::probe()),
        Command::Probe { within_walls: true } => answer(&probe_within_walls()),
        Command::Walls => answer(&sandbox::put_up_walls(&Reach::default()).map_err(|error| causes(&error))),
        Command::Session(arguments) => session(arguments),
        Command::Plugin { path } => answer(&platform(&path)),
        Command::Run {
            engine,
            ordinal,
            memory_bytes,
            threads,
            parent,
        } => {
            let own_memory = matches!(engine, Engine::Cpu).then_some(memory_bytes);
            let reach = Reach {
                gpu: matches!(engine, Engine::Cuda),
                ..Reach::default()
            };
            let inherited = match sandbox::enter(parent, own_memory, &reach) {
                Ok(inherited) => inherited,
                Err(error) => {
                    eprintln!("cannot enter the sandbox: {}", causes(&error));
                    return ExitCode::FAILURE;
                }
            };
            end_on_panic();
            let board = match Board::map(&inherited.board) {
                Ok(board) => board,
                Err(error) => {
                    eprintln!("no status board: {error}");
                    return ExitCode::FAILURE;
                }
            };
            match engine {
                Engine::Cpu => serve(Ok(CpuDevice::new(memory_bytes, threads as usize)), inherited.socket, board),
                Engine::Cuda => serve(CudaDevice::open(ordinal), inherited.socket, board),
            }
        }
    }
}

fn session(arguments: SessionArguments) -> ExitCode {
    let own_memory = matches!(arguments.device, Engine::Cpu).then(|| session_executor::own_memory_bytes(arguments.memory_bytes));
    let reach = Reach {
        gpu: matches!(arguments.device, Engine::Cuda),
        plugin: arguments.plugin.clone(),
        program_cache: arguments.program_cache.clone(),
        scratch: arguments.scratch,
    };
    let inherited = match sandbox::enter(arguments.parent, own_memory, &reach) {
        Ok(inherited) => inherited,
        Err(error) => {
            eprintln!("cannot enter the sandbox: {}", causes(&error));
            return ExitCode::FAILURE;
        }
    };
    end_on_panic();
    let board = match sahasra_executor_protocol::session::status_page::Board::map(&inherited.board) {
        Ok(board) => board,
        Err(error) => {
            eprintln!("no board: {error}");
            return ExitCode::FAILURE;
        }
    };
    let options = Options {
        engine: match (arguments.engine, arguments.plugin) {
            (SessionEngine::Xla, Some(plugin)) => EngineChoice::Xla {
                plugin,
                cache: arguments.program_cache.map(|path| Folder {
                    path,
                    limit_bytes: arguments.program_cache_bytes,
                }),
            },
            (SessionEngine::Xla, None) => {
                eprintln!("engine xla needs --plugin");
                return ExitCode::FAILURE;
            }
            (SessionEngine::Ptx, _) => EngineChoice::Ptx,
        },
        platform: match arguments.device {
            Engine::Cpu => Platform::Cpu,
            Engine::Cuda => Platform::Cuda,
        },
        ordinal: arguments.ordinal,
        memory_bytes: arguments.memory_bytes,
        threads: arguments.threads,
    };
    session_executor::serve(inherited.socket, board, options)
}

/// Prints `answer` to the agent as JSON on standard output.
fn answer(answer: &impl serde::Serialize) -> ExitCode {
    match serde_json::to_writer(std::io::stdout(), answer) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Probes the GPUs from inside the sandbox, as executors will see them.
fn probe_within_walls() -> Probe {
    let reach = Reach {
        gpu: true,
        ..Reach::default()
    };
    match sandbox::put_up_walls(&reach) {
        Ok(_) => cuda::probe(),
        Err(error) => Probe {
            gpus: Vec::new(),
            reason: Some(causes(&error)),
        },
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
    sandbox::put_up_walls(&reach).map_err(|error| causes(&error))?;
    let plugin = sahasra_pjrt::Plugin::load(path).map_err(|error| causes(&error))?;
    let client = sahasra_pjrt::Client::create(&plugin, &[]).map_err(|error| causes(&error))?;
    Ok(PluginPlatform {
        name: client.platform_name().map_err(|error| causes(&error))?,
        version: client.platform_version().map_err(|error| causes(&error))?,
    })
}

/// Installs a panic hook that ends the whole process: an executor that lost one thread would leave chunks unfinished.
fn end_on_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        report::end_process();
    }));
}

fn serve<D: Device>(device: Result<D, DeviceError>, socket: UnixStream, board: Board) -> ExitCode {
    let mut reader = match socket.try_clone() {
        Ok(reader) => reader,
        Err(error) => {
            eprintln!("socket cannot be shared: {error}");
            return ExitCode::FAILURE;
        }
    };
    let reporter = Reporter::new(socket);
    let device = match device {
        Ok(device) => device,
        Err(error) => {
            reporter.send_all([message(Kind::Unavailable(error.to_string()))]);
            return ExitCode::FAILURE;
        }
    };
    let lanes = device.lanes().clamp(1, MAX_LANES);
    let shared = Arc::new(lane::Shared::new(device, reporter, board, lanes));
    let watched = Arc::clone(&shared);
    let watch = std::thread::Builder::new().name("watch".to_owned()).stack_size(256 << 10);
    let watch = watch.spawn(move || {
        let (look, give_up) = (|| watched.send_old_results(), || watched.reporter.end_process());
        watched.watch.run(&watched.board, look, give_up)
    });
    if let Err(error) = watch {
        eprintln!("no thread to watch chunks: {error}");
        return ExitCode::FAILURE;
    }
    shared.reporter.send_all([message(Kind::Ready(Ready { lanes: lanes as u32 }))]);
    let mut decoder = Decoder::default();
    let mut buffer = vec![0; 64 << 10];
    let mut started = 0;
    loop {
        match reader.read(&mut buffer) {
            // End of file: the agent has ended, or no longer needs this process.
            Ok(0) => report::end_process(),
            Ok(read) => decoder.extend(&buffer[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => {
                eprintln!("cannot read from the agent: {error}");
                report::end_process();
            }
        }
        loop {
            match decoder.next_message::<ToExecutor>() {
                Ok(Some(told)) => {
                    let wanted = obey(&shared, told);
                    while started < wanted.min(lanes) {
                        start_lane(&shared, started);
                        started += 1;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    eprintln!("the agent's words make no sense: {error}");
                    report::end_process();
                }
            }
        }
    }
}

/// Carries out one message of the supervisor. Returns how many lanes can be used after a `SetConcurrency` message, and 0 after any other.
fn obey<D: Device>(shared: &lane::Shared<D>, told: ToExecutor) -> usize {
    let queue = &shared.queue;
    let mut lanes = 0;
    let answer = match told.kind {
        Some(to_executor::Kind::Open(open)) => {
            queue.open(open.run, open.program);
            None
        }
        Some(to_executor::Kind::Submit(submit)) => queue.submit(submit),
        Some(to_executor::Kind::SetConcurrency(change)) => {
            let settled;
            (lanes, settled) = queue.set_concurrency(change);
            settled
        }
        Some(to_executor::Kind::Withdraw(run)) => queue.withdraw(run),
        Some(to_executor::Kind::Pause(pause)) => {
            queue.pause(pause.run, pause.paused);
            None
        }
        Some(to_executor::Kind::Close(run)) => {
            queue.close(run);
            None
        }
        Some(to_executor::Kind::Revoke(revoke)) => {
            shared.watch.revoke(revoke.run, revoke.code());
            None
        }
        None => None,
    };
    shared.reporter.send_all(answer);
    lanes
}

fn start_lane<D: Device>(shared: &Arc<lane::Shared<D>>, number: usize) {
    let of_lane = Arc::clone(shared);
    let builder = std::thread::Builder::new().name(format!("lane-{number}")).stack_size(LANE_STACK);
    let started = builder.spawn(move || {
        lane::run(&of_lane, number);
        // A lane that cannot continue leaves chunks behind that no other lane would run, so the process ends and the supervisor starts a
        // new executor.
        of_lane.reporter.end_process()
    });
    if let Err(error) = started {
        eprintln!("lane {number} has no thread: {error}");
        shared.reporter.end_process();
    }
}
