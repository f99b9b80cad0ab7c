//! Authentication by a single token over TLS with a self-signed certificate. The kubeconfig contains both.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::Full;
use hyper::body::Body;
use rcgen::{CertificateParams, DnType, KeyPair, SanType};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::json;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tower_service::Service;

use super::ServeError;
use crate::refusal::Refusal;
use crate::service::{Answer, ApiService, ResponseBody, read};

/// Timeout for receiving a request's body, the same as the gateway's.
const BODY_WITHIN: Duration = Duration::from_secs(20);

/// Certificate of a control plane, and the token of its clients.
#[derive(Clone)]
pub struct Credentials {
    token: String,
    certificate: String,
    acceptor: TlsAcceptor,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Omits the key and the token.
        formatter.debug_struct("Credentials").finish_non_exhaustive()
    }
}

impl Credentials {
    /// Generates a certificate for `localhost` and `address`.
    ///
    /// # Errors
    /// If the system provides no randomness for the key.
    pub fn new(address: IpAddr, token: String) -> Result<Self, ServeError> {
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
        Ok(Self {
            token,
            certificate: certificate.pem(),
            acceptor: TlsAcceptor::from(Arc::new(config)),
        })
    }

    /// Token that clients send.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Acceptor of TLS connections with the certificate.
    #[must_use]
    pub fn acceptor(&self) -> TlsAcceptor {
        self.acceptor.clone()
    }

    /// A kubeconfig with full access to the server at `address`, in JSON, which is also YAML. Contains the token.
    #[must_use]
    pub fn kubeconfig(&self, address: SocketAddr, namespace: &str) -> String {
        let name = "sahasra";
        let cluster = json!({"server": format!("https://{address}"), "certificate-authority-data": STANDARD.encode(&self.certificate)});
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
}

/// Service that requires the token for all requests except health checks.
#[derive(Clone)]
pub struct Guarded {
    service: ApiService,
    token: Arc<str>,
}

impl Guarded {
    #[must_use]
    pub fn new(service: ApiService, token: &str) -> Self {
        Self {
            service,
            token: token.into(),
        }
    }

    fn admits<B>(&self, request: &Request<B>) -> bool {
        let path = request.uri().path();
        if matches!(path, "/healthz" | "/readyz" | "/livez") {
            return true;
        }
        let given = request.headers().get(header::AUTHORIZATION).map(header::HeaderValue::as_bytes);
        let given = given.and_then(|given| given.strip_prefix(b"Bearer ")).unwrap_or_default();
        let wanted = self.token.as_bytes();
        // Constant-time comparison: the duration of a rejection must not reveal the token.
        let differs = given.iter().zip(wanted).fold(0, |differs, (one, other)| differs | (one ^ other));
        given.len() == wanted.len() && differs == 0
    }
}

impl<B> Service<Request<B>> for Guarded
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if !self.admits(&request) {
            let answer = Answer::refusal(&Refusal::Unauthorized).into_response();
            return Box::pin(std::future::ready(Ok(answer)));
        }
        let mut service = self.service.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let body = timeout(BODY_WITHIN, read(body)).await;
            let body = match body.unwrap_or(Err(Refusal::TooSlow(BODY_WITHIN))) {
                Ok(body) => body,
                Err(refusal) => return Ok(Answer::refusal(&refusal).into_response()),
            };
            service.call(Request::from_parts(head, Full::new(body))).await
        })
    }
}
