//! The metrics of the operator, as `/metrics` serves them. Label values are a fixed set and never contain names of objects. Every counter
//! exists from the start with every value of its labels, because a rate over a counter that appears with its first event misses that event.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use prometheus::{GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use sahasra_service::metrics::{registered, registered_with};
use sahasra_wire::burst::FailureCode;

use crate::{agents::STATUSES, objects::integer};

mod snapshot;

const KINDS: [&str; 4] = ["BurstJob", "GpuSession", "GpuWorker", "VramLease"];
/// Error categories of reconciles whose counters exist from the start. Rarer ones appear with their first error.
const CATEGORIES: [&str; 3] = ["api", "conflict", "agent"];

/// All metrics, registered once. Shared behind an `Arc`.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    leases_active: IntGauge,
    leases_peak: IntGauge,
    leases_granted: IntCounter,
    leases_released: IntCounter,
    vram_allocated: IntGauge,
    pub submitted: IntCounter,
    submit_errors: IntCounterVec,
    pub chunks_done: IntCounter,
    /// Chunks of [`Metrics::chunks_done`] that succeeded. Not served, but read by `sahasra run`.
    pub chunks_succeeded: AtomicU64,
    /// Chunks of [`Metrics::chunks_done`] that failed. Not served, but read by `sahasra run`.
    pub chunks_failed: AtomicU64,
    pub chunks_retried: IntCounter,
    reconcile_duration: HistogramVec,
    reconcile_errors: IntCounterVec,
    pub leader: IntGauge,
    pub leader_transitions: IntCounter,
    workers: IntGaugeVec,
    claims_waiting: IntGaugeVec,
    claims_oldest: GaugeVec,
    bursts: IntGaugeVec,
    sessions: IntGaugeVec,
    peak_since_scrape: AtomicI64,
}

