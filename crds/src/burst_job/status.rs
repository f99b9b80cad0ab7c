//! What a burst became.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::aggregate::MOST_ELEMENTS;

/// Written by the operator alone. The durable account is the checkpoint in the ConfigMap that `results` names;
/// this is its legible summary.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BurstJobStatus {
    /// `Accepted`, `Admitted`, `Suspended`, `Complete`, `Failed`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::conditions::schema")]
    pub conditions: Vec<Condition>,
    /// Generation of the spec that this status answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// One word for the column: `Pending`, `Running`, `Suspended`, `Complete`, `Failed`. The conditions are the truth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub state: Option<String>,
    /// Why the burst is in that state: the reason of the deciding condition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub reason: Option<String>,
    /// Generation of the coordinator that acts for this job; only grows.
    #[serde(default)]
    #[schemars(range(min = 0))]
    #[x_kube(validation = crate::rules::only_grows())]
    pub term: i64,
    /// `sha256:` of the PTX that was accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 80))]
    pub kernel_digest: Option<String>,
    /// Counts of chunks.
    #[serde(default)]
    pub chunks: ChunkCounts,
    /// Indices that succeeded, as ranges: `0-41,43`; cut at 4 KiB, the checkpoint has all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub completed_indexes: Option<String>,
    /// Indices that failed for good, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub failed_indexes: Option<String>,
    /// Slices.
    #[serde(default)]
    pub slices: SliceCounts,
    /// Name of the `VramLease` of this job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub lease: Option<String>,
    /// The aggregate over the counted results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aggregate: Option<AggregateStatus>,
    /// Where the results are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub results: Option<ResultsStatus>,
    /// The first failures, at most 10.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub failures: Vec<ChunkFailure>,
    /// When the first slices were held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When the job completed or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
}

/// Counts of chunks; `pending + running + succeeded + failed = total`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ChunkCounts {
    /// All chunks.
    pub total: i64,
    /// Not yet handed to an agent.
    pub pending: i64,
    /// Handed to an agent.
    pub running: i64,
    /// Counted as succeeded.
    pub succeeded: i64,
    /// Counted as failed for good.
    pub failed: i64,
    /// Attempts beyond the first.
    pub retried: i64,
}

/// Slices of a burst.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SliceCounts {
    /// Held now.
    pub held: i64,
    /// Most that were held at the same time.
    pub peak: i64,
}

/// The aggregate so far.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AggregateStatus {
    /// For the column: `0.0312 @ 417`, or the first element of the sum or mean; and how many results are NaN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub summary: Option<String>,
    /// The best chunks, best first: one for argmin and argmax, k for topK.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub best: Vec<BestChunk>,
    /// Element by element, for sum and mean; null where the value is infinite or NaN.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "numbers")]
    pub values: Vec<Option<f64>>,
    /// All of `values` as text in full. It stands where one of them is not exact as a JSON number: a sum of integers beyond 2^53,
    /// `inf`, `-inf`, `NaN`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = 64)))]
    pub exact: Vec<String>,
    /// Half width of the 95 % confidence interval by Student's t, element by element, for mean; null where there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "numbers")]
    pub confidence95: Vec<Option<f64>>,
    /// How many results it covers.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub count: i64,
    /// How many of them have a NaN in the output that is looked at: `best` leaves them out, sums and means of such elements are NaN.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0))]
    pub nan: i64,
}

/// Numbers, element by element; null where there is none.
fn numbers(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": MOST_ELEMENTS,
        "items": {"type": "number", "format": "double", "nullable": true},
    })
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// A chunk that stands out.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BestChunk {
    /// Its index.
    #[schemars(range(min = 0))]
    pub index: i64,
    /// Its value; absent where that is infinite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// Its value as text in full, where `value` is not exact: an integer beyond 2^53, `inf`, `-inf`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub exact: Option<String>,
    /// The parameters it was given.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub parameters: BTreeMap<String, f64>,
    /// Those of them that are not exact as JSON numbers, integers beyond 2^53, as text in full.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64, "additionalProperties" = {"type": "string", "maxLength": 64}))]
    pub exact_parameters: BTreeMap<String, String>,
}

/// Where the results are.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ResultsStatus {
    /// ConfigMap with the checkpoint, and with the results when they are small: key `results.csv` once complete; with `results: Failed`
    /// key `failed.csv`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub config_map: Option<String>,
    /// URL of the manifest that lists the segments, when the results are in an object store; with `results: Failed` of `failed.csv`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub url: Option<String>,
    /// Bytes of all results that are kept.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub bytes: i64,
}

/// A chunk that failed for good.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ChunkFailure {
    /// Its index.
    #[schemars(range(min = 0))]
    pub index: i64,
    /// Attempts made.
    #[schemars(range(min = 0))]
    pub attempts: i64,
    /// The cause in one word, such as `IllegalAddress`; with retries used up, that of the last attempt.
    #[schemars(length(max = 64))]
    pub code: String,
    /// The cause as the engine tells it.
    #[schemars(length(max = 1024))]
    pub message: String,
}
