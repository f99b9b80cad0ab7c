//! `GpuSession`: a client bound to one device; its tensors live there until it closes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use sahasra_names::{Engine, MAX_LABEL_LENGTH, MAX_SUBDOMAIN_LENGTH};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::{
    VramQuantity, number,
    rules::{class_name, immutable},
};

/// Shortest lifetime of a session in seconds.
pub(crate) const MIN_SESSION_SECONDS: u32 = 10;
/// Default lifetime of a session in seconds: one working day.
const DEFAULT_SESSION_SECONDS: i64 = 28_800;
/// Longest lifetime of a session in seconds: 30 days.
pub(crate) const MAX_SESSION_SECONDS: u32 = 2_592_000;
/// Time in seconds without a client or an operation after which a session ends by default.
pub const DEFAULT_IDLE_SECONDS: i64 = 1_800;
/// Longest time in seconds without a client or an operation: one week.
const MAX_IDLE_SECONDS: u32 = 604_800;

/// Specification of a session: the requested VRAM and its lifetime.
#[skip_serializing_none]
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "sahasra.dev",
    version = "v1alpha1",
    kind = "GpuSession",
    plural = "gpusessions",
    namespaced,
    shortname = "gs",
    category = "all",
    category = "sahasra",
    status = "GpuSessionStatus",
    derive = "PartialEq",
    doc = "GpuSession represents a client that is bound to one device through one lease. Its tensors are stored on the device until the session ends.",
    printcolumn(name = "Class", type_ = "string", json_path = ".spec.class"),
    printcolumn(name = "Worker", type_ = "string", json_path = ".status.worker"),
    printcolumn(name = "GPU", type_ = "string", json_path = ".status.device"),
    printcolumn(name = "VRAM", type_ = "string", json_path = ".spec.vram"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Active", type_ = "integer", json_path = ".status.activeExecutions"),
    printcolumn(name = "Tensors", type_ = "integer", json_path = ".status.tensorCount"),
    printcolumn(name = "Bytes", type_ = "integer", json_path = ".status.storedTensorBytes"),
    printcolumn(
        name = "Program",
        type_ = "string",
        json_path = ".metadata.annotations.sahasra\\.dev/program",
        priority = 1
    ),
    printcolumn(
        name = "Host",
        type_ = "string",
        json_path = ".metadata.annotations.sahasra\\.dev/host",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = immutable("class", "GpuSession"))]
#[x_kube(validation = immutable("vram", "GpuSession"))]
#[x_kube(validation = immutable("engine", "GpuSession"))]
#[x_kube(validation = Rule::new("self.idleTimeoutSeconds <= self.ttlSeconds").message("idleTimeoutSeconds must not exceed ttlSeconds: lower it or raise ttlSeconds").field_path(".idleTimeoutSeconds"))]
pub struct GpuSessionSpec {
    /// Class of the device, such as `g5`. If not specified, a device of any class is used.
    #[schemars(length(min = 1, max = MAX_LABEL_LENGTH))]
    #[x_kube(validation = class_name())]
    pub class: Option<String>,
    /// Maximum VRAM of the session, such as `512Mi`.
    pub vram: VramQuantity,
    /// Engine that runs the session's programs.
    #[serde(default)]
    #[schemars(description = engine_description())]
    pub engine: Engine,
    /// Time without a client or an operation after which the session ends, in seconds.
    // 30 minutes: a lunch break does not end the work, a forgotten notebook does not hold a GPU overnight.
    #[serde(default = "number::<DEFAULT_IDLE_SECONDS>")]
    #[schemars(range(min = 1, max = MAX_IDLE_SECONDS))]
    pub idle_timeout_seconds: i64,
    /// Time without a client after which the session ends, in seconds. If not specified, only `idleTimeoutSeconds` counts. A client whose
    /// connection breaks may need its grace period to connect again, which is 30 seconds for CUDA programs.
    #[schemars(range(min = 1, max = MAX_IDLE_SECONDS))]
    pub disconnect_timeout_seconds: Option<i64>,
    /// Maximum lifetime of the session, in seconds since it was placed.
    #[serde(default = "number::<DEFAULT_SESSION_SECONDS>")]
    #[schemars(range(min = MIN_SESSION_SECONDS, max = MAX_SESSION_SECONDS))]
    pub ttl_seconds: i64,
}

fn engine_description() -> String {
    let engines: Vec<_> = Engine::ALL
        .iter()
        .map(|engine| format!("`{engine}` ({})", engine.description()))
        .collect();
    format!("Engine that runs the session's programs: {}.", engines.join(", "))
}

/// Status of a session.
#[serde_with::apply(i64 => #[serde(default)] #[schemars(range(min = 0))])]
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct GpuSessionStatus {
    /// Conditions of type `Placed`, `Ready` and `Failed`. The reason of each names the cause.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::conditions::schema")]
    pub conditions: Vec<Condition>,
    /// `metadata.generation` of the spec that this status is about.
    pub observed_generation: Option<i64>,
    /// Summary of the conditions, for `kubectl get`: `Pending`, `Placed`, `Ready`, `Failed`. The conditions are authoritative.
    #[schemars(length(max = 32))]
    pub state: Option<String>,
    /// Name of the `GpuWorker` of the session.
    #[schemars(length(max = MAX_SUBDOMAIN_LENGTH))]
    pub worker: Option<String>,
    /// Name of the device on the worker.
    #[schemars(length(max = MAX_LABEL_LENGTH))]
    pub device: Option<String>,
    /// Name of the `VramLease` that holds its slice.
    #[schemars(length(max = MAX_SUBDOMAIN_LENGTH))]
    pub lease: Option<String>,
    /// URL at which a client inside the cluster reaches the session's worker.
    #[schemars(length(max = 512))]
    pub endpoint: Option<String>,
    /// Number of tensors that the session stores.
    pub tensor_count: i64,
    /// Total size of the stored tensors, in bytes.
    pub stored_tensor_bytes: i64,
    /// Number of programs that are running.
    pub active_executions: i64,
    /// Time at which the session got its device.
    pub placed_at: Option<Time>,
    /// Time at which the session ends at the latest.
    pub expires_at: Option<Time>,
}
