//! Session executors for tests, started as the agent starts them.

#![allow(dead_code, reason = "each program uses a part")]
#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sahasra_executor_protocol::session::{adoption::Handover, status_page::StatusPage};
use sahasra_wire::session::Hello;

pub(crate) use crate::client::*;

/// Timeout for every wait.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);

/// Path of the plugin for CPUs; `None`, with a message, if there is none.
pub(crate) fn plugin() -> Option<PathBuf> {
    let path = std::env::var_os("SAHASRA_PJRT_PLUGIN").filter(|path| !path.is_empty());
    if path.is_none() {
        eprintln!("SKIPPED: no PJRT plugin is named in SAHASRA_PJRT_PLUGIN (crates/pjrt/plugin installs one and prints where)");
    }
    path.map(PathBuf::from)
}

/// A session executor process.
pub(crate) struct Executor {
    pub child: Child,
    control: UnixStream,
    pub status_page: StatusPage,
    errors: Option<OwnedFd>,
    /// Folder of the driver library.
    libraries: Option<tempfile::TempDir>,
}

impl Executor {
    /// Starts engine xla on the CPU with `memory_bytes` of memory; `None` without a plugin.
    pub(crate) fn xla(memory_bytes: u64, more: &[&str]) -> Option<Self> {
        let plugin = plugin()?;
        let mut arguments = vec!["--engine", "xla", "--plugin", plugin.to_str().unwrap()];
        arguments.extend(more);
        Some(Self::start(&arguments, memory_bytes))
    }

    /// Starts engine ptx on the CPU.
    pub(crate) fn ptx(memory_bytes: u64) -> Self {
        Self::start(&["--engine", "ptx", "--threads", "2"], memory_bytes)
    }

    /// Starts an executor on the CPU with these arguments.
    pub(crate) fn start(arguments: &[&str], memory_bytes: u64) -> Self {
        Self::start_on("cpu", arguments, memory_bytes, &[])
    }

    /// Starts engine cuda on the first GPU of the CUDA driver library of this workspace.
    pub(crate) fn on_gpu(memory_bytes: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let test = std::env::current_exe().unwrap();
        let library = test.parent().unwrap().join("libsahasra_cuda_driver.so");
        for name in ["libcuda.so.1", "libcuda.so"] {
            std::os::unix::fs::symlink(&library, folder.path().join(name)).unwrap();
        }
        let variables = [
            ("LD_LIBRARY_PATH", folder.path().to_str().unwrap()),
            ("SAHASRA_CUDA", "cpu:"),
            ("SAHASRA_CUDA_MEMORY", "1Gi"),
        ];
        let mut started = Self::start_on("cuda", &["--engine", "cuda"], memory_bytes, &variables);
        started.libraries = Some(folder);
        started
    }

    fn start_on(backend: &str, arguments: &[&str], memory_bytes: u64, variables: &[(&str, &str)]) -> Self {
        let (control, theirs) = UnixStream::pair().unwrap();
        let (status_page, file) = StatusPage::create().unwrap();
        let (errors, their_errors) = std::io::pipe().unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_sahasra-worker"))
            .args(["executor", "session"])
            .arg(format!("--backend={backend}"))
            .args(arguments)
            .arg(format!("--memory-bytes={memory_bytes}"))
            .arg(format!("--agent-pid={}", std::process::id()))
            .env_clear()
            .envs(variables.iter().copied())
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::from(file))
            .stderr(Stdio::from(their_errors))
            .process_group(0)
            .spawn()
            .unwrap();
        Self {
            child,
            control,
            status_page,
            errors: Some(errors.into()),
            libraries: None,
        }
    }

    /// Creates a connection and passes its other end to the executor, with `already_read` as bytes that were read from it before.
    pub(crate) fn connection(&self, already_read: &[u8]) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut handover = Handover::new(theirs.as_fd(), already_read).unwrap();
        handover.send(&self.control).unwrap();
        ours
    }

    /// Connects a client with a new session.
    pub(crate) fn client(&self) -> Client {
        let mut client = Client::new(self.connection(&[]));
        client.welcome = client.greet(Hello { ..hello() }).expect("it is let in");
        client
    }

    /// As [`Executor::client`], with this `Hello`.
    pub(crate) fn client_saying(&self, hello: Hello) -> Client {
        let mut client = Client::new(self.connection(&[]));
        client.says = hello.clone();
        client.welcome = client.greet(hello).expect("it is let in");
        client
    }

    /// As [`Executor::client`], over a connection of which both ends are given.
    pub(crate) fn client_over(&self, ours: OwnedFd, theirs: OwnedFd) -> Client {
        self.adopt(&theirs);
        let mut client = Client::new(ours.into());
        client.welcome = client.greet(hello()).expect("it is let in");
        client
    }

    /// Passes a connection to the executor.
    pub(crate) fn adopt(&self, theirs: &impl AsFd) {
        Handover::new(theirs.as_fd(), &[]).unwrap().send(&self.control).unwrap();
    }

    /// Waits until the status page satisfies `what`.
    pub(crate) fn status_page_shows(&self, what: impl Fn(&sahasra_executor_protocol::session::status_page::Stats) -> bool) {
        let until = Instant::now() + TIMEOUT;
        while !what(&self.status_page.stats()) {
            assert!(Instant::now() < until, "the status page shows {:?}", self.status_page.stats());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends the executor as an agent does. Returns its stderr.
    pub(crate) fn end(self) -> String {
        self.status_page.set_over();
        self.lose_agent()
    }

    /// Closes the control socket as the death of an agent does. Returns the executor's stderr.
    pub(crate) fn lose_agent(mut self) -> String {
        let _ = self.control.shutdown(std::net::Shutdown::Both);
        self.child.wait().unwrap();
        let mut stderr = String::new();
        std::fs::File::from(self.errors.take().unwrap())
            .read_to_string(&mut stderr)
            .unwrap();
        stderr
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
