//! The burst stream: frames of a coordinator and of an agent.
//!
//! The coordinator sends [`Open`], then [`Submit`]s as long as [`Opened::max_outstanding_chunks`] allows. The agent runs each chunk on a
//! slice that the owner holds on the chunk's device according to the agent's ledger, so there are never more running chunks than slices.
//! The agent answers with [`Results`], [`Failures`] and [`Returned`]; each submitted index comes back in exactly one of them. The agent
//! keeps results and failures until an [`Acknowledge`] says that a checkpoint covers them. A coordinator of a higher term that opens a
//! stream of the same owner first receives the kept frames again.

use std::time::Duration;

use sahasra_ranges::AttemptRange;

use crate::grants::{Owner, Refusal};

/// Time within which the whole [`Open`] frame must arrive; otherwise the agent ends the stream. The frame has up to 57 MiB and shares the
/// coordinator's network link with the streams of other agents.
pub const OPEN_WITHIN: Duration = Duration::from_secs(10);

/// Frame from coordinator to agent, with exactly one kind.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ClientFrame {
    #[prost(oneof = "client_frame::Kind", tags = "1, 2, 3, 4")]
    pub kind: Option<client_frame::Kind>,
}

pub mod client_frame {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Kind {
        #[prost(message, boxed, tag = "1")]
        Open(Box<super::Open>),
        #[prost(message, tag = "2")]
        Submit(super::Submit),
        #[prost(message, tag = "3")]
        Acknowledge(super::Acknowledge),
        #[prost(message, tag = "4")]
        Withdraw(super::Withdraw),
    }
}

impl From<client_frame::Kind> for ClientFrame {
    fn from(kind: client_frame::Kind) -> Self {
        Self { kind: Some(kind) }
    }
}

/// First frame of a stream: the owner of the burst and the program of its chunks.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Open {
    #[prost(message, required, tag = "1")]
    pub owner: Owner,
    /// Boot id of the agent to which the coordinator means to connect.
    #[prost(string, tag = "2")]
    pub boot_id: String,
    #[prost(message, required, tag = "3")]
    pub program: Program,
    /// Chunk indices that a checkpoint covers already, as flat pairs of first and last index (inclusive). The agent drops its kept results
    /// of these indices.
    #[prost(uint64, repeated, tag = "4")]
    pub covered: Vec<u64>,
}

/// Program that the chunks of a burst run.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Program {
    #[prost(bytes = "bytes", tag = "1")]
    pub ptx: bytes::Bytes,
    /// SHA-256 of the PTX text. Executors cache loaded modules by this digest.
    #[prost(bytes = "bytes", tag = "2")]
    pub digest: bytes::Bytes,
    /// Name of the kernel: the `.entry` in the PTX text.
    #[prost(string, tag = "3")]
    pub entry: String,
    /// Number of blocks in x, y and z.
    #[prost(uint32, repeated, tag = "4")]
    pub grid: Vec<u32>,
    /// Number of threads per block in x, y and z.
    #[prost(uint32, repeated, tag = "5")]
    pub block: Vec<u32>,
    #[prost(uint32, tag = "6")]
    pub dynamic_shared_bytes: u32,
    /// Arguments in the order of the kernel's parameters.
    #[prost(message, repeated, tag = "7")]
    pub arguments: Vec<Argument>,
    /// `spec.chunks` of the `BurstJob` as JSON. The agent compiles and evaluates it.
    #[prost(bytes = "bytes", tag = "8")]
    pub chunks_json: bytes::Bytes,
    /// VRAM that one chunk may use, in bytes.
    #[prost(uint64, tag = "9")]
    pub slice_bytes: u64,
    /// Maximum running time of one chunk, in milliseconds. A chunk that runs longer is stopped.
    #[prost(uint64, tag = "10")]
    pub chunk_timeout_milliseconds: u64,
    /// Object store to which the agent writes results. If absent, results come back complete in [`Results`], unless `aggregate_only` is
    /// set.
    #[prost(message, optional, tag = "11")]
    pub store: Option<Store>,
    /// Index of the output that comes back in [`Results`] for the aggregate, even with a store or `aggregate_only`.
    #[prost(uint32, optional, tag = "12")]
    pub aggregated_output: Option<u32>,
    /// Whether outputs are discarded: none is written to a store, and only `aggregated_output` comes back.
    #[prost(bool, tag = "13")]
    pub aggregate_only: bool,
}

impl Program {
    pub fn chunk_timeout(&self) -> Duration {
        Duration::from_millis(self.chunk_timeout_milliseconds)
    }
}

/// Argument of the kernel, of exactly one kind.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Argument {
    #[prost(oneof = "argument::Kind", tags = "1, 2, 3, 4, 5, 6")]
    pub kind: Option<argument::Kind>,
}

