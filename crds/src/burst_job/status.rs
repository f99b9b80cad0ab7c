//! Status of a burst.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use sahasra_names::MAX_SUBDOMAIN_LENGTH;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::aggregate::{MAX_BEST, MAX_ELEMENTS};

/// Maximum number of failed chunks that the status lists.
pub const MAX_FAILURES: usize = 10;
/// Maximum length in bytes of the text of a set of indices. The checkpoint has the whole set.
pub const MAX_INDEXES_BYTES: usize = 4_096;
/// Maximum length in bytes of the message of a condition or of a failed chunk.
pub const MAX_MESSAGE_BYTES: usize = 1_024;

/// Status of a burst, which only the operator writes: a summary of the checkpoint in the ConfigMap that `results` names.
#[serde_with::apply(Vec<_> => #[serde(default, skip_serializing_if = "Vec::is_empty")])]
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BurstJobStatus {
    /// Conditions of type `Accepted`, `Admitted`, `Checkpointed`, `Suspended`, `Complete` and `Failed`. `Checkpointed` is `False` while progress cannot be saved, and not set before that first happens.
    #[schemars(schema_with = "crate::conditions::schema")]
    pub conditions: Vec<Condition>,
    /// `metadata.generation` of the spec that this status is about.
    pub observed_generation: Option<i64>,
    /// Summary of the conditions, for `kubectl get`: `Pending`, `Running`, `Suspended`, `Complete`, `Failed`.
    #[schemars(length(max = 32))]
    pub state: Option<String>,
    /// Reason of the condition from which `state` follows.
    #[schemars(length(max = 128))]
    pub reason: Option<String>,
    /// Term of the coordinator that acts for this job. It never decreases; agents reject requests with a lower one.
    #[serde(default)]
    #[schemars(range(min = 0))]
    #[x_kube(validation = crate::rules::only_grows())]
    pub term: i64,
    /// SHA-256 of the accepted PTX, in hexadecimal digits after `sha256:`.
    #[schemars(length(max = 80))]
    pub kernel_digest: Option<String>,
    /// Counts of chunks.
    #[serde(default)]
    pub chunks: ChunkCounts,
    /// Indices of succeeded chunks, as ranges: `0-41,43`. Cut at 4 KiB; the checkpoint has all of them.
    #[schemars(length(max = MAX_INDEXES_BYTES))]
    pub completed_indexes: Option<String>,
    /// Indices of chunks that failed and are not retried, in the same form.
    #[schemars(length(max = MAX_INDEXES_BYTES))]
    pub failed_indexes: Option<String>,
    /// Slices of VRAM that the burst holds and has held.
    #[serde(default)]
    pub slices: SliceCounts,
    /// Name of the `VramLease` of this job.
    #[schemars(length(max = MAX_SUBDOMAIN_LENGTH))]
    pub lease: Option<String>,
    /// Aggregate (`spec.aggregate`) of the results counted so far.
    pub aggregate: Option<AggregateStatus>,
    /// Places and size of the results.
    pub results: Option<ResultsStatus>,
    /// The first failed chunks, at most 10.
    #[schemars(length(max = MAX_FAILURES))]
    pub failures: Vec<ChunkFailure>,
    /// Time at which the burst first held slices.
    pub start_time: Option<Time>,
    /// Time at which the job completed or failed.
    pub completion_time: Option<Time>,
}

/// Counts of chunks; `pending + running + succeeded + failed = total`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ChunkCounts {
    /// Number of all chunks.
    pub total: i64,
    /// Number of chunks that have not been sent to an agent.
    pub pending: i64,
    /// Number of chunks that were sent to an agent and have no counted result.
    pub running: i64,
    /// Number of chunks that are counted as succeeded.
    pub succeeded: i64,
    /// Number of chunks that are counted as failed and are not retried.
    pub failed: i64,
    /// Number of attempts beyond the first of each chunk.
    pub retried: i64,
}

