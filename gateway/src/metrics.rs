//! What a scrape of the gateway tells.

use http::StatusCode;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Opts, Registry};

/// The figures. Labels are ours: never names of objects or users.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    seconds: HistogramVec,
    /// Streams open now.
    pub streams: IntGauge,
    /// Bytes copied, by direction.
    pub stream_bytes: IntCounterVec,
    /// Streams ended, by who ended them.
    pub streams_ended: IntCounterVec,
}

impl Metrics {
    /// A registry with all of them.
    ///
    /// # Errors
    /// When two have the same name: a mistake here.
    pub fn new() -> Result<Self, prometheus::Error> {
        let requests = Opts::new("gateway_requests_total", "Requests answered, by route and status code.");
        let buckets = prometheus::exponential_buckets(0.001, 4.0, 10)?;
        let seconds = HistogramOpts::new("gateway_request_seconds", "From a request's head to its answer's, in seconds.").buckets(buckets);
        let metrics = Self {
            registry: Registry::new(),
            requests: IntCounterVec::new(requests, &["route", "code"])?,
            seconds: HistogramVec::new(seconds, &["route"])?,
            streams: IntGauge::new("gateway_streams", "Streams of sessions that are open.")?,
            stream_bytes: IntCounterVec::new(
                Opts::new("gateway_stream_bytes_total", "Bytes copied, to workers and to clients."),
                &["to"],
            )?,
            streams_ended: IntCounterVec::new(
                Opts::new("gateway_streams_ended_total", "Streams that ended, and through whom."),
                &["by"],
            )?,
        };
        metrics.registry.register(Box::new(metrics.requests.clone()))?;
        metrics.registry.register(Box::new(metrics.seconds.clone()))?;
        metrics.registry.register(Box::new(metrics.streams.clone()))?;
        metrics.registry.register(Box::new(metrics.stream_bytes.clone()))?;
        metrics.registry.register(Box::new(metrics.streams_ended.clone()))?;
        Ok(metrics)
    }

    /// For `/metrics`.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// A request was answered.
    pub fn answered(&self, route: &'static str, code: StatusCode, seconds: f64) {
        self.requests.with_label_values(&[route, code.as_str()]).inc();
        self.seconds.with_label_values(&[route]).observe(seconds);
    }
}
