//! Listener of the gateway: TLS on any address, or plain HTTP on loopback only.

use std::{io, net::SocketAddr, time::Duration};

use sahasra_service::{
    server::Handshake,
    tls::{Acceptor, Files, TlsError},
};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use crate::stall::Unstalled;

/// A client that accepts no data of an answer for this long is disconnected.
pub(crate) const STALLED_FOR: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address is reachable from other machines, and no certificate is given.
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
    type Stream = Unstalled<Either<Box<TlsStream<TcpStream>>, TcpStream>>;

    async fn handshake(&self, stream: TcpStream) -> io::Result<Self::Stream> {
        let stream = match &self.tls {
            None => Either::Right(stream),
            Some(acceptor) => Either::Left(acceptor.handshake(stream).await?),
        };
        Ok(Unstalled::new(stream, self.stalled_for))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
