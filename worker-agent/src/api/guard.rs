//! Authentication of operators: restricts the paths that only an operator may use.
//!
//! Session streams authenticate by a token instead ([`crate::api::session_stream`]). `/healthz`, `/readyz` and `/metrics` are open, because a
//! kubelet has no certificate and their content is not secret.

use std::{
    convert::Infallible,
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures::{
    TryFutureExt,
    future::{self, MapOk, Ready},
};
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{Either, Full};
use sahasra_service::server::Certified;
use tower_service::Service;

/// Paths without authentication.
const OPEN: [&str; 3] = ["/healthz", "/readyz", "/metrics"];
/// Response body when a certificate is required.
const REFUSAL: &str = "this path is for the operator: present a certificate of the CA in this agent's --client-ca-file (flags of the \
                       operator: --worker-client-cert-file FILE and --worker-client-key-file FILE)\n";

/// Response body when a token is required.
const REFUSAL_BY_TOKEN: &str = "this path requires the operator's bearer token of the `sahasra up` process that started this agent\n";

/// Response of the service, or a rejection.
type Answer<B> = Response<Either<B, Full<Bytes>>>;

/// How the agent authenticates operators.
#[derive(Clone)]
pub enum Guard {
    /// No authentication.
    Open,
    /// A certificate of the agent's authority.
    Certificate,
    /// A token shared by operator and agent where one process starts both, as `sahasra up` does on loopback.
    Token(Arc<str>),
}

impl fmt::Debug for Guard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never print the token.
        formatter.write_str(match self {
            Self::Open => "Open",
            Self::Certificate => "Certificate",
            Self::Token(_) => "Token",
        })
    }
}

/// Rejects requests to `service` that do not come from an operator.
#[derive(Clone, Debug)]
pub struct OperatorsOnly<S> {
    service: S,
    guard: Guard,
}

impl<S> OperatorsOnly<S> {
    /// Puts `guard` in front of `service`.
    pub fn new(service: S, guard: Guard) -> Self {
        Self { service, guard }
    }

    fn admits<B>(&self, request: &Request<B>) -> bool {
        let known = match &self.guard {
            Guard::Open => true,
            Guard::Certificate => request.extensions().get::<Certified>().is_some(),
            Guard::Token(token) => {
                let given = sahasra_access::bearer(request.headers()).unwrap_or_default();
                sahasra_access::is_same(given.as_bytes(), token.as_bytes())
            }
        };
        known || OPEN.contains(&request.uri().path())
    }
}

impl<S, R, B> Service<Request<R>> for OperatorsOnly<S>
where
    S: Service<Request<R>, Response = Response<B>, Error = Infallible>,
{
    type Response = Answer<B>;
    type Error = Infallible;
    type Future = future::Either<MapOk<S::Future, fn(Response<B>) -> Answer<B>>, Ready<Result<Answer<B>, Infallible>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<R>) -> Self::Future {
        if self.admits(&request) {
            let served: fn(Response<B>) -> Answer<B> = |answer| answer.map(Either::Left);
            return future::Either::Left(self.service.call(request).map_ok(served));
        }
        tracing::debug!(path = request.uri().path(), guard = ?self.guard, "rejected a request without the operator's credentials");
        let refusal = match self.guard {
            Guard::Token(_) => REFUSAL_BY_TOKEN,
            Guard::Open | Guard::Certificate => REFUSAL,
        };
        let mut answer = Response::new(Either::Right(Full::from(refusal)));
        *answer.status_mut() = StatusCode::FORBIDDEN;
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        answer.headers_mut().insert(header::CONTENT_TYPE, text);
        future::Either::Right(future::ok(answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warp::Filter;

    #[tokio::test]
    async fn what_is_guarded_is_for_the_certified_and_health_and_metrics_for_everybody() {
        let served = || warp::service(warp::any().map(|| "served"));
        let status = async |guarded: bool, certified: bool, path: &str| {
            let guard = if guarded { Guard::Certificate } else { Guard::Open };
            let mut request = Request::get(path).body(Full::<Bytes>::default()).unwrap();
            if certified {
                request.extensions_mut().insert(Certified);
            }
            let answer = OperatorsOnly::new(served(), guard).call(request).await.unwrap();
            answer.status().as_u16()
        };
        for path in ["/v1/inventory", "/v1/acquire", "/v1/bursts", "/anything"] {
            assert_eq!(status(true, false, path).await, 403, "{path}");
            assert_eq!(status(true, true, path).await, 200, "{path}");
            assert_eq!(status(false, false, path).await, 200, "{path}");
        }
        for path in OPEN {
            assert_eq!(status(true, false, path).await, 200, "{path}");
        }
    }

    #[tokio::test]
    async fn where_a_token_is_asked_for_it_alone_lets_in() {
        let status = async |authorization: &str, path: &str| {
            let request = Request::get(path).header(header::AUTHORIZATION, authorization);
            let request = request.body(Full::<Bytes>::default()).unwrap();
            let served = warp::service(warp::any().map(|| "served"));
            let answer = OperatorsOnly::new(served, Guard::Token("secret".into()))
                .call(request)
                .await
                .unwrap();
            answer.status().as_u16()
        };
        assert_eq!(status("Bearer secret", "/v1/inventory").await, 200);
        for wrong in ["", "Bearer", "Bearer other", "Basic secret"] {
            assert_eq!(status(wrong, "/v1/inventory").await, 403, "{wrong}");
        }
        assert_eq!(status("", "/healthz").await, 200);
        assert!(!format!("{:?}", Guard::Token("secret".into())).contains("secret"));
    }
}
