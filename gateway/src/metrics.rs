//! Prometheus metrics of the gateway. Every counter exists from the start, with the status codes of requests that show whether the gateway
//! works.

use http::StatusCode;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};
use sahasra_service::metrics::registered_with;

use crate::{route::Route, stream::StreamMetrics};

/// Status codes with which each route's counter starts. Other codes appear with the first answer that has them.
const CODES: [&str; 4] = ["200", "403", "502", "503"];

/// The metrics. Label values are constants, never names of objects or users.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    pub registry: Registry,
    requests: IntCounterVec,
    seconds: HistogramVec,
    pub streams: StreamMetrics,
}

impl Metrics {
    pub(crate) fn new() -> Result<Self, prometheus::Error> {
        let requests = Opts::new("sahasra_gateway_requests_total", "Requests, by route and status code.");
        let buckets = prometheus::exponential_buckets(0.001, 4.0, 10)?;
        let seconds = HistogramOpts::new(
            "sahasra_gateway_request_duration_seconds",
            "Time from the head of a request to the head of its response.",
        )
        .buckets(buckets);
        let registry = sahasra_service::metrics::registry("gateway")?;
        let codes = Route::METRICS.into_iter().flat_map(|route| CODES.map(|code| [route, code]));
        Ok(Self {
            streams: StreamMetrics::new(&registry)?,
            requests: registered_with(&registry, IntCounterVec::new(requests, &["route", "code"])?, codes)?,
            seconds: registered_with(
                &registry,
                HistogramVec::new(seconds, &["route"])?,
                Route::METRICS.map(|route| [route]),
            )?,
            registry,
        })
    }

    pub(crate) fn answered(&self, route: &'static str, code: StatusCode, seconds: f64) {
        self.requests.with_label_values(&[route, code.as_str()]).inc();
        self.seconds.with_label_values(&[route]).observe(seconds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_as_prometheus_wants_them_and_there_from_the_start() {
        let metrics = Metrics::new().expect("distinct names");
        let expected = [
            "sahasra_gateway_requests_total",
            "sahasra_gateway_request_duration_seconds",
            "sahasra_gateway_stream_bytes_total",
            "sahasra_gateway_streams_closed_total",
            "sahasra_gateway_build_info",
        ];
        assert_eq!(sahasra_contract::metrics::problems(&metrics.registry, &expected), [""; 0]);
    }

    #[test]
    fn the_guide_has_every_metric_and_no_other() {
        const PAGE: &str = include_str!("../../docs/guide/operating.md");
        let shown = Metrics::new().expect("distinct names");
        assert_eq!(sahasra_contract::metrics::undocumented(&shown.registry, PAGE, "Gateway"), [""; 0]);
    }
}
