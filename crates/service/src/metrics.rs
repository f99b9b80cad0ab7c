//! Route `/metrics` in the Prometheus text format, and the metrics that every process has.

use http::StatusCode;
use prometheus::{
    Encoder, IntGauge, Opts, Registry, TEXT_FORMAT, TextEncoder,
    core::{Collector, MetricVec, MetricVecBuilder},
};
use warp::{Filter, Rejection};

use crate::methods::get_or_head;

use crate::answer::{self, Answer};

/// Creates a registry with the metrics of every process: `sahasra_COMPONENT_build_info` and, on Linux, `process_*`.
pub fn registry(component: &'static str) -> Result<Registry, prometheus::Error> {
    let registry = Registry::new();
    let build = Opts::new(format!("sahasra_{component}_build_info"), "Always 1; the label is the version.")
        .const_label("version", env!("CARGO_PKG_VERSION"));
    let build = IntGauge::with_opts(build)?;
    build.set(1);
    registry.register(Box::new(build))?;
    #[cfg(target_os = "linux")]
    registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
    Ok(registry)
}

/// Registers the metric, and returns it.
///
/// # Errors
/// When the registry has a metric of this name.
pub fn registered<M: Collector + Clone + 'static>(registry: &Registry, metric: M) -> Result<M, prometheus::Error> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

/// Registers metrics that exist from the start with these values of their labels, and returns them.
///
/// # Errors
/// As [`registered`].
pub fn registered_with<B: MetricVecBuilder + 'static, const LABELS: usize>(
    registry: &Registry,
    metrics: MetricVec<B>,
    values: impl IntoIterator<Item = [&'static str; LABELS]>,
) -> Result<MetricVec<B>, prometheus::Error> {
    for values in values {
        metrics.with_label_values(&values);
    }
    registered(registry, metrics)
}

/// Response of `/metrics`.
pub fn answer(registry: &Registry) -> Answer {
    let mut text = Vec::new();
    match TextEncoder::new().encode(&registry.gather(), &mut text) {
        Ok(()) => answer::whole(StatusCode::OK, TEXT_FORMAT, text.into()),
        Err(error) => answer::text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// The route `/metrics`. `before` runs at each scrape, to update metrics that are computed on demand.
pub fn route(registry: Registry, before: impl Fn() + Clone + Send + Sync) -> impl Filter<Extract = (Answer,), Error = Rejection> + Clone {
    get_or_head().and(warp::path!("metrics")).map(move || {
        before();
        answer(&registry)
    })
}

#[cfg(test)]
mod tests {
    use sahasra_contract::metrics::problems;

    use super::*;

    #[test]
    fn every_process_exports_its_version_and_resource_usage() {
        let registry = registry("test").unwrap();
        let process = ["process_resident_memory_bytes", "process_open_fds", "process_cpu_seconds_total"];
        assert_eq!(problems(&registry, &[&["sahasra_test_build_info"][..], &process].concat()), [""; 0]);
        let text = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        let build = format!("sahasra_test_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"));
        assert!(text.contains(&build), "{text}");
    }
}
