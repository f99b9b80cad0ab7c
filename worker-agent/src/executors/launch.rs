//! What executors are launched by: [`Launcher`]. Those of an agent are processes (`spawn`); where time is not real there are
//! others, which speak the same protocol.

use std::fmt::Debug;
use std::io;
use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::device::DeviceDescription;
use super::spawn::Started;
use crate::executor::board::Board;
use crate::executor::protocol::{from_executor, to_executor};

/// Launches executors.
pub trait Launcher: Debug + Send + Sync {
    /// Launches one for a device and a namespace.
    fn launch<'a>(&'a self, device: &'a DeviceDescription, namespace: &'a str) -> BoxFuture<'a, io::Result<Launched>>;

    /// The clock of which the executors' boards have their times.
    fn monotonic_nanoseconds(&self) -> u64;
}

/// An executor that was launched.
#[derive(Debug)]
pub struct Launched {
    pub(super) body: Body,
    pub(super) board: Arc<Board>,
}

#[derive(Debug)]
pub(super) enum Body {
    Process(Started),
    Task(Task),
}

/// An executor that is a task of the agent's runtime.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) id: u32,
    pub(super) to: mpsc::UnboundedSender<to_executor::Kind>,
    pub(super) from: mpsc::UnboundedReceiver<from_executor::Kind>,
    pub(super) killed: CancellationToken,
    pub(super) gone: CancellationToken,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.killed.cancel();
    }
}

/// The end of such a task that is the task's own.
#[derive(Debug)]
pub struct TaskEnd {
    /// What the supervisor says. Ends with the supervisor.
    pub incoming: mpsc::UnboundedReceiver<to_executor::Kind>,
    /// What the supervisor hears, until this is dropped.
    pub outgoing: mpsc::UnboundedSender<from_executor::Kind>,
    /// Cancelled when it is killed.
    pub killed: CancellationToken,
    /// Dropped when it holds nothing any more.
    pub gone: DropGuard,
}

impl Launched {
    pub(super) fn process(started: Started) -> Self {
        let board = Arc::clone(&started.board);
        Self {
            body: Body::Process(started),
            board,
        }
    }

    /// One that is a task, under a number that no other has at the time; and that task's end of it.
    pub fn task(id: u32, board: Arc<Board>) -> (Self, TaskEnd) {
        let (to, incoming) = mpsc::unbounded_channel();
        let (outgoing, from) = mpsc::unbounded_channel();
        let (killed, gone) = (CancellationToken::new(), CancellationToken::new());
        let end = TaskEnd {
            incoming,
            outgoing,
            killed: killed.clone(),
            gone: gone.clone().drop_guard(),
        };
        let task = Task {
            id,
            to,
            from,
            killed,
            gone,
        };
        let launched = Self {
            body: Body::Task(task),
            board,
        };
        (launched, end)
    }
}
