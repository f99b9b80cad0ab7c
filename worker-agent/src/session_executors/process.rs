//! The process of a session executor, from the agent's side: the connections handed over to it, and its end.
//!
//! The process exits when its control socket closes, after it has sent its client the reason. The agent kills it if it has not exited shortly
//! after. Its memory counts as free only once it has been reaped.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use sahasra_executor_protocol::session::{adoption::Handover, status_page::StatusPage};
use tempfile::TempDir;
use tokio::io::{Interest, unix::AsyncFd};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::child::{Child, spawn::Started, stderr};

/// Timeout for an executor to read a connection that is handed over, which it does once its engine is open.
const HAND_OVER: Duration = Duration::from_secs(60);
/// Maximum number of connections that wait until an executor reads them; others are closed.
const MAX_PENDING: usize = 64;
/// Timeout for an executor to send its client the reason of the end before it is killed.
const END_TIMEOUT: Duration = Duration::from_millis(100);
/// Timeout for reading the rest of the stderr of a process that has exited.
const STDERR_AFTER_END: Duration = Duration::from_millis(200);
/// Lines of stderr that are kept as the log tail for the message about the end.
const KEPT_LINES: usize = 4;
/// Limit of the message about an end, in bytes: it becomes part of a condition of a Kubernetes object.
const TEXT: usize = 512;

/// A running session executor. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    id: u32,
    body: Body,
    status_page: StatusPage,
    stderr: Mutex<Option<JoinHandle<()>>>,
    log_tail: Arc<Mutex<VecDeque<String>>>,
    /// Scratch folder. Declared last, so that it is removed after `body` has been dropped and the process has ended.
    _scratch: Option<TempDir>,
}

#[derive(Debug)]
enum Body {
    Process {
        child: Mutex<Child>,
        exit: AsyncFd<OwnedFd>,
        control: UnixStream,
        /// Locked while a connection is sent over `control`: a message can be several writes.
        sending: tokio::sync::Mutex<()>,
        pending: Semaphore,
        /// Whether `control` was shut down.
        is_closed: AtomicBool,
    },
    /// A task of the agent's runtime, for simulations: it writes the same status page as a process.
    Task {
        killed: CancellationToken,
        ended: watch::Receiver<Option<ExitStatus>>,
        _kill: DropGuard,
    },
}

/// The task's own end of a session executor that runs as a task. Dropping it tells the agent that the task has ended.
#[derive(Debug)]
pub struct TaskEnd {
    /// Status page that the task writes.
    pub status_page: StatusPage,
    /// Cancelled when the agent kills the task.
    pub killed: CancellationToken,
    ended: watch::Sender<Option<ExitStatus>>,
}

impl TaskEnd {
    /// Ends the task with the exit status of a process.
    pub fn exit(self, status: ExitStatus) {
        self.ended.send_replace(Some(status));
    }
}

impl Process {
    /// Creates a session executor that runs as a task, and returns it with the task's own end. No other executor may have the same `id` at
    /// the time.
    pub fn task(id: u32) -> io::Result<(Self, TaskEnd)> {
        let (status_page, file) = StatusPage::create()?;
        let (killed, (sender, ended)) = (CancellationToken::new(), watch::channel(None));
        let end = TaskEnd {
            status_page: StatusPage::map(&file)?,
            killed: killed.clone(),
            ended: sender,
        };
        let process = Self {
            id,
            body: Body::Task {
                _kill: killed.clone().drop_guard(),
                killed,
                ended,
            },
            status_page,
            stderr: Mutex::default(),
            log_tail: Arc::default(),
            _scratch: None,
        };
        Ok((process, end))
    }

