//! The burst stream: a coordinator's half and an agent's half.
//!
//! The coordinator sends [`Open`], then [`Submit`]s as long as [`Opened::max_outstanding_chunks`] allows; the agent runs
//! each chunk on a slice that its ledger knows the owner to hold on that device (never more chunks at a time than
//! slices), and answers [`Results`], [`Failures`] and [`Returned`]. Each index submitted comes back in exactly one of
//! these. The agent keeps results and failures until [`Acknowledge`] says that a checkpoint covers them: a coordinator
//! of a higher term that opens the same owner's stream gets them again, first.

use std::{fmt, time::Duration};

use crate::grants::{Owner, Refusal};

/// An agent ends a stream whose [`Open`] has not arrived whole within this time: 57 MiB at most, beside the streams of other agents.
pub const OPEN_WITHIN: Duration = Duration::from_secs(10);

/// Coordinator to agent: exactly one of the fields.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ClientFrame {
    /// The frame.
    #[prost(oneof = "client_frame::Kind", tags = "1, 2, 3, 4")]
    pub kind: Option<client_frame::Kind>,
}

/// Kinds of [`ClientFrame`].
pub mod client_frame {
    /// One of them.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Kind {
        /// First frame of a stream.
        #[prost(message, boxed, tag = "1")]
        Open(Box<super::Open>),
        /// Chunks to run.
        #[prost(message, tag = "2")]
        Submit(super::Submit),
        /// A checkpoint covers everything up to a sequence number.
        #[prost(message, tag = "3")]
        Acknowledge(super::Acknowledge),
        /// Give back what has not started.
        #[prost(message, tag = "4")]
        Withdraw(super::Withdraw),
    }
}

impl From<client_frame::Kind> for ClientFrame {
    fn from(kind: client_frame::Kind) -> Self {
        Self { kind: Some(kind) }
    }
}

/// Says for whom the stream is and what its chunks compute.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Open {
    /// The burst, and who coordinates it.
    #[prost(message, required, tag = "1")]
    pub owner: Owner,
    /// Boot of the agent that the coordinator means.
    #[prost(string, tag = "2")]
    pub boot_id: String,
    /// The program.
    #[prost(message, required, tag = "3")]
    pub program: Program,
    /// Indices that a checkpoint covers already, as flat pairs of first and last: the agent drops what it kept of them.
    #[prost(uint64, repeated, tag = "4")]
    pub covered: Vec<u64>,
}

/// What a chunk computes.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Program {
    /// PTX text.
    #[prost(bytes = "bytes", tag = "1")]
    pub ptx: bytes::Bytes,
    /// SHA-256 of it: executors keep loaded modules by this.
    #[prost(bytes = "bytes", tag = "2")]
    pub digest: bytes::Bytes,
    /// Name of the `.entry`.
    #[prost(string, tag = "3")]
    pub entry: String,
    /// Blocks in x, y, z.
    #[prost(uint32, repeated, tag = "4")]
    pub grid: Vec<u32>,
    /// Threads in x, y, z.
    #[prost(uint32, repeated, tag = "5")]
    pub block: Vec<u32>,
    /// Dynamic shared memory in bytes.
    #[prost(uint32, tag = "6")]
    pub dynamic_shared_bytes: u32,
    /// Arguments in the kernel's order.
    #[prost(message, repeated, tag = "7")]
    pub arguments: Vec<Argument>,
    /// `spec.chunks` of the job as JSON: compiled and evaluated at the agent.
    #[prost(bytes = "bytes", tag = "8")]
    pub chunks_json: bytes::Bytes,
    /// VRAM that one chunk may use, in bytes.
    #[prost(uint64, tag = "9")]
    pub slice_bytes: u64,
    /// A chunk that runs longer is stopped, in milliseconds.
    #[prost(uint64, tag = "10")]
    pub chunk_timeout_milliseconds: u64,
    /// Where the agent writes results; absent: they come back whole in [`Results`], unless `aggregate_only`.
    #[prost(message, optional, tag = "11")]
    pub store: Option<Store>,
    /// With a store or `aggregate_only`: the output (its place among the outputs) that comes back nevertheless, for the
    /// aggregate.
    #[prost(uint32, optional, tag = "12")]
    pub aggregated_output: Option<u32>,
    /// Outputs are kept nowhere: none is written to a store, and of them only `aggregated_output` comes back.
    #[prost(bool, tag = "13")]
    pub aggregate_only: bool,
}

/// One argument: exactly one kind.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Argument {
    /// The kind.
    #[prost(oneof = "argument::Kind", tags = "1, 2, 3, 4, 5, 6")]
    pub kind: Option<argument::Kind>,
}

