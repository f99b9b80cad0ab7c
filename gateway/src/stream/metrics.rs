//! Metrics of streams.

use prometheus::{IntCounterVec, IntGauge, Opts, Registry};
use sahasra_service::metrics::{registered, registered_with};

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
        let directions = ["to_client", "to_worker"].map(|direction| [direction]);
        let reasons = End::REASONS.map(|reason| [reason]);
        Ok(Self {
            open: registered(registry, IntGauge::new("sahasra_gateway_streams", "Open streams of sessions.")?)?,
            bytes: registered_with(registry, IntCounterVec::new(bytes, &["direction"])?, directions)?,
            ended: registered_with(registry, IntCounterVec::new(ended, &["reason"])?, reasons)?,
        })
    }
}
