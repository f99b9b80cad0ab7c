//! Plain HTTP GET on loopback: of `/readyz`, `/metrics` and `/workers`, and of whatever answers before it is upgraded.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// A server that takes longer than this to answer a probe is not ready.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Why a GET had no answer.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// Not a URL of the form `http://HOST:PORT/PATH`.
    #[error("not an http URL with host and port")]
    Url,
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
