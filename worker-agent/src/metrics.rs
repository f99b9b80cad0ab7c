//! What `/metrics` shows of an agent.

use std::sync::Arc;

use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry};
use sahasra_wire::grants::RefusalCode;

use crate::{agent::Agent, session::process::Process};

/// Counters and gauges. Clones share them.
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
    executors_lost: IntCounter,
    chunks: IntCounterVec,
    refusals: IntCounterVec,
    sessions: IntGauge,
    sessions_connected: IntGauge,
    session_received: IntCounter,
    session_sent: IntCounter,
}

impl Metrics {
    /// Metrics in a registry of their own.
    ///
    /// # Errors
    /// Never in practice: names are constants and distinct.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let gauge = |name: &str, help: &str| {
            let gauge = IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        let counter = |name: &str, help: &str| {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let counters = |name: &str, help: &str, label: &str| {
            let counters = IntCounterVec::new(Opts::new(name, help), &[label])?;
            registry.register(Box::new(counters.clone()))?;
            Ok::<_, prometheus::Error>(counters)
        };
        Ok(Self {
            leases_active: gauge("gpu_leases_active", "Slices lent, draining ones included")?,
            slices_in_use: gauge("gpu_slices_in_use", "Slices on which an executor may run a chunk")?,
            leases_granted: counter("gpu_leases_granted_total", "Slices granted")?,
            leases_released: counter("gpu_leases_released_total", "Slices that became free again, whatever ended them")?,
            grants_expired: counter("gpu_grants_expired_total", "Grants that ended by expiry")?,
            vram_allocated: gauge("gpu_vram_allocated_bytes", "VRAM lent, draining slices included")?,
            vram_allocatable: gauge("gpu_vram_allocatable_bytes", "VRAM that may be lent")?,
            active_executions: gauge("gpu_active_executions", "Chunks running")?,
            executors: gauge("gpu_executors", "Executor processes alive")?,
            executors_lost: counter(
                "gpu_executors_lost_total",
                "Executor processes that crashed, hung or gave themselves up",
            )?,
            chunks: counters("gpu_chunks_total", "Chunks that ended, by outcome", "outcome")?,
            refusals: counters(
                "gpu_acquire_refusals_total",
                "Requests for slices that were refused, by cause",
                "code",
            )?,
            sessions: gauge("gpu_sessions", "Sessions that hold a slice here")?,
            sessions_connected: gauge("gpu_sessions_connected", "Sessions with a client connected")?,
            session_received: counter(
                "gpu_session_received_bytes_total",
                "Bytes of sessions' streams received, as executors count them",
            )?,
            session_sent: counter(
                "gpu_session_sent_bytes_total",
                "Bytes of sessions' streams sent, as executors count them",
            )?,
            registry,
        })
    }

    /// Where they are registered.
    pub fn registry(&self) -> Registry {
        self.registry.clone()
    }

    /// Chunks ended with that outcome.
    pub(crate) fn chunks(&self, outcome: &'static str, count: u64) {
        self.chunks.with_label_values(&[outcome]).inc_by(count);
    }

    /// A request for slices was refused.
    pub(crate) fn refused(&self, code: RefusalCode) {
        self.refusals.with_label_values(&[code.label()]).inc();
    }

    /// Reads the figures that are computed when scraped.
    pub fn observe(&self, agent: &Agent) {
        let (load, totals) = agent.totals();
        self.leases_active.set(load.slices as i64);
        self.slices_in_use.set(load.slices_in_use as i64);
        self.vram_allocated.set(load.leased_bytes as i64);
        self.vram_allocatable.set(load.allocatable_bytes as i64);
        let advance = |counter: &IntCounter, total: u64| counter.inc_by(total.saturating_sub(counter.get()));
        advance(&self.leases_granted, totals.granted_slices);
        advance(&self.leases_released, totals.freed_slices);
        advance(&self.grants_expired, totals.expired_grants);
        let devices = agent.pool().devices().iter();
        let loads: Vec<_> = devices.filter_map(|device| agent.pool().load(&device.name)).collect();
        self.active_executions
            .set(loads.iter().map(|load| load.active_executions as i64).sum());
        self.executors.set(loads.iter().map(|load| i64::from(load.executors)).sum());
        let sessions = agent.sessions().all();
        self.sessions.set(sessions.len() as i64);
        let connected = |process: Arc<Process>| process.board().figures().connected;
        let connected = sessions.iter().filter(|session| session.process().is_some_and(connected));
        self.sessions_connected.set(connected.count() as i64);
        let (received, sent) = agent.sessions().stream_bytes();
        advance(&self.session_received, received);
        advance(&self.session_sent, sent);
        advance(&self.executors_lost, loads.iter().map(|load| load.lost_executors).sum());
    }
}
