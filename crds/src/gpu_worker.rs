//! `GpuWorker`: one worker-agent on one node, made and kept by the agent itself.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use sahasra_names::{Engine, MAX_LABEL_LENGTH, MAX_SUBDOMAIN_LENGTH};
use serde::{Deserialize, Deserializer, Serialize};
use serde_with::skip_serializing_none;

/// Specification of a worker: the node that it serves.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "sahasra.dev",
    version = "v1alpha1",
    kind = "GpuWorker",
    plural = "gpuworkers",
    shortname = "gw",
    category = "all",
    category = "sahasra",
    status = "GpuWorkerStatus",
    derive = "PartialEq",
    doc = "GpuWorker represents the agent of a node, and the devices of which it grants memory.",
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Class", type_ = "string", json_path = ".status.summary.classes"),
    printcolumn(name = "Devices", type_ = "integer", json_path = ".status.summary.devices"),
    printcolumn(name = "VRAM(MiB)", type_ = "integer", json_path = ".status.summary.allocatableMiB"),
    printcolumn(name = "Leased", type_ = "integer", json_path = ".status.summary.leasedMiB"),
    printcolumn(name = "Active", type_ = "integer", json_path = ".status.summary.activeExecutions"),
    printcolumn(name = "Tensors", type_ = "integer", json_path = ".status.summary.tensorCount"),
    printcolumn(
        name = "Reason",
        type_ = "string",
        priority = 1,
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason"
    ),
    printcolumn(name = "Endpoint", type_ = "string", priority = 1, json_path = ".status.endpoint"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = crate::rules::immutable("nodeName", "GpuWorker"))]
pub struct GpuWorkerSpec {
    /// Name of the Node that the agent serves.
    #[schemars(length(min = 1, max = MAX_SUBDOMAIN_LENGTH))]
    pub node_name: String,
}

/// Status of a worker, as its agent reports it: at most every 5 s, and only after a change.
#[serde_with::apply(Vec<_> => #[serde(default, skip_serializing_if = "Vec::is_empty")])]
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct GpuWorkerStatus {
    /// Conditions of type `Ready`. The agent sets it to `True` or `False`; the operator sets it to `False` if the heartbeat is not renewed.
    #[schemars(schema_with = "crate::conditions::schema")]
    pub conditions: Vec<Condition>,
    /// URL at which the operator reaches the agent.
    #[schemars(length(max = 512))]
    pub endpoint: Option<String>,
    /// Identifier of one run of the agent. Grants of an earlier run are invalid.
    #[schemars(length(max = 64))]
    pub boot_id: Option<String>,
    /// Version of the agent.
    #[schemars(length(max = 64))]
    pub version: Option<String>,
    /// Devices of the node, in the agent's order.
    #[schemars(length(max = 64))]
    pub devices: Vec<DeviceStatus>,
    /// Sums over the devices, for the columns of `kubectl get`.
    pub summary: Option<WorkerSummary>,
}

/// One device and its load.
#[serde_with::apply(i64 => #[schemars(range(min = 0))])]
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct DeviceStatus {
    /// Name of the device, unique on the worker, such as `gpu0` or `cpu0`.
    #[schemars(length(min = 1, max = MAX_LABEL_LENGTH))]
    pub name: String,
    /// Model that the driver reports.
    #[schemars(length(max = 128))]
    pub model: String,
    /// Class of the device, from the agent's configuration.
    #[schemars(length(max = MAX_LABEL_LENGTH))]
    pub class: String,
    /// Total memory of the device, in MiB.
    #[serde(rename = "totalMiB")]
    pub total_mib: i64,
    /// Memory that the agent can grant, in MiB.
    #[serde(rename = "allocatableMiB")]
    pub allocatable_mib: i64,
    /// Granted memory, including that of draining grants, in MiB.
    #[serde(rename = "leasedMiB")]
    pub leased_mib: i64,
    /// Number of kernels and programs that are running.
    pub active_executions: i64,
    /// Number of tensors that sessions store on the device.
    pub tensor_count: i64,
    /// Total size of the stored tensors, in bytes.
    pub stored_tensor_bytes: i64,
    /// Health of the device. Nothing is placed on an `Unhealthy` device.
    pub health: DeviceHealth,
    /// Engines that the device supports.
    #[serde(deserialize_with = "known_engines")]
    #[schemars(with = "Vec<String>", length(max = 8), inner(length(max = 16)))]
    pub engines: Vec<Engine>,
}

/// Reads the engines that this version knows: a worker of a newer version may have others.
fn known_engines<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Engine>, D::Error> {
    let names = Vec::<String>::deserialize(deserializer)?;
    Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
}

/// Health of a device.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceHealth {
    /// The device responds.
    #[default]
    Healthy,
    /// The device reported an error that requires a reset or a replacement. Nothing new is placed on it.
    Unhealthy,
}

/// Sums over a worker's devices.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct WorkerSummary {
    /// Distinct classes of the devices, separated by commas.
    #[schemars(length(max = 256))]
    pub classes: String,
    /// Number of devices.
    pub devices: i64,
    /// Memory that the agent can grant, in MiB.
    #[serde(rename = "allocatableMiB")]
    pub allocatable_mib: i64,
    /// Granted memory, including that of draining grants, in MiB.
    #[serde(rename = "leasedMiB")]
    pub leased_mib: i64,
    /// Number of kernels and programs that are running.
    pub active_executions: i64,
    /// Number of stored tensors.
    pub tensor_count: i64,
    /// Total size of the stored tensors, in bytes.
    pub stored_tensor_bytes: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_of_a_newer_worker_is_left_out() {
        let mut device = serde_json::to_value(DeviceStatus::default()).expect("JSON");
        device["engines"] = serde_json::json!(["ptx", "later"]);
        let device: DeviceStatus = serde_json::from_value(device).expect("it is read");
        assert_eq!(device.engines, [Engine::Ptx]);
    }
}
