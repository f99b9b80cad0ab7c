//! Service on the port of `sahasra up`: `/workers`, `/metrics` and health probes without a token, the Kubernetes API and the gateway with a
//! token.
//!
//! The gateway is the same as in a cluster and has no rights here either: it calls the API with its caller's token, which is checked by the
//! same [`ApiService`] that kubectl uses.
//!
//! TLS and plain HTTP share the port, distinguished by the first byte of a connection. kubectl sends its token only over TLS; `curl
//! http://127.0.0.1:8000/workers` needs neither token nor TLS.

use std::{convert::Infallible, io, net::IpAddr, path::Path, sync::Arc};

use http::{HeaderValue, Method, Request, StatusCode, header, uri::Authority};
use hyper::body::Incoming;
use sahasra_local::ApiService;
use sahasra_service::{
    answer::{self, Answer},
    server::Handshake,
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::either::Either;
use tower::Service;

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

/// Creates the service: `operator` serves the paths in [`OPEN`], `gateway` its own paths, and `api` all others. Requests without the token are
/// answered with the path of `token_file`.
pub(super) fn service<W, G>(
    operator: W,
    gateway: G,
    api: ApiService,
    token_file: &Path,
) -> impl Service<Request<Incoming>, Response = Answer, Error = Infallible, Future: Send> + Clone + Send + use<W, G>
where
    W: Service<Request<Incoming>, Response = Answer, Error = Infallible, Future: Send> + Clone + Send,
    G: Service<Request<Incoming>, Response = Answer, Error = Infallible, Future: Send> + Clone + Send,
{
    let token_file: Arc<str> = token_file.display().to_string().into();
    tower::service_fn(move |mut request: Request<Incoming>| {
        let (mut operator, mut gateway, mut api, token_file) = (operator.clone(), gateway.clone(), api.clone(), token_file.clone());
        async move {
            if !is_for_loopback(&request) {
                let text = "this port serves this machine only: connect to 127.0.0.1 or localhost\n";
                return Ok(answer::text(StatusCode::MISDIRECTED_REQUEST, text));
            }
            let path = request.uri().path();
            if OPEN.contains(&path) {
                // The HTTP server omits the body of the answer to a HEAD request.
                if request.method() == Method::HEAD {
                    *request.method_mut() = Method::GET;
                }
                return operator.call(request).await;
            }
            let answer = if path.starts_with("/v1/") || path == "/openapi.json" {
                gateway.call(request).await?
            } else {
                answer::stream(api.call(request).await?)
            };
            Ok(with_remedy(answer, &token_file))
        }
    })
}

/// Whether the request's host is this machine: by DNS rebinding, a web page may point a name of its own at this port.
fn is_for_loopback<B>(request: &Request<B>) -> bool {
    let host = match request.uri().host() {
        Some(host) => Some(host.to_owned()),
        None => {
            let named = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
            // HTTP/1.0 has no Host header, and no browser speaks it.
            let Some(named) = named else { return true };
            named.parse::<Authority>().ok().map(|authority| authority.host().to_owned())
        }
    };
    host.is_some_and(|host| {
        let address = host.trim_start_matches('[').trim_end_matches(']');
        host.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    })
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
    use super::*;

    #[test]
    fn a_host_name_that_dns_rebinding_points_here_is_not_served() {
        let named = |host: &str| is_for_loopback(&Request::get("/workers").header(header::HOST, host).body(()).unwrap());
        for right in ["127.0.0.1:8000", "localhost", "LOCALHOST:8000", "[::1]:8000", "127.0.0.1"] {
            assert!(named(right), "{right}");
        }
        for wrong in [
            "evil.example:8000",
            "localhost.evil.example",
            "10.0.0.1",
            "",
            "127.0.0.1.evil.example",
        ] {
            assert!(!named(wrong), "{wrong}");
        }
        let of_uri = |uri: &str| is_for_loopback(&Request::get(uri).body(()).unwrap());
        assert!(of_uri("https://127.0.0.1:8000/api") && !of_uri("https://evil.example/api"));
    }
}
