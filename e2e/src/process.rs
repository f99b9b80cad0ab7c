//! Supervised child processes: started with their output in a log file, waited for until they are ready, killed, restarted with the same
//! arguments, and never left behind.
//!
//! Every child gets `PR_SET_PDEATHSIG` = SIGKILL, so that it is killed when the test process ends in any way. The signal is sent when the
//! *thread* that started the child ends, and a test's thread ends long before its process. Children are therefore started by one thread
//! that lives as long as the process (`spawner`).

mod probe;
mod spawner;
mod specification;

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

pub use self::probe::{HttpError, get, get_with};
pub use self::specification::Specification;

/// Polling interval for state outside this process.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Number of lines of a log tail in a report.
const REPORT_LINES: usize = 40;

/// An operation on a child process failed.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The log file could not be opened.
    #[error("open the log {}", path.display())]
    Log {
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// The program could not be started.
    #[error("start {name} ({})", program.display())]
    Spawn {
        name: String,
        program: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// The process ended before it was ready.
    #[error("{name} ended with {status} before it was ready; its log is {}", log.display())]
    EndedEarly {
        name: String,
        status: ExitStatus,
        /// Path of the log file.
        log: PathBuf,
    },
    /// The process did not become ready in time.
    #[error("{name} was not ready after {waited:?} ({last}); its log is {}", log.display())]
    NotReady {
        name: String,
        waited: Duration,
        /// Outcome of the last probe.
        last: String,
        /// Path of the log file.
        log: PathBuf,
    },
    /// The process did not end in time.
    #[error("{name} had not ended after {waited:?}")]
    StillRunning { name: String, waited: Duration },
    /// A signal could not be sent, or waiting for the end failed.
    #[error("signal or wait for {name}")]
    Signal {
        name: String,
        /// Error of the system call.
        source: io::Error,
    },
    #[error("{name} does not run")]
    NotRunning { name: String },
}

/// A supervised child process, which is killed when dropped.
#[derive(Debug)]
pub struct Process {
    specification: Specification,
    child: Option<Child>,
    starts: u32,
}

/// A child of a supervised process, found under `/proc`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descendant {
    pub pid: u32,
    /// Command line, its arguments separated by spaces.
    pub command: String,
}

