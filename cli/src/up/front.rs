//! Service on the port of `sahasra up`: `/workers`, `/metrics` and health probes without a token, the Kubernetes API and the gateway with a
//! token.
//!
//! The gateway is the same as in a cluster and has no rights here either: it calls the API with its caller's token, which is checked by the
//! same [`ApiService`] that kubectl uses.
//!
//! TLS and plain HTTP share the port, distinguished by the first byte of a connection. kubectl sends its token only over TLS; `curl
//! http://127.0.0.1:8000/workers` needs neither token nor TLS.

use std::{io, net::IpAddr, path::Path, sync::Arc};

use bytes::Buf;
use futures::{Stream, TryStreamExt};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header, uri::Authority};
use http_body_util::StreamBody;
use hyper::body::Frame;
use sahasra_local::ApiService;
use sahasra_service::{
    answer::{self, Answer},
    server::Handshake,
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::either::Either;
use tower::Service;
use warp::{Filter, Rejection, Reply, filters::BoxedFilter, path::FullPath};

/// First byte of a TLS connection, the type of a handshake record (RFC 8446 §5.1).
const TLS_HANDSHAKE: u8 = 0x16;
/// Paths that the operator serves without a token.
const OPEN: [&str; 4] = ["/workers", "/metrics", "/healthz", "/readyz"];

/// Accepts TLS and plain HTTP on one port: TLS where the first byte of a connection is [`TLS_HANDSHAKE`].
#[derive(Clone)]
pub(super) struct TlsIfSpoken(pub TlsAcceptor);

impl Handshake for TlsIfSpoken {
    type Stream = Either<Box<TlsStream<TcpStream>>, TcpStream>;

    async fn handshake(&self, stream: TcpStream) -> io::Result<Self::Stream> {
        let mut first = [0];
        stream.peek(&mut first).await?;
        if first[0] == TLS_HANDSHAKE {
            return Ok(Either::Left(self.0.handshake(stream).await?));
        }
        Ok(Either::Right(stream))
    }
}

/// Creates the routes: `operator` serves the paths in [`OPEN`], `gateway` its own paths, and `api` all others. Requests without the token are
/// answered with the path of `token_file`.
pub(super) fn routes<O, R>(
    operator: O,
    gateway: BoxedFilter<(Answer,)>,
    api: ApiService,
    token_file: &Path,
) -> impl Filter<Extract = (impl Reply + use<O, R>,), Error = Rejection> + Clone + use<O, R>
where
    O: Filter<Extract = (R,), Error = Rejection> + Clone + Send,
    R: Reply,
{
    let token_file: Arc<str> = token_file.display().to_string().into();
    let guarded = gateway
        .or(kubernetes_api(api))
        .unify()
        .map(move |answer| with_remedy(answer, &token_file));
    misdirected().or(guarded).or(operator)
}

/// Route of requests whose host is not this machine: by DNS rebinding, a web page may point a name of its own at this port.
fn misdirected() -> impl Filter<Extract = (Answer,), Error = Rejection> + Clone {
    // HTTP/1.0 has no Host header, and no browser speaks it.
    let is_loopback = warp::host::optional().map(|host: Option<Authority>| host.is_none_or(|host| is_loopback(&host)));
    is_loopback.or(warp::any().map(|| false)).unify().and_then(async |is_loopback| {
        if is_loopback {
            return Err(warp::reject::not_found());
        }
        let text = "this port serves this machine only: connect to 127.0.0.1 or localhost\n";
        Ok(answer::text(StatusCode::MISDIRECTED_REQUEST, text))
    })
}

fn is_loopback(authority: &Authority) -> bool {
    let host = authority.host();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Route of all paths that the operator does not serve.
fn kubernetes_api(api: ApiService) -> impl Filter<Extract = (Answer,), Error = Rejection> + Clone {
    warp::path::full()
        .and_then(async |path: FullPath| {
            if OPEN.contains(&path.as_str()) {
                return Err(warp::reject::not_found());
            }
            Ok(path)
        })
        .and(warp::method())
        .and(warp::query::raw().or(warp::any().map(String::new)).unify())
        .and(warp::header::headers_cloned())
        .and(warp::body::stream())
        .then(move |path: FullPath, method, query: String, headers, body| {
            let uri = if query.is_empty() {
                path.as_str().to_owned()
            } else {
                format!("{}?{query}", path.as_str())
            };
            call(api.clone(), method, uri, headers, body)
        })
}

async fn call<B: Buf>(
    mut api: ApiService,
    method: Method,
    uri: String,
    headers: HeaderMap,
    body: impl Stream<Item = Result<B, warp::Error>> + Send + 'static,
) -> Answer {
    let frames = body.map_ok(|mut piece| Frame::data(piece.copy_to_bytes(piece.remaining())));
    let mut request = Request::new(StreamBody::new(frames));
    *request.method_mut() = method;
    let Ok(uri) = uri.parse() else {
        return answer::text(
            StatusCode::BAD_REQUEST,
            "the path of the request is invalid: it begins with a slash\n",
        );
    };
    *request.uri_mut() = uri;
    *request.headers_mut() = headers;
    match api.call(request).await {
        Ok(response) => answer::stream(response),
        Err(never) => match never {},
    }
}

/// Replaces the rejection of a request without a valid token: in a cluster `kubectl create token` is the remedy, here it is the token file.
fn with_remedy(mut answer: Answer, token_file: &str) -> Answer {
    if answer.status() != StatusCode::UNAUTHORIZED {
        return answer;
    }
    let message = format!("no token of this pool: send it as `Authorization: Bearer TOKEN`; it is in {token_file}");
    let headers = answer.headers_mut();
    headers.remove(header::CONTENT_LENGTH);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    *answer.body_mut() = sahasra_gateway::unauthorized(message).into_body();
    answer
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::Full;

    use super::*;

    #[tokio::test]
    async fn a_host_name_that_dns_rebinding_points_here_is_not_served() {
        let is_served = async |request: http::request::Builder| {
            let routes = misdirected().or(warp::any().map(Answer::default));
            let request = request.body(Full::<Bytes>::default()).unwrap();
            let status = warp::service(routes).call(request).await.unwrap().status();
            status != StatusCode::MISDIRECTED_REQUEST
        };
        for right in ["127.0.0.1:8000", "localhost", "LOCALHOST:8000", "[::1]:8000", "127.0.0.1"] {
            assert!(is_served(Request::get("/workers").header(header::HOST, right)).await, "{right}");
        }
        for wrong in [
            "evil.example:8000",
            "localhost.evil.example",
            "10.0.0.1",
            "",
            "127.0.0.1.evil.example",
        ] {
            assert!(!is_served(Request::get("/workers").header(header::HOST, wrong)).await, "{wrong}");
        }
        assert!(is_served(Request::get("https://127.0.0.1:8000/api")).await);
        assert!(!is_served(Request::get("https://evil.example/api")).await);
        assert!(is_served(Request::get("/api")).await);
    }
}
