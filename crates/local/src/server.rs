//! The API over HTTPS, for kubectl and other clients outside the process.
//!
//! kubectl sends a token over TLS alone, so there is a certificate: made anew for each server, of nobody's authority, and
//! written into the kubeconfig.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{Request, Response, header};
use hyper::body::Incoming;
use rcgen::{CertificateParams, DnType, KeyPair, SanType};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use sahasra_service::server::{Handshake, Limits, serve};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::control_plane::ControlPlane;
use crate::refusal::Refusal;
use crate::service::{Answer, ApiService, ResponseBody};

/// How long open requests may take once shutdown began. A watch never ends by itself: nobody waits for it.
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
    acceptor: TlsAcceptor,
    address: SocketAddr,
    certificate: String,
    token: String,
    service: ApiService,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Neither the key nor the token is anybody's business.
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
        let (certificate, acceptor) = identity(address.ip())?;
        Ok(Self {
            listener,
            acceptor,
            address,
            certificate,
            token,
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
        let name = "sahasra";
        let cluster = json!({"server": self.url(), "certificate-authority-data": STANDARD.encode(&self.certificate)});
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": name, "user": {"token": self.token}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": namespace}}],
            "current-context": name,
        });
        format!("{config:#}\n")
    }

    /// Serves until `shutdown`.
    pub async fn serve(self, shutdown: CancellationToken) {
        let guarded = Guarded {
            service: self.service,
            token: self.token,
        };
        let limits = Limits {
            drain_timeout: DRAIN,
            ..Limits::default()
        };
        serve(self.listener, Tls(self.acceptor), guarded, limits, shutdown).await;
    }
}

/// A certificate for this address, as PEM, and what answers handshakes with it.
fn identity(address: IpAddr) -> Result<(String, TlsAcceptor), ServeError> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(vec!["localhost".to_owned()])?;
    params.subject_alt_names.push(SanType::IpAddress(address));
    params.distinguished_name.push(DnType::CommonName, "sahasra");
    let certificate = params.self_signed(&key)?;
    let chain = vec![CertificateDer::from(certificate.der().to_vec())];
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, private)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((certificate.pem(), TlsAcceptor::from(Arc::new(config))))
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

/// The service behind a token.
#[derive(Clone)]
struct Guarded {
    service: ApiService,
    token: String,
}

impl Guarded {
    fn admits(&self, request: &Request<Incoming>) -> bool {
        let path = request.uri().path();
        if matches!(path, "/healthz" | "/readyz" | "/livez") {
            return true;
        }
        let given = request.headers().get(header::AUTHORIZATION).map(header::HeaderValue::as_bytes);
        let given = given.and_then(|given| given.strip_prefix(b"Bearer ")).unwrap_or_default();
        let wanted = self.token.as_bytes();
        // Every byte is looked at: how long a refusal takes tells nothing of the token.
        let differs = given.iter().zip(wanted).fold(0, |differs, (one, other)| differs | (one ^ other));
        given.len() == wanted.len() && differs == 0
    }
}

impl tower_service::Service<Request<Incoming>> for Guarded {
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        if self.admits(&request) {
            return self.service.call(request);
        }
        let answer = Answer::refusal(&Refusal::Unauthorized).into_response();
        Box::pin(std::future::ready(Ok(answer)))
    }
}
