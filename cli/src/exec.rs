//! `sahasra exec`: a CUDA program on a device of a pool. The session lasts as long as the program.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use sahasra_client::{Connection, CudaSession, Error, Gateway};
use sahasra_crds::gpu_session::DEFAULT_IDLE_SECONDS;
use sahasra_error_chain::causes;
use sahasra_service::shutdown::{EndSignal, EndSignals, is_ignored};
use tokio::process::Command;

use crate::args::ExecArgs;
use crate::exit::Exit;
use crate::{interrupt, output};

/// Library that a folder of libraries has.
const DRIVER: &str = "libcuda.so.1";
/// Gateway of `sahasra up` on this machine.
const OWN_MACHINE: &str = "http://127.0.0.1:8000";
/// Remedy if the gateway that is named does not answer.
const NO_GATEWAY: &str = ": check that it runs and that --gateway, SAHASRA_GATEWAY or sahasra connect names it";
/// Remedy if no pool is named and none runs on this machine.
const NO_POOL: &str = ": start one on this machine with sahasra up, or name one with --gateway, SAHASRA_GATEWAY or sahasra connect";

pub(crate) fn run(arguments: &ExecArgs) -> Exit {
    let libraries = match libraries(arguments.libraries.as_deref()) {
        Ok(libraries) => libraries,
        Err(reason) => return Exit::Failed.because(&reason),
    };
    crate::on_runtime(run_with(arguments, &libraries))
}

/// The folder of the drop-in libraries.
pub(crate) fn libraries(given: Option<&Path>) -> Result<PathBuf, String> {
    if let Some(folder) = given {
        return match folder.join(DRIVER).exists() {
            true => std::path::absolute(folder).map_err(|error| format!("--libraries {}: {error}", folder.display())),
            false => Err(format!("--libraries {}: this folder has no {DRIVER}", folder.display())),
        };
    }
    let program = std::env::current_exe().map_err(|error| format!("failed to find the folder of this program: {error}"))?;
    let above = program.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
    // The second is that of a build from source.
    let candidates = [above.join("lib/sahasra"), above.join("cuda")];
    let found = candidates.iter().find(|folder| folder.join(DRIVER).exists());
    found.cloned().ok_or_else(|| {
        let [first, second] = candidates.map(|folder| folder.display().to_string());
        format!("no {DRIVER} in {first} or {second}: build it with crates/cuda-driver/library, or pass --libraries")
    })
}

async fn run_with(arguments: &ExecArgs, libraries: &Path) -> Exit {
    let connected = || Connection::find().and_then(|connection| Some(connection.gateway()?.to_owned()));
    let named = arguments.gateway.clone().or_else(connected);
    let is_default = named.is_none();
    let url = named.unwrap_or_else(|| OWN_MACHINE.to_owned());
    let gateway = match gateway(arguments, &url) {
        Ok(gateway) => gateway,
        Err(reason) => return Exit::Failed.because(&reason),
    };
    if let Some(exposure) = gateway.exposure() {
        output::complain(&exposure);
    }
    // Before the session exists, so that no signal leaves it behind.
    let mut signals = match watch_interrupts().and_then(|()| EndSignals::listen_unless_ignored()) {
        Ok(signals) => signals,
        Err(error) => return Exit::Failed.because(&format!("failed to install signal handlers: {error}")),
    };
    let namespace = &arguments.namespace;
    let sessions = format!("{}/v1/namespaces/{namespace}/sessions", url.trim_end_matches('/'));
    let mut ending = None;
    let session = session(arguments);
    let creating = gateway.create_cuda_session(namespace, &session);
    let name = match until_second_signal(creating, &mut signals, &mut ending, "waiting for the session, to delete it").await {
        Ok(Ok(name)) => name,
        Ok(Err(error)) => {
            let remedy = match &error {
                Error::Unreachable { .. } if is_default => NO_POOL,
                Error::Unreachable { .. } => NO_GATEWAY,
                _ => "",
            };
            return Exit::Failed.because(&format!("failed to create the session: {}{remedy}", causes(&error)));
        }
        Err(exit) => {
            let message = format!("stopped at once: a session may have been created, look for one named exec-… with GET {sessions}");
            return exit.because(&message);
        }
    };
    let exit = match ending {
        Some(signal) => interrupt::of(signal),
        None => tokio::select! {
            placed = gateway.session_placed(namespace, &name, arguments.wait) => match placed {
                Ok(_) => {
                    let session = format!("{}/{namespace}/{name}", url.trim_end_matches('/'));
                    execute(arguments, libraries, session, &mut signals).await
                }
                Err(error @ Error::NoCapacity(_)) => Exit::Unplaceable.because(&error.to_string()),
                Err(error) => Exit::Failed.because(&causes(&error)),
            },
            signal = signals.next() => interrupt::of(*ending.insert(signal)),
        },
    };
    let deleting = gateway.delete_session(namespace, &name);
    match until_second_signal(deleting, &mut signals, &mut ending, "deleting the session").await {
        Ok(Err(error)) => {
            let failed = Exit::Failed.because(&format!("failed to delete the session {namespace}/{name}: {}", causes(&error)));
            // The program's own failure says more.
            if exit == Exit::Program(0) { failed } else { exit }
        }
        Ok(Ok(())) => exit,
        Err(at_once) => at_once.because(&format!(
            "stopped at once: the session {namespace}/{name} may not be deleted, do so with DELETE {sessions}/{name}"
        )),
    }
}

