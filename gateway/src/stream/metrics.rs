//! Metrics of streams.

use prometheus::{IntCounterVec, IntGauge, Opts, Registry};

use super::end::End;

/// The metrics of all streams.
#[derive(Clone, Debug)]
pub(crate) struct StreamMetrics {
    pub open: IntGauge,
    /// Bytes copied, by receiving side.
    pub bytes: IntCounterVec,
    /// Streams ended, by the side that ended them.
    pub ended: IntCounterVec,
}

impl StreamMetrics {
    /// Creates the metrics and registers them.
    ///
    /// # Errors
    /// When a metric of the same name is registered already.
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let bytes = Opts::new("gateway_stream_bytes_total", "Bytes copied, to workers and to clients.");
        let ended = Opts::new("gateway_streams_ended_total", "Streams that ended, by the side that ended them.");
        let metrics = Self {
            open: IntGauge::new("gateway_streams", "Streams of sessions that are open.")?,
            bytes: IntCounterVec::new(bytes, &["to"])?,
            ended: IntCounterVec::new(ended, &["by"])?,
        };
        registry.register(Box::new(metrics.open.clone()))?;
        registry.register(Box::new(metrics.bytes.clone()))?;
        registry.register(Box::new(metrics.ended.clone()))?;
        for to in ["client", "worker"] {
            metrics.bytes.with_label_values(&[to]);
        }
        for by in End::BY {
            metrics.ended.with_label_values(&[by]);
        }
        Ok(metrics)
    }
}
