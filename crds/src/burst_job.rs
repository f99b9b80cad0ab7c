//! `BurstJob`: one kernel over N independent chunks on slices of VRAM across the pool.

use std::time::Duration;

use kube::{CustomResource, KubeSchema};
use sahasra_names::MAX_SUBDOMAIN_LENGTH;
use sahasra_parameters::MAX_CHUNKS;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::{
    number,
    rules::{object_name, store_url},
    seconds,
    vram_lease::{MAX_LEASE_SECONDS, MAX_SLICES, MIN_LEASE_SECONDS, ORDERED_SLICES, SliceSpec, TTL_SECONDS},
};

pub mod aggregate;
pub mod kernel;
mod rules;
pub mod status;

pub use aggregate::{Aggregate, AggregateChoice};
pub use kernel::{Argument, ArgumentChoice, BytesChoice, BytesSource, Kernel, PtxChoice, PtxSource};
pub use sahasra_parameters::spec::{self as chunks, Chunks, ParameterSpec, ScalarType};
pub use status::BurstJobStatus;

/// Default timeout of a chunk in seconds.
const DEFAULT_CHUNK_TIMEOUT_SECONDS: i64 = 60;
/// Maximum timeout of a chunk in seconds: one day.
const MAX_CHUNK_TIMEOUT_SECONDS: u32 = 86_400;
pub(crate) const MAX_RETRIES: u32 = 1_000;
/// Default number of retries of a chunk.
const DEFAULT_RETRIES: i64 = 3;
/// Default wait in seconds before the first retry of a chunk.
const DEFAULT_INITIAL_BACKOFF_SECONDS: i64 = 1;
/// Default maximum wait in seconds before a retry of a chunk.
const DEFAULT_MAX_BACKOFF_SECONDS: i64 = 16;
/// Maximum wait in seconds before the first retry of a chunk: one hour.
const MAX_INITIAL_BACKOFF_SECONDS: u32 = 3_600;
/// Maximum wait in seconds before a retry of a chunk: one day.
const MAX_BACKOFF_SECONDS: u32 = 86_400;
/// Maximum time in seconds for which a finished burst is kept, if it is deleted by time: 365 days.
const MAX_TTL_SECONDS_AFTER_FINISHED: u32 = 31_536_000;
/// Largest priority of a burst; its negative is the smallest.
const MAX_PRIORITY: i32 = 1_000_000;
/// Maximum length in characters of the URL of a store, or of an object in it.
const MAX_URL_LENGTH: usize = 1_024;

/// Specification of a burst: its kernel, its chunks, the slices that it uses, and the handling of its results.
///
/// All fields except `suspend`, `priority`, `slices` and `ttlSecondsAfterFinished` are immutable.
#[skip_serializing_none]
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
    doc = "BurstJob represents one kernel that runs over many independent chunks, on slices of VRAM across the pool.",
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
    /// Kernel, its launch and its arguments.
    pub kernel: Kernel,
    /// Number of chunks, and the parameters of each.
    pub chunks: Chunks,
    /// Maximum VRAM of one chunk, and the class of the devices.
    pub slice: SliceSpec,
    /// Number of slices that the burst holds at the same time. `max` defaults to the number of chunks, up to 100,000.
    #[serde(default)]
    pub slices: BurstSlices,
    /// Lifetime of the slices if the operator does not renew them.
    #[serde(default)]
    pub lease: LeaseTerms,
    /// Retries of a chunk whose attempt was lost to a transient cause.
    #[serde(default)]
    pub retry_policy: RetryPolicy,
    /// Timeout of a chunk, in seconds. A chunk that runs longer is stopped, and the attempt counts as lost.
    #[serde(default = "number::<DEFAULT_CHUNK_TIMEOUT_SECONDS>")]
    #[schemars(range(min = 1, max = MAX_CHUNK_TIMEOUT_SECONDS))]
    pub chunk_timeout_seconds: i64,
    /// Maximum number of chunks that may fail permanently. If more fail, the burst fails.
    #[serde(default)]
    #[schemars(range(min = 0, max = MAX_CHUNKS))]
    pub max_failed_chunks: i64,
    /// Aggregate of all results. If not specified, none is computed.
    pub aggregate: Option<Aggregate>,
    /// Object store for results that exceed 512 KiB in total, and for the parts of the checkpoint that do not fit into a ConfigMap.
    pub output: Option<OutputSpec>,
    /// Results of chunks that are kept in addition to the aggregate. Results that are not kept need no store and have no size limit.
    #[serde(default)]
    pub results: KeptResults,
    /// Whether the burst is suspended. Running chunks end, the slices are released, and no chunk starts.
    #[serde(default)]
    pub suspend: bool,
    /// Priority of the burst. Bursts of higher priority get slices first.
    #[serde(default)]
    #[schemars(range(min = -MAX_PRIORITY, max = MAX_PRIORITY))]
    pub priority: i32,
    /// Time after the burst finished after which the object is deleted, in seconds. If not specified, the object is kept.
    #[schemars(range(min = 0, max = MAX_TTL_SECONDS_AFTER_FINISHED))]
    pub ttl_seconds_after_finished: Option<i64>,
}

