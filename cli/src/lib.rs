//! The programs `sahasra` and `kubectl-sahasra`.
//!
//! ```text
//!  args ─► kernel check, compile                      PTX and CUDA C, nothing else
//!     ├──► exec ─► gateway of a pool                   a session, and a CUDA program on it
//!     ├──► connect ─► gateway of a pool                files with which CUDA programs find it
//!     └──► run, up, serve ─► pool ─► control plane           in memory (crates/local)
//!                       ├───► operator                the real reconcilers, in this process
//!                       └───► agents ─► executors     the real agents, in this process; executors are this program again
//! ```
//!
//! [`main`] parses the command line and calls the command's module, which returns an [`exit::Exit`]. Output for scripts goes to
//! standard output, everything else to standard error.

use std::{ffi::OsString, process::ExitCode};

use clap::CommandFactory;
use sahasra_service::logging;

mod apply;
mod args;
mod connect;
mod exec;
mod exit;
mod install;
mod interrupt;
mod kernel;
mod leak_check;
mod manifests;
mod output;
mod pool;
mod run;
mod serve;
mod token;
mod up;

use args::{Args, Command, KernelCommand};
use exit::Exit;

/// Runs the program with these arguments. `name` is the name by which it was called, for its help texts.
pub fn main(name: &'static str, arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Args = sahasra_service::args::parse(Some(name), arguments);
    if let Command::Executor { arguments } = arguments.command {
        return sahasra_executor::main(std::iter::once("executor".into()).chain(arguments));
    }
    let _log = (arguments.log_level != "off").then(|| logging::start(&arguments.log_level, logging::LogFormat::Text));
    let exit = match arguments.command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Up(arguments) => up::run(&arguments),
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Connect(arguments) => connect::connect(&arguments),
        Command::Disconnect => connect::disconnect(),
        Command::Install(arguments) => install::run(&arguments),
        Command::Exec(arguments) => exec::run(&arguments),
        Command::Kernel(KernelCommand::Check(arguments)) => kernel::check::run(&arguments),
        Command::Kernel(KernelCommand::Compile(arguments)) => kernel::compile::run(&arguments),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Args::command(), "sahasra", &mut script);
            output::print(&String::from_utf8_lossy(&script))
        }
        // The executor runs before the command line is matched here.
        Command::Executor { .. } => Exit::Refused,
    };
    exit.into()
}

/// Runs a command on a runtime with two threads, which operator and agents share: long computations happen in executors.
fn on_runtime(work: impl Future<Output = Exit>) -> Exit {
    match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime.block_on(work),
        Err(error) => Exit::Failed.because(&format!("failed to start threads: {error}")),
    }
}
