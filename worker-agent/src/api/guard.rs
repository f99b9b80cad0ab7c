//! Who may use the operator's paths, where that is not everybody who reaches the port.
//!
//! Sessions' streams have their own answer to that, a token ([`crate::session::stream`]). `/healthz`, `/readyz` and `/metrics` are open:
//! a kubelet has no certificate to show, and what they say is no secret.

use std::{
    convert::Infallible,
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

/// Open to everybody.
const OPEN: [&str; 3] = ["/healthz", "/readyz", "/metrics"];
/// What the others are told.
const REFUSAL: &str = "this path is the operator's: show a certificate of the authority in this agent's --tls-client-authority (an operator is \
                       given one by --worker-client-certificate FILE and --worker-client-key FILE)\n";

/// An answer of the service, or a refusal.
type Answer<B> = Response<Either<B, Full<Bytes>>>;

/// `service`, for operators.
#[derive(Clone, Debug)]
pub struct OperatorsOnly<S> {
    service: S,
    is_guarded: bool,
}

impl<S> OperatorsOnly<S> {
    /// Where it is not guarded, everybody counts as an operator.
    pub fn new(service: S, is_guarded: bool) -> Self {
        Self { service, is_guarded }
    }

    fn admits<B>(&self, request: &Request<B>) -> bool {
        !self.is_guarded || request.extensions().get::<Certified>().is_some() || OPEN.contains(&request.uri().path())
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
        tracing::debug!(path = request.uri().path(), "a call without a certificate was refused");
        let mut answer = Response::new(Either::Right(Full::from(REFUSAL)));
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
            let mut request = Request::get(path).body(Full::<Bytes>::default()).unwrap();
            if certified {
                request.extensions_mut().insert(Certified);
            }
            let answer = OperatorsOnly::new(served(), guarded).call(request).await.unwrap();
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
}
