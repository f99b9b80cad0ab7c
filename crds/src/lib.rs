//! The Kubernetes API of Sahasra: group `sahasra.dev`, version `v1alpha1`.
//!
//! One kind a file: [`GpuWorker`] (cluster-scoped, made by the worker-agent), [`VramLease`], [`GpuSession`] and
//! [`BurstJob`] (namespaced, made by users). The Rust types are the only source: `make generate` writes the
//! `CustomResourceDefinition` YAML files beside this crate and into the chart. Users write `spec`; `status` is
//! written by the operator alone, save that of a [`GpuWorker`], which its agent writes.
//!
//! Bad input is refused here as far as a schema and CEL rules can see it, at `kubectl apply`; what they cannot see
//! (the text of a formula, the PTX) the operator refuses through the condition `Accepted=False`.

// The lint takes the fields of two `printcolumn(...)` for one attribute given twice.
#![allow(clippy::duplicated_attributes)]

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

/// The API group of every kind.
pub const GROUP: &str = "sahasra.dev";
/// The only served version.
pub const VERSION: &str = "v1alpha1";
/// Finalizer by which the operator gives VRAM back before an object goes. The operator's alone.
pub const FINALIZER: &str = "sahasra.dev/release-vram";

/// Maximum bytes of a ConfigMap, including the names of keys: the API server's limit.
pub const MAX_CONFIG_MAP_BYTES: usize = 1 << 20;

/// Default of a field of whole numbers.
fn number<const N: i64>() -> i64 {
    N
}

/// The time in a field of whole seconds. A negative number, which no schema allows, is no time.
pub fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

/// Every kind's definition, in the order in which they are applied.
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
