//! Child processes of a test: started with their output in a log file, waited for until they are ready, killed, started
//! again with the same arguments, and never left behind.
//!
//! Every child gets `PR_SET_PDEATHSIG` = SIGKILL, so that it dies with the test process however that ends. The signal follows
//! the *thread* that started the child, and a test's thread ends long before its process: children are therefore started by
//! one thread that lives as long as the process (`spawner`).

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

/// How often a state outside this process is looked at while waiting for it to change.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Lines of a log that a failure report shows.
const REPORT_LINES: usize = 40;

/// Why a process did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// Its log file could not be opened.
    #[error("open the log {}", path.display())]
    Log {
        /// The log file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The program could not be started.
    #[error("start {name} ({})", program.display())]
    Spawn {
        /// The process's name.
        name: String,
        /// The program's path.
        program: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// It ended before it was ready.
    #[error("{name} ended with {status} before it was ready; its log is {}", log.display())]
    EndedEarly {
        /// The process's name.
        name: String,
        /// How it ended.
        status: ExitStatus,
        /// The log file.
        log: PathBuf,
    },
    /// It did not become ready in time.
    #[error("{name} was not ready after {waited:?} ({last}); its log is {}", log.display())]
    NotReady {
        /// The process's name.
        name: String,
        /// How long it was waited for.
        waited: Duration,
        /// What the last probe said.
        last: String,
        /// The log file.
        log: PathBuf,
    },
    /// It did not end in time.
    #[error("{name} had not ended after {waited:?}")]
    StillRunning {
        /// The process's name.
        name: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// A signal could not be sent, or the process's end could not be waited for.
    #[error("signal or wait for {name}")]
    Signal {
        /// The process's name.
        name: String,
        /// The system's reason.
        source: io::Error,
    },
    /// It does not run.
    #[error("{name} does not run")]
    NotRunning {
        /// The process's name.
        name: String,
    },
}

/// A supervised child process. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    specification: Specification,
    child: Option<Child>,
    starts: u32,
}

/// A process started by a supervised one, as found under `/proc`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descendant {
    /// Its process id.
    pub pid: u32,
    /// Its command line, arguments separated by spaces.
    pub command: String,
}

impl Process {
    /// The name given to it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.specification.name
    }

    /// Its log file: standard output and standard error of every start, one after the other.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.specification.log
    }

    /// Its process id, if it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Whether it runs now.
    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Starts it again, with the arguments it had, and waits until it is ready. Does nothing to one that runs.
    ///
    /// # Errors
    /// As for [`Specification::start`].
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

    /// Sets an environment variable for the starts to come, or with `None` takes it away: a fault that was injected.
    pub fn set_environment(&mut self, name: &str, value: Option<&str>) {
        match value {
            Some(value) => self.specification.environment.insert(name.into(), value.into()),
            None => self.specification.environment.remove(OsStr::new(name)),
        };
    }

    /// Starts it again without waiting until it is ready.
    ///
    /// # Errors
    /// When it cannot be started.
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

    /// Waits until its ready URL answers 200.
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

    /// SIGKILL, and waits for the end.
    ///
    /// # Errors
    /// When the signal cannot be sent.
    pub async fn kill(&mut self) -> Result<(), ProcessError> {
        self.signal(Signal::KILL)?;
        self.wait(Duration::from_secs(30)).await.map(drop)
    }

    /// SIGTERM, and waits up to `within` for the end.
    ///
    /// # Errors
    /// [`ProcessError::StillRunning`] when it has not ended by then.
    pub async fn terminate(&mut self, within: Duration) -> Result<ExitStatus, ProcessError> {
        self.signal(Signal::TERM)?;
        self.wait(within).await
    }

    /// Sends a signal: [`Signal::STOP`] and [`Signal::CONT`] make a process that hangs.
    ///
    /// # Errors
    /// When it does not run or the signal cannot be sent.
    pub fn signal(&self, signal: Signal) -> Result<(), ProcessError> {
        let child = self.child.as_ref().ok_or_else(|| ProcessError::NotRunning {
            name: self.specification.name.clone(),
        })?;
        rustix::process::kill_process(Pid::from_child(child), signal).map_err(|error| ProcessError::Signal {
            name: self.specification.name.clone(),
            source: error.into(),
        })
    }

    /// Waits up to `within` for it to end by itself.
    ///
    /// # Errors
    /// [`ProcessError::StillRunning`] when it has not ended by then.
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

    /// The processes that it started and that run now, in the order of their ids: an agent's executors.
    #[must_use]
    pub fn children(&self) -> Vec<Descendant> {
        self.pid().map(children_of).unwrap_or_default()
    }

    /// Resident memory in KiB, from `/proc/PID/status`.
    #[must_use]
    pub fn resident_kib(&self) -> Option<u64> {
        self.memory("VmRSS:")
    }

    /// Most resident memory since it started, or since [`Process::forget_peak`], in KiB.
    #[must_use]
    pub fn peak_kib(&self) -> Option<u64> {
        self.memory("VmHWM:")
    }

    /// From now on [`Process::peak_kib`] begins with what is resident now.
    ///
    /// # Errors
    /// When it does not run.
    pub fn forget_peak(&self) -> io::Result<()> {
        let pid = self.pid().ok_or(io::ErrorKind::NotFound)?;
        std::fs::write(format!("/proc/{pid}/clear_refs"), "5")
    }

    fn memory(&self, line: &str) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()?)).ok()?;
        let value = status.lines().find_map(|text| text.strip_prefix(line))?;
        value.split_whitespace().next()?.parse().ok()
    }

    /// The last `lines` lines of its log.
    #[must_use]
    pub fn log_tail(&self, lines: usize) -> String {
        let bytes = std::fs::read(&self.specification.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// Writes the end of its log to stderr, with its name.
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
            // It may have ended by itself; then there is nothing to kill, and waiting still reaps it.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Sends `signal` to any process, such as a [`Descendant`].
///
/// # Errors
/// The system's reason.
pub fn signal(pid: u32, signal: Signal) -> io::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    Ok(rustix::process::kill_process(pid, signal)?)
}

/// Whether a process with that id exists and is no zombie.
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

/// State and parent's id from `/proc/PID/stat`: proc(5). The name before them may hold spaces and brackets.
fn stat_fields(pid: u32) -> Option<(String, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}
