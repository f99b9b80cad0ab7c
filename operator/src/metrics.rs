//! What `/metrics` shows. Labels are fixed words: never names of objects.

use std::sync::atomic::{AtomicI64, Ordering};

use prometheus::{HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry};
use sahasra_wire::burst::FailureCode;

/// Every figure, registered once. Shared behind an `Arc`.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    leases_active: IntGauge,
    leases_peak: IntGauge,
    leases_granted: IntCounter,
    leases_released: IntCounter,
    vram_allocated: IntGauge,
    /// Chunks handed to agents, retries included.
    pub submitted: IntCounter,
    submit_errors: IntCounterVec,
    /// Chunks counted as succeeded or failed for good.
    pub chunks_done: IntCounter,
    /// Attempts beyond the first.
    pub chunks_retried: IntCounter,
    reconcile_duration: HistogramVec,
    reconcile_errors: IntCounterVec,
    peak_since_scrape: AtomicI64,
}

impl Metrics {
    /// Registers everything in a registry of its own.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let labels = |name: &str, help: &str| Opts::new(name, help);
        let metrics = Self {
            leases_active: IntGauge::new("gpu_leases_active", "Slices of VRAM held now.")?,
            leases_peak: IntGauge::new("gpu_leases_active_peak", "Most slices of VRAM held at once since the last scrape.")?,
            leases_granted: IntCounter::new("gpu_leases_granted_total", "Slices granted by agents.")?,
            leases_released: IntCounter::new("gpu_leases_released_total", "Slices given back, expired or lost.")?,
            vram_allocated: IntGauge::new("gpu_vram_allocated_bytes", "Bytes of VRAM held now.")?,
            submitted: IntCounter::new("gpu_submit_total", "Chunks handed to agents, retries included.")?,
            submit_errors: IntCounterVec::new(labels("gpu_submit_errors", "Attempts that failed, by code."), &["code"])?,
            chunks_done: IntCounter::new("chunks_done", "Chunks counted as succeeded or failed for good.")?,
            chunks_retried: IntCounter::new("chunks_retry_total", "Attempts beyond the first.")?,
            reconcile_duration: HistogramVec::new(
                HistogramOpts::new("reconcile_duration_seconds", "Duration of a reconcile, by kind.")
                    .buckets(vec![0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]),
                &["kind"],
            )?,
            reconcile_errors: IntCounterVec::new(
                labels("reconcile_errors_total", "Reconciles that failed, by kind and category."),
                &["kind", "category"],
            )?,
            peak_since_scrape: AtomicI64::new(0),
            registry,
        };
        for code in (0..=FailureCode::Unsupported as i32).filter_map(|code| FailureCode::try_from(code).ok()) {
            // Shown from the start: a rate over a figure that appears with its first event misses that event.
            metrics.submit_errors.with_label_values(&[code.label()]);
        }
        let collectors: [Box<dyn prometheus::core::Collector>; 11] = [
            Box::new(metrics.leases_active.clone()),
            Box::new(metrics.leases_peak.clone()),
            Box::new(metrics.leases_granted.clone()),
            Box::new(metrics.leases_released.clone()),
            Box::new(metrics.vram_allocated.clone()),
            Box::new(metrics.submitted.clone()),
            Box::new(metrics.submit_errors.clone()),
            Box::new(metrics.chunks_done.clone()),
            Box::new(metrics.chunks_retried.clone()),
            Box::new(metrics.reconcile_duration.clone()),
            Box::new(metrics.reconcile_errors.clone()),
        ];
        for collector in collectors {
            metrics.registry.register(collector)?;
        }
        Ok(metrics)
    }

    /// The registry, for the route.
    pub fn registry(&self) -> Registry {
        self.registry.clone()
    }

    /// Slices held now.
    pub fn slices_held(&self) -> u64 {
        u64::try_from(self.leases_active.get()).unwrap_or_default()
    }

    /// `slices` of `slice_bytes` each are held from now on.
    pub fn granted(&self, slices: u64, slice_bytes: u64) {
        let (slices_gauge, bytes) = (signed(slices), signed(slices.saturating_mul(slice_bytes)));
        self.leases_granted.inc_by(slices);
        self.leases_active.add(slices_gauge);
        self.vram_allocated.add(bytes);
        self.peak_since_scrape.fetch_max(self.leases_active.get(), Ordering::Relaxed);
    }

    /// `slices` of `slice_bytes` each are no longer held.
    pub fn released(&self, slices: u64, slice_bytes: u64) {
        self.leases_released.inc_by(slices);
        self.leases_active.sub(signed(slices));
        self.vram_allocated.sub(signed(slices.saturating_mul(slice_bytes)));
    }

    /// Attempts failed with that code.
    pub fn submit_failed(&self, code: &'static str, attempts: u64) {
        self.submit_errors.with_label_values(&[code]).inc_by(attempts);
    }

    /// A reconcile of `kind` took so long.
    pub fn reconciled(&self, kind: &'static str, duration: std::time::Duration) {
        self.reconcile_duration.with_label_values(&[kind]).observe(duration.as_secs_f64());
    }

    /// A reconcile of `kind` failed.
    pub fn reconcile_failed(&self, kind: &'static str, category: &'static str) {
        self.reconcile_errors.with_label_values(&[kind, category]).inc();
    }

    /// Called at each scrape: shows the peak since the one before and begins anew.
    pub fn before_scrape(&self) {
        let now = self.leases_active.get();
        self.leases_peak.set(self.peak_since_scrape.swap(now, Ordering::Relaxed).max(now));
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
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
}
