//! `BurstJob`: one kernel over N independent chunks on slices of VRAM across the pool.

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::{
    number,
    rules::{object_name, store_url},
    vram_lease::{MAX_SLICES, SliceSpec, TTL_SECONDS},
};

pub mod aggregate;
pub mod kernel;
mod rules;
pub mod status;

pub use aggregate::{Aggregate, AggregateChoice};
pub use kernel::{Argument, ArgumentChoice, BytesChoice, BytesSource, Kernel, PtxChoice, PtxSource};
pub use sahasra_parameters::spec::{self as chunks, Chunks, ParameterSpec, ScalarType};
pub use status::BurstJobStatus;

/// What a burst computes, on what, and what becomes of the results.
///
/// Immutable but for `suspend`, `priority`, `slices` and `ttlSecondsAfterFinished`.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "sahasra.dev",
    version = "v1alpha1",
    kind = "BurstJob",
    plural = "burstjobs",
    namespaced,
    shortname = "bj",
    category = "all",
    category = "sahasra",
    status = "BurstJobStatus",
    derive = "PartialEq",
    doc = "One kernel over many independent chunks, run on slices of VRAM across the pool.",
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason"),
    printcolumn(name = "Chunks", type_ = "integer", json_path = ".status.chunks.total"),
    printcolumn(name = "Done", type_ = "integer", json_path = ".status.chunks.succeeded"),
    printcolumn(name = "Failed", type_ = "integer", json_path = ".status.chunks.failed"),
    printcolumn(name = "Slices", type_ = "integer", json_path = ".status.slices.held"),
    printcolumn(name = "Peak", type_ = "integer", priority = 1, json_path = ".status.slices.peak"),
    printcolumn(name = "Aggregate", type_ = "string", json_path = ".status.aggregate.summary"),
    printcolumn(name = "Retried", type_ = "integer", priority = 1, json_path = ".status.chunks.retried"),
    printcolumn(name = "Results", type_ = "string", priority = 1, json_path = ".status.results.configMap"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = rules::add)]
pub struct BurstJobSpec {
    /// The program and its arguments.
    pub kernel: Kernel,
    /// How many chunks, and what parameters each gets.
    pub chunks: Chunks,
    /// The VRAM that one chunk may use, and on what class of device.
    pub slice: SliceSpec,
    /// How many slices at the same time. `max` defaults to the number of chunks, up to 100,000.
    #[serde(default)]
    pub slices: BurstSlices,
    /// How long the slices outlive a silent operator.
    #[serde(default)]
    pub lease: LeaseTerms,
    /// What happens to a chunk whose attempt was lost to a cause that may pass.
    #[serde(default)]
    pub retry_policy: RetryPolicy,
    /// A chunk that runs longer is stopped and counts as a lost attempt, in seconds.
    // A chunk is meant to be short; what takes longer says so.
    #[serde(default = "number::<60>")]
    #[schemars(range(min = 1, max = 86_400))]
    pub chunk_timeout_seconds: i64,
    /// How many chunks may fail for good before the burst itself fails.
    #[serde(default)]
    #[schemars(range(min = 0, max = 10_000_000))]
    pub max_failed_chunks: i64,
    /// What to compute over all results; nothing when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aggregate: Option<Aggregate>,
    /// Where results go that exceed 512 KiB in all, and the checkpoint of what does not fit a ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<OutputSpec>,
    /// What is kept of each chunk beside the aggregate. What is not kept needs no store and has no limit of size.
    #[serde(default)]
    pub results: KeptResults,
    /// Holds the burst: running chunks end, slices go back, nothing new starts.
    #[serde(default)]
    pub suspend: bool,
    /// A burst of higher priority gets slices first.
    #[serde(default)]
    #[schemars(range(min = -1_000_000, max = 1_000_000))]
    pub priority: i32,
    /// The object is deleted so many seconds after it finished; kept when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 31_536_000))]
    pub ttl_seconds_after_finished: Option<i64>,
}

/// How many slices a burst may hold at the same time.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.max) || self.min <= self.max").message("min must not exceed max: lower min or raise max").field_path(".min"))]
pub struct BurstSlices {
    /// Fewest slices with which to start.
    #[serde(default = "number::<1>")]
    #[schemars(range(min = 1, max = MAX_SLICES))]
    pub min: i64,
    /// Most slices; when absent, the number of chunks, up to 100,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MAX_SLICES))]
    pub max: Option<i64>,
}

impl Default for BurstSlices {
    fn default() -> Self {
        Self { min: 1, max: None }
    }
}

/// How long the slices of a burst outlive a silent operator.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct LeaseTerms {
    /// Seconds without renewal after which the agents take the slices back.
    #[serde(default = "number::<TTL_SECONDS>")]
    #[schemars(range(min = 5, max = 86_400))]
    pub ttl_seconds: i64,
}

impl Default for LeaseTerms {
    fn default() -> Self {
        Self { ttl_seconds: TTL_SECONDS }
    }
}

/// Retries of attempts lost to causes that may pass: lease expired, agent disconnected, executor lost, timed out.
/// A kernel that is itself wrong (load or launch refused, trap, illegal access) is never retried.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.initialBackoffSeconds <= self.maxBackoffSeconds").message("initialBackoffSeconds must not exceed maxBackoffSeconds: lower it or raise maxBackoffSeconds").field_path(".initialBackoffSeconds"))]
pub struct RetryPolicy {
    /// Retries of one chunk; its first attempt is not counted.
    #[serde(default = "number::<3>")]
    #[schemars(range(min = 0, max = 1_000))]
    pub max_retries: i64,
    /// Wait before the first retry, in seconds; doubles each time, with jitter.
    #[serde(default = "number::<1>")]
    #[schemars(range(min = 0, max = 3_600))]
    pub initial_backoff_seconds: i64,
    /// Longest wait, in seconds.
    #[serde(default = "number::<16>")]
    #[schemars(range(min = 0, max = 86_400))]
    pub max_backoff_seconds: i64,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_retries: 3,
            initial_backoff_seconds: 1,
            max_backoff_seconds: 16,
        }
    }
}

/// What is kept of a burst's chunks.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeptResults {
    /// The outputs of every chunk that succeeded.
    #[default]
    All,
    /// No outputs; the index and the cause of every chunk that failed, as `failed.csv`.
    Failed,
    /// Neither outputs nor the indices of failed chunks: the aggregate and the counts alone.
    None,
}

/// Where results go. Up to 512 KiB in all they stand in a ConfigMap owned by the job and nothing need be said here.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct OutputSpec {
    /// The object store.
    pub store: StoreSpec,
}

/// An object store, named by URL.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::secret_for_remote_store())]
pub struct StoreSpec {
    /// `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`, or `file:///path` that every agent and the operator share.
    #[schemars(length(min = 6, max = 1024))]
    #[x_kube(validation = store_url())]
    pub url: String,
    /// Secret in the job's namespace whose keys are the store's settings (`aws_access_key_id`, `aws_endpoint`, ...).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretReference>,
}

/// A Secret in the job's namespace.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SecretReference {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = object_name())]
    pub name: String,
}
