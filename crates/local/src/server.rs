//! The API over HTTPS, for kubectl and other clients outside the process.
//!
//! kubectl sends a token over TLS alone, so each server generates a self-signed certificate, which is
//! written into the kubeconfig.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use sahasra_service::server::{Handshake, Limits, serve};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::control_plane::ControlPlane;
use crate::service::ApiService;

mod access;

pub use access::{Credentials, Guarded};

/// Drain timeout of open requests at shutdown. Short, because a watch never ends by itself.
const DRAIN: Duration = Duration::from_millis(200);

/// Why a control plane cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The port is not there for us.
    #[error("listen on {address}")]
    Listen {
        /// What was asked for.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// No key or certificate could be made.
    #[error("make a certificate")]
    Certificate(#[from] rcgen::Error),
    /// TLS could not be set up.
    #[error("set up TLS")]
    Tls(#[from] rustls::Error),
}

/// A control plane's API on a port, not yet served: where it will be, and how clients get in.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    credentials: Credentials,
    service: ApiService,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Server")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Takes the port (0: any that is free) and makes a certificate for it. Only who has the token is let in; bind it to
    /// loopback all the same.
    ///
    /// # Errors
    /// When the port is taken, or the machine gives no randomness for a key.
    pub async fn bind(control_plane: &ControlPlane, address: SocketAddr, token: String) -> Result<Self, ServeError> {
        let listen = |source| ServeError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        Ok(Self {
            listener,
            address,
            credentials: Credentials::new(address.ip(), token)?,
            service: control_plane.service(),
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// URL of the API.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// A kubeconfig with which its user gets in: JSON, which is YAML too. It holds the token.
    #[must_use]
    pub fn kubeconfig(&self, namespace: &str) -> String {
        self.credentials.kubeconfig(self.address, namespace)
    }

    /// Serves until `shutdown`.
    pub async fn serve(self, shutdown: CancellationToken) {
        let guarded = Guarded::new(self.service, self.credentials.token());
        let limits = Limits {
            drain_timeout: DRAIN,
            ..Limits::default()
        };
        serve(self.listener, Tls(self.credentials.acceptor()), guarded, limits, shutdown).await;
    }
}

/// TLS on accepted connections.
#[derive(Clone)]
struct Tls(TlsAcceptor);

impl Handshake for Tls {
    type Stream = tokio_rustls::server::TlsStream<TcpStream>;

    async fn handshake(&self, stream: TcpStream) -> io::Result<Self::Stream> {
        self.0.accept(stream).await
    }
}
