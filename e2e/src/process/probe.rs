//! HTTP GET on loopback: for `/readyz`, `/metrics` and `/workers`, and for paths that a server answers before an upgrade.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::CryptoProvider,
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

/// Timeout of an answer: a server that takes longer is not ready.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Connection below HTTP, plain or with TLS.
trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Accepts every server certificate, as a kubelet's probes do.
#[derive(Debug)]
struct Anybody(CryptoProvider);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Establishes TLS with any server, without verifying its certificate.
async fn encrypted(stream: TcpStream, host: &str) -> Result<Box<dyn Io>, HttpError> {
    let provider = rustls::crypto::ring::default_provider();
    let config = ClientConfig::builder_with_provider(Arc::new(provider.clone()))
        .with_safe_default_protocol_versions()
        .map_err(HttpError::Tls)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody(provider)))
        .with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).map_err(|_| HttpError::Url)?;
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .map_err(HttpError::Connect)?;
    Ok(Box::new(stream))
}

/// A GET got no answer.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The URL does not have the form `http://HOST:PORT/PATH` or `https://HOST:PORT/PATH`.
    #[error("not an http URL with host and port")]
    Url,
    /// TLS could not be configured.
    #[error("no TLS: {0}")]
    Tls(#[source] rustls::Error),
    /// The connection or its TLS handshake failed.
    #[error("connect: {0}")]
    Connect(#[source] std::io::Error),
    /// The connection broke, or the answer was not HTTP.
    #[error("request: {0}")]
    Request(#[source] hyper::Error),
    #[error("no answer within {ANSWER_WITHIN:?}")]
    Timeout,
}

/// Sends `GET url` and returns the status and the body as text.
///
/// # Errors
/// [`HttpError`] when there is no answer; an error status is not an error.
pub async fn get(url: &str) -> Result<(StatusCode, String), HttpError> {
    let (status, body) = get_with(url, &[]).await?;
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

/// Sends `GET url` with these headers and returns the status and the body.
///
/// # Errors
/// The errors of [`get`].
pub async fn get_with(url: &str, headers: &[(&str, &str)]) -> Result<(StatusCode, Bytes), HttpError> {
    tokio::time::timeout(ANSWER_WITHIN, exchange(url, headers))
        .await
        .map_err(|_| HttpError::Timeout)?
}

async fn exchange(url: &str, headers: &[(&str, &str)]) -> Result<(StatusCode, Bytes), HttpError> {
    let uri: Uri = url.parse().map_err(|_| HttpError::Url)?;
    let authority = uri.authority().ok_or(HttpError::Url)?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let request = Request::get(path).header(http::header::HOST, authority.as_str());
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let request = request.body(Empty::<Bytes>::new()).map_err(|_| HttpError::Url)?;

    let stream = TcpStream::connect(authority.as_str()).await.map_err(HttpError::Connect)?;
    let stream: Box<dyn Io> = if uri.scheme_str() == Some("https") {
        encrypted(stream, authority.host()).await?
    } else {
        Box::new(stream)
    };
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(HttpError::Request)?;
    let exchange = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        Ok((status, body))
    };
    tokio::pin!(connection);
    tokio::pin!(exchange);
    // The connection is polled together with the exchange, so that no task outlives this call.
    tokio::select! {
        outcome = &mut exchange => outcome.map_err(HttpError::Request),
        ended = &mut connection => match ended {
            Ok(()) => exchange.await.map_err(HttpError::Request),
            Err(error) => Err(HttpError::Request(error)),
        },
    }
}
