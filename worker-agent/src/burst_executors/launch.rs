//! [`Launcher`], the interface by which an agent starts burst executors. An agent's executors are processes (`spawn`). In a simulation,
//! where time is virtual, they are tasks that speak the same protocol.

use std::fmt::Debug;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use sahasra_executor_protocol::burst::messages::{from_executor, to_executor};
use sahasra_executor_protocol::burst::status_page::StatusPage;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::child::Child;
use crate::devices::DeviceDescription;

/// Starts executors.
pub trait Launcher: Debug + Send + Sync {
    /// Starts an executor for a device and a namespace.
    fn launch<'a>(&'a self, device: &'a DeviceDescription, namespace: &'a str) -> BoxFuture<'a, io::Result<Launched>>;

    /// Returns the time of the clock that the executors' status pages use.
    fn monotonic_now(&self) -> Duration;
}

/// A process that was started.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) child: Child,
    pub(super) socket: UnixStream,
    pub(super) status_page: Arc<StatusPage>,
    /// Read end of the process's stderr.
    pub(super) stderr: Option<OwnedFd>,
}

/// An executor that has been started.
#[derive(Debug)]
pub struct Launched {
    pub(super) body: Body,
    pub(super) status_page: Arc<StatusPage>,
}

#[derive(Debug)]
pub(super) enum Body {
    Process(Started),
    Task(Task),
}

/// The agent's end of an executor that runs as a task of the agent's runtime.
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

/// The task's own end of an executor that runs as a task.
#[derive(Debug)]
pub struct TaskEnd {
    /// Messages of the supervisor. The channel closes with the supervisor.
    pub incoming: mpsc::UnboundedReceiver<to_executor::Kind>,
    /// Messages to the supervisor. Dropping the sender ends them.
    pub outgoing: mpsc::UnboundedSender<from_executor::Kind>,
    /// Cancelled when the supervisor kills the task.
    pub killed: CancellationToken,
    /// Must be dropped when the task holds nothing any more.
    pub gone: DropGuard,
}

impl Launched {
    pub(super) fn process(started: Started) -> Self {
        let status_page = Arc::clone(&started.status_page);
        Self {
            body: Body::Process(started),
            status_page,
        }
    }

    /// Creates an executor that runs as a task, and returns it with the task's own end. No other executor may have the same `id` at the
    /// time.
    pub fn task(id: u32, status_page: Arc<StatusPage>) -> (Self, TaskEnd) {
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
            status_page,
        };
        (launched, end)
    }
}