pub mod argument {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Kind {
        /// Output array, zeroed before the launch and read back after it. The value is the array's size in bytes.
        #[prost(uint64, tag = "1")]
        OutputBytes(u64),
        /// Name of a chunk parameter. Its type is in `chunks_json`.
        #[prost(string, tag = "2")]
        Parameter(String),
        /// Array of which each chunk receives a private copy.
        #[prost(message, tag = "3")]
        Input(super::Input),
        /// Array that all chunks share.
        #[prost(bytes = "bytes", tag = "4")]
        Constant(bytes::Bytes),
        /// Index of the chunk as a little-endian integer. The value is the integer's size in bytes: 4 or 8.
        #[prost(uint32, tag = "5")]
        ChunkIndexBytes(u32),
        /// Scalar with the same value for every chunk, as little-endian bytes.
        #[prost(bytes = "bytes", tag = "6")]
        Scalar(bytes::Bytes),
    }
}

/// Array of which each chunk receives a private copy.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Input {
    #[prost(bytes = "bytes", tag = "1")]
    pub bytes: bytes::Bytes,
    /// Bytes per chunk. If above 0, chunk i receives the `bytes_per_chunk` bytes that begin at offset i × `bytes_per_chunk`. If 0, each
    /// chunk receives all bytes.
    #[prost(uint64, tag = "2")]
    pub bytes_per_chunk: u64,
}

/// Object store for results, with the credentials to write there.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Store {
    #[prost(string, tag = "1")]
    pub url: String,
    /// Settings of the `object_store` crate, from the job's Secret.
    #[prost(btree_map = "string, string", tag = "2")]
    pub options: std::collections::BTreeMap<String, String>,
}

/// Submits chunks.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Submit {
    /// Ranges of chunks, to be run in this order.
    #[prost(message, repeated, tag = "1")]
    pub ranges: Vec<ChunkRange>,
}

/// Consecutive chunk indices with the same device and attempt number.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ChunkRange {
    #[prost(string, tag = "1")]
    pub device: String,
    #[prost(uint64, tag = "2")]
    pub first: u64,
    #[prost(uint64, tag = "3")]
    pub count: u64,
    /// Attempt number of each chunk, starting at 1.
    #[prost(uint32, tag = "4")]
    pub attempt: u32,
}

impl ChunkRange {
    pub fn new(device: impl Into<String>, chunks: AttemptRange) -> Self {
        let (device, AttemptRange { first, count, attempt }) = (device.into(), chunks);
        Self {
            device,
            first,
            count,
            attempt,
        }
    }
}

impl From<&ChunkRange> for AttemptRange {
    fn from(range: &ChunkRange) -> Self {
        let &ChunkRange { first, count, attempt, .. } = range;
        Self { first, count, attempt }
    }
}

/// Tells the agent that a checkpoint covers all results and failures up to a sequence number.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Acknowledge {
    /// Sequence number of the last covered [`Results`] or [`Failures`].
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
}

/// Withdraws chunks that have not started; they come back in [`Returned`]. Running chunks continue.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Withdraw {
    /// Name of the device from which to withdraw chunks. Empty: all devices.
    #[prost(string, tag = "1")]
    pub device: String,
}

/// Frame from agent to coordinator, with exactly one kind.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ServerFrame {
    #[prost(oneof = "server_frame::Kind", tags = "1, 2, 3, 4, 5")]
    pub kind: Option<server_frame::Kind>,
}

pub mod server_frame {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Kind {
        #[prost(message, tag = "1")]
        Opened(super::Opened),
        /// Last frame: the agent did not accept the stream, or ends it.
        #[prost(message, tag = "2")]
        Refused(super::Refusal),
        #[prost(message, tag = "3")]
        Results(super::Results),
        #[prost(message, tag = "4")]
        Failures(super::Failures),
        #[prost(message, tag = "5")]
        Returned(super::Returned),
    }
}

impl From<server_frame::Kind> for ServerFrame {
    fn from(kind: server_frame::Kind) -> Self {
        Self { kind: Some(kind) }
    }
}

/// Response to [`Open`]: the agent accepted the stream.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Opened {
    #[prost(string, tag = "1")]
    pub boot_id: String,
    /// Maximum number of chunks that may be submitted and not yet answered.
    #[prost(uint64, tag = "2")]
    pub max_outstanding_chunks: u64,
    /// Chunks of an earlier stream of this owner that still run or wait on the agent. They come back on this stream and need not be
    /// submitted again.
    #[prost(message, repeated, tag = "3")]
    pub chunks: Vec<ChunkRange>,
    /// Highest sequence number so far. Failures up to this number are sent again and belong to earlier attempts than those in `chunks`.
    #[prost(uint64, tag = "4")]
    pub sequence: u64,
    /// Sequence number of the last frame that is sent again; 0 if there is none.
    #[prost(uint64, tag = "5")]
    pub last_repeated: u64,
    /// Whether the agent has dropped nothing since the owner's last stream. If so, chunks that are neither outstanding nor sent again never
    /// reached the agent, or were about to come back in [`Returned`].
    #[prost(bool, tag = "6")]
    pub resumed: bool,
}

