//! Answers of the executor to a client's operations.

/// Element type and dimensions of an array.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Shape {
    /// Element type, as in [`Upload::element_type`](super::Upload::element_type).
    #[prost(string, tag = "1")]
    pub element_type: String,
    /// Dimensions, as in [`Upload::dimensions`](super::Upload::dimensions).
    #[prost(int64, repeated, tag = "2")]
    pub dimensions: Vec<i64>,
}

/// Answer to a [`Compile`](super::Compile): the program is compiled, and these are its requirements.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Compiled {
    #[prost(uint64, tag = "1")]
    pub request: u64,
    /// Whether the program was compiled earlier and taken from a cache.
    #[prost(bool, tag = "2")]
    pub cached: bool,
    #[prost(uint64, tag = "3")]
    pub milliseconds: u64,
    #[prost(message, repeated, tag = "4")]
    pub outputs: Vec<Shape>,
    /// Device memory of the arguments, in bytes.
    #[prost(uint64, tag = "5")]
    pub argument_bytes: u64,
    /// Device memory of the results, in bytes.
    #[prost(uint64, tag = "6")]
    pub output_bytes: u64,
    /// Device memory of results that reuse the memory of arguments, in bytes.
    #[prost(uint64, tag = "7")]
    pub aliased_bytes: u64,
    /// Device memory of temporaries while the program runs, in bytes.
    #[prost(uint64, tag = "8")]
    pub temporary_bytes: u64,
    /// Device memory of the code, in bytes.
    #[prost(uint64, tag = "9")]
    pub code_bytes: u64,
    /// Floating-point operations of one execution, as counted by the compiler. Absent if the compiler does not count them.
    #[prost(double, optional, tag = "10")]
    pub flops: Option<f64>,
    /// Device memory that the session may use, in bytes.
    #[prost(uint64, tag = "11")]
    pub limit_bytes: u64,
    /// Device memory that the session's tensors use, in bytes.
    #[prost(uint64, tag = "12")]
    pub used_bytes: u64,
}

/// Answer to a [`Download`](super::Download). [`Part`](super::Part)s follow until `bytes` are complete; none follow for an empty tensor.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Tensor {
    #[prost(uint64, tag = "1")]
    pub request: u64,
    /// Element type, as in [`Upload::element_type`](super::Upload::element_type).
    #[prost(string, tag = "2")]
    pub element_type: String,
    /// Dimensions, as in [`Upload::dimensions`](super::Upload::dimensions).
    #[prost(int64, repeated, tag = "3")]
    pub dimensions: Vec<i64>,
    /// Size of the tensor in host memory, in bytes.
    #[prost(uint64, tag = "4")]
    pub bytes: u64,
}

/// Answer to a request that succeeded.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Done {
    #[prost(uint64, tag = "1")]
    pub request: u64,
}

/// Answer to a request that failed, or end of the session's stream.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Failed {
    /// Number of the request; 0 if the failure answers no request and ends the session's stream.
    #[prost(uint64, tag = "1")]
    pub request: u64,
    #[prost(enumeration = "FailureCode", tag = "2")]
    pub code: i32,
    /// Sequence number of the operation that failed first.
    #[prost(uint64, tag = "3")]
    pub sequence: u64,
    /// Description of the operation that failed first, such as `execute train_step` or `upload of tensor 7`.
    #[prost(string, tag = "4")]
    pub operation: String,
    #[prost(string, tag = "5")]
    pub message: String,
}

/// Causes of a failed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum FailureCode {
    Unspecified = 0,
    /// Unknown tensor or program, or wrong type, dimensions or number of arguments.
    InvalidArgument = 1,
    /// The operation needs more device memory than the session may use. Nothing was lost.
    OutOfMemory = 2,
    /// The engine or its platform cannot run the program because of its custom calls, platform or version. Detected before anything ran.
    Incompatible = 3,
    CompileFailed = 4,
    ExecutionFailed = 5,
    /// The operation needs another engine.
    Unsupported = 6,
    /// The frames are invalid; the session's stream ends.
    Malformed = 7,
    Internal = 8,
    /// The session has ended: it was deleted, exceeded its idle timeout, or expired.
    Ended = 9,
}

/// Answer to a [`Load`](super::Load): statistics of the session.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Stats {
    #[prost(uint64, tag = "1")]
    pub request: u64,
    #[prost(uint64, tag = "2")]
    pub tensors: u64,
    /// Device memory in use, in bytes. Includes tensors that were deleted while they are still being sent.
    #[prost(uint64, tag = "3")]
    pub used_bytes: u64,
    #[prost(uint64, tag = "4")]
    pub limit_bytes: u64,
    #[prost(uint64, tag = "5")]
    pub programs: u64,
    /// Number of executions that have not ended.
    #[prost(uint64, tag = "6")]
    pub active_executions: u64,
}
