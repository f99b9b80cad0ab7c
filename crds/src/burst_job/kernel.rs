//! The program of a burst: PTX, entry, launch shape and arguments.

use kube::KubeSchema;
use sahasra_names::MAX_SUBDOMAIN_LENGTH;
use sahasra_parameters::{
    launch::{MAX_BLOCK, MAX_GRID},
    one_of,
    spec::MAX_NAME_LENGTH,
};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::{MAX_URL_LENGTH, ScalarType, rules};
use crate::{
    number,
    rules::{exactly_one, matches, object_name, store_url},
};

/// Maximum total size of one chunk's outputs in bytes: several frames of results must fit a stream's window and the agent's memory.
pub const MAX_OUTPUT_BYTES: u64 = 32 << 20;
/// Message about outputs of a chunk that have more than [`MAX_OUTPUT_BYTES`].
pub fn output_message() -> String {
    format!(
        "the outputs of a chunk must not exceed {} MiB in total: compute less in each chunk",
        MAX_OUTPUT_BYTES >> 20
    )
}

/// Maximum total size of a burst's inputs in bytes, so that they fit in one frame together with the PTX.
pub const MAX_INPUT_BYTES: u64 = 48 << 20;
/// Maximum size of PTX in bytes, enough for the output of NVCC for a large library.
pub const MAX_PTX_BYTES: u64 = 8 << 20;
/// Maximum size of PTX or base64 text in the object itself, in bytes, so that the object does not exceed etcd's limit.
const MAX_INLINE_BYTES: usize = 128 << 10;
pub(super) const MAX_ARGUMENTS: usize = 64;
/// Maximum dynamic shared memory of a block in bytes: 227 KiB, the highest limit of any device (CUDA C++ Programming Guide, technical
/// specifications per compute capability, 9.0 and 10.0).
const MAX_SHARED_BYTES: u32 = 227 << 10;

/// Kernel, and its launch for each chunk.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::block_threads())]
#[x_kube(validation = rules::block_depth())]
#[x_kube(validation = rules::grid_extent())]
pub struct Kernel {
    /// Source of the PTX. Its digest is recorded when the job is accepted, and the burst runs no other PTX.
    pub ptx: PtxSource,
    /// Name of the kernel's `.entry` in the PTX.
    #[schemars(length(min = 1, max = 512))]
    #[x_kube(validation = matches("^([a-zA-Z][a-zA-Z0-9_$]*|[_$%][a-zA-Z0-9_$]+)$", "entry must be the name of a PTX .entry: letters, digits, _ and $"))]
    pub entry: String,
    /// Number of blocks in x, y and z.
    #[serde(default = "one_by_one")]
    #[schemars(length(min = 1, max = 3), inner(range(min = 1, max = MAX_GRID[0])))]
    pub grid: Vec<i64>,
    /// Number of threads of a block in x, y and z, at most 1024 in total.
    #[serde(default = "one_by_one")]
    #[schemars(length(min = 1, max = 3), inner(range(min = 1, max = MAX_BLOCK[0])))]
    pub block: Vec<i64>,
    /// Dynamic shared memory of a block, in bytes.
    #[serde(default)]
    #[schemars(range(min = 0, max = MAX_SHARED_BYTES))]
    pub dynamic_shared_bytes: i64,
    /// Arguments of the kernel, in the order of its parameters.
    #[serde(default)]
    #[schemars(length(max = MAX_ARGUMENTS))]
    pub args: Vec<Argument>,
}

fn one_by_one() -> Vec<i64> {
    vec![1, 1, 1]
}

one_of! {
    /// Source of the PTX. Exactly one field must be set.
    #[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
    #[serde(rename_all = "camelCase")]
    #[x_kube(validation = exactly_one(PtxSource::OPTIONS))]
    pub struct PtxSource as PtxChoice {
        /// PTX text, at most 128 KiB.
        #[schemars(length(min = 1, max = MAX_INLINE_BYTES))]
        inline: Inline(String) = "inline",
        /// Key of a ConfigMap in the job's namespace.
        config_map_key_ref: ConfigMapKeyRef(ConfigMapKeyReference) = "configMapKeyRef",
        /// Full URL of an object in the store of `spec.output.store`.
        #[schemars(length(min = 6, max = MAX_URL_LENGTH))]
        #[x_kube(validation = store_url())]
        url: Url(String) = "url",
    }
}

