//! A session executor that runs as a task of the agent's runtime, for simulations: it writes the same status page as a process.

use std::io;
use std::process::ExitStatus;
use std::sync::Arc;

use parking_lot::Mutex;
use sahasra_executor_protocol::session::status_page::StatusPage;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The agent's end of a session executor that runs as a task. Dropping it kills the task.
#[derive(Debug)]
pub(super) struct Task {
    killed: CancellationToken,
    gone: CancellationToken,
    status: Arc<Mutex<Option<ExitStatus>>>,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Task {
    pub(super) fn kill(&self) {
        self.killed.cancel();
    }

    pub(super) async fn gone(&self) {
        self.gone.cancelled().await;
    }

    pub(super) fn status(&self) -> Option<ExitStatus> {
        *self.status.lock()
    }
}

/// The task's own end of a session executor that runs as a task. Dropping it tells the agent that the task has ended.
#[derive(Debug)]
pub struct TaskEnd {
    /// Status page that the task writes.
    pub status_page: StatusPage,
    /// Cancelled when the agent kills the task.
    pub killed: CancellationToken,
    status: Arc<Mutex<Option<ExitStatus>>>,
    _gone: DropGuard,
}

impl TaskEnd {
    /// Ends the task with the exit status of a process.
    pub fn exit(self, status: ExitStatus) {
        *self.status.lock() = Some(status);
    }
}

/// Creates both ends of a task, and the agent's view of its status page.
pub(super) fn task(limit_bytes: u64) -> io::Result<(StatusPage, Task, TaskEnd)> {
    let (status_page, file) = StatusPage::create(limit_bytes)?;
    let (killed, gone) = (CancellationToken::new(), CancellationToken::new());
    let status = Arc::new(Mutex::new(None));
    let end = TaskEnd {
        status_page: StatusPage::map(&file)?,
        killed: killed.clone(),
        status: Arc::clone(&status),
        _gone: gone.clone().drop_guard(),
    };
    Ok((status_page, Task { killed, gone, status }, end))
}
