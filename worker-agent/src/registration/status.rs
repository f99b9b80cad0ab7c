//! Desired status of a `GpuWorker`.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use sahasra_crds::{
    conditions,
    gpu_worker::{DeviceHealth, DeviceStatus, GpuWorkerStatus, WorkerSummary},
};
use sahasra_ledger::SHUTDOWN_MESSAGE;
use sahasra_names::Engine;

use crate::agent::Agent;

/// Condition reason of an agent that accepts no more work and sends no more heartbeats.
pub(super) const SHUTTING_DOWN: &str = "ShuttingDown";

fn mebibytes(bytes: u64) -> i64 {
    i64::try_from(bytes >> 20).unwrap_or(i64::MAX)
}

/// Returns the desired status. `conditions` are the stored ones, whose transition times are kept.
pub(super) fn desired(
    agent: &Agent,
    endpoint: &str,
    mut conditions: Vec<Condition>,
    shutting_down: bool,
    now: Timestamp,
) -> GpuWorkerStatus {
    let inventory = agent.load();
    let devices: Vec<DeviceStatus> = inventory
        .devices
        .iter()
        .map(|device| DeviceStatus {
            name: device.name.clone(),
            model: device.model.chars().take(128).collect(),
            class: device.class.clone(),
            total_mib: mebibytes(device.total_bytes),
            allocatable_mib: mebibytes(device.allocatable_bytes),
            leased_mib: mebibytes(device.leased_bytes),
            active_executions: device.active_executions as i64,
            tensor_count: device.tensor_count as i64,
            stored_tensor_bytes: device.stored_tensor_bytes as i64,
            health: if device.healthy {
                DeviceHealth::Healthy
            } else {
                DeviceHealth::Unhealthy
            },
            engines: engines(agent, &device.name),
        })
        .collect();
    let mut classes: Vec<&str> = devices.iter().map(|device| device.class.as_str()).collect();
    classes.sort_unstable();
    classes.dedup();
    let sum = |figure: fn(&DeviceStatus) -> i64| devices.iter().map(figure).sum();
    let summary = WorkerSummary {
        classes: classes.join(",").chars().take(256).collect(),
        devices: devices.len() as i64,
        allocatable_mib: sum(|device| device.allocatable_mib),
        leased_mib: sum(|device| device.leased_mib),
        active_executions: sum(|device| device.active_executions),
        tensor_count: sum(|device| device.tensor_count),
        stored_tensor_bytes: sum(|device| device.stored_tensor_bytes),
    };
    let (ready, reason, message) = if shutting_down || inventory.shutting_down {
        (false, SHUTTING_DOWN, SHUTDOWN_MESSAGE)
    } else {
        (true, "Serving", "the agent accepts work")
    };
    conditions::set(&mut conditions, conditions::READY, ready, reason, message, None, now);
    GpuWorkerStatus {
        conditions,
        endpoint: Some(endpoint.to_owned()),
        boot_id: Some(agent.parts.boot_id.to_string()),
        version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        devices,
        summary: Some(summary),
    }
}

fn engines(agent: &Agent, device: &str) -> Vec<Engine> {
    let device = agent.parts.pool.device(device);
    device.map_or_else(Vec::new, |device| agent.sessions.launcher.engines(device.kind))
}