/// Does work of which the first signal, `ending`, only reports that it goes on.
///
/// # Errors
/// The exit code of a second signal, which ends the work. A SIGHUP never does.
async fn until_second_signal<T>(
    work: impl Future<Output = T>,
    signals: &mut EndSignals,
    ending: &mut Option<EndSignal>,
    what: &str,
) -> Result<T, Exit> {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return Ok(done),
            signal = signals.next() => {
                if interrupt::ends_at_once(ending.is_some(), signal) {
                    return Err(interrupt::of(signal));
                }
                if ending.replace(signal).is_none() {
                    output::say(&format!("{what}: a second signal stops at once"));
                }
            }
        }
    }
}

fn gateway(arguments: &ExecArgs, url: &str) -> Result<Gateway, String> {
    let authorities = arguments.ca_file.as_ref().map(|path| {
        let read = std::fs::read_to_string(path);
        read.map_err(|error| format!("failed to read --ca-file {}: {error}", path.display()))
    });
    Gateway::find(url, authorities.transpose()?.as_deref()).map_err(|error| causes(&error))
}

fn session(arguments: &ExecArgs) -> CudaSession {
    // The operator's default would exceed a shorter lifetime, and be rejected.
    let default_idle = Duration::from_secs(DEFAULT_IDLE_SECONDS.unsigned_abs());
    let idle_timeout = arguments.idle_timeout.or(arguments.ttl.map(|ttl| ttl.min(default_idle)));
    CudaSession {
        prefix: "exec",
        program: title(&arguments.program),
        vram: arguments.vram.clone(),
        class: arguments.class.clone(),
        idle_timeout,
        // The program may connect late, and again.
        disconnect_timeout: None,
        ttl: arguments.ttl,
    }
}

/// Display name of a program: that of its file, and of the script that it runs.
fn title(program: &[OsString]) -> String {
    let file = |path: &OsString| Path::new(path).file_name().unwrap_or(path).to_string_lossy().into_owned();
    let script = program.get(1).filter(|argument| !argument.to_string_lossy().starts_with('-'));
    let words: Vec<String> = program.first().into_iter().chain(script).map(file).collect();
    words.join(" ")
}

async fn execute(arguments: &ExecArgs, libraries: &Path, session: String, signals: &mut EndSignals) -> Exit {
    let Some((program, rest)) = arguments.program.split_first() else {
        return Exit::Refused.because("no program was given");
    };
    let mut command = Command::new(program);
    command.args(rest).env("SAHASRA_CUDA", session);
    command.env(
        "LD_LIBRARY_PATH",
        search_path(libraries, std::env::var_os("LD_LIBRARY_PATH").as_deref()),
    );
    if let Some(path) = &arguments.ca_file {
        // The program may change its folder.
        command.env("SAHASRA_CA_FILE", std::path::absolute(path).unwrap_or_else(|_| path.clone()));
    }
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
            return Exit::Program(code).because(&format!("failed to start {}: {error}", program.display()));
        }
    };
    loop {
        tokio::select! {
            ended = child.wait() => return match ended {
                Ok(status) => Exit::Program(code(status)),
                Err(error) => Exit::Failed.because(&format!("failed to wait for {}: {error}", program.display())),
            },
            signal = signals.next() => pass_on(signal, child.id()),
        }
    }
}