    /// `started` comes last, so that on an error the process is killed before its scratch folder is removed.
    pub(super) fn new(status_page: StatusPage, scratch: Option<TempDir>, started: Started) -> io::Result<Self> {
        let id = started.id;
        started.socket.set_nonblocking(true)?;
        let control = UnixStream::from_std(started.socket)?;
        let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("process id not found"))?;
        // The process has not been reaped yet, so no other process can have its id.
        let exit = pidfd_open(pid, PidfdFlags::empty())?;
        // SAFETY: the wrapper owns the descriptor until it is dropped, and nothing here takes the descriptor out or closes it.
        let exit = unsafe { AsyncFd::register_with_interest(exit, Interest::READABLE) };
        let exit = exit.map_err(io::Error::from)?;
        let log_tail = Arc::new(Mutex::new(VecDeque::new()));
        let kept = Arc::clone(&log_tail);
        let stderr = tokio::spawn(async move {
            stderr::follow(started.stderr, |line| {
                tracing::info!(process = id, line, "session executor stderr");
                keep(&kept, line);
            })
            .await;
        });
        Ok(Self {
            id,
            body: Body::Process {
                child: Mutex::new(started.child),
                exit,
                control,
                sending: tokio::sync::Mutex::default(),
                pending: Semaphore::new(MAX_PENDING),
                is_closed: AtomicBool::new(false),
            },
            status_page,
            stderr: Mutex::new(Some(stderr)),
            log_tail,
            _scratch: scratch,
        })
    }

    pub fn id(&self) -> u32 {
        self.id
    }

    pub fn status_page(&self) -> &StatusPage {
        &self.status_page
    }

    /// Hands a client's connection over, with the bytes already read from it. Not cancel safe: a message that was sent in part makes the
    /// control socket unusable.
    ///
    /// # Errors
    /// When too many connections wait for the executor, the process is gone, or it does not read the connection in time. Unless the control
    /// socket is as before, the executor is ended, and the end of the process has the reason.
    pub async fn adopt(&self, connection: OwnedFd, already_read: bytes::Bytes) -> io::Result<()> {
        let Body::Process {
            control, sending, pending, ..
        } = &self.body
        else {
            return Err(io::Error::other("a task adopts no connections"));
        };
        let _pending = pending
            .try_acquire()
            .map_err(|_| io::Error::other(format!("{MAX_PENDING} connections wait until the executor reads them")))?;
        let mut handover = Handover::new(connection.as_fd(), &already_read)?;
        let passed = async {
            let _alone = sending.lock().await;
            control.async_io(Interest::WRITABLE, || handover.send(control)).await
        };
        let passed = timeout(HAND_OVER, passed).await.unwrap_or_else(|_| {
            let message = format!("the executor did not read it within {} s", HAND_OVER.as_secs());
            Err(io::Error::new(io::ErrorKind::TimedOut, message))
        });
        if let Err(error) = &passed {
            use io::ErrorKind::{BrokenPipe, ConnectionReset, TimedOut};
            if handover.is_begun() || matches!(error.kind(), BrokenPipe | ConnectionReset | TimedOut) {
                self.break_off(error).await;
            }
        }
        passed
    }

    /// Ends an executor whose control socket cannot be used any more.
    async fn break_off(&self, error: &io::Error) {
        if self.close() {
            keep(&self.log_tail, &format!("failed to pass a connection: {error}"));
        }
        self.kill_unless_ended().await;
    }

    /// Shuts the control socket down. Returns `false` if it was shut down before.
    fn close(&self) -> bool {
        let Body::Process { control, is_closed, .. } = &self.body else {
            return false;
        };
        // An error means that the executor has closed its end.
        let _ = shutdown(control, Shutdown::Both);
        !is_closed.swap(true, Ordering::Relaxed)
    }

    /// Kills an executor that does not exit in time.
    async fn kill_unless_ended(&self) {
        if let Body::Process { child, .. } = &self.body
            && timeout(END_TIMEOUT, self.ended()).await.is_err()
        {
            child.lock().kill();
        }
    }

    /// Waits until the process has exited. It stays a zombie until it is reaped.
    pub async fn ended(&self) {
        match &self.body {
            // An error would mean that the runtime is shutting down.
            Body::Process { exit, .. } => drop(exit.readable().await),
            Body::Task { ended, .. } => drop(ended.clone().wait_for(|_| false).await),
        }
    }

    /// Ends the executor and reaps it, after which its memory is free. Closes the control socket first, and kills the process if it does
    /// not exit in time. Returns how it ended, with its log tail.
    pub async fn end(&self) -> String {
        match &self.body {
            Body::Process { .. } => {
                self.status_page.set_over();
                self.close();
                self.kill_unless_ended().await;
            }
            Body::Task { killed, .. } => killed.cancel(),
        }
        self.ended().await;
        self.reap().await
    }

    /// Reaps the executor after it has exited. Returns how it ended, with its log tail.
    pub async fn reap(&self) -> String {
        let status = match &self.body {
            Body::Process { child, .. } => {
                let mut child = child.lock();
                // Child processes of the executor may still run: kill its whole process group.
                child.kill();
                let status = child.0.as_mut().and_then(|child| child.try_wait().ok().flatten());
                if status.is_some() {
                    child.0 = None;
                }
                status
            }
            Body::Task { ended, .. } => *ended.borrow(),
        };
        let stderr = self.stderr.lock().take();
        if let Some(stderr) = stderr {
            let _ = timeout(STDERR_AFTER_END, stderr).await;
        }
        let said = self.log_tail.lock();
        describe(status, said.iter().map(String::as_str))
    }
}

fn keep(log_tail: &Mutex<VecDeque<String>>, line: &str) {
    let mut kept = log_tail.lock();
    if kept.len() == KEPT_LINES {
        kept.pop_front();
    }
    kept.push_back(line.to_owned());
}

/// Describes the end of an executor by its exit status and its log tail.
fn describe<'a>(status: Option<ExitStatus>, said: impl Iterator<Item = &'a str>) -> String {
    let how = match status.map(|status| (status.code(), status.signal())) {
        Some((Some(code), _)) => format!("its executor exited with status {code}"),
        Some((None, Some(signal))) => format!("its executor was killed by signal {signal}"),
        Some((None, None)) | None => "its executor ended".to_owned(),
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
mod tests;
