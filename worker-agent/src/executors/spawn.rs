//! Start of executor processes.
//!
//! One thread that lives as long as the agent starts all of them: the kernel sends a child's death signal when the *thread* that created
//! the child ends, and a runtime's threads come and go.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};

use futures::future::BoxFuture;
use tokio::sync::oneshot;

use super::device::{DeviceDescription, DeviceKind};
use super::launch::{Launched, Launcher};
use super::process::Child;
use sahasra_executor_protocol::burst::status_page::Board;
use sahasra_executor_protocol::clock::monotonic_nanoseconds;

/// Environment variables that executors inherit: those by which a driver is found and its devices are selected. All others stay out, above
/// all any that names a token or the API server.
const KEPT: [&str; 8] = [
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_MPS_PIPE_DIRECTORY",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "RUST_BACKTRACE",
    "TZ",
];

/// A process that was started.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) child: Child,
    pub(super) socket: UnixStream,
    pub(super) board: Arc<Board>,
    /// Read end of the process's stderr.
    pub(super) words: Option<OwnedFd>,
}

type Start = Box<dyn FnOnce(&Path) + Send>;

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

    /// Calls `start` with the program on the thread, and returns its result.
    pub(crate) async fn on_thread<T: Send + 'static>(&self, start: impl FnOnce(&Path) -> io::Result<T> + Send + 'static) -> io::Result<T> {
        let (answer, answered) = oneshot::channel();
        let gone = || io::Error::other("the thread that starts executors is gone");
        let start: Start = Box::new(move |program| {
            // If the caller has gone, dropping the result here ends the process.
            let _ = answer.send(start(program));
        });
        self.requests.send(start).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }

    async fn executor(&self, device: &DeviceDescription) -> io::Result<Started> {
        let engine = match device.kind {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Cuda => "cuda",
        };
        let arguments = vec![
            format!("--engine={engine}"),
            format!("--ordinal={}", device.ordinal),
            format!("--memory-bytes={}", device.total_bytes),
            format!("--threads={}", device.lanes),
            format!("--parent={}", std::process::id()),
        ];
        self.on_thread(move |program| start(program, &arguments)).await
    }
}

impl Launcher for Spawner {
    fn launch<'a>(&'a self, device: &'a DeviceDescription, _namespace: &'a str) -> BoxFuture<'a, io::Result<Launched>> {
        Box::pin(async { Ok(Launched::process(self.executor(device).await?)) })
    }

    fn monotonic_nanoseconds(&self) -> u64 {
        monotonic_nanoseconds()
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

fn start(program: &Path, arguments: &[String]) -> io::Result<Started> {
    let (socket, theirs) = UnixStream::pair()?;
    let (board, file) = Board::create()?;
    let (words, their_words) = io::pipe()?;
    let child = command(program, "run")
        .args(arguments)
        // The lanes of a burst executor allocate little and share it, so a malloc arena per thread would only cost memory. Session executors do
        // not get this limit: a step of an XLA program allocates on several threads at once, which would wait for each other.
        .env("MALLOC_ARENA_MAX", "2")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::from(file))
        .stderr(Stdio::from(their_words))
        // A process group of its own: an interrupt from the terminal goes to the agent alone, which drains first.
        .process_group(0)
        .spawn()?;
    socket.set_nonblocking(true)?;
    Ok(Started {
        child: Child(Some(child)),
        socket,
        board: Arc::new(board),
        words: Some(words.into()),
    })
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
