//! The program of a burst: PTX, entry, launch shape and arguments.

use kube::KubeSchema;
use sahasra_parameters::one_of;
use serde::{Deserialize, Serialize};

use super::{ScalarType, rules};
use crate::{
    number,
    rules::{exactly_one, matches, object_name, store_url},
};

/// Most bytes of one chunk's outputs, all together: several frames of results must fit a stream's window and the agent's memory.
pub const MAX_OUTPUT_BYTES: u64 = 32 << 20;
/// Most bytes of a burst's inputs, each argument's counted: with the PTX they fit a frame to an agent.
pub const MAX_INPUT_BYTES: u64 = 48 << 20;
/// Largest PTX in bytes: what NVCC makes of a large library.
pub const MAX_PTX_BYTES: u64 = 8 << 20;
/// Most dynamic shared memory of a block in bytes: 227 KiB, the most that any device lets a block have (CUDA C++ Programming Guide,
/// technical specifications per compute capability, 9.0 and 10.0).
const MAX_SHARED_BYTES: u32 = 227 << 10;

/// One kernel and how it is launched for each chunk.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::block_threads())]
#[x_kube(validation = rules::block_depth())]
#[x_kube(validation = rules::grid_extent())]
pub struct Kernel {
    /// The PTX text; fixed by its digest when the job is accepted.
    pub ptx: PtxSource,
    /// Name of the `.entry`.
    #[schemars(length(min = 1, max = 512))]
    #[x_kube(validation = matches("^([a-zA-Z][a-zA-Z0-9_$]*|[_$%][a-zA-Z0-9_$]+)$", "give the name of a PTX .entry: letters, digits, _ and $"))]
    pub entry: String,
    /// Blocks in x, y, z.
    #[serde(default = "one_by_one")]
    #[schemars(length(min = 1, max = 3), inner(range(min = 1, max = 2_147_483_647)))]
    pub grid: Vec<i64>,
    /// Threads of a block in x, y, z; at most 1024 in all.
    #[serde(default = "one_by_one")]
    #[schemars(length(min = 1, max = 3), inner(range(min = 1, max = 1_024)))]
    pub block: Vec<i64>,
    /// Dynamic shared memory of a block, in bytes.
    #[serde(default)]
    #[schemars(range(min = 0, max = MAX_SHARED_BYTES))]
    pub dynamic_shared_bytes: i64,
    /// The arguments in the kernel's own order.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub args: Vec<Argument>,
}

fn one_by_one() -> Vec<i64> {
    vec![1, 1, 1]
}

one_of! {
    /// Where the PTX is: exactly one of the fields.
    #[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
    #[serde(rename_all = "camelCase")]
    #[x_kube(validation = exactly_one(PtxSource::OPTIONS))]
    pub struct PtxSource as PtxChoice {
        /// The text itself, at most 128 KiB.
        #[schemars(length(min = 1, max = 131_072))]
        inline: Inline(String) = "inline",
        /// A key of a ConfigMap in the job's namespace.
        config_map_key_ref: ConfigMapKeyRef(ConfigMapKeyReference) = "configMapKeyRef",
        /// An object in the store of `spec.output.store`, by its full URL.
        #[schemars(length(min = 6, max = 1024))]
        #[x_kube(validation = store_url())]
        url: Url(String) = "url",
    }
}

/// A key of a ConfigMap in the job's namespace.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ConfigMapKeyReference {
    /// Name of the ConfigMap.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = object_name())]
    pub name: String,
    /// Key in its `data` or `binaryData`.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = matches("^[-._a-zA-Z0-9]+$", "a key of a ConfigMap is letters, digits, dashes, dots and underscores"))]
    pub key: String,
}

one_of! {
    /// One argument: exactly one of the fields.
    #[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
    #[serde(rename_all = "camelCase")]
    #[x_kube(validation = exactly_one(Argument::OPTIONS))]
    pub struct Argument as ArgumentChoice {
        /// Pointer to a zeroed array that is read back after the launch: a result of the chunk.
        output: Output(OutputArgument) = "output",
        /// Value of a parameter declared in `chunks`, by name.
        #[schemars(length(min = 1, max = 63))]
        parameter: Parameter(String) = "parameter",
        /// Pointer to a private copy of given bytes; the kernel may write to it, and what it writes is discarded.
        input: Input(InputArgument) = "input",
        /// Pointer to given bytes that all chunks on a device share; the kernel must not write to it.
        constant: Constant(BytesSource) = "constant",
        /// The index of the chunk, from 0.
        chunk_index: ChunkIndex(ChunkIndexArgument) = "chunkIndex",
        /// The same value for every chunk.
        scalar: Scalar(ScalarArgument) = "scalar",
    }
}

/// An array that the kernel fills.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::output_bytes())]
pub struct OutputArgument {
    /// Type of an element.
    #[serde(rename = "type")]
    pub type_: ScalarType,
    /// How many elements. The outputs of a chunk have at most 32 MiB in all.
    #[serde(default = "number::<1>")]
    #[schemars(range(min = 1, max = MAX_OUTPUT_BYTES))]
    pub count: i64,
}

/// Bytes of which every chunk gets a copy of its own, or its own part.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct InputArgument {
    /// The bytes.
    pub from: BytesSource,
    /// When given, chunk i gets the bytes from i × this, so many of them; else all bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MAX_INPUT_BYTES))]
    pub bytes_per_chunk: Option<i64>,
}

one_of! {
    /// Where bytes are: exactly one of the fields.
    #[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
    #[serde(rename_all = "camelCase")]
    #[x_kube(validation = exactly_one(BytesSource::OPTIONS))]
    pub struct BytesSource as BytesChoice {
        /// The bytes themselves in standard base64, at most 128 KiB of text.
        #[schemars(length(min = 4, max = 131_072))]
        #[x_kube(validation = rules::base64())]
        base64: Base64(String) = "base64",
        /// A key of a ConfigMap in the job's namespace (`binaryData` for bytes).
        config_map_key_ref: ConfigMapKeyRef(ConfigMapKeyReference) = "configMapKeyRef",
        /// An object in the store of `spec.output.store`, by its full URL.
        #[schemars(length(min = 6, max = 1024))]
        #[x_kube(validation = store_url())]
        url: Url(String) = "url",
    }
}

/// How the kernel takes the chunk's index.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.type in ['u32', 's32', 'u64', 's64']").message("a chunk index is u32, s32, u64 or s64: choose the type of the kernel's parameter").field_path(".type"))]
pub struct ChunkIndexArgument {
    /// Integer type of the kernel's parameter.
    #[serde(rename = "type")]
    pub type_: ScalarType,
}

/// A value that is the same for every chunk.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::representable())]
pub struct ScalarArgument {
    /// Type of the kernel's parameter.
    #[serde(rename = "type")]
    pub type_: ScalarType,
    /// The value; must be representable in the type.
    pub value: f64,
}