/// Number of slices that a burst holds at the same time.
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.max) || self.min <= self.max").message(ORDERED_SLICES).field_path(".min"))]
pub struct BurstSlices {
    /// Minimum number of slices with which the burst starts.
    #[serde(default = "number::<1>")]
    #[schemars(range(min = 1, max = MAX_SLICES))]
    pub min: i64,
    /// Maximum number of slices. Defaults to the number of chunks, up to 100,000.
    #[schemars(range(min = 1, max = MAX_SLICES))]
    pub max: Option<i64>,
}

impl Default for BurstSlices {
    fn default() -> Self {
        Self { min: 1, max: None }
    }
}

/// Lifetime of a burst's slices without renewal.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct LeaseTerms {
    /// Time without renewal after which the agents release the slices, in seconds.
    #[serde(default = "number::<TTL_SECONDS>")]
    #[schemars(range(min = MIN_LEASE_SECONDS, max = MAX_LEASE_SECONDS))]
    pub ttl_seconds: i64,
}

impl LeaseTerms {
    pub fn ttl(&self) -> Duration {
        seconds(self.ttl_seconds)
    }
}

impl Default for LeaseTerms {
    fn default() -> Self {
        Self { ttl_seconds: TTL_SECONDS }
    }
}

/// Retries of attempts that were lost to transient causes: lease expired, agent disconnected, executor lost, timed out.
/// Errors of the kernel itself (load or launch failed, trap, illegal access) are never retried.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.initialBackoffSeconds <= self.maxBackoffSeconds").message("initialBackoffSeconds must not exceed maxBackoffSeconds: lower it or raise maxBackoffSeconds").field_path(".initialBackoffSeconds"))]
pub struct RetryPolicy {
    /// Maximum number of retries of one chunk, not counting its first attempt.
    #[serde(default = "number::<DEFAULT_RETRIES>")]
    #[schemars(range(min = 0, max = MAX_RETRIES))]
    pub max_retries: i64,
    /// Wait before the first retry, in seconds. The wait doubles with each retry, with jitter.
    #[serde(default = "number::<DEFAULT_INITIAL_BACKOFF_SECONDS>")]
    #[schemars(range(min = 0, max = MAX_INITIAL_BACKOFF_SECONDS))]
    pub initial_backoff_seconds: i64,
    /// Maximum wait before a retry, in seconds.
    #[serde(default = "number::<DEFAULT_MAX_BACKOFF_SECONDS>")]
    #[schemars(range(min = 0, max = MAX_BACKOFF_SECONDS))]
    pub max_backoff_seconds: i64,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_retries: DEFAULT_RETRIES,
            initial_backoff_seconds: DEFAULT_INITIAL_BACKOFF_SECONDS,
            max_backoff_seconds: DEFAULT_MAX_BACKOFF_SECONDS,
        }
    }
}

/// Results of chunks that are kept.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeptResults {
    /// The outputs of every chunk that succeeded.
    #[default]
    All,
    /// Index and cause of every chunk that failed, as `failed.csv`, but no outputs.
    Failed,
    /// Neither outputs nor indices of failed chunks; only the aggregate and the counts.
    None,
}

/// Location of large results. Results up to 512 KiB in total are stored in a ConfigMap that the job owns, without this field.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct OutputSpec {
    /// Object store of the results.
    pub store: StoreSpec,
}

/// Object store, identified by its URL.
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::secret_for_remote_store())]
pub struct StoreSpec {
    /// URL of the store: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`, or `file:///path` on a file system that all agents and the operator share.
    #[schemars(length(min = 6, max = MAX_URL_LENGTH))]
    #[x_kube(validation = store_url())]
    pub url: String,
    /// Secret in the job's namespace. Its keys are settings of the store, such as `aws_access_key_id` and `aws_endpoint`.
    pub secret_ref: Option<SecretReference>,
}

/// A Secret in the job's namespace.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SecretReference {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = MAX_SUBDOMAIN_LENGTH))]
    #[x_kube(validation = object_name())]
    pub name: String,
}
