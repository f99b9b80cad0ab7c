//! Relay between a client that speaks TLS and the executor, which does not. Bytes flow in each direction only as fast as the receiver
//! reads.
//!
//! ```text
//! client ═ TLS ═ this ═ socket pair ═ executor
//! ```
//!
//! Each direction has one buffer. When one side closes, its direction ends, and the other direction has [`CLOSE_TIMEOUT`] to deliver what is in
//! transit.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use sahasra_wire::session::keepalive::Keepalive;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::server::TlsStream;

use crate::session_executors::process::Process;

/// Size of a relay buffer: several TLS records, which have 16 KiB each.
const BUFFER_BYTES: usize = 256 << 10;
/// Timeout for one side to close after the other has: for the executor's last frames, and the client's reply to them.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Relays between a client and the executor until both have closed. `already_read` holds bytes of the client that were read before.
///
/// # Errors
/// When the executor does not accept its end of the socket pair.
pub(crate) async fn through_tls(client: Box<TlsStream<TcpStream>>, already_read: Bytes, process: Arc<Process>) -> io::Result<()> {
    Keepalive::CLIENT.watch(client.get_ref().0)?;
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let ours = UnixStream::from_std(ours)?;
    process.adopt(theirs.into(), already_read).await?;
    // Drop this handle, because the process ends when its last handle is dropped; a relayed client must not keep it alive.
    drop(process);
    let ended = between(client, ours).await;
    tracing::debug!(?ended, "TLS stream closed");
    Ok(())
}

/// Copies in both directions until both have ended.
async fn between(client: impl AsyncRead + AsyncWrite, executor: impl AsyncRead + AsyncWrite) -> io::Result<()> {
    let (from_client, to_client) = tokio::io::split(client);
    let (from_executor, to_executor) = tokio::io::split(executor);
    let up = std::pin::pin!(copy(from_client, to_executor));
    let down = std::pin::pin!(copy(from_executor, to_client));
    let (ended, other) = futures::future::select(up, down).await.factor_first();
    // An error in one direction ends the other one too.
    ended?;
    tokio::time::timeout(CLOSE_TIMEOUT, other).await?
}

/// Copies one direction until its source closes, then shuts the target down.
async fn copy(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let bytes = from.read(&mut buffer).await?;
        if bytes == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..bytes]).await?;
        // The next read may wait long: send what was written now.
        to.flush().await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::duplex;

    #[tokio::test(start_paused = true)]
    async fn a_side_that_ends_is_answered_and_one_that_never_does_is_left() {
        // The executor sends its last bytes after the client has closed its direction.
        let ((mut client, near), (far, mut executor)) = (duplex(64), duplex(64));
        let relay = tokio::spawn(between(near, far));
        client.write_all(b"close").await.unwrap();
        client.shutdown().await.unwrap();
        let mut heard = String::new();
        executor.read_to_string(&mut heard).await.unwrap();
        executor.write_all(b"closed").await.unwrap();
        drop(executor);
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!((heard.as_str(), answer.as_str()), ("close", "closed"));
        relay.await.unwrap().unwrap();

        // The client does not hang up although the executor is gone.
        let ((client, near), (far, executor)) = (duplex(64), duplex(64));
        let relay = tokio::spawn(between(near, far));
        drop(executor);
        let began = tokio::time::Instant::now();
        assert!(relay.await.unwrap().is_err());
        assert_eq!(began.elapsed(), CLOSE_TIMEOUT);
        drop(client);
    }
}
