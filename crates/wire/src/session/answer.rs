//! What an executor answers.

/// Type and dimensions of an array.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Shape {
    /// As [`Upload::element_type`](super::Upload::element_type).
    #[prost(string, tag = "1")]
    pub element_type: String,
    /// As [`Upload::dimensions`](super::Upload::dimensions).
    #[prost(int64, repeated, tag = "2")]
    pub dimensions: Vec<i64>,
}

/// A program stands, and what it takes to run it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Compiled {
    /// Of the [`Compile`](super::Compile).
    #[prost(uint64, tag = "1")]
    pub request: u64,
    /// It was compiled before.
    #[prost(bool, tag = "2")]
    pub cached: bool,
    /// How long it took to compile, in milliseconds.
    #[prost(uint64, tag = "3")]
    pub milliseconds: u64,
    /// Its results.
    #[prost(message, repeated, tag = "4")]
    pub outputs: Vec<Shape>,
    /// Device memory of its arguments, in bytes.
    #[prost(uint64, tag = "5")]
    pub argument_bytes: u64,
    /// Of its results.
    #[prost(uint64, tag = "6")]
    pub output_bytes: u64,
    /// Of results that take the place of arguments.
    #[prost(uint64, tag = "7")]
    pub aliased_bytes: u64,
    /// Of what it needs in between.
    #[prost(uint64, tag = "8")]
    pub temporary_bytes: u64,
    /// Of the code.
    #[prost(uint64, tag = "9")]
    pub code_bytes: u64,
    /// Floating-point operations of one execution, as the compiler counts them; absent when it does not.
    #[prost(double, optional, tag = "10")]
    pub flops: Option<f64>,
    /// Device memory that the session may use and that tensors use, in bytes.
    #[prost(uint64, tag = "11")]
    pub limit_bytes: u64,
    /// See `limit_bytes`.
    #[prost(uint64, tag = "12")]
    pub used_bytes: u64,
}

/// A tensor is about to come: [`Part`](super::Part)s follow until `bytes` are complete; none for an empty one.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Tensor {
    /// Of the [`Download`](super::Download).
    #[prost(uint64, tag = "1")]
    pub request: u64,
    /// As [`Upload::element_type`](super::Upload::element_type).
    #[prost(string, tag = "2")]
    pub element_type: String,
    /// As [`Upload::dimensions`](super::Upload::dimensions).
    #[prost(int64, repeated, tag = "3")]
    pub dimensions: Vec<i64>,
    /// Bytes in host memory.
    #[prost(uint64, tag = "4")]
    pub bytes: u64,
}

/// All went well.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Done {
    /// Of the request.
    #[prost(uint64, tag = "1")]
    pub request: u64,
}

/// Something did not.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Failed {
    /// Of the request; 0 when it is of none and ends the session.
    #[prost(uint64, tag = "1")]
    pub request: u64,
    /// The cause.
    #[prost(enumeration = "FailureCode", tag = "2")]
    pub code: i32,
    /// Number of the operation that it began with.
    #[prost(uint64, tag = "3")]
    pub sequence: u64,
    /// That operation: `execute train_step`, `upload of tensor 7`.
    #[prost(string, tag = "4")]
    pub operation: String,
    /// For people, with the remedy where there is one.
    #[prost(string, tag = "5")]
    pub message: String,
}

/// Causes of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum FailureCode {
    /// Not said.
    Unspecified = 0,
    /// Unknown name, wrong type, dimensions or number of arguments.
    InvalidArgument = 1,
    /// It would take more device memory than the session may use. Nothing was lost.
    OutOfMemory = 2,
    /// The engine or its platform cannot run the program: custom calls, platform, version. Found before anything ran.
    Incompatible = 3,
    /// The compiler refused it.
    CompileFailed = 4,
    /// It failed while it ran.
    ExecutionFailed = 5,
    /// The other engine is needed for it.
    Unsupported = 6,
    /// The frames make no sense: the session ends.
    Malformed = 7,
    /// The executor's own fault.
    Internal = 8,
    /// The session is over: it was deleted, was idle for too long, or its time is up.
    Ended = 9,
}

/// What the session has.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Figures {
    /// Of the [`Load`](super::Load).
    #[prost(uint64, tag = "1")]
    pub request: u64,
    /// Tensors.
    #[prost(uint64, tag = "2")]
    pub tensors: u64,
    /// Their bytes on the device.
    #[prost(uint64, tag = "3")]
    pub used_bytes: u64,
    /// Bytes that the session may use.
    #[prost(uint64, tag = "4")]
    pub limit_bytes: u64,
    /// Programs.
    #[prost(uint64, tag = "5")]
    pub programs: u64,
    /// Executions that have not ended.
    #[prost(uint64, tag = "6")]
    pub active_executions: u64,
}
