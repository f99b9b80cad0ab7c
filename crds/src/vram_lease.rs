//! `VramLease`: slices of VRAM held by one owner until they expire or are released; renewable.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use sahasra_names::{Engine, MAX_LABEL_LENGTH, MAX_SUBDOMAIN_LENGTH};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::{
    VramQuantity,
    gpu_session::{MAX_SESSION_SECONDS, MIN_SESSION_SECONDS},
    number,
    rules::{class_name, immutable, only_grows},
    seconds,
};

/// Maximum number of slices of a lease or a burst: a hundred on each of a thousand devices.
pub const MAX_SLICES: u32 = 100_000;

/// Shortest lifetime of a grant in seconds.
pub const MIN_LEASE_SECONDS: u64 = 5;
/// Longest lifetime of a grant in seconds: one day.
pub const MAX_LEASE_SECONDS: u64 = 86_400;
/// Maximum number of grants that the status lists.
pub const MAX_GRANTS: usize = 512;

/// Default lifetime of a grant in seconds: more than the restart of an operator takes, but unused VRAM is soon released.
pub(crate) const TTL_SECONDS: i64 = 60;

/// Specification of a lease: the requested slices, their owner and their lifetime.
#[skip_serializing_none]
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
    doc = "VramLease represents slices of VRAM that one owner holds until they expire or are released.",
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
    /// Size and class of each slice.
    pub slice: SliceSpec,
    /// Engine that the devices must support. If not specified, any device is suitable.
    // The schema of an optional enum would have the description of the enum.
    #[serde(default)]
    #[schemars(with = "Engine")]
    pub engine: Option<Engine>,
    /// Minimum and maximum number of slices.
    #[serde(default)]
    pub slices: SliceBounds,
    /// Lifetime of a grant without renewal, in seconds.
    #[serde(default = "number::<TTL_SECONDS>")]
    #[schemars(range(min = MIN_LEASE_SECONDS, max = MAX_LEASE_SECONDS))]
    pub ttl_seconds: i64,
    /// Whether the operator renews the lease for as long as the object exists.
    #[serde(default)]
    pub renewal: Renewal,
    /// Maximum time for which a connected client keeps its slice, in seconds since the grant, even if the lease is not renewed. Only leases of
    /// sessions have this field.
    #[schemars(range(min = MIN_SESSION_SECONDS, max = MAX_SESSION_SECONDS))]
    pub keep_seconds: Option<i64>,
}

impl VramLeaseSpec {
    pub fn ttl(&self) -> Duration {
        seconds(self.ttl_seconds)
    }

    pub fn keep(&self) -> Duration {
        seconds(self.keep_seconds.unwrap_or_default())
    }
}

/// Owner of a lease. If empty, the `VramLease` object itself is the owner.
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.kind) || has(self.name)").message("an owner of a kind needs a name: set name").field_path(".name").reason(Reason::FieldValueRequired))]
pub struct LeaseOwner {
    /// Kind of the owner: `BurstJob`, `GpuSession`, or empty.
    #[schemars(length(max = MAX_LABEL_LENGTH))]
    pub kind: Option<String>,
    /// Name of the owner in the same namespace. Without `kind`, an arbitrary text that identifies the owner for users.
    #[schemars(length(max = MAX_SUBDOMAIN_LENGTH))]
    pub name: Option<String>,
}

/// Size and class of one slice.
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SliceSpec {
    /// VRAM of one slice, such as `512Mi`.
    pub vram: VramQuantity,
    /// Class of the devices, such as `g5` or `cpu`. If not specified, devices of any class are used.
    #[schemars(length(min = 1, max = MAX_LABEL_LENGTH))]
    #[x_kube(validation = class_name())]
    pub class: Option<String>,
}

/// Message about a minimum of slices that exceeds the maximum.
pub const ORDERED_SLICES: &str = "min must not exceed max: lower min or raise max";

/// Number of slices: work starts with `min`, and grows up to `max` when slices become free.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.min <= self.max").message(ORDERED_SLICES).field_path(".min"))]
pub struct SliceBounds {
    /// Minimum number of slices with which work can start. If it is raised, the lease keeps its slices while it waits for the others.
    #[serde(default = "number::<1>")]
    #[schemars(range(min = 1, max = MAX_SLICES))]
    pub min: i64,
    /// Maximum number of slices.
    #[serde(default = "number::<1>")]
    #[schemars(range(min = 1, max = MAX_SLICES))]
    pub max: i64,
}

impl Default for SliceBounds {
    fn default() -> Self {
        Self { min: 1, max: 1 }
    }
}

/// Renewal of a lease.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Renewal {
    /// The operator renews the lease until the object is deleted.
    #[default]
    Automatic,
    /// The lease is not renewed and ends after `ttlSeconds`.
    Never,
}

/// Status of a lease: the granted slices.
#[serde_with::apply(
    Vec<_> => #[serde(default, skip_serializing_if = "Vec::is_empty")],
    i64 => #[serde(default)] #[schemars(range(min = 0))],
)]
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct VramLeaseStatus {
    /// Conditions of type `Granted`. The message of `False` has the reason for each device.
    #[schemars(schema_with = "crate::conditions::schema")]
    pub conditions: Vec<Condition>,
    /// `metadata.generation` of the spec that this status is about.
    pub observed_generation: Option<i64>,
    /// Term of the coordinator that acts for this lease. It never decreases; agents reject requests with a lower one.
    #[x_kube(validation = only_grows())]
    pub term: i64,
    /// Number of granted slices.
    pub slices: i64,
    /// Number of devices with granted slices.
    pub devices: i64,
    /// Grants of the lease, one for each device. At most 512 are listed; `devices` is the number of all.
    #[schemars(length(max = MAX_GRANTS))]
    pub grants: Vec<GrantStatus>,
    /// Time of the first grant.
    pub granted_at: Option<Time>,
    /// Time at which a lease that is not renewed ends, by the operator's clock. The clocks of the agents are decisive. Not set if
    /// `spec.renewal` is `Automatic`, because renewals do not update the object.
    pub expires_at: Option<Time>,
    /// Most recent loss of slices that the lease should have kept.
    pub last_loss: Option<LeaseLoss>,
}

/// Slices that a lease lost.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct LeaseLoss {
    /// Time at which the operator detected the loss.
    pub time: Time,
    /// `Expired` if the slices were not renewed in time and their worker is alive. `WorkerLost` if their worker was deleted, has restarted or does not respond.
    #[schemars(length(max = 63))]
    pub reason: String,
    /// The lost slices, and the cause.
    #[schemars(length(max = 1024))]
    pub message: String,
}

/// Part of a lease on one device.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct GrantStatus {
    /// Name of the `GpuWorker`.
    #[schemars(length(max = MAX_SUBDOMAIN_LENGTH))]
    pub worker: String,
    /// Name of the device on the worker.
    #[schemars(length(max = MAX_LABEL_LENGTH))]
    pub device: String,
    /// Number of slices on the device.
    #[schemars(range(min = 0))]
    pub slices: i64,
    /// Identifier of the grant: boot id of the agent and a counter. Identifiers are never reused.
    #[schemars(length(max = 96))]
    pub id: String,
}
