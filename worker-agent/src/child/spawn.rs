//! Start of executor processes.
//!
//! One thread that lives as long as the agent starts all of them: the kernel sends a child's death signal when the *thread* that created
//! the child ends, and a runtime's threads come and go.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;

use tokio::sync::oneshot;

use super::Child;

/// Environment variables that executors inherit: those by which a driver is found and its devices are selected. All others stay out, above
/// all any that names a token or the API server.
const KEPT: [&str; 11] = [
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_MPS_PIPE_DIRECTORY",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    // Those of this repository's driver library, where it takes the place of the vendor's.
    "SAHASRA_CUDA",
    "SAHASRA_CUDA_MEMORY",
    "SAHASRA_CUDA_THREADS",
    "RUST_BACKTRACE",
    "TZ",
];

type Start = Box<dyn FnOnce(&Path) + Send>;

/// An executor's process that was started.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) id: u32,
    pub(crate) child: Child,
    /// The agent's end of the socket to the process.
    pub(crate) socket: UnixStream,
    /// Read end of the process's stderr.
    pub(crate) stderr: OwnedFd,
}

/// Handle of the thread that starts processes. The thread ends with its last handle.
#[derive(Clone, Debug)]
pub(crate) struct Spawner {
    requests: mpsc::Sender<Start>,
}

impl Spawner {
    pub(crate) fn start(program: PathBuf) -> io::Result<Self> {
        let (requests, received) = mpsc::channel::<Start>();
        std::thread::Builder::new()
            .name("executor-start".to_owned())
            .stack_size(128 << 10)
            .spawn(move || {
                while let Ok(start) = received.recv() {
                    start(&program);
                }
            })?;
        Ok(Self { requests })
    }

    /// Starts an executor with the arguments of its device. `add` adds what executors of this kind need.
    pub(crate) async fn executor(
        &self,
        kind: &'static str,
        device: [String; 5],
        status_page: OwnedFd,
        add: impl FnOnce(&mut Command) + Send + 'static,
    ) -> io::Result<Started> {
        let start = move |program: &Path| -> io::Result<Started> {
            let (socket, theirs) = UnixStream::pair()?;
            let (stderr, child_stderr) = io::pipe()?;
            let mut command = command(program, kind);
            add(&mut command);
            let child = command
                .args(device)
                .stdin(OwnedFd::from(theirs))
                .stdout(status_page)
                .stderr(child_stderr)
                // A process group of its own: an interrupt from the terminal goes to the agent alone, which drains first.
                .process_group(0)
                .spawn()?;
            Ok(Started {
                id: child.id(),
                child: Child(Some(child)),
                socket,
                stderr: stderr.into(),
            })
        };
        let (answer, answered) = oneshot::channel();
        let gone = || io::Error::other("the thread that starts executors has ended");
        let start: Start = Box::new(move |program| {
            // If the caller has gone, dropping the result here ends the process.
            let _ = answer.send(start(program));
        });
        self.requests.send(start).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }
}

/// Creates a command that runs this program with an environment free of the agent's variables.
pub(crate) fn command(program: &Path, name: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["executor", name]).env_clear().current_dir("/");
    for name in KEPT {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    // Compiled code on disk would be shared among tenants.
    command.env("CUDA_CACHE_DISABLE", "1");
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_executor_is_not_held_to_the_few_arenas_of_one_that_runs_chunks() {
        let command = command(Path::new("sahasra-worker"), "session");
        assert!(command.get_envs().all(|(name, _)| name != "MALLOC_ARENA_MAX"), "{command:?}");
    }
}
