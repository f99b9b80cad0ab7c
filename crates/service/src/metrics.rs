//! `/metrics` in the Prometheus text format.

use prometheus::{Encoder, Registry, TextEncoder};
use warp::{Filter, Rejection, Reply, http::StatusCode};

/// The route. `before` runs at each scrape, for figures that are computed then.
pub fn route(
    registry: Registry,
    before: impl Fn() + Clone + Send + Sync,
) -> impl Filter<Extract = (impl Reply,), Error = Rejection> + Clone {
    warp::get().and(warp::path!("metrics")).map(move || {
        before();
        let encoder = TextEncoder::new();
        let mut text = Vec::new();
        match encoder.encode(&registry.gather(), &mut text) {
            Ok(()) => warp::http::Response::builder()
                .header("content-type", encoder.format_type())
                .body(text),
            Err(error) => warp::http::Response::builder()
                .status(StatusCode::INTERNAL_SERVER_ERROR)
                .body(error.to_string().into_bytes()),
        }
    })
}
