//! HTTP GET on loopback: of `/readyz`, `/metrics` and `/workers`, and of whatever answers before it is upgraded.

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

/// A server that takes longer than this to answer a probe is not ready.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The connection below HTTP.
trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// As a kubelet probes: whoever answers is who is meant.
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

/// Through TLS, with whoever is there.
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

/// Why a GET had no answer.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// Not a URL of the form `http://HOST:PORT/PATH` or `https://HOST:PORT/PATH`.
    #[error("not an http URL with host and port")]
    Url,
    /// TLS cannot be set up.
    #[error("no TLS: {0}")]
    Tls(#[source] rustls::Error),
    /// Nobody listens there.
    #[error("connect: {0}")]
    Connect(#[source] std::io::Error),
    /// The connection broke, or what came was no HTTP.
    #[error("request: {0}")]
    Request(#[source] hyper::Error),
    /// No answer in time.
    #[error("no answer within {ANSWER_WITHIN:?}")]
    Timeout,
}

/// `GET url`: the status and the body as text.
///
/// # Errors
/// [`HttpError`] when there was no answer; an answer of any status is none.
pub async fn get(url: &str) -> Result<(StatusCode, String), HttpError> {
    let (status, body) = get_with(url, &[]).await?;
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

/// `GET url` with these headers: the status and the body.
///
/// # Errors
/// As [`get`].
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
    // The connection is driven here, beside the exchange, so that nothing outlives this call.
    tokio::select! {
        outcome = &mut exchange => outcome.map_err(HttpError::Request),
        ended = &mut connection => match ended {
            Ok(()) => exchange.await.map_err(HttpError::Request),
            Err(error) => Err(HttpError::Request(error)),
        },
    }
}