/// Kinds of [`Argument`].
pub mod argument {
    /// One of them.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Kind {
        /// Zeroed array, read back: its size in bytes.
        #[prost(uint64, tag = "1")]
        OutputBytes(u64),
        /// Name of a parameter; its type is in the chunks.
        #[prost(string, tag = "2")]
        Parameter(String),
        /// Private copy of bytes.
        #[prost(message, tag = "3")]
        Input(super::Input),
        /// Bytes that all chunks share.
        #[prost(bytes = "bytes", tag = "4")]
        Constant(bytes::Bytes),
        /// Chunk index in so many bytes, little-endian: 4 or 8.
        #[prost(uint32, tag = "5")]
        ChunkIndexBytes(u32),
        /// The same little-endian bytes for every chunk.
        #[prost(bytes = "bytes", tag = "6")]
        Scalar(bytes::Bytes),
    }
}

/// Bytes of which each chunk gets a copy.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Input {
    /// All of them.
    #[prost(bytes = "bytes", tag = "1")]
    pub bytes: bytes::Bytes,
    /// When above 0: chunk i gets so many bytes from i times this.
    #[prost(uint64, tag = "2")]
    pub bytes_per_chunk: u64,
}

/// An object store and the right to write there.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Store {
    /// URL of the folder for this job.
    #[prost(string, tag = "1")]
    pub url: String,
    /// Settings of the `object_store` crate, from the job's Secret.
    #[prost(btree_map = "string, string", tag = "2")]
    pub options: std::collections::BTreeMap<String, String>,
}

/// Chunks to run.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Submit {
    /// Ranges, to be run in this order.
    #[prost(message, repeated, tag = "1")]
    pub ranges: Vec<ChunkRange>,
}

/// Consecutive indices, for the same device and attempt.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ChunkRange {
    /// Device that runs them.
    #[prost(string, tag = "1")]
    pub device: String,
    /// First index.
    #[prost(uint64, tag = "2")]
    pub first: u64,
    /// How many.
    #[prost(uint64, tag = "3")]
    pub count: u64,
    /// Which attempt this is of each, from 1.
    #[prost(uint32, tag = "4")]
    pub attempt: u32,
}

/// A checkpoint covers everything up to a sequence number.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Acknowledge {
    /// Sequence number of the last covered [`Results`] or [`Failures`].
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
}

/// Give back what has not started: it comes back in [`Returned`]. What runs goes on.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Withdraw {
    /// From this device; from all when empty.
    #[prost(string, tag = "1")]
    pub device: String,
}

/// Agent to coordinator: exactly one of the fields.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ServerFrame {
    /// The frame.
    #[prost(oneof = "server_frame::Kind", tags = "1, 2, 3, 4, 5")]
    pub kind: Option<server_frame::Kind>,
}

/// Kinds of [`ServerFrame`].
pub mod server_frame {
    /// One of them.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Kind {
        /// First frame of a stream that was accepted.
        #[prost(message, tag = "1")]
        Opened(super::Opened),
        /// The stream was not accepted, or ends: nothing follows.
        #[prost(message, tag = "2")]
        Refused(super::Refusal),
        /// Chunks that succeeded.
        #[prost(message, tag = "3")]
        Results(super::Results),
        /// Chunks whose attempt failed.
        #[prost(message, tag = "4")]
        Failures(super::Failures),
        /// Chunks that were withdrawn before they started.
        #[prost(message, tag = "5")]
        Returned(super::Returned),
    }
}

impl From<server_frame::Kind> for ServerFrame {
    fn from(kind: server_frame::Kind) -> Self {
        Self { kind: Some(kind) }
    }
}

/// The stream was accepted.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Opened {
    /// Boot of the agent.
    #[prost(string, tag = "1")]
    pub boot_id: String,
    /// Most chunks that may be submitted and not yet answered.
    #[prost(uint64, tag = "2")]
    pub max_outstanding_chunks: u64,
    /// Chunks of an earlier stream of this owner that still run or wait here, as pairs of first and last: they come back
    /// on this stream and need not be submitted again.
    #[prost(uint64, repeated, tag = "3")]
    pub outstanding: Vec<u64>,
    /// Highest sequence number so far. Failures up to it are told again and are of earlier attempts than those outstanding.
    #[prost(uint64, tag = "4")]
    pub sequence: u64,
    /// Sequence number of the last frame that is told again; 0: none is.
    #[prost(uint64, tag = "5")]
    pub retold: u64,
    /// The agent has dropped nothing since the owner's last stream: what is neither outstanding nor told again never
    /// reached it, or was on its way back unstarted.
    #[prost(bool, tag = "6")]
    pub resumed: bool,
}

/// Chunks that succeeded.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Results {
    /// Grows by one with every [`Results`] and [`Failures`] of an owner on this boot. It skips numbers, and never goes
    /// back, when the agent had dropped what it knew of the owner (nobody listened and its grants had ended).
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    /// Device that ran them.
    #[prost(string, tag = "2")]
    pub device: String,
    /// Runs of consecutive indices.
    #[prost(message, repeated, tag = "3")]
    pub runs: Vec<ResultRun>,
    /// With a store: the object that holds these results, by its name under [`Store::url`].
    #[prost(string, tag = "4")]
    pub segment: String,
}

