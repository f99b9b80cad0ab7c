//! One executor process from the supervisor's side: frames to it, frames from it, and its end.

use std::collections::VecDeque;
use std::io;
use std::os::unix::net;
use std::process::ExitStatus;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use sahasra_executor_protocol::burst::messages::{FromExecutor, ToExecutor, from_executor, to_executor};
use sahasra_executor_protocol::burst::status_page::StatusPage;
use sahasra_wire::frame::{self, Decoder};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::room::Permit;
use crate::child::Child;

#[derive(Debug)]
pub(super) enum Incoming {
    Message(from_executor::Kind),
    /// No further messages: the executor has ended, or its messages are malformed.
    End,
}

#[derive(Debug)]
pub struct Process {
    id: u32,
    link: Link,
    pub(super) status_page: Arc<StatusPage>,
    pub(super) started: Instant,
    /// The executor has opened its device.
    pub(super) ready: bool,
    /// The executor has ended a chunk, successfully or not.
    pub(super) progressed: bool,
    pub(super) last_heard: Instant,
    /// Room of the executor on its device. Declared last, so that it is free only after the executor has ended.
    pub(super) permit: Option<Permit>,
}

#[derive(Debug)]
enum Link {
    Process(Socket),
    Task(Task),
}

#[derive(Debug)]
struct Socket {
    child: Child,
    socket: UnixStream,
    outgoing: VecDeque<Bytes>,
    decoder: Decoder,
    buffer: Vec<u8>,
}

/// The agent's end of an executor that runs as a task of the agent's runtime.
#[derive(Debug)]
struct Task {
    to: mpsc::UnboundedSender<to_executor::Kind>,
    from: mpsc::UnboundedReceiver<from_executor::Kind>,
    killed: CancellationToken,
    gone: CancellationToken,
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

/// Bytes read at a time.
const READ: usize = 64 << 10;

impl Process {
    fn new(id: u32, link: Link, status_page: Arc<StatusPage>) -> Self {
        let now = Instant::now();
        Self {
            id,
            link,
            status_page,
            started: now,
            ready: false,
            progressed: false,
            last_heard: now,
            permit: None,
        }
    }

    /// Creates an executor that runs as a child process.
    pub(super) fn child(id: u32, child: Child, socket: net::UnixStream, status_page: Arc<StatusPage>) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let link = Link::Process(Socket {
            child,
            socket: UnixStream::from_std(socket)?,
            outgoing: VecDeque::new(),
            decoder: Decoder::default(),
            buffer: vec![0; READ],
        });
        Ok(Self::new(id, link, status_page))
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
        let task = Task { to, from, killed, gone };
        (Self::new(id, Link::Task(task), status_page), end)
    }

    pub(super) fn id(&self) -> u32 {
        self.id
    }

    /// Queues a message, which [`Process::exchange`] sends.
    pub(super) fn send(&mut self, kind: to_executor::Kind) {
        match &mut self.link {
            Link::Process(socket) => socket.outgoing.push_back(frame::encode(&ToExecutor { kind: Some(kind) })),
            // A task that has ended is noticed by the end of its messages.
            Link::Task(task) => drop(task.to.send(kind)),
        }
    }

    /// Sends queued messages and waits for the next incoming one. Cancel safe.
    pub(super) async fn exchange(&mut self) -> Incoming {
        let came = match &mut self.link {
            Link::Process(socket) => socket.exchange().await,
            Link::Task(task) => task.from.recv().await.map_or(Incoming::End, Incoming::Message),
        };
        if matches!(came, Incoming::Message(_)) {
            self.last_heard = Instant::now();
        }
        came
    }

    /// Kills the executor. Messages that it sent before still arrive, then [`Incoming::End`].
    pub(super) fn kill(&mut self) {
        match &mut self.link {
            Link::Process(socket) => {
                if let Some(child) = &mut socket.child.0 {
                    let _ = child.kill();
                }
            }
            Link::Task(task) => task.killed.cancel(),
        }
    }

    /// Kills the executor and waits until the system has reclaimed all its resources: only then is its memory free.
    pub(super) async fn reap(&mut self) -> Option<ExitStatus> {
        match &mut self.link {
            Link::Process(socket) => {
                let mut child = socket.child.0.take()?;
                let _ = child.kill();
                tokio::task::spawn_blocking(move || child.wait()).await.ok()?.ok()
            }
            Link::Task(task) => {
                task.killed.cancel();
                task.gone.cancelled().await;
                None
            }
        }
    }
}

impl Socket {
    async fn exchange(&mut self) -> Incoming {
        loop {
            match self.decoder.next_message::<FromExecutor>() {
                Ok(Some(FromExecutor { kind: Some(kind) })) => return Incoming::Message(kind),
                Ok(Some(FromExecutor { kind: None })) => continue,
                Ok(None) => {}
                Err(_) => return Incoming::End,
            }
            let interest = match self.outgoing.is_empty() {
                true => Interest::READABLE,
                false => Interest::READABLE | Interest::WRITABLE,
            };
            let Ok(ready) = self.socket.ready(interest).await else {
                return Incoming::End;
            };
            if ready.is_writable() {
                self.write();
            }
            if ready.is_readable() {
                match self.socket.try_read(&mut self.buffer) {
                    Ok(0) => return Incoming::End,
                    Ok(read) => self.decoder.extend(&self.buffer[..read]),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return Incoming::End,
                }
            }
        }
    }

    /// Writes as much as the socket accepts. A broken pipe is noticed by the end of incoming messages.
    fn write(&mut self) {
        while let Some(bytes) = self.outgoing.front_mut() {
            match self.socket.try_write(bytes) {
                Ok(written) => bytes.advance(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.outgoing.clear();
                    return;
                }
            }
            if bytes.is_empty() {
                self.outgoing.pop_front();
            }
        }
    }
}
