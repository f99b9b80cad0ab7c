//! The process of a session executor, from the agent's side: its start, the connections handed over to it, and its end.
//!
//! The process runs the agent's own program with the arguments `executor session`. It exits when its control socket closes, after it has
//! told its client the reason; the agent kills it if it has not exited shortly after. Its memory counts as free once it has been reaped,
//! and no sooner.

use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use sahasra_executor_protocol::probe::PluginPlatform;
use sahasra_executor_protocol::session::{adoption, status_page::Board};
use tempfile::TempDir;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinHandle;

use super::launch::{self, Launch, Task, TaskEnd};
use crate::child::Child;
use crate::child::ask::ask;
use crate::child::spawn::{self, Spawner};
use crate::child::stderr;
use crate::devices::{DeviceDescription, DeviceKind};
use sahasra_executor_protocol::program_cache::ProgramCache;

/// Time that an executor has to tell its client the reason of the end before it is killed.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// Timeout for reading the rest of the stderr of a process that has exited.
const WORDS_AFTER_END: Duration = Duration::from_millis(200);
/// Lines of stderr that are kept as the log tail for the message about the end.
const KEPT_LINES: usize = 4;
/// Limit of the message about an end, in bytes: it becomes part of a condition of a Kubernetes object.
const TEXT: usize = 512;
/// Timeout for an executor to read a connection that is handed over.
const HAND_OVER: Duration = Duration::from_secs(5);
/// Timeout for a plugin to load and open its device.
const PROBE: Duration = Duration::from_secs(60);

/// Errors of starting a session executor.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The agent has no launcher.
    #[error("this agent runs no sessions")]
    NoLauncher,
    /// The device has no engine of the requested name.
    #[error("the device {device} has no engine {engine}")]
    NoEngine {
        device: String,
        /// Name of the requested engine.
        engine: String,
    },
    /// The process cannot be started.
    #[error("the session's executor does not start")]
    Start(#[from] io::Error),
}

/// Starts session executors as processes.
#[derive(Debug)]
pub struct Launcher {
    spawner: Spawner,
    plugin: Option<(PathBuf, PluginPlatform)>,
    cache: Option<ProgramCache>,
}

impl Launcher {
    /// Creates a launcher that starts `program` with the arguments `executor session`. With a plugin, the devices that it drives get the
    /// engine `xla`; a short-lived process probes first whether the plugin loads. A plugin that fails is logged and left out. Compiled
    /// programs are kept in `cache`.
    ///
    /// # Errors
    /// When the thread that starts processes cannot be created.
    pub async fn start(program: PathBuf, plugin: Option<PathBuf>, cache: Option<ProgramCache>) -> io::Result<Self> {
        let plugin = match plugin {
            Some(path) => match probe(&program, &path).await {
                Ok(platform) => {
                    tracing::info!(plugin = %path.display(), platform = platform.name, version = platform.version, "engine xla");
                    Some((path, platform))
                }
                Err(reason) => {
                    tracing::warn!(plugin = %path.display(), reason, "no engine xla: the PJRT plugin does not serve");
                    None
                }
            },
            None => None,
        };
        let spawner = Spawner::start(program)?;
        Ok(Self { spawner, plugin, cache })
    }

    async fn start_process(
        &self,
        device: &DeviceDescription,
        namespace: &str,
        engine: &str,
        limit_bytes: u64,
    ) -> Result<Process, LaunchError> {
        if !self.engines(device.kind).contains(&engine) {
            return Err(LaunchError::NoEngine {
                device: device.name.clone(),
                engine: engine.to_owned(),
            });
        }
        let kind = match device.kind {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Cuda => "cuda",
        };
        let mut arguments = vec![
            format!("--engine={engine}"),
            format!("--device={kind}"),
            format!("--ordinal={}", device.ordinal),
            format!("--memory-bytes={limit_bytes}"),
            format!("--threads={}", device.lanes),
            format!("--parent={}", std::process::id()),
        ];
        if let Some((path, _)) = self.plugin.as_ref().filter(|_| engine == "xla") {
            arguments.push(format!("--plugin={}", path.display()));
            arguments.extend(self.cache_arguments(namespace));
        }
        // Compilers of GPU programs exchange files with their tools, so the session needs a scratch folder.
        let scratch = match device.kind {
            DeviceKind::Cuda if engine == "xla" => Some(tempfile::Builder::new().prefix("sahasra-session-").tempdir()?),
            _ => None,
        };
        let started = self
            .spawner
            .on_thread(move |program| spawn(program, &arguments, limit_bytes, scratch))
            .await?;
        Ok(Process::new(started)?)
    }