impl Metrics {
    /// Creates all metrics in a registry of their own. Fails if a metric cannot be registered.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = sahasra_service::metrics::registry("operator")?;
        let gauge = |name: &str, help: &str| registered(&registry, IntGauge::new(name, help)?);
        let counter = |name: &str, help: &str| registered(&registry, IntCounter::new(name, help)?);
        let gauges = |name: &str, help: &str, label: &str, values: &[&'static str]| {
            registered_with(
                &registry,
                IntGaugeVec::new(Opts::new(name, help), &[label])?,
                values.iter().map(|value| [*value]),
            )
        };
        let buckets = HistogramOpts::new("sahasra_operator_reconcile_duration_seconds", "Duration of a reconcile, by kind.")
            .buckets(vec![0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]);
        let errors = Opts::new(
            "sahasra_operator_reconcile_errors_total",
            "Reconciles that failed, by kind and category.",
        );
        let categories = KINDS.into_iter().flat_map(|kind| CATEGORIES.map(|category| [kind, category]));
        let oldest = Opts::new(
            "sahasra_operator_oldest_pending_claim_age_seconds",
            "Age of the claim that has waited longest for its minimum of slices, by kind of its owner; 0 if none waits.",
        );
        let submit_errors = Opts::new("gpu_submit_errors", "Failed attempts, by code.");
        let codes = FailureCode::all().map(|code| [code.label()]);
        Ok(Self {
            reconcile_duration: registered_with(&registry, HistogramVec::new(buckets, &["kind"])?, KINDS.map(|kind| [kind]))?,
            reconcile_errors: registered_with(&registry, IntCounterVec::new(errors, &["kind", "category"])?, categories)?,
            claims_oldest: registered_with(
                &registry,
                GaugeVec::new(oldest, &["kind"])?,
                snapshot::CLAIM_KINDS.map(|kind| [kind]),
            )?,
            leases_active: gauge("gpu_leases_active", "Slices of VRAM held.")?,
            leases_peak: gauge(
                "sahasra_operator_slices_active_peak",
                "Maximum of slices of VRAM held since the last scrape.",
            )?,
            leases_granted: counter("sahasra_operator_slices_granted_total", "Slices granted by agents.")?,
            leases_released: counter("sahasra_operator_slices_released_total", "Slices released, expired or lost.")?,
            vram_allocated: gauge("gpu_vram_allocated_bytes", "Bytes of VRAM held.")?,
            submitted: counter("gpu_submit_total", "Chunks sent to agents, including retries.")?,
            submit_errors: registered_with(&registry, IntCounterVec::new(submit_errors, &["code"])?, codes)?,
            chunks_done: counter("chunks_done", "Chunks that succeeded or failed permanently.")?,
            chunks_succeeded: AtomicU64::new(0),
            chunks_failed: AtomicU64::new(0),
            chunks_retried: counter("chunks_retry_total", "Attempts after the first.")?,
            leader: gauge("sahasra_operator_leader", "1 while this operator leads, else 0.")?,
            leader_transitions: counter(
                "sahasra_operator_leader_transitions_total",
                "Changes of leadership, as the Lease counts them; 0 before this operator leads.",
            )?,
            workers: gauges("sahasra_workers", "Workers, by status as in /workers.", "status", &STATUSES)?,
            claims_waiting: gauges(
                "sahasra_operator_pending_claims",
                "Claims that wait for their minimum of slices, by kind of their owner.",
                "kind",
                &snapshot::CLAIM_KINDS,
            )?,
            bursts: gauges("sahasra_burst_jobs", "BurstJobs, by state.", "state", &snapshot::BURST_STATES)?,
            sessions: gauges("sahasra_gpu_sessions", "GpuSessions, by state.", "state", &snapshot::SESSION_STATES)?,
            peak_since_scrape: AtomicI64::new(0),
            registry,
        })
    }

    pub fn registry(&self) -> Registry {
        self.registry.clone()
    }

    pub fn slices_held(&self) -> u64 {
        u64::try_from(self.leases_active.get()).unwrap_or_default()
    }

    /// Counts `slices` of `slice_bytes` each as granted and held.
    pub fn granted(&self, slices: u64, slice_bytes: u64) {
        let (slices_gauge, bytes) = (integer(slices), integer(slices.saturating_mul(slice_bytes)));
        self.leases_granted.inc_by(slices);
        self.leases_active.add(slices_gauge);
        self.vram_allocated.add(bytes);
        self.peak_since_scrape.fetch_max(self.leases_active.get(), Ordering::Relaxed);
    }

    /// Counts `slices` of `slice_bytes` each as released and no longer held.
    pub fn released(&self, slices: u64, slice_bytes: u64) {
        self.leases_released.inc_by(slices);
        self.leases_active.sub(integer(slices));
        self.vram_allocated.sub(integer(slices.saturating_mul(slice_bytes)));
    }

    pub fn submit_failed(&self, code: &'static str, attempts: u64) {
        self.submit_errors.with_label_values(&[code]).inc_by(attempts);
    }

    /// Counts chunks as succeeded and as permanently failed.
    pub fn chunks_counted(&self, succeeded: u64, failed: u64) {
        self.chunks_succeeded.fetch_add(succeeded, Ordering::Relaxed);
        self.chunks_failed.fetch_add(failed, Ordering::Relaxed);
        self.chunks_done.inc_by(succeeded + failed);
    }

    pub fn reconciled(&self, kind: &'static str, duration: std::time::Duration) {
        self.reconcile_duration.with_label_values(&[kind]).observe(duration.as_secs_f64());
    }

    pub fn reconcile_failed(&self, kind: &'static str, category: &'static str) {
        self.reconcile_errors.with_label_values(&[kind, category]).inc();
    }

    /// Called at each scrape. Sets the peak to the maximum since the previous scrape, and resets the maximum.
    fn before_scrape(&self) {
        let now = self.leases_active.get();
        self.leases_peak.set(self.peak_since_scrape.swap(now, Ordering::Relaxed).max(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_that_since_the_last_scrape() {
        let metrics = Metrics::new().unwrap();
        metrics.granted(1000, 2);
        metrics.released(1000, 2);
        metrics.before_scrape();
        assert_eq!((metrics.leases_active.get(), metrics.leases_peak.get()), (0, 1000));
        metrics.granted(3, 2);
        metrics.before_scrape();
        metrics.before_scrape();
        assert_eq!((metrics.leases_peak.get(), metrics.vram_allocated.get()), (3, 6));
    }
    #[test]
    fn metrics_are_as_prometheus_wants_them_and_there_from_the_start() {
        let metrics = Metrics::new().unwrap();
        let expected = [
            "sahasra_operator_reconcile_errors_total",
            "gpu_submit_errors",
            "chunks_done",
            "sahasra_operator_leader",
            "sahasra_workers",
            "sahasra_operator_pending_claims",
            "sahasra_operator_oldest_pending_claim_age_seconds",
            "sahasra_burst_jobs",
            "sahasra_gpu_sessions",
            "process_resident_memory_bytes",
        ];
        assert_eq!(sahasra_contract::metrics::problems(&metrics.registry, &expected), [""; 0]);
    }

    #[test]
    fn the_guide_has_every_metric_and_no_other() {
        const PAGE: &str = include_str!("../../docs/guide/operating.md");
        let shown = Metrics::new().unwrap();
        let requests = sahasra_service::api_requests::ApiRequests::new("operator").unwrap();
        requests.register(&shown.registry).unwrap();
        assert_eq!(sahasra_contract::metrics::undocumented(&shown.registry, PAGE, "Operator"), [""; 0]);
    }
}
