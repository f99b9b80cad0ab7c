//! What a client asks for.

/// A tensor from the client's memory: dense, row-major, little-endian. [`Part`](super::Part)s follow until `bytes` are complete; none for an
/// empty tensor.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Upload {
    /// Its name from here on.
    #[prost(uint64, tag = "1")]
    pub tensor: u64,
    /// Type of its elements as XLA writes it: `f32`, `bf16`, `pred`, `s32`, `c64`.
    #[prost(string, tag = "2")]
    pub element_type: String,
    /// Elements along each dimension, outermost first; none for a scalar.
    #[prost(int64, repeated, tag = "3")]
    pub dimensions: Vec<i64>,
    /// Bytes in host memory: what type and dimensions say.
    #[prost(uint64, tag = "4")]
    pub bytes: u64,
}

/// A zeroed tensor.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Allocate {
    /// Its name from here on.
    #[prost(uint64, tag = "1")]
    pub tensor: u64,
    /// As [`Upload::element_type`].
    #[prost(string, tag = "2")]
    pub element_type: String,
    /// As [`Upload::dimensions`].
    #[prost(int64, repeated, tag = "3")]
    pub dimensions: Vec<i64>,
}

/// A program.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Compile {
    /// Its name from here on.
    #[prost(uint64, tag = "1")]
    pub program: u64,
    /// What its author calls it: errors do.
    #[prost(string, tag = "2")]
    pub name: String,
    /// How the code is written.
    #[prost(enumeration = "Format", tag = "3")]
    pub format: i32,
    /// Not 0: [`Compiled`](super::Compiled) is wanted, under this number.
    #[prost(uint64, tag = "4")]
    pub request: u64,
}

/// How code is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Format {
    /// Not said.
    Unspecified = 0,
    /// StableHLO: a portable artifact, or MLIR as text.
    StableHlo = 1,
    /// A serialised `HloModuleProto`.
    Hlo = 2,
    /// PTX text.
    Ptx = 3,
}

/// One execution.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Execute {
    /// The program.
    #[prost(uint64, tag = "1")]
    pub program: u64,
    /// Tensors in the order of its parameters.
    #[prost(uint64, repeated, tag = "2")]
    pub arguments: Vec<u64>,
    /// Names of its results from here on; 0 for one that nobody needs.
    #[prost(uint64, repeated, tag = "3")]
    pub outputs: Vec<u64>,
    /// Places of arguments whose tensors end here, so that results may take their memory.
    #[prost(uint32, repeated, tag = "4")]
    pub donated: Vec<u32>,
}

/// One launch.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Launch {
    /// The program.
    #[prost(uint64, tag = "1")]
    pub program: u64,
    /// Name of the `.entry`.
    #[prost(string, tag = "2")]
    pub entry: String,
    /// Blocks in x, y, z.
    #[prost(uint32, repeated, tag = "3")]
    pub grid: Vec<u32>,
    /// Threads in x, y, z.
    #[prost(uint32, repeated, tag = "4")]
    pub block: Vec<u32>,
    /// Dynamic shared memory in bytes.
    #[prost(uint32, tag = "5")]
    pub dynamic_shared_bytes: u32,
    /// Arguments in the kernel's order.
    #[prost(message, repeated, tag = "6")]
    pub arguments: Vec<Argument>,
}

/// One argument: exactly one kind.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Argument {
    /// The kind.
    #[prost(oneof = "argument::Kind", tags = "1, 2")]
    pub kind: Option<argument::Kind>,
}

/// Kinds of [`Argument`].
pub mod argument {
    /// One of them.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Kind {
        /// Address of a tensor, which the kernel may read and write.
        #[prost(uint64, tag = "1")]
        Tensor(u64),
        /// Little-endian bytes of a scalar, as many as the parameter has.
        #[prost(bytes = "bytes", tag = "2")]
        Scalar(bytes::Bytes),
    }
}

/// A tensor to the client's memory.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Download {
    /// Which.
    #[prost(uint64, tag = "1")]
    pub tensor: u64,
    /// The answer carries it.
    #[prost(uint64, tag = "2")]
    pub request: u64,
}

/// What is not needed any more. Unknown names are no error.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Delete {
    /// Tensors.
    #[prost(uint64, repeated, tag = "1")]
    pub tensors: Vec<u64>,
    /// Programs.
    #[prost(uint64, repeated, tag = "2")]
    pub programs: Vec<u64>,
}

/// Waits for everything before it. The answer is the first failure since the last one.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Synchronise {
    /// The answer carries it.
    #[prost(uint64, tag = "1")]
    pub request: u64,
    /// Only failures count that no other answer has told.
    #[prost(bool, tag = "2")]
    pub only_untold: bool,
}

impl Synchronise {
    /// Asks for the first failure, whether another answer has told it or not.
    #[must_use]
    pub fn new(request: u64) -> Self {
        Self {
            request,
            only_untold: false,
        }
    }
}

/// Asks for figures.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Load {
    /// The answer carries it.
    #[prost(uint64, tag = "1")]
    pub request: u64,
}

/// Ends what the client has here.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Close {
    /// The answer carries it.
    #[prost(uint64, tag = "1")]
    pub request: u64,
}