    /// Returns the arguments that name the folder of compiled programs: the one of the session's namespace, which no other namespace can
    /// open.
    fn cache_arguments(&self, namespace: &str) -> Vec<String> {
        let folder = self.cache.as_ref().map(|cache| cache.of_namespace(namespace));
        match folder {
            Some(Ok(folder)) => vec![
                format!("--program-cache={}", folder.path.display()),
                format!("--program-cache-bytes={}", folder.limit_bytes),
            ],
            Some(Err(error)) => {
                tracing::warn!(namespace, %error, "a session keeps its programs in memory alone");
                Vec::new()
            }
            None => Vec::new(),
        }
    }
}

impl Launch for Launcher {
    fn engines(&self, kind: DeviceKind) -> Vec<&'static str> {
        let mut engines = vec!["ptx"];
        if self.plugin.as_ref().is_some_and(|(_, platform)| drives(platform, kind)) {
            engines.push("xla");
        }
        engines
    }

    fn launch<'a>(
        &'a self,
        device: &'a DeviceDescription,
        namespace: &'a str,
        engine: &'a str,
        limit_bytes: u64,
    ) -> BoxFuture<'a, Result<Process, LaunchError>> {
        Box::pin(self.start_process(device, namespace, engine, limit_bytes))
    }

    fn trim_cache(&self) {
        if let Some(cache) = &self.cache {
            cache.trim();
        }
    }
}

/// Returns whether a plugin of the platform drives devices of the kind.
fn drives(platform: &PluginPlatform, kind: DeviceKind) -> bool {
    let name = platform.name.to_ascii_lowercase();
    match kind {
        DeviceKind::Cpu => matches!(name.as_str(), "cpu" | "host"),
        DeviceKind::Cuda => matches!(name.as_str(), "cuda" | "gpu"),
    }
}

/// Loads the plugin in a separate process of `program`, so that a crash or a hang harms nobody, and returns its platform.
///
/// # Errors
/// The reason why the plugin does not serve.
pub async fn probe(program: &Path, plugin: &Path) -> Result<PluginPlatform, String> {
    let mut command = spawn::command(program, "plugin");
    command.arg(plugin).stderr(Stdio::null());
    ask(command, PROBE).await.unwrap_or_else(|error| Err(error.to_string()))
}

struct Started {
    child: Child,
    control: UnixStream,
    board: Board,
    words: OwnedFd,
    scratch: Option<TempDir>,
}

fn spawn(program: &Path, arguments: &[String], limit_bytes: u64, scratch: Option<TempDir>) -> io::Result<Started> {
    let (control, theirs) = UnixStream::pair()?;
    let (board, file) = Board::create(limit_bytes)?;
    let (words, their_words) = io::pipe()?;
    let mut command = spawn::command(program, "session");
    if let Some(scratch) = &scratch {
        command.arg("--scratch").arg(scratch.path()).env("TMPDIR", scratch.path());
    }
    let child = command
        .args(arguments)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::from(file))
        .stderr(Stdio::from(their_words))
        .process_group(0)
        .spawn()?;
    control.set_write_timeout(Some(HAND_OVER))?;
    Ok(Started {
        child: Child(Some(child)),
        control,
        board,
        words: words.into(),
        scratch,
    })
}

/// A running session executor. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    id: u32,
    body: Body,
    board: Board,
    words: Mutex<Option<JoinHandle<()>>>,
    last_words: Arc<Mutex<VecDeque<String>>>,
    /// Scratch folder. Declared last, so that it is removed after `body` has been dropped and the process has ended.
    _scratch: Option<TempDir>,
}

#[derive(Debug)]
enum Body {
    Process {
        child: Mutex<Child>,
        exit: AsyncFd<OwnedFd>,
        control: Arc<UnixStream>,
    },
    Task(Task),
}

