//! Authentication of operators: restricts the paths that only an operator may use.
//!
//! Session streams authenticate by a token instead ([`super::session_stream`]). `/healthz`, `/readyz` and `/metrics` are open, because a
//! kubelet has no certificate and their content is not secret.

use std::{fmt, sync::Arc};

use http::{HeaderMap, StatusCode};
use sahasra_service::{
    answer::{self, Answer},
    server::Certified,
};
use warp::{Filter, Rejection, path::FullPath};

/// Paths without authentication.
const OPEN: [&str; 3] = ["/healthz", "/readyz", "/metrics"];
/// Response body when a certificate is required.
const REFUSAL: &str = "this path is for the operator: present a certificate of the CA in this agent's --client-ca-file (flags of the \
                       operator: --worker-client-cert-file FILE and --worker-client-key-file FILE)\n";

/// Response body when a token is required.
const REFUSAL_BY_TOKEN: &str = "this path requires the operator's bearer token of the `sahasra up` process that started this agent\n";

/// How the agent authenticates operators.
#[derive(Clone)]
pub enum Guard {
    /// No authentication.
    Open,
    /// A certificate of the CA in `--client-ca-file`.
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

impl Guard {
    /// Returns the response to a request that does not come from an operator, on a path that only an operator may use.
    fn rejects(&self, path: &str, headers: &HeaderMap, certified: Option<Certified>) -> Option<Answer> {
        let (is_operator, reason) = match self {
            Self::Open => (true, ""),
            Self::Certificate => (certified.is_some(), REFUSAL),
            Self::Token(token) => {
                let given = sahasra_access::bearer(headers).unwrap_or_default();
                (sahasra_access::is_same(given.as_bytes(), token.as_bytes()), REFUSAL_BY_TOKEN)
            }
        };
        if is_operator || OPEN.contains(&path) {
            return None;
        }
        tracing::debug!(path, guard = ?self, "rejected a request without the operator's credentials");
        Some(answer::text(StatusCode::FORBIDDEN, reason))
    }
}

/// Route of the requests that `guard` rejects. It comes before the routes that it guards.
pub(super) fn rejected(guard: Guard) -> impl Filter<Extract = (Answer,), Error = Rejection> + Clone {
    warp::path::full()
        .and(warp::header::headers_cloned())
        .and(warp::ext::optional())
        .and_then(move |path: FullPath, headers: HeaderMap, certified| {
            let rejected = guard.rejects(path.as_str(), &headers, certified);
            async move { rejected.ok_or_else(warp::reject::not_found) }
        })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::{Request, header, request::Builder};
    use http_body_util::Full;
    use tower_service::Service;

    use super::*;

    /// Returns the status of a request to routes of which one answers every path.
    async fn status(guard: Guard, request: Builder) -> u16 {
        let routes = rejected(guard).or(warp::any().map(Answer::default)).unify();
        let request = request.body(Full::<Bytes>::default()).unwrap();
        warp::service(routes).call(request).await.unwrap().status().as_u16()
    }

    #[tokio::test]
    async fn guarded_paths_require_a_certificate_but_health_and_metrics_do_not() {
        for path in ["/v1/inventory", "/v1/acquire", "/v1/bursts", "/anything"] {
            assert_eq!(status(Guard::Certificate, Request::get(path)).await, 403, "{path}");
            assert_eq!(
                status(Guard::Certificate, Request::get(path).extension(Certified)).await,
                200,
                "{path}"
            );
            assert_eq!(status(Guard::Open, Request::get(path)).await, 200, "{path}");
        }
        for path in OPEN {
            assert_eq!(status(Guard::Certificate, Request::get(path)).await, 200, "{path}");
        }
    }

    #[tokio::test]
    async fn a_required_token_cannot_be_replaced_by_another_credential() {
        let guard = || Guard::Token("secret".into());
        let with = |authorization: &str| {
            Request::get("/v1/inventory")
                .extension(Certified)
                .header(header::AUTHORIZATION, authorization)
        };
        assert_eq!(status(guard(), with("Bearer secret")).await, 200);
        for wrong in ["", "Bearer", "Bearer other", "Basic secret"] {
            assert_eq!(status(guard(), with(wrong)).await, 403, "{wrong}");
        }
        assert_eq!(status(guard(), Request::get("/healthz")).await, 200);
        assert!(!format!("{:?}", guard()).contains("secret"));
    }
}
