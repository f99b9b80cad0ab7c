//! Metrics of streams.

use prometheus::{IntCounterVec, IntGauge, Registry, opts, register_int_counter_vec_with_registry, register_int_gauge_with_registry};

use super::end::End;

#[derive(Clone, Debug)]
pub(crate) struct StreamMetrics {
    pub open: IntGauge,
    pub bytes: IntCounterVec,
    pub ended: IntCounterVec,
}

impl StreamMetrics {
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let bytes = opts!("sahasra_gateway_stream_bytes_total", "Bytes copied, by direction.");
        let ended = opts!("sahasra_gateway_streams_closed_total", "Closed streams, by reason.");
        let metrics = Self {
            open: register_int_gauge_with_registry!("sahasra_gateway_streams", "Open streams of sessions.", registry)?,
            bytes: register_int_counter_vec_with_registry!(bytes, &["direction"], registry)?,
            ended: register_int_counter_vec_with_registry!(ended, &["reason"], registry)?,
        };
        for direction in ["to_client", "to_worker"] {
            metrics.bytes.with_label_values(&[direction]);
        }
        for reason in End::REASONS {
            metrics.ended.with_label_values(&[reason]);
        }
        Ok(metrics)
    }
}
