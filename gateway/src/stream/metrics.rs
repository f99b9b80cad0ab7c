//! Metrics of streams.

use prometheus::{IntCounterVec, IntGauge, Opts, Registry};

use super::end::End;

#[derive(Clone, Debug)]
pub(crate) struct StreamMetrics {
    pub open: IntGauge,
    pub bytes: IntCounterVec,
    pub ended: IntCounterVec,
}

impl StreamMetrics {
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let bytes = Opts::new("sahasra_gateway_stream_bytes_total", "Bytes copied, by direction.");
        let ended = Opts::new("sahasra_gateway_streams_closed_total", "Closed streams, by reason.");
        let metrics = Self {
            open: IntGauge::new("sahasra_gateway_streams", "Open streams of sessions.")?,
            bytes: IntCounterVec::new(bytes, &["direction"])?,
            ended: IntCounterVec::new(ended, &["reason"])?,
        };
        registry.register(Box::new(metrics.open.clone()))?;
        registry.register(Box::new(metrics.bytes.clone()))?;
        registry.register(Box::new(metrics.ended.clone()))?;
        for direction in ["to_client", "to_worker"] {
            metrics.bytes.with_label_values(&[direction]);
        }
        for reason in End::REASONS {
            metrics.ended.with_label_values(&[reason]);
        }
        Ok(metrics)
    }
}
