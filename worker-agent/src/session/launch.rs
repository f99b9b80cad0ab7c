//! What executors of sessions are launched by: [`Launch`]. Those of an agent are processes; where time is not real they are tasks,
//! which write the same board and end by themselves or when they are killed.

use std::fmt::Debug;
use std::io;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::board::Board;
use super::process::{LaunchError, Process};
use crate::executors::{DeviceDescription, DeviceKind};

/// Launches executors of sessions.
pub trait Launch: Debug + Send + Sync {
    /// Engines that sessions may have on a device of that kind.
    fn engines(&self, kind: DeviceKind) -> Vec<&'static str>;

    /// Launches the executor of a session in a namespace that may hold `limit_bytes` on the device.
    fn launch<'a>(
        &'a self,
        device: &'a DeviceDescription,
        namespace: &'a str,
        engine: &'a str,
        limit_bytes: u64,
    ) -> BoxFuture<'a, Result<Process, LaunchError>>;

    /// Trims the programs that executors keep on disk. Reads folders.
    fn trim_cache(&self);
}

/// An executor that is a task, as its agent has it.
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

/// The end of such a task that is the task's own. It has ended when this is dropped.
#[derive(Debug)]
pub struct TaskEnd {
    /// What it says of itself.
    pub board: Board,
    /// Cancelled when it is killed.
    pub killed: CancellationToken,
    status: Arc<Mutex<Option<ExitStatus>>>,
    _gone: DropGuard,
}

impl TaskEnd {
    /// The task ends as a process would with that status.
    pub fn exit(self, status: ExitStatus) {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
    }
}

/// Both ends of a task, and the agent's board of it.
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
