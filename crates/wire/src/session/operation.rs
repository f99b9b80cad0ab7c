//! Operations that a client sends to its session.

/// Creates a tensor from data in the client's memory: dense, row-major, little-endian. [`Part`](super::Part)s follow until `bytes` are
/// complete; none follow for an empty tensor.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Upload {
    /// Number that identifies the tensor from now on, above 0.
    #[prost(uint64, tag = "1")]
    pub tensor: u64,
    /// Element type in XLA's notation: `f32`, `bf16`, `pred`, `s32`, `c64`.
    #[prost(string, tag = "2")]
    pub element_type: String,
    /// Number of elements along each dimension, outermost first; empty for a scalar.
    #[prost(int64, repeated, tag = "3")]
    pub dimensions: Vec<i64>,
    /// Size of the data in host memory, in bytes. Must match element type and dimensions.
    #[prost(uint64, tag = "4")]
    pub bytes: u64,
}

/// Creates a zeroed tensor.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Allocate {
    /// Number that identifies the tensor from now on, above 0.
    #[prost(uint64, tag = "1")]
    pub tensor: u64,
    /// Element type, as in [`Upload::element_type`].
    #[prost(string, tag = "2")]
    pub element_type: String,
    /// Dimensions, as in [`Upload::dimensions`].
    #[prost(int64, repeated, tag = "3")]
    pub dimensions: Vec<i64>,
}

/// Compiles a program. The code is the frame's payload.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Compile {
    /// Number that identifies the program from now on, above 0.
    #[prost(uint64, tag = "1")]
    pub program: u64,
    /// Name given by the program's author. Error messages contain it.
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(enumeration = "Format", tag = "3")]
    pub format: i32,
    /// Number of the request, repeated in the [`Compiled`](super::Compiled) answer. 0: no answer is sent.
    #[prost(uint64, tag = "4")]
    pub request: u64,
}

/// Formats of a program's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Format {
    Unspecified = 0,
    /// StableHLO, as a portable artifact or as MLIR text.
    StableHlo = 1,
    Hlo = 2,
    Ptx = 3,
}

/// Executes a program of the engine `xla` once.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Execute {
    #[prost(uint64, tag = "1")]
    pub program: u64,
    /// Numbers of the argument tensors, in the order of the program's parameters.
    #[prost(uint64, repeated, tag = "2")]
    pub arguments: Vec<u64>,
    /// Numbers that identify the result tensors from now on; 0 for a result that is not needed.
    #[prost(uint64, repeated, tag = "3")]
    pub outputs: Vec<u64>,
    /// Indices of donated arguments. Their tensors are deleted, so that results can reuse their memory.
    #[prost(uint32, repeated, tag = "4")]
    pub donated: Vec<u32>,
}

/// Launches a kernel of the engine `ptx` once.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Launch {
    #[prost(uint64, tag = "1")]
    pub program: u64,
    /// Name of the kernel: the `.entry` in the PTX text.
    #[prost(string, tag = "2")]
    pub entry: String,
    /// Number of blocks in x, y and z.
    #[prost(uint32, repeated, tag = "3")]
    pub grid: Vec<u32>,
    /// Number of threads per block in x, y and z.
    #[prost(uint32, repeated, tag = "4")]
    pub block: Vec<u32>,
    #[prost(uint32, tag = "5")]
    pub dynamic_shared_bytes: u32,
    /// Arguments in the order of the kernel's parameters.
    #[prost(message, repeated, tag = "6")]
    pub arguments: Vec<Argument>,
}

/// Argument of a kernel, of exactly one kind.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Argument {
    #[prost(oneof = "argument::Kind", tags = "1, 2")]
    pub kind: Option<argument::Kind>,
}

/// Kinds of [`Argument`].
pub mod argument {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Kind {
        /// Number of a tensor. The kernel receives the tensor's address and may read and write the tensor.
        #[prost(uint64, tag = "1")]
        Tensor(u64),
        /// Little-endian bytes of a scalar, as many as the parameter's size.
        #[prost(bytes = "bytes", tag = "2")]
        Scalar(bytes::Bytes),
    }
}

/// Copies a tensor to the client's memory.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Download {
    #[prost(uint64, tag = "1")]
    pub tensor: u64,
    #[prost(uint64, tag = "2")]
    pub request: u64,
}

/// Deletes tensors and programs. Unknown numbers are ignored.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Delete {
    #[prost(uint64, repeated, tag = "1")]
    pub tensors: Vec<u64>,
    #[prost(uint64, repeated, tag = "2")]
    pub programs: Vec<u64>,
}

/// Waits for all preceding operations. The answer reports the first failure since the last [`Synchronise`].
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Synchronise {
    #[prost(uint64, tag = "1")]
    pub request: u64,
    /// Whether to report only failures that no other answer has reported.
    #[prost(bool, tag = "2")]
    pub only_unreported: bool,
}

impl Synchronise {
    /// Creates a request for the first failure since the last [`Synchronise`], whether another answer has reported it or not.
    #[must_use]
    pub fn new(request: u64) -> Self {
        Self {
            request,
            only_unreported: false,
        }
    }
}

/// Requests statistics of the session.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Load {
    #[prost(uint64, tag = "1")]
    pub request: u64,
}

/// Frees all tensors and programs of the client and ends the client's use of the session.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Close {
    #[prost(uint64, tag = "1")]
    pub request: u64,
}
