//! An agent process that belongs to one test.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, mpsc},
    time::Instant,
};

use parking_lot::Mutex;

use super::coordinator::TIMEOUT;

pub(crate) struct AgentProcess {
    child: Child,
    pub url: String,
    log: Arc<Mutex<Vec<String>>>,
}

impl AgentProcess {
    /// Starts an agent without Kubernetes and with 1 GiB of allocatable memory, and waits until it serves.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::spawn(|command| command.env("SAHASRA_NO_KUBERNETES", "1").args(arguments))
    }

    /// Starts an agent that registers itself, and waits until it serves.
    pub(crate) fn with_kubernetes(kubeconfig: &Path, arguments: &[&str]) -> Self {
        Self::spawn(|command| command.arg("--kubeconfig").arg(kubeconfig).args(arguments))
    }

    fn spawn(more: impl FnOnce(&mut Command) -> &mut Command) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sahasra-worker"));
        command
            .args(["agent", "--node-name", "node", "--listen", "127.0.0.1:0"])
            .args(["--cpu-device-memory", "1Gi", "--log-level", "info"])
            .env_clear()
            .env("SAHASRA_NO_CUDA", "1")
            .stderr(Stdio::piped());
        more(&mut command);
        let mut child = command.spawn().unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let (sender, address) = mpsc::channel();
        let (stderr, lines) = (child.stderr.take().unwrap(), Arc::clone(&log));
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if let Some(rest) = line.split("serving address=").nth(1) {
                    let _ = sender.send(rest.split(' ').next().unwrap_or_default().to_owned());
                }
                lines.lock().push(line);
            }
        });
        let address = address.recv_timeout(TIMEOUT);
        let address = address.unwrap_or_else(|_| panic!("the agent does not serve: {:#?}", log.lock()));
        let scheme = if command.get_args().any(|argument| argument == "--tls-cert-file") {
            "https"
        } else {
            "http"
        };
        Self {
            child,
            url: format!("{scheme}://{address}"),
            log,
        }
    }

    /// Returns the number of sockets that the agent holds open.
    pub(crate) fn sockets(&self) -> usize {
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap();
        let targets = descriptors.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
        targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
    }

    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().clone()
    }

    fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }

    pub(crate) fn terminate(&self) {
        rustix::process::kill_process(self.pid(), rustix::process::Signal::TERM).unwrap();
    }

    pub(crate) fn pause(&self) {
        rustix::process::kill_process(self.pid(), rustix::process::Signal::STOP).unwrap();
    }

    pub(crate) fn resume(&self) {
        rustix::process::kill_process(self.pid(), rustix::process::Signal::CONT).unwrap();
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < TIMEOUT, "the agent does not end: {:#?}", self.log());
            std::thread::yield_now();
        }
    }

    /// Returns the ids of the agent's executor processes.
    pub(crate) fn executors(&self) -> Vec<rustix::process::Pid> {
        let mut executors = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            let Ok(stat) = std::fs::read_to_string(PathBuf::from(format!("/proc/{pid}/stat"))) else {
                continue;
            };
            // The fields after the name, which may itself contain brackets: state, then parent.
            let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
            if fields.get(1).and_then(|parent| parent.parse::<u32>().ok()) == Some(self.child.id()) && fields[0] != "Z" {
                executors.push(rustix::process::Pid::from_raw(pid).unwrap());
            }
        }
        executors
    }

    pub(crate) fn kill_executors(&self) -> usize {
        let executors = self.executors();
        for pid in &executors {
            let _ = rustix::process::kill_process(*pid, rustix::process::Signal::KILL);
        }
        executors.len()
    }

    /// Returns the resident memory in bytes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = text.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the agent's log:\n{}", self.log().join("\n"));
        }
    }
}
