//! Entry of clients on this machine to the memory that they share with their session's executor: an abstract Unix socket.
//!
//! A client shows the digest of its stream's secret. The agent finds the session by it and passes the connection to the session's
//! executor, which sends the memory's descriptor. A client without a valid digest gets no answer.

use std::io;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener as Listener};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use prost::Message;
use sahasra_service::tasks;
use sahasra_wire::session::{ClientFrame, client_frame::Kind, frame};
use tokio::io::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::agent::Agent;
use crate::session_executors::{process::Process, registry::Sessions};

/// Timeout for a client to send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
const REQUEST_BYTES: usize = 256;
/// Maximum number of connections whose requests have not been read. Others are closed, and their clients do without shared memory.
const MAX_CONNECTIONS: usize = 64;
/// Pause after an error of the system, such as a lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Abstract Unix socket of the agent, see the [module](self).
#[derive(Debug)]
pub struct MemorySocket {
    listener: UnixListener,
    name: String,
}

impl MemorySocket {
    /// Listens at a random name.
    ///
    /// # Errors
    /// Errors of the system calls.
    pub fn bind() -> io::Result<Self> {
        let mut random = [0; 16];
        getrandom::fill(&mut random)?;
        let name = format!("sahasra-{:032x}", u128::from_be_bytes(random));
        let listener = Listener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener: UnixListener::from_std(listener)?,
            name,
        })
    }

    /// Name of the socket, without the leading zero byte.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Passes connections to the executors of the agent's sessions, until `stop`.
    pub async fn serve(self, agent: Arc<Agent>, stop: CancellationToken) {
        let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
                        continue;
                    };
                    let agent = Arc::clone(&agent);
                    tasks::spawn(async move {
                        if let Err(error) = pass_on(stream, &agent.sessions).await {
                            tracing::debug!(%error, "rejected a request for shared memory");
                        }
                        drop(permit);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a request for shared memory");
                    let _ = timeout(PAUSE, stop.cancelled()).await;
                }
            }
        }
    }
}

/// Reads a client's request, and passes the connection to the executor of its session.
async fn pass_on(mut stream: UnixStream, sessions: &Sessions) -> io::Result<()> {
    let (request, secret) = timeout(REQUEST_TIMEOUT, request(&mut stream)).await??;
    let process = executor_of(sessions, &secret).ok_or_else(|| io::Error::other("no session has a client with this secret"))?;
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    process.adopt(OwnedFd::from(stream), request).await
}

/// Returns the frame of a request, and the secret in it.
async fn request(stream: &mut UnixStream) -> io::Result<(Bytes, Bytes)> {
    let malformed = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("malformed request: {what}"));
    let mut read = BytesMut::with_capacity(REQUEST_BYTES);
    loop {
        if let Some((message, payload)) = frame::lengths(&read).map_err(io::Error::other)? {
            let end = frame::HEAD_BYTES + message;
            if end > REQUEST_BYTES || payload > 0 || read.len() > end {
                return Err(malformed("it is too long"));
            }
            if read.len() == end {
                let frame = ClientFrame::decode(&read[frame::HEAD_BYTES..]).map_err(io::Error::other)?;
                let Some(Kind::Attach(attach)) = frame.kind else {
                    return Err(malformed("it is no Attach"));
                };
                return Ok((read.freeze(), attach.secret));
            }
        }
        if stream.read_buf(&mut read).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Returns the executor whose client has the secret with this digest.
fn executor_of(sessions: &Sessions, digest: &[u8]) -> Option<Arc<Process>> {
    let mut processes = sessions.all().into_iter().filter_map(|session| session.process());
    processes.find(|process| process.status_page().is_secret_digest(digest))
}