/// Key of a ConfigMap in the job's namespace.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ConfigMapKeyReference {
    /// Name of the ConfigMap.
    #[schemars(length(min = 1, max = MAX_SUBDOMAIN_LENGTH))]
    #[x_kube(validation = object_name())]
    pub name: String,
    /// Key in the `data` or `binaryData` of the ConfigMap.
    #[schemars(length(min = 1, max = MAX_SUBDOMAIN_LENGTH))]
    #[x_kube(validation = matches("^[-._a-zA-Z0-9]+$", "a key of a ConfigMap is letters, digits, dashes, dots and underscores"))]
    pub key: String,
}

one_of! {
    /// Argument of the kernel. Exactly one field must be set.
    #[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
    #[serde(rename_all = "camelCase")]
    #[x_kube(validation = exactly_one(Argument::OPTIONS))]
    pub struct Argument as ArgumentChoice {
        /// Pointer to a zeroed array that is read after the launch, as a result of the chunk.
        output: Output(OutputArgument) = "output",
        /// Name of a parameter in `chunks`, whose value is passed.
        #[schemars(length(min = 1, max = MAX_NAME_LENGTH))]
        parameter: Parameter(String) = "parameter",
        /// Pointer to a private copy of bytes. The kernel may write to it; the changes are discarded.
        input: Input(InputArgument) = "input",
        /// Pointer to bytes that all chunks on a device share. The kernel must not write to it.
        constant: Constant(BytesSource) = "constant",
        /// Index of the chunk, counted from 0.
        chunk_index: ChunkIndex(ChunkIndexArgument) = "chunkIndex",
        /// Value that is the same for every chunk.
        scalar: Scalar(ScalarArgument) = "scalar",
    }
}

/// Array that the kernel fills.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::output_bytes())]
pub struct OutputArgument {
    /// Type of an element.
    #[serde(rename = "type")]
    pub type_: ScalarType,
    /// Number of elements. All outputs of a chunk have at most 32 MiB in total.
    #[serde(default = "number::<1>")]
    #[schemars(range(min = 1, max = MAX_OUTPUT_BYTES))]
    pub count: i64,
}

/// Bytes of which every chunk gets a copy, or a part.
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct InputArgument {
    /// Source of the bytes.
    pub from: BytesSource,
    /// Number of bytes for each chunk: chunk i gets those from i × this number on. If not specified, each chunk gets all bytes.
    #[schemars(range(min = 1, max = MAX_INPUT_BYTES))]
    pub bytes_per_chunk: Option<i64>,
}

one_of! {
    /// Source of bytes. Exactly one field must be set.
    #[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
    #[serde(rename_all = "camelCase")]
    #[x_kube(validation = exactly_one(BytesSource::OPTIONS))]
    pub struct BytesSource as BytesChoice {
        /// Bytes in standard base64, at most 128 KiB of text.
        #[schemars(length(min = 4, max = MAX_INLINE_BYTES))]
        #[x_kube(validation = rules::base64())]
        base64: Base64(String) = "base64",
        /// Key of a ConfigMap in the job's namespace. Binary data must be in `binaryData`.
        config_map_key_ref: ConfigMapKeyRef(ConfigMapKeyReference) = "configMapKeyRef",
        /// Full URL of an object in the store of `spec.output.store`.
        #[schemars(length(min = 6, max = MAX_URL_LENGTH))]
        #[x_kube(validation = store_url())]
        url: Url(String) = "url",
    }
}

/// Message about a type that a chunk's index cannot have.
pub const CHUNK_INDEX_TYPE: &str = "a chunk index is u32, s32, u64 or s64: choose the type of the kernel's parameter";

/// Type of the chunk's index.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.type in ['u32', 's32', 'u64', 's64']").message(CHUNK_INDEX_TYPE).field_path(".type"))]
pub struct ChunkIndexArgument {
    /// Integer type of the kernel's parameter.
    #[serde(rename = "type")]
    pub type_: ScalarType,
}

/// Value that is the same for every chunk.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::representable())]
pub struct ScalarArgument {
    /// Type of the kernel's parameter.
    #[serde(rename = "type")]
    pub type_: ScalarType,
    /// Value of the argument. It must be representable in the type.
    pub value: f64,
}