/// Whether a process has sent a SIGINT that was not passed on yet. A terminal sends it to all processes in the foreground.
static IS_TO_PASS_ON: AtomicBool = AtomicBool::new(false);

/// Sets [`IS_TO_PASS_ON`] when a SIGINT arrives, unless SIGINT is ignored. Must be called before other handlers of the signal are
/// installed: they run in this order.
fn watch_interrupts() -> io::Result<()> {
    /// `si_code` of a signal that the kernel itself has sent (`sigaction(2)`).
    const SI_KERNEL: i32 = 0x80;
    if is_ignored(Signal::INT.as_raw())? {
        return Ok(());
    }
    let note = |information: &libc::siginfo_t| {
        if information.si_code != SI_KERNEL {
            IS_TO_PASS_ON.store(true, Ordering::SeqCst);
        }
    };
    // SAFETY: the action stores a value, which a signal handler may do.
    unsafe { signal_hook_registry::register_sigaction(Signal::INT.as_raw(), note) }.map(|_| ())
}

/// Passes a signal on to the program. A terminal has sent it Ctrl-C already.
fn pass_on(signal: EndSignal, process: Option<u32>) {
    let signal = match signal {
        EndSignal::Interrupt if !IS_TO_PASS_ON.swap(false, Ordering::SeqCst) => return,
        EndSignal::Interrupt => Signal::INT,
        EndSignal::Terminate => Signal::TERM,
        EndSignal::HangUp => Signal::HUP,
    };
    if let Some(process) = process.and_then(|process| Pid::from_raw(process as i32)) {
        // The program may have ended in the meantime.
        let _ = kill_process(process, signal);
    }
}

/// Search path of the dynamic linker with the libraries before everything else.
fn search_path(libraries: &Path, others: Option<&OsStr>) -> OsString {
    let mut path = libraries.as_os_str().to_owned();
    if let Some(others) = others.filter(|others| !others.is_empty()) {
        path.push(":");
        path.push(others);
    }
    path
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_named_after_its_file_and_its_script() {
        let title = |words: &[&str]| title(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(title(&["/usr/bin/python3", "work/train.py", "--epochs", "3"]), "python3 train.py");
        assert_eq!(title(&["nvidia-smi"]), "nvidia-smi");
        assert_eq!(title(&["python", "-m", "pytest"]), "python");
    }

    #[test]
    fn a_session_that_lives_shortly_is_idle_no_longer() {
        use clap::Parser as _;
        let session = |options: &[&str]| {
            let words = ["sahasra", "exec"].iter().chain(options).chain(&["--", "steps"]);
            match crate::args::Args::try_parse_from(words).expect("valid").command {
                crate::args::Command::Exec(arguments) => session(&arguments),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(session(&["--ttl", "5m"]).idle_timeout, Some(Duration::from_secs(300)));
        assert_eq!(session(&["--ttl", "9h"]).idle_timeout, Some(Duration::from_secs(1800)));
        assert_eq!(
            session(&["--ttl", "5m", "--idle-timeout", "1h"]).idle_timeout,
            Some(Duration::from_secs(3600))
        );
        assert_eq!(session(&[]).idle_timeout, None);
    }

    #[test]
    fn the_libraries_come_before_those_of_the_caller() {
        let libraries = Path::new("/opt/sahasra");
        assert_eq!(search_path(libraries, None), "/opt/sahasra");
        assert_eq!(search_path(libraries, Some(OsStr::new(""))), "/opt/sahasra");
        assert_eq!(search_path(libraries, Some(OsStr::new("/a:/b"))), "/opt/sahasra:/a:/b");
    }

    #[test]
    fn the_exit_code_of_a_program_is_kept() {
        assert_eq!(code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(code(ExitStatus::from_raw(9)), 137);
    }

    #[test]
    fn a_folder_without_the_library_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(libraries(Some(folder.path())).unwrap_err().contains(DRIVER));
        std::fs::write(folder.path().join(DRIVER), "").unwrap();
        assert_eq!(libraries(Some(folder.path())).unwrap(), folder.path());
    }
}
