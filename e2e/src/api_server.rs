//! The API of an embedded control plane over HTTPS, for kubectl and other clients outside the process.
//!
//! kubectl sends a token over TLS only, so each server generates a self-signed certificate and writes it into the kubeconfig.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use sahasra_local::{ApiService, ControlPlane, Credentials, CredentialsError};
use sahasra_service::server::{Limits, serve};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Drain timeout of open requests at shutdown. Short, because a watch never ends by itself.
const DRAIN: Duration = Duration::from_millis(200);

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("failed to listen on {address}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
}

/// Server of a control plane's API, bound to a port but not yet serving.
pub struct ApiServer {
    listener: TcpListener,
    address: SocketAddr,
    credentials: Credentials,
    service: ApiService,
}

impl ApiServer {
    /// Binds `address` (port 0 selects a free port) and generates a certificate for it. Only requests with the token are accepted; bind to
    /// loopback nevertheless.
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

    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// A kubeconfig with full access to the server, in JSON, which is also YAML. Contains the token.
    pub fn kubeconfig(&self, namespace: &str) -> String {
        self.credentials.kubeconfig(self.address, namespace)
    }

    /// Serves until `shutdown` is cancelled.
    pub async fn serve(self, shutdown: CancellationToken) {
        let guarded = self.service.guarded(&self.credentials.token);
        let limits = Limits {
            drain_timeout: DRAIN,
            ..Limits::default()
        };
        serve(self.listener, self.credentials.acceptor, guarded, limits, shutdown).await;
    }
}