/// Results of consecutive indices.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ResultRun {
    /// First index.
    #[prost(uint64, tag = "1")]
    pub first: u64,
    /// How many.
    #[prost(uint64, tag = "2")]
    pub count: u64,
    /// Which attempt succeeded.
    #[prost(uint32, tag = "3")]
    pub attempt: u32,
    /// The outputs of each chunk in the kernel's order, one chunk after the other, little-endian; with a store or
    /// [`Program::aggregate_only`] only the aggregated output.
    #[prost(bytes = "bytes", tag = "4")]
    pub outputs: bytes::Bytes,
}

/// Attempts that failed.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Failures {
    /// As in [`Results::sequence`].
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    /// Device.
    #[prost(string, tag = "2")]
    pub device: String,
    /// One entry a run of consecutive indices that failed alike.
    #[prost(message, repeated, tag = "3")]
    pub failures: Vec<Failure>,
}

/// Consecutive indices whose attempt failed for the same cause.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Failure {
    /// First index.
    #[prost(uint64, tag = "1")]
    pub first: u64,
    /// How many.
    #[prost(uint64, tag = "2")]
    pub count: u64,
    /// Which attempt.
    #[prost(uint32, tag = "3")]
    pub attempt: u32,
    /// The cause.
    #[prost(enumeration = "FailureCode", tag = "4")]
    pub code: i32,
    /// The cause as the engine tells it.
    #[prost(string, tag = "5")]
    pub message: String,
}

/// Chunks that come back unstarted, because they were withdrawn, their slices were released or expired, or the agent shuts
/// down; they cost no retry.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Returned {
    /// Which.
    #[prost(message, repeated, tag = "1")]
    pub ranges: Vec<ChunkRange>,
    /// The owner holds no slice on their devices: what is submitted there before it does comes back as well.
    #[prost(bool, tag = "2")]
    pub without_slices: bool,
}

/// Why an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum FailureCode {
    /// Not said.
    Unspecified = 0,
    /// The grant ended while the chunk ran, and so did the grace after it.
    GrantExpired = 1,
    /// The stream to the agent broke or the agent went away (said by the coordinator itself).
    Disconnected = 2,
    /// The device had less memory than it had granted.
    OutOfDeviceMemory = 3,
    /// The executor crashed, was killed or was replaced.
    ExecutorLost = 4,
    /// The chunk ran longer than its timeout.
    ChunkTimeout = 5,
    /// The agent shut down.
    ShuttingDown = 6,
    /// The object store could not be written.
    StoreUnavailable = 7,
    /// The PTX does not load.
    LoadFailed = 20,
    /// The launch was refused: wrong shape, wrong arguments.
    LaunchFailed = 21,
    /// A parameter could not be evaluated for this index.
    ParameterFailed = 22,
    /// The kernel executed `trap` or failed an `assert`.
    Trap = 23,
    /// The kernel accessed memory that is not its own, or misaligned.
    IllegalAddress = 24,
    /// The chunk needs more VRAM than a slice has.
    SliceExceeded = 25,
    /// Threads of the kernel wait for each other for ever, or meet in different barriers.
    Deadlock = 26,
    /// The kernel uses an instruction that the engine lacks.
    Unsupported = 27,
    /// Calls of the kernel's functions went deeper than the stack of a thread.
    StackOverflow = 28,
}

impl FailureCode {
    /// Every code.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..=Self::LAST as i32).filter_map(|code| Self::try_from(code).ok())
    }

    const LAST: Self = Self::StackOverflow;

    /// Whether another attempt may succeed: a lost grant, agent or executor says nothing about the kernel.
    pub const fn is_transient(self) -> bool {
        (self as i32) < 20
    }

    /// Name for status and metrics.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Unspecified => "Unspecified",
            Self::GrantExpired => "GrantExpired",
            Self::Disconnected => "Disconnected",
            Self::OutOfDeviceMemory => "OutOfDeviceMemory",
            Self::ExecutorLost => "ExecutorLost",
            Self::ChunkTimeout => "ChunkTimeout",
            Self::ShuttingDown => "ShuttingDown",
            Self::StoreUnavailable => "StoreUnavailable",
            Self::LoadFailed => "LoadFailed",
            Self::LaunchFailed => "LaunchFailed",
            Self::ParameterFailed => "ParameterFailed",
            Self::Trap => "Trap",
            Self::IllegalAddress => "IllegalAddress",
            Self::SliceExceeded => "SliceExceeded",
            Self::Deadlock => "Deadlock",
            Self::Unsupported => "Unsupported",
            Self::StackOverflow => "StackOverflow",
        }
    }
}

impl fmt::Display for FailureCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_codes_of_failures_are_all() {
        assert_eq!(FailureCode::all().last(), Some(FailureCode::LAST));
        for code in FailureCode::LAST as i32 + 1..1000 {
            assert!(FailureCode::try_from(code).is_err(), "{code} lies behind `FailureCode::LAST`");
        }
    }
}
