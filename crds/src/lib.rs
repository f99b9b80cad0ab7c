//! The Kubernetes API of Sahasra: group `sahasra.dev`, version `v1alpha1`.
//!
//! Each kind has a file: [`GpuWorker`] (cluster-scoped, created by the worker-agent), [`VramLease`], [`GpuSession`] and [`BurstJob`]
//! (namespaced, created by users). `make generate` generates the `CustomResourceDefinition`s of the chart from the Rust types. Users write
//! `spec`. Only the operator writes `status`, except that of a [`GpuWorker`], which its agent writes.
//!
//! The schemas and their CEL rules reject invalid objects at `kubectl apply`. The operator checks the rest, such as formulas and PTX, and sets
//! the condition `Accepted=False`.

// The lint mistakes two `printcolumn(...)` for a duplicated attribute.
#![allow(clippy::duplicated_attributes)]
#![expect(
    unreachable_pub,
    reason = "kube derives items that are exactly as public as the type, and kinds are re-exported"
)]

pub mod burst_job;
pub mod conditions;
pub mod gpu_session;
pub mod gpu_worker;
pub mod quantity;
pub mod reference;
mod rules;
pub mod vram_lease;
pub mod yaml;

pub use burst_job::{BurstJob, BurstJobSpec, BurstJobStatus};
pub use gpu_session::{GpuSession, GpuSessionSpec, GpuSessionStatus};
pub use gpu_worker::{GpuWorker, GpuWorkerSpec, GpuWorkerStatus};
pub use quantity::VramQuantity;
pub use vram_lease::{VramLease, VramLeaseSpec, VramLeaseStatus};

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;

/// API group of all kinds.
pub const GROUP: &str = "sahasra.dev";
/// Only served version.
pub const VERSION: &str = "v1alpha1";
/// Finalizer with which the operator releases VRAM before an object is deleted.
pub const FINALIZER: &str = "sahasra.dev/release-vram";

/// Maximum bytes of a ConfigMap, including the names of keys: the API server's limit.
pub const MAX_CONFIG_MAP_BYTES: usize = 1 << 20;

/// Default of a field of whole numbers.
fn number<const N: i64>() -> i64 {
    N
}

/// Converts a field in seconds to a duration. A negative number, which no schema allows, becomes zero.
pub fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

/// Returns the definitions of all kinds, in the order in which they are applied.
pub fn definitions() -> Vec<CustomResourceDefinition> {
    let mut definitions = vec![GpuWorker::crd(), VramLease::crd(), GpuSession::crd(), BurstJob::crd()];
    for definition in &mut definitions {
        for version in &mut definition.spec.versions {
            if let Some(schema) = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut()) {
                forbid_null(schema);
            }
        }
    }
    definitions
}

/// Makes an optional field one that may be absent, not one that may hold null: a rule's `has()` would take null for a value. The
/// API server then puts a default in its place or refuses it. An item of a list has a place, and stays null where its type says so.
fn forbid_null(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    for property in schema.properties.iter_mut().flat_map(|properties| properties.values_mut()) {
        forbid_null(property);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        let nullable = items.nullable;
        forbid_null(items);
        items.nullable = nullable;
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        forbid_null(values);
    }
}
