//! Listener of the gateway: TLS on any address, or plain HTTP on loopback only.

use std::{io, net::SocketAddr, pin::Pin, time::Duration};

use sahasra_service::{
    server::Handshake,
    tls::{Acceptor, Files, TlsError},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

/// A client that accepts no data of an answer for this long is disconnected, so that its buffered answer does not stay in memory.
pub(crate) const STALLED_FOR: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error(
        "TLS required: {0} can be reached from other machines, which could read every token: set --tls-cert-file FILE and \
         --tls-private-key-file FILE, or listen on 127.0.0.1"
    )]
    NotLoopback(SocketAddr),
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Accepts connections, with TLS if a certificate is given. Clones share the certificate.
#[derive(Clone)]
pub struct PlainOrTls {
    tls: Option<Acceptor>,
    stalled_for: Duration,
}

impl PlainOrTls {
    /// Handshake of a listener at `address`, with TLS if `files` are given. Without files, the address must be loopback.
    pub fn new(address: SocketAddr, files: Option<Files>, stalled_for: Duration) -> Result<Self, ListenError> {
        let tls = match files {
            Some(files) => Some(Acceptor::new(files)?),
            None if address.ip().is_loopback() => None,
            None => return Err(ListenError::NotLoopback(address)),
        };
        Ok(Self { tls, stalled_for })
    }

    /// Reloads the certificate files when they change, checked every `interval`, until dropped. Later connections use the new certificate.
    pub async fn renew(&self, interval: Duration) {
        match &self.tls {
            Some(acceptor) => acceptor.renew(interval).await,
            None => std::future::pending().await,
        }
    }
}

impl Handshake for PlainOrTls {
    type Stream = Pin<Box<TimeoutStream<Either<Box<TlsStream<TcpStream>>, TcpStream>>>>;

    async fn handshake(&self, stream: TcpStream) -> io::Result<Self::Stream> {
        let stream = match &self.tls {
            None => Either::Right(stream),
            Some(acceptor) => Either::Left(acceptor.handshake(stream).await?),
        };
        Ok(unstalled(stream, self.stalled_for))
    }
}

/// A connection on which every write fails that waits for longer than `limit`.
fn unstalled<S: AsyncRead + AsyncWrite>(stream: S, limit: Duration) -> Pin<Box<TimeoutStream<S>>> {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(limit));
    Box::pin(stream)
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        time::Instant,
    };

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_stalled_write_fails_and_a_slow_one_does_not() {
        let limit = Duration::from_secs(30);
        let (near, mut far) = tokio::io::duplex(8);
        let mut near = unstalled(near, limit);
        // 20 s for each of 4 pieces, so 80 s in all.
        let slow = tokio::spawn(async move {
            let mut piece = [0; 8];
            for _ in 0..4 {
                tokio::time::sleep(Duration::from_secs(20)).await;
                far.read_exact(&mut piece).await.unwrap();
            }
            far
        });
        near.write_all(&[1; 32]).await.unwrap();
        let _far = slow.await.unwrap();
        let began = Instant::now();
        let error = near.write_all(&[1; 32]).await.unwrap_err();
        assert_eq!((error.kind(), began.elapsed().as_secs()), (io::ErrorKind::TimedOut, 30));
    }

    #[test]
    fn without_a_certificate_only_loopback_is_possible() {
        for right in ["127.0.0.1:8443", "[::1]:8443", "127.3.2.1:0"] {
            assert!(PlainOrTls::new(right.parse().unwrap(), None, STALLED_FOR).is_ok(), "{right}");
        }
        for wrong in ["0.0.0.0:8443", "[::]:8443", "192.0.2.1:8443"] {
            let error = PlainOrTls::new(wrong.parse().unwrap(), None, STALLED_FOR)
                .err()
                .unwrap()
                .to_string();
            assert!(error.contains(wrong) && error.contains("--tls-cert-file"), "{error}");
        }
    }
}
