//! `VramLease`: slices of VRAM held by one owner until they expire or are released; renewable.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use sahasra_names::Engine;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    VramQuantity, number,
    rules::{class_name, immutable, only_grows},
};

/// Most slices that a lease or a burst may ask for: a hundred on each of a thousand devices.
pub const MAX_SLICES: u32 = 100_000;

/// Default lifetime of a grant: long enough for an operator to restart, short enough that forgotten VRAM is soon back.
pub(crate) const TTL_SECONDS: i64 = 60;

/// What is asked for.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "sahasra.dev",
    version = "v1alpha1",
    kind = "VramLease",
    plural = "vramleases",
    namespaced,
    shortname = "vl",
    category = "all",
    category = "sahasra",
    status = "VramLeaseStatus",
    derive = "PartialEq",
    doc = "Slices of VRAM held by one owner until they expire or are released.",
    printcolumn(
        name = "Granted",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Granted\")].status"
    ),
    printcolumn(name = "Owner", type_ = "string", json_path = ".spec.owner.name"),
    printcolumn(name = "Slice", type_ = "string", json_path = ".spec.slice.vram"),
    printcolumn(name = "Slices", type_ = "integer", json_path = ".status.slices"),
    printcolumn(name = "Max", type_ = "integer", json_path = ".spec.slices.max"),
    printcolumn(name = "Devices", type_ = "integer", json_path = ".status.devices"),
    printcolumn(name = "Expires", type_ = "string", priority = 1, json_path = ".status.expiresAt"),
    printcolumn(name = "Last-Loss", type_ = "date", priority = 1, json_path = ".status.lastLoss.time"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Granted\")].reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = immutable("owner", "VramLease"))]
#[x_kube(validation = immutable("slice", "VramLease"))]
#[x_kube(validation = immutable("engine", "VramLease"))]
pub struct VramLeaseSpec {
    /// Owner of the slices.
    #[serde(default)]
    pub owner: LeaseOwner,
    /// One slice.
    pub slice: SliceSpec,
    /// What the devices must be able to run; anything when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<Engine>,
    /// How many slices.
    #[serde(default)]
    pub slices: SliceBounds,
    /// How long a grant lasts without renewal, in seconds.
    #[serde(default = "number::<TTL_SECONDS>")]
    #[schemars(range(min = 5, max = 86_400))]
    pub ttl_seconds: i64,
    /// Whether the operator renews the lease for as long as the object exists.
    #[serde(default)]
    pub renewal: Renewal,
    /// A client that is connected to the session keeps its slice so long in all, in seconds since it was granted, even when it is
    /// not renewed. A session's lease alone has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10, max = 2_592_000))]
    pub keep_seconds: Option<i64>,
}

/// Who holds a lease. Empty: the `VramLease` object itself.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.kind) || has(self.name)").message("an owner of a kind needs a name: give name too").field_path(".name").reason(Reason::FieldValueRequired))]
pub struct LeaseOwner {
    /// Kind of the owner: `BurstJob`, `GpuSession`, or empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub kind: Option<String>,
    /// Name of the owner in the same namespace, or any word that tells people whose it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub name: Option<String>,
}

/// The size and kind of one slice.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SliceSpec {
    /// VRAM of one slice, such as `512Mi`.
    pub vram: VramQuantity,
    /// Class of device, such as `g5` or `cpu`; any when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = class_name())]
    pub class: Option<String>,
}

/// How many slices: work starts at `min` and grows to `max` as slices come free.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.min <= self.max").message("min must not exceed max: lower min or raise max").field_path(".min"))]
pub struct SliceBounds {
    /// Fewest slices with which it is worth starting.
    #[serde(default = "number::<1>")]
    #[schemars(range(min = 1, max = MAX_SLICES))]
    pub min: i64,
    /// Most slices that are of use.
    #[serde(default = "number::<1>")]
    #[schemars(range(min = 1, max = MAX_SLICES))]
    pub max: i64,
}

impl Default for SliceBounds {
    fn default() -> Self {
        Self { min: 1, max: 1 }
    }
}

/// Whether a lease is renewed.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Renewal {
    /// The operator renews it until the object is deleted.
    #[default]
    Automatic,
    /// It is not renewed: the lease ends after `ttlSeconds`.
    Never,
}

/// What is held.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct VramLeaseStatus {
    /// `Granted`, with the reason and "why not" for each device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::conditions::schema")]
    pub conditions: Vec<Condition>,
    /// Generation of the spec that this status answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Generation of the coordinator that acts for this lease; only grows.
    #[serde(default)]
    #[schemars(range(min = 0))]
    #[x_kube(validation = only_grows())]
    pub term: i64,
    /// Slices held.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub slices: i64,
    /// Devices on which they lie.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub devices: i64,
    /// The parts, one a device; at most 512 are listed, `devices` counts all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 512))]
    pub grants: Vec<GrantStatus>,
    /// When the first grant was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granted_at: Option<Time>,
    /// When a lease ends that is not renewed, by the operator's clock (the agents' own clocks decide). Absent where `spec.renewal` is
    /// `Automatic`: renewals write nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// The last time that slices were lost which the lease was to keep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_loss: Option<LeaseLoss>,
}

/// Slices that a lease lost.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct LeaseLoss {
    /// When the operator found that they were lost.
    pub time: Time,
    /// `Expired`: they were not renewed in time, and their worker lives. `WorkerLost`: their worker is gone, has restarted or is silent.
    #[schemars(length(max = 63))]
    pub reason: String,
    /// Which slices, and why.
    #[schemars(length(max = 1024))]
    pub message: String,
}

/// One device's part of a lease.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct GrantStatus {
    /// Name of the `GpuWorker`.
    #[schemars(length(max = 253))]
    pub worker: String,
    /// Device on it.
    #[schemars(length(max = 63))]
    pub device: String,
    /// Slices on it.
    #[schemars(range(min = 0))]
    pub slices: i64,
    /// Name of the grant: boot id of the agent and a counter, which no restart can reuse.
    #[schemars(length(max = 96))]
    pub id: String,
}
