//! Service on the port of `sahasra serve`: the gateway's REST API and streams, `/workers` and `/metrics`, all with the token, and health probes
//! without it. The Kubernetes API of the embedded control plane is not served.

use std::{convert::Infallible, sync::Arc};

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use sahasra_local::has_token;
use sahasra_service::answer::{self, Answer};
use tower::Service;

/// Paths that the operator serves without a token.
const OPEN: [&str; 2] = ["/healthz", "/readyz"];
/// Paths that the operator serves with a token.
const GUARDED: [&str; 2] = ["/workers", "/metrics"];

/// Creates the service: `gateway` checks the token itself, for `operator` it is checked here.
pub(super) fn service<W, G>(
    operator: W,
    gateway: G,
    token: &str,
) -> impl Service<Request<Incoming>, Response = Answer, Error = Infallible, Future: Send> + Clone + Send + use<W, G>
where
    W: Service<Request<Incoming>, Response = Answer, Error = Infallible, Future: Send> + Clone + Send,
    G: Service<Request<Incoming>, Response = Answer, Error = Infallible, Future: Send> + Clone + Send,
{
    let token: Arc<str> = token.into();
    tower::service_fn(move |mut request: Request<Incoming>| {
        let (mut operator, mut gateway, token) = (operator.clone(), gateway.clone(), token.clone());
        async move {
            let path = request.uri().path();
            if path.starts_with("/v1/") || path == "/openapi.json" {
                return gateway.call(request).await;
            }
            let (is_open, is_guarded) = (OPEN.contains(&path), GUARDED.contains(&path));
            if !is_open && !is_guarded {
                return Ok(answer::text(StatusCode::NOT_FOUND, "not found\n"));
            }
            if is_guarded && !has_token(request.headers(), &token) {
                let message = "no token of this pool: send it as `Authorization: Bearer TOKEN`".to_owned();
                return Ok(sahasra_gateway::unauthorized(message));
            }
            // The HTTP server omits the body of the answer to a HEAD request.
            if request.method() == Method::HEAD {
                *request.method_mut() = Method::GET;
            }
            operator.call(request).await
        }
    })
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue, header};

    use super::*;

    #[test]
    fn only_the_whole_token_is_accepted() {
        let has = |value: &'static str| {
            let headers = HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_static(value))]);
            has_token(&headers, "secret")
        };
        assert!(has("Bearer secret"));
        for wrong in ["Bearer secre", "Bearer secrets", "Bearer Secret", "Bearer ", "secret", ""] {
            assert!(!has(wrong), "{wrong}");
        }
        assert!(!has_token(&HeaderMap::new(), "secret"));
    }
}
