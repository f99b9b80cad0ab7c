//! Service on the port of `sahasra serve`: the gateway's REST API and streams, `/workers` and `/metrics`, all with the token, and health probes
//! without it. The Kubernetes API of the embedded control plane is not served.

use std::sync::Arc;

use http::{HeaderMap, StatusCode};
use sahasra_local::has_token;
use sahasra_service::answer::{self, Answer};
use warp::{Filter, Rejection, Reply, filters::BoxedFilter, path::FullPath};

/// Paths that the operator serves without a token.
const OPEN: [&str; 2] = ["/healthz", "/readyz"];
/// Paths that the operator serves with a token.
const GUARDED: [&str; 2] = ["/workers", "/metrics"];

/// Creates the routes: `gateway` checks the token itself, for `operator` it is checked here.
pub(super) fn routes<O, R>(
    operator: O,
    gateway: BoxedFilter<(Answer,)>,
    token: &str,
) -> impl Filter<Extract = (impl Reply + use<O, R>,), Error = Rejection> + Clone + use<O, R>
where
    O: Filter<Extract = (R,), Error = Rejection> + Clone + Send,
    R: Reply,
{
    gateway.or(rejected(token)).or(operator)
}

/// Route of the requests that the operator must not answer.
fn rejected(token: &str) -> impl Filter<Extract = (Answer,), Error = Rejection> + Clone + use<> {
    let token: Arc<str> = token.into();
    warp::path::full()
        .and(warp::header::headers_cloned())
        .and_then(move |path: FullPath, headers: HeaderMap| {
            let rejection = rejection(path.as_str(), &headers, &token);
            async move { rejection.ok_or_else(warp::reject::not_found) }
        })
}

fn rejection(path: &str, headers: &HeaderMap, token: &str) -> Option<Answer> {
    let is_guarded = GUARDED.contains(&path);
    if !is_guarded && !OPEN.contains(&path) {
        return Some(answer::text(StatusCode::NOT_FOUND, "not found\n"));
    }
    if is_guarded && !has_token(headers, token) {
        let message = "no token of this pool: send it as `Authorization: Bearer TOKEN`".to_owned();
        return Some(sahasra_gateway::unauthorized(message));
    }
    None
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