impl Process {
    /// Creates a session executor that runs as a task, and returns it with the task's own end. No other executor may have the same `id` at
    /// the time.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn task(id: u32, limit_bytes: u64) -> io::Result<(Self, TaskEnd)> {
        let (board, task, end) = launch::task(limit_bytes)?;
        let process = Self {
            id,
            body: Body::Task(task),
            board,
            words: Mutex::default(),
            last_words: Arc::default(),
            _scratch: None,
        };
        Ok((process, end))
    }

    fn new(started: Started) -> io::Result<Self> {
        let id = started.child.0.as_ref().map_or(0, std::process::Child::id);
        let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("a process without a number"))?;
        // The process has not been reaped yet, so no other process can have its id.
        let exit = pidfd_open(pid, PidfdFlags::empty())?;
        // SAFETY: the wrapper owns the descriptor until it is dropped, and nothing here takes the descriptor out or closes it.
        let exit = unsafe { AsyncFd::register_with_interest(exit, tokio::io::Interest::READABLE) };
        let exit = exit.map_err(io::Error::from)?;
        let last_words = Arc::new(Mutex::new(VecDeque::new()));
        let kept = Arc::clone(&last_words);
        let words = tokio::spawn(async move {
            stderr::follow(started.words, |line| {
                tracing::info!(process = id, line, "a session's executor says");
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                if kept.len() == KEPT_LINES {
                    kept.pop_front();
                }
                kept.push_back(line.to_owned());
            })
            .await;
        });
        Ok(Self {
            id,
            body: Body::Process {
                child: Mutex::new(started.child),
                exit,
                control: Arc::new(started.control),
            },
            board: started.board,
            words: Mutex::new(Some(words)),
            last_words,
            _scratch: started.scratch,
        })
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns the board that the executor writes.
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// Hands a client's connection over, with the bytes already read from it.
    ///
    /// # Errors
    /// When the process is gone, or does not read the connection in time.
    pub async fn adopt(&self, connection: OwnedFd, already_read: bytes::Bytes) -> io::Result<()> {
        let Body::Process { control, .. } = &self.body else {
            return Err(io::Error::other("a task adopts no connections"));
        };
        let control = Arc::clone(control);
        let sending = tokio::task::spawn_blocking(move || adoption::send(&control, connection.as_fd(), &already_read));
        sending.await.map_err(io::Error::other)?
    }

    /// Waits until the process has exited. It stays a zombie until it is reaped.
    pub async fn ended(&self) {
        match &self.body {
            // An error would mean that the runtime is shutting down.
            Body::Process { exit, .. } => drop(exit.readable().await),
            Body::Task(task) => task.gone().await,
        }
    }

    /// Ends the executor and reaps it, after which its memory is free. Closes the control socket first, and kills the process if it does
    /// not exit in time. Returns how it ended, with its log tail.
    pub async fn end(&self) -> String {
        match &self.body {
            Body::Process { child, control, .. } => {
                self.board.set_over();
                let _ = control.shutdown(Shutdown::Both);
                if tokio::time::timeout(LAST_WORDS, self.ended()).await.is_err() {
                    child.lock().unwrap_or_else(PoisonError::into_inner).kill();
                }
            }
            Body::Task(task) => task.kill(),
        }
        self.ended().await;
        self.reap().await
    }

    /// Reaps the executor after it has exited. Returns how it ended, with its log tail.
    pub async fn reap(&self) -> String {
        let status = match &self.body {
            Body::Process { child, .. } => {
                let child = {
                    let mut child = child.lock().unwrap_or_else(PoisonError::into_inner);
                    // Child processes of the executor may still run: kill its whole process group.
                    child.kill();
                    child.0.take()
                };
                match child {
                    Some(mut child) => tokio::task::spawn_blocking(move || child.wait().ok()).await.ok().flatten(),
                    None => None,
                }
            }
            Body::Task(task) => task.status(),
        };
        let words = self.words.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(words) = words {
            let _ = tokio::time::timeout(WORDS_AFTER_END, words).await;
        }
        let said = self.last_words.lock().unwrap_or_else(PoisonError::into_inner);
        describe(status, said.iter().map(String::as_str))
    }
}

/// Describes the end of an executor by its exit status and its log tail.
fn describe<'a>(status: Option<ExitStatus>, said: impl Iterator<Item = &'a str>) -> String {
    let how = match status {
        Some(status) => match (status.code(), status.signal()) {
            (Some(code), _) => format!("its executor ended with status {code}"),
            (None, Some(signal)) => format!("its executor was ended by signal {signal}"),
            (None, None) => "its executor ended".to_owned(),
        },
        None => "its executor ended".to_owned(),
    };
    let said: Vec<&str> = said.collect();
    let mut text = if said.is_empty() {
        how
    } else {
        format!("{how}: {}", said.join(" / "))
    };
    text.truncate(text.floor_char_boundary(TEXT));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_says_how_and_what_was_said_last() {
        let end = describe(Some(ExitStatus::from_raw(9)), ["one", "two"].into_iter());
        assert_eq!(end, "its executor was ended by signal 9: one / two");
        let end = describe(Some(ExitStatus::from_raw(3 << 8)), std::iter::empty());
        assert_eq!(end, "its executor ended with status 3");
        let long = "é".repeat(TEXT);
        assert!(describe(None, [long.as_str()].into_iter()).len() <= TEXT);
    }

    #[test]
    fn a_plugin_serves_the_devices_that_it_drives() {
        let platform = |name: &str| PluginPlatform {
            name: name.to_owned(),
            version: String::new(),
        };
        assert!(drives(&platform("cpu"), DeviceKind::Cpu) && !drives(&platform("cpu"), DeviceKind::Cuda));
        assert!(drives(&platform("CUDA"), DeviceKind::Cuda) && !drives(&platform("cuda"), DeviceKind::Cpu));
        assert!(!drives(&platform("tpu"), DeviceKind::Cpu));
    }
}
