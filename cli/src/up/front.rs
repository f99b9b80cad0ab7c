//! What is behind the port: `/workers` and the like for everybody on this machine, the API and the gateway for whoever has the
//! token.
//!
//! The gateway is the one of a cluster. It has no rights there, and none here: it calls the API as its caller, through the same
//! check of the token as kubectl ([`Guarded`]).
//!
//! TLS and plain HTTP share the port: the first byte of a connection tells them apart. kubectl needs TLS to send its token,
//! `curl http://127.0.0.1:8000/workers` needs none.

use std::{
    convert::Infallible,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::body::{Body, Incoming};
use sahasra_gateway::Gateway;
use sahasra_local::ApiService;
use sahasra_service::server::Handshake;
use serde_json::json;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::either::Either;
use tower_service::Service;

/// First byte of a TLS connection: a record of the handshake (RFC 8446 §5.1).
const TLS_HANDSHAKE: u8 = 0x16;
/// What the operator itself serves, to everybody.
const OPEN: [&str; 4] = ["/workers", "/metrics", "/healthz", "/readyz"];

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;

/// TLS for whoever speaks it.
#[derive(Clone)]
pub struct TlsIfSpoken(pub TlsAcceptor);

impl Handshake for TlsIfSpoken {
    type Stream = Either<Box<TlsStream<TcpStream>>, TcpStream>;

    async fn handshake(&self, stream: TcpStream) -> io::Result<Self::Stream> {
        let mut first = [0];
        stream.peek(&mut first).await?;
        if first[0] == TLS_HANDSHAKE {
            return Ok(Either::Left(Box::new(self.0.accept(stream).await?)));
        }
        Ok(Either::Right(stream))
    }
}

/// The API for whoever has the token.
#[derive(Clone)]
pub struct Guarded {
    api: ApiService,
    authorization: Arc<str>,
}

impl Guarded {
    /// Lets in who sends `token`.
    pub fn new(api: ApiService, token: &str) -> Self {
        Self {
            api,
            authorization: format!("Bearer {token}").into(),
        }
    }

    fn admits<B>(&self, request: &Request<B>) -> bool {
        let given = request.headers().get(header::AUTHORIZATION).map(|value| value.as_bytes());
        given.is_some_and(|given| same(given, self.authorization.as_bytes()))
    }
}

impl<B> Service<Request<B>> for Guarded
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Answer;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Infallible>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if !self.admits(&request) {
            return Box::pin(std::future::ready(Ok(unauthorized())));
        }
        let answer = self.api.call(request);
        Box::pin(async move { Ok(answer.await?.map(|body| body.map_err(Into::into).boxed_unsync())) })
    }
}

/// The service of the port.
#[derive(Clone)]
pub struct Front<W> {
    operator: W,
    gateway: Gateway,
    api: Guarded,
}

impl<W> Front<W> {
    /// `operator` answers what is open to all, `gateway` what is its own, `api` the rest.
    pub fn new(operator: W, gateway: Gateway, api: Guarded) -> Self {
        Self { operator, gateway, api }
    }
}

/// Compares without telling by its time how much is the same.
fn same(left: &[u8], right: &[u8]) -> bool {
    left.len() == right.len() && left.iter().zip(right).fold(0, |differs, (left, right)| differs | (left ^ right)) == 0
}

impl<W, B> Service<Request<Incoming>> for Front<W>
where
    W: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    W::Future: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Answer;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Infallible>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        if OPEN.contains(&request.uri().path()) {
            let answer = self.operator.call(request);
            return Box::pin(async move { Ok(answer.await?.map(|body| body.map_err(Into::into).boxed_unsync())) });
        }
        let path = request.uri().path();
        if path.starts_with("/v1/") || path == "/openapi.json" {
            return self.gateway.call(request);
        }
        self.api.call(request)
    }
}

/// As the API server says it.
fn unauthorized() -> Answer {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "Unauthorized", "reason": "Unauthorized", "code": 401,
    });
    let body = Full::new(Bytes::from(status.to_string())).map_err(|never| match never {});
    let mut answer = Response::new(body.boxed_unsync());
    *answer.status_mut() = StatusCode::UNAUTHORIZED;
    let json = header::HeaderValue::from_static("application/json");
    answer.headers_mut().insert(header::CONTENT_TYPE, json);
    answer
}