/// Slices of a burst.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SliceCounts {
    /// Number of slices that the burst holds.
    pub held: i64,
    /// Maximum number of slices that the burst has held at the same time.
    pub peak: i64,
}

/// Aggregate of the results counted so far.
#[serde_with::apply(Vec<_> => #[serde(default, skip_serializing_if = "Vec::is_empty")])]
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AggregateStatus {
    /// Summary for `kubectl get`: value and index of the best chunk (`0.0312 @ 417`), or the first element of the other aggregates; and the number
    /// of NaN results.
    #[schemars(length(max = 128))]
    pub summary: Option<String>,
    /// Best chunks, starting with the best: one for argmin and argmax, k for topK.
    #[schemars(length(max = MAX_BEST))]
    pub best: Vec<BestChunk>,
    /// Elements of an aggregate of numbers, such as the sum; null for an element that is infinite or NaN.
    #[schemars(schema_with = "numbers")]
    pub values: Vec<Option<f64>>,
    /// All of `values` as exact text. Set where one of them is not exact as a JSON number: an integer beyond 2^53, `inf`, `-inf`,
    /// `NaN`.
    #[schemars(length(max = MAX_ELEMENTS), inner(length(max = 64)))]
    pub exact: Vec<String>,
    /// Half width of the 95 % confidence interval of each element of a mean, by Student's t; null if there is none.
    #[schemars(schema_with = "numbers")]
    pub confidence95: Vec<Option<f64>>,
    /// Number of results in the aggregate.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub count: i64,
    /// Number of these results with a NaN in the aggregated output. `spec.aggregate` describes their effect.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0))]
    pub nan: i64,
}

/// Numbers, element by element; null where there is none.
fn numbers(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": MAX_ELEMENTS,
        "items": {"type": "number", "format": "double", "nullable": true},
    })
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// One of the best chunks by `argmin`, `argmax` or `topK`.
#[serde_with::apply(BTreeMap<_, _> => #[serde(default, skip_serializing_if = "BTreeMap::is_empty")] #[schemars(extend("maxProperties" = 64))])]
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BestChunk {
    /// Index of the chunk.
    #[schemars(range(min = 0))]
    pub index: i64,
    /// Aggregated output. Not set if it is infinite.
    pub value: Option<f64>,
    /// Aggregated output as exact text, where `value` is not exact: an integer beyond 2^53, `inf`, `-inf`.
    #[schemars(length(max = 64))]
    pub exact: Option<String>,
    /// Parameters of the chunk, by name.
    pub parameters: BTreeMap<String, f64>,
    /// Parameters that are not exact as JSON numbers, integers beyond 2^53, as exact text.
    #[schemars(extend("additionalProperties" = {"type": "string", "maxLength": 64}))]
    pub exact_parameters: BTreeMap<String, String>,
}

/// Places and size of the results.
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ResultsStatus {
    /// ConfigMap with the checkpoint, and with the results when they are small: key `results.csv` once complete; with `results: Failed`
    /// key `failed.csv`.
    #[schemars(length(max = MAX_SUBDOMAIN_LENGTH))]
    pub config_map: Option<String>,
    /// With an object store: URL of the manifest that lists the segments; with `results: Failed`, URL of `failed.csv`.
    #[schemars(length(max = 2048))]
    pub url: Option<String>,
    /// Bytes of all stored results.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub bytes: i64,
}

/// A chunk that failed and is not retried.
#[serde_with::apply(i64 => #[schemars(range(min = 0))])]
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ChunkFailure {
    /// Index of the chunk.
    pub index: i64,
    /// Number of attempts.
    pub attempts: i64,
    /// Failure code of the last attempt, such as `IllegalAddress`; `Unspecified` if the agent reported none.
    #[schemars(length(max = 64))]
    pub code: String,
    /// Message of the engine.
    #[schemars(length(max = MAX_MESSAGE_BYTES))]
    pub message: String,
}