impl Process {
    /// Name of the process in messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.specification.name
    }

    /// Log file with standard output and standard error of every start, one after the other.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.specification.log
    }

    /// Process id, if the process is running.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Restarts the process with the same arguments and waits until it is ready. Does nothing if the process is running.
    ///
    /// # Errors
    /// The errors of [`Specification::start`].
    pub async fn start(&mut self) -> Result<(), ProcessError> {
        if self.is_running() {
            return Ok(());
        }
        self.spawn()?;
        let outcome = self.wait_ready().await;
        if outcome.is_err() {
            self.report();
        }
        outcome
    }

    /// Sets an environment variable for later starts, or removes it with `None`, such as a fault to inject.
    pub fn set_environment(&mut self, name: &str, value: Option<&str>) {
        match value {
            Some(value) => self.specification.environment.insert(name.into(), value.into()),
            None => self.specification.environment.remove(OsStr::new(name)),
        };
    }

    /// Starts the process without waiting until it is ready.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn spawn(&mut self) -> Result<(), ProcessError> {
        let log_error = |source| ProcessError::Log {
            path: self.specification.log.clone(),
            source,
        };
        let mut log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.specification.log)
            .map_err(log_error)?;
        self.starts += 1;
        if self.starts > 1 {
            writeln!(log, "--- start {} ---", self.starts).map_err(log_error)?;
        }
        let mut command = Command::new(&self.specification.program);
        command
            .args(&self.specification.arguments)
            .envs(&self.specification.environment)
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(log_error)?)
            .stderr(log);
        let child = spawner::spawn(command).map_err(|source| ProcessError::Spawn {
            name: self.specification.name.clone(),
            program: self.specification.program.clone(),
            source,
        })?;
        self.child = Some(child);
        Ok(())
    }

    /// Waits until the readiness URL answers with 200.
    ///
    /// # Errors
    /// [`ProcessError::EndedEarly`] or [`ProcessError::NotReady`].
    pub async fn wait_ready(&mut self) -> Result<(), ProcessError> {
        let Some(url) = self.specification.ready_url.clone() else {
            return Ok(());
        };
        let started = Instant::now();
        loop {
            if let Some(status) = self.try_wait()? {
                let (name, log) = (self.specification.name.clone(), self.specification.log.clone());
                return Err(ProcessError::EndedEarly { name, status, log });
            }
            let last = match get(&url).await {
                Ok((http::StatusCode::OK, _)) => return Ok(()),
                Ok((status, body)) => format!("{url} answered {status}: {}", body.trim_end()),
                Err(error) => format!("{url}: {error}"),
            };
            let waited = started.elapsed();
            if waited > self.specification.ready_within {
                let (name, log) = (self.specification.name.clone(), self.specification.log.clone());
                return Err(ProcessError::NotReady { name, waited, last, log });
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Sends SIGKILL and waits for the end of the process, for at most 30 s.
    ///
    /// # Errors
    /// When the process is not running, or the signal cannot be sent.
    pub async fn kill(&mut self) -> Result<(), ProcessError> {
        self.signal(Signal::KILL)?;
        self.wait(Duration::from_secs(30)).await.map(drop)
    }

    /// Sends SIGTERM and waits for the end of the process, for at most `within`.
    ///
    /// # Errors
    /// [`ProcessError::StillRunning`] when the process has not ended by then.
    pub async fn terminate(&mut self, within: Duration) -> Result<ExitStatus, ProcessError> {
        self.signal(Signal::TERM)?;
        self.wait(within).await
    }

    /// Sends a signal, such as [`Signal::STOP`] and [`Signal::CONT`] to simulate a process that hangs.
    ///
    /// # Errors
    /// When the process is not running or the signal cannot be sent.
    pub fn signal(&self, signal: Signal) -> Result<(), ProcessError> {
        let child = self.child.as_ref().ok_or_else(|| ProcessError::NotRunning {
            name: self.specification.name.clone(),
        })?;
        rustix::process::kill_process(Pid::from_child(child), signal).map_err(|error| ProcessError::Signal {
            name: self.specification.name.clone(),
            source: error.into(),
        })
    }

    /// Waits for the process to end by itself, for at most `within`.
    ///
    /// # Errors
    /// [`ProcessError::StillRunning`] when the process has not ended by then.
    pub async fn wait(&mut self, within: Duration) -> Result<ExitStatus, ProcessError> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
            if started.elapsed() > within {
                return Err(ProcessError::StillRunning {
                    name: self.specification.name.clone(),
                    waited: within,
                });
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    fn try_wait(&mut self) -> Result<Option<ExitStatus>, ProcessError> {
        let name = &self.specification.name;
        let child = self.child.as_mut().ok_or_else(|| ProcessError::NotRunning { name: name.clone() })?;
        let status = child.try_wait().map_err(|source| ProcessError::Signal {
            name: name.clone(),
            source,
        })?;
        if status.is_some() {
            self.child = None;
        }
        Ok(status)
    }

    /// Returns the running child processes in the order of their ids, such as an agent's executors.
    #[must_use]
    pub fn children(&self) -> Vec<Descendant> {
        self.pid().map(children_of).unwrap_or_default()
    }

    /// Resident memory in KiB, from `/proc/PID/status`.
    #[must_use]
    pub fn resident_kib(&self) -> Option<u64> {
        self.memory("VmRSS:")
    }

    /// Peak resident memory since the start, or since [`Process::forget_peak`], in KiB.
    #[must_use]
    pub fn peak_kib(&self) -> Option<u64> {
        self.memory("VmHWM:")
    }

    /// Resets [`Process::peak_kib`] to the current resident memory.
    ///
    /// # Errors
    /// When the process is not running.
    pub fn forget_peak(&self) -> io::Result<()> {
        let pid = self.pid().ok_or(io::ErrorKind::NotFound)?;
        std::fs::write(format!("/proc/{pid}/clear_refs"), "5")
    }

    fn memory(&self, line: &str) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()?)).ok()?;
        let value = status.lines().find_map(|text| text.strip_prefix(line))?;
        value.split_whitespace().next()?.parse().ok()
    }

    /// Returns the last `lines` lines of the log.
    #[must_use]
    pub fn log_tail(&self, lines: usize) -> String {
        let bytes = std::fs::read(&self.specification.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// Writes the log tail to stderr.
    pub fn report(&self) {
        eprintln!(
            "--- end of {} ---\n{}\n---",
            self.specification.log.display(),
            self.log_tail(REPORT_LINES)
        );
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.specification.quiet {
            self.report();
        }
        if let Some(mut child) = self.child.take() {
            // The process may have ended by itself; `kill` then fails, and `wait` reaps it.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Sends `signal` to any process, such as a [`Descendant`].
///
/// # Errors
/// Error of the system call.
pub fn signal(pid: u32, signal: Signal) -> io::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    Ok(rustix::process::kill_process(pid, signal)?)
}

/// Whether a process with this id exists and is not a zombie.
#[must_use]
pub fn is_alive(pid: u32) -> bool {
    stat_fields(pid).is_some_and(|(state, _)| state != "Z")
}

fn children_of(parent: u32) -> Vec<Descendant> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut children: Vec<Descendant> = pids
        .filter(|&pid| stat_fields(pid).is_some_and(|(state, ppid)| ppid == parent && state != "Z"))
        .map(|pid| {
            let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&bytes).trim_end_matches('\0').replace('\0', " ");
            Descendant { pid, command }
        })
        .collect();
    children.sort_by_key(|child| child.pid);
    children
}

/// Returns state and parent id from `/proc/PID/stat`, proc(5). The name before them may contain spaces and brackets.
fn stat_fields(pid: u32) -> Option<(String, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}