/// Chunks that succeeded.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Results {
    /// Sequence number of this frame. Increases by one with every [`Results`] and [`Failures`] of an owner within a boot. Numbers are
    /// skipped, but never decrease, after the agent dropped its state of the owner (no coordinator was connected and the owner's grants had
    /// ended).
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    #[prost(string, tag = "2")]
    pub device: String,
    #[prost(message, repeated, tag = "3")]
    pub runs: Vec<ResultRun>,
    /// Name of the object that holds these results, relative to [`Store::url`]; empty without a store.
    #[prost(string, tag = "4")]
    pub segment: String,
}

/// Results of consecutive chunk indices.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ResultRun {
    #[prost(uint64, tag = "1")]
    pub first: u64,
    #[prost(uint64, tag = "2")]
    pub count: u64,
    /// Number of the attempt that succeeded, starting at 1.
    #[prost(uint32, tag = "3")]
    pub attempt: u32,
    /// Outputs of all chunks, chunk after chunk, little-endian; the outputs of one chunk are in the order of the kernel's parameters. With
    /// a store or [`Program::aggregate_only`], only the aggregated output.
    #[prost(bytes = "bytes", tag = "4")]
    pub outputs: bytes::Bytes,
}

/// Chunks whose attempt failed.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Failures {
    /// Sequence number of this frame, as in [`Results::sequence`].
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    #[prost(string, tag = "2")]
    pub device: String,
    #[prost(message, repeated, tag = "3")]
    pub failures: Vec<Failure>,
}

/// Consecutive chunk indices whose attempt failed for the same cause.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Failure {
    #[prost(uint64, tag = "1")]
    pub first: u64,
    #[prost(uint64, tag = "2")]
    pub count: u64,
    /// Number of the attempt that failed, starting at 1.
    #[prost(uint32, tag = "3")]
    pub attempt: u32,
    #[prost(enumeration = "FailureCode", tag = "4")]
    pub code: i32,
    #[prost(string, tag = "5")]
    pub message: String,
}

impl From<&ResultRun> for AttemptRange {
    fn from(run: &ResultRun) -> Self {
        Self {
            first: run.first,
            count: run.count,
            attempt: run.attempt,
        }
    }
}

impl From<&Failure> for AttemptRange {
    fn from(failure: &Failure) -> Self {
        let &Failure { first, count, attempt, .. } = failure;
        Self { first, count, attempt }
    }
}

/// Chunks that come back without having been started, because they were withdrawn, their slices were released or expired, or the agent
/// shuts down. They use up no retry.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Returned {
    #[prost(message, repeated, tag = "1")]
    pub ranges: Vec<ChunkRange>,
    /// Whether the owner holds no slice on the devices of these chunks. If so, chunks submitted for these devices come back until the owner
    /// holds a slice there again.
    #[prost(bool, tag = "2")]
    pub without_slices: bool,
}

/// Causes of the failure of a chunk's attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum FailureCode {
    Unspecified = 0,
    /// The grant ended while the chunk ran, and the grace period after it elapsed.
    GrantExpired = 1,
    /// The stream to the agent broke or the agent was lost. Only the coordinator itself reports this code.
    Disconnected = 2,
    /// The device had less memory than the agent had granted.
    OutOfDeviceMemory = 3,
    /// The executor crashed, was killed or was replaced.
    ExecutorLost = 4,
    ChunkTimeout = 5,
    ShuttingDown = 6,
    StoreUnavailable = 7,
    LoadFailed = 20,
    /// The launch was rejected because its shape or its arguments are invalid.
    LaunchFailed = 21,
    ParameterFailed = 22,
    /// The kernel executed `trap` or failed an `assert`.
    Trap = 23,
    /// The kernel accessed memory that it does not own, or with wrong alignment.
    IllegalAddress = 24,
    /// The chunk needs more VRAM than a slice has.
    SliceExceeded = 25,
    /// Threads of the kernel wait for each other forever, or wait at different barriers.
    Deadlock = 26,
    Unsupported = 27,
    /// The calls of the kernel's functions exceeded a thread's stack.
    StackOverflow = 28,
}

labelled! {
    FailureCode {
        Unspecified GrantExpired Disconnected OutOfDeviceMemory ExecutorLost ChunkTimeout ShuttingDown StoreUnavailable LoadFailed
        LaunchFailed ParameterFailed Trap IllegalAddress SliceExceeded Deadlock Unsupported StackOverflow
    }
}

impl FailureCode {
    /// Returns whether another attempt may succeed. Codes below 20 are transient: a lost grant, agent or executor does not mean that the
    /// kernel is faulty.
    pub const fn is_transient(self) -> bool {
        (self as i32) < 20
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_codes_of_failures_are_all() {
        let known = (0..1000).filter_map(|code| FailureCode::try_from(code).ok());
        assert!(FailureCode::all().eq(known));
    }
}
