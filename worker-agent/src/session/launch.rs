//! [`Launch`], the interface by which an agent starts session executors. An agent's session executors are processes. In a simulation, where
//! time is virtual, they are tasks, which write the same board and end on their own or when they are killed.

use std::fmt::Debug;
use std::io;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::process::{LaunchError, Process};
use crate::devices::{DeviceDescription, DeviceKind};
use sahasra_executor_protocol::session::status_page::Board;

/// Starts session executors.
pub trait Launch: Debug + Send + Sync {
    /// Returns the engines that sessions may use on devices of this kind.
    fn engines(&self, kind: DeviceKind) -> Vec<&'static str>;

    /// Starts the executor of a session of `namespace`. The session may hold `limit_bytes` on the device.
    fn launch<'a>(
        &'a self,
        device: &'a DeviceDescription,
        namespace: &'a str,
        engine: &'a str,
        limit_bytes: u64,
    ) -> BoxFuture<'a, Result<Process, LaunchError>>;

    /// Trims the cache of compiled programs on disk. Blocks, because it reads folders.
    fn trim_cache(&self);
}

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
        *self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task's own end of a session executor that runs as a task. Dropping it tells the agent that the task has ended.
#[derive(Debug)]
pub struct TaskEnd {
    /// Board that the task writes.
    pub board: Board,
    /// Cancelled when the agent kills the task.
    pub killed: CancellationToken,
    status: Arc<Mutex<Option<ExitStatus>>>,
    _gone: DropGuard,
}

impl TaskEnd {
    /// Ends the task with the exit status of a process.
    pub fn exit(self, status: ExitStatus) {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
    }
}

/// Creates both ends of a task, and the agent's view of its board.
pub(super) fn task(limit_bytes: u64) -> io::Result<(Board, Task, TaskEnd)> {
    let (board, file) = Board::create(limit_bytes)?;
    let (killed, gone) = (CancellationToken::new(), CancellationToken::new());
    let status = Arc::new(Mutex::new(None));
    let end = TaskEnd {
        board: Board::map(&file)?,
        killed: killed.clone(),
        status: Arc::clone(&status),
        _gone: gone.clone().drop_guard(),
    };
    Ok((board, Task { killed, gone, status }, end))
}
