//! Prometheus metrics of an agent. Every counter exists from the start, with every value of its label.

use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry};
use sahasra_executor_protocol::session::status_page::Stats;
use sahasra_ledger::{Load, Totals};
use sahasra_service::metrics::{registered, registered_with};
use sahasra_wire::{burst::FailureCode, grants::RejectionCode};

use crate::burst_executors::DeviceLoad;

/// Value of the label `outcome` for chunks that succeeded.
pub(crate) const SUCCEEDED: &str = "Succeeded";

/// Counters and gauges of an agent. Clones share the same values.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    leases_active: IntGauge,
    slices_in_use: IntGauge,
    leases_granted: IntCounter,
    leases_released: IntCounter,
    grants_expired: IntCounter,
    vram_allocated: IntGauge,
    vram_allocatable: IntGauge,
    active_executions: IntGauge,
    executors: IntGauge,
    namespaces_waiting: IntGauge,
    executors_lost: IntCounter,
    chunks: IntCounterVec,
    refusals: IntCounterVec,
    sessions: IntGauge,
    sessions_connected: IntGauge,
    session_received: IntCounter,
    session_sent: IntCounter,
}

impl Metrics {
    /// Creates the metrics in a new registry.
    ///
    /// # Errors
    /// Never in practice, because all names are distinct constants.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = sahasra_service::metrics::registry("agent")?;
        let gauge = |name: &str, help: &str| registered(&registry, IntGauge::new(name, help)?);
        let counter = |name: &str, help: &str| registered(&registry, IntCounter::new(name, help)?);
        let counters = |name: &str, help: &str, label: &str, values: &mut dyn Iterator<Item = &'static str>| {
            let counters = IntCounterVec::new(Opts::new(name, help), &[label])?;
            registered_with(&registry, counters, values.map(|value| [value]))
        };
        Ok(Self {
            leases_active: gauge("sahasra_agent_slices_allocated", "Slices granted, including draining ones")?,
            slices_in_use: gauge("sahasra_agent_slices_in_use", "Slices on which an executor may run a chunk")?,
            leases_granted: counter("sahasra_agent_slices_granted_total", "Slices granted")?,
            leases_released: counter("sahasra_agent_slices_freed_total", "Slices that became free again for any reason")?,
            grants_expired: counter("sahasra_agent_grants_expired_total", "Grants that ended by expiry")?,
            vram_allocated: gauge("sahasra_agent_vram_allocated_bytes", "VRAM granted, including draining slices")?,
            vram_allocatable: gauge("sahasra_agent_vram_allocatable_bytes", "Allocatable VRAM")?,
            active_executions: gauge("sahasra_agent_chunks_running", "Running chunks")?,
            executors: gauge("sahasra_agent_executors", "Executor processes")?,
            namespaces_waiting: gauge(
                "sahasra_agent_pending_namespaces",
                "Namespaces with chunks that wait for their turn on a device",
            )?,
            executors_lost: counter(
                "sahasra_agent_executors_lost_total",
                "Executor processes that crashed, hung or ended themselves after an error",
            )?,
            chunks: counters(
                "sahasra_agent_chunks_total",
                "Finished chunks, by outcome",
                "outcome",
                &mut std::iter::once(SUCCEEDED).chain(FailureCode::all().map(|code| code.label())),
            )?,
            refusals: counters(
                "sahasra_agent_acquire_rejections_total",
                "Rejected requests for slices, by code",
                "code",
                &mut RejectionCode::all().map(|code| code.label()),
            )?,
            sessions: gauge("sahasra_agent_sessions", "Sessions with a slice")?,
            sessions_connected: gauge("sahasra_agent_sessions_connected", "Sessions with a connected client")?,
            session_received: counter(
                "sahasra_agent_session_receive_bytes_total",
                "Bytes of sessions' streams received, as executors count them",
            )?,
            session_sent: counter(
                "sahasra_agent_session_transmit_bytes_total",
                "Bytes of sessions' streams sent, as executors count them",
            )?,
            registry,
        })
    }

    pub fn registry(&self) -> Registry {
        self.registry.clone()
    }

    pub(crate) fn chunks(&self, outcome: &'static str, count: u64) {
        self.chunks.with_label_values(&[outcome]).inc_by(count);
    }

    pub(crate) fn refused(&self, code: RejectionCode) {
        self.refusals.with_label_values(&[code.label()]).inc();
    }

    /// Sets the gauges, and advances the counters, to values observed at a scrape.
    /// `load` is the sum over all devices, `totals` counts since the agent started, `devices` has the load of the executors of each device,
    /// and `sessions` the number of sessions that hold a slice, of those with a connected client, and the sum of their statistics.
    pub(crate) fn observe(&self, load: &Load, totals: &Totals, devices: &[DeviceLoad], sessions: &(usize, usize, Stats)) {
        self.leases_active.set(load.slices as i64);
        self.slices_in_use.set(load.slices_in_use as i64);
        self.vram_allocated.set(load.leased_bytes as i64);
        self.vram_allocatable.set(load.allocatable_bytes as i64);
        let advance = |counter: &IntCounter, total: u64| counter.inc_by(total.saturating_sub(counter.get()));
        advance(&self.leases_granted, totals.granted_slices);
        advance(&self.leases_released, totals.freed_slices);
        advance(&self.grants_expired, totals.expired_grants);
        self.active_executions
            .set(devices.iter().map(|load| load.active_executions as i64).sum());
        self.executors.set(devices.iter().map(|load| i64::from(load.executors)).sum());
        self.namespaces_waiting
            .set(devices.iter().map(|load| i64::from(load.waiting)).sum());
        advance(&self.executors_lost, devices.iter().map(|load| load.lost_executors).sum());
        let (sessions, connected, stats) = sessions;
        self.sessions.set(*sessions as i64);
        self.sessions_connected.set(*connected as i64);
        advance(&self.session_received, stats.received_bytes);
        advance(&self.session_sent, stats.sent_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_as_prometheus_wants_them_and_there_from_the_start() {
        let metrics = Metrics::new().expect("distinct names");
        let expected = [
            "sahasra_agent_chunks_total",
            "sahasra_agent_acquire_rejections_total",
            "process_resident_memory_bytes",
        ];
        assert_eq!(sahasra_contract::metrics::problems(&metrics.registry, &expected), [""; 0]);
        for (name, values) in [
            ("sahasra_agent_chunks_total", 1 + FailureCode::all().count()),
            ("sahasra_agent_acquire_rejections_total", 8),
        ] {
            let families = metrics.registry.gather();
            let family = families.iter().find(|family| family.name() == name);
            assert_eq!(family.map(|family| family.get_metric().len()), Some(values), "{name}");
        }
    }

    #[test]
    fn the_guide_has_every_metric_and_no_other() {
        const PAGE: &str = include_str!("../../docs/guide/operating.md");
        let shown = Metrics::new().expect("distinct names");
        let requests = sahasra_service::api_requests::ApiRequests::new("agent").expect("a name");
        requests.register(&shown.registry).expect("another name");
        assert_eq!(sahasra_contract::metrics::undocumented(&shown.registry, PAGE, "Agent"), [""; 0]);
    }
}
