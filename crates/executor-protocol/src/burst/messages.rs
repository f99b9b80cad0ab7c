//! Messages between a supervisor and its executor: frames of [`sahasra_wire::frame`] over a socket pair, in both directions. Both ends are
//! the same program, so the messages need no compatibility with other versions.

use bytes::Bytes;
use sahasra_wire::burst::{ChunkRange, Failure, FailureCode, ResultRun};

/// Message from the supervisor to the executor.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ToExecutor {
    #[prost(oneof = "to_executor::Kind", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub kind: Option<to_executor::Kind>,
}

/// Kinds of [`ToExecutor`].
pub mod to_executor {
    /// Content of a [`super::ToExecutor`].
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Kind {
        /// Opens a run.
        #[prost(message, tag = "1")]
        Open(super::Open),
        /// Adds chunks to a run.
        #[prost(message, tag = "2")]
        Submit(super::Submit),
        /// Limits how many chunks of a run execute concurrently.
        #[prost(message, tag = "3")]
        SetConcurrency(super::SetConcurrency),
        /// Asks for the chunks of the run with this number that have not started.
        #[prost(uint64, tag = "4")]
        Withdraw(u64),
        /// Pauses or resumes a run.
        #[prost(message, tag = "5")]
        Pause(super::Pause),
        /// Closes the run with this number after its last chunk has ended.
        #[prost(uint64, tag = "6")]
        Close(u64),
        /// Ends the running chunks of a run, where the device can cancel a launch.
        #[prost(message, tag = "7")]
        Revoke(super::Revoke),
    }
}

/// Opens a run.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Open {
    /// Number of the run.
    #[prost(uint64, tag = "1")]
    pub run: u64,
    /// Encoded `sahasra_wire::burst::Program`.
    #[prost(bytes = "bytes", tag = "2")]
    pub program: Bytes,
}

/// Adds chunks to a run.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Submit {
    #[prost(uint64, tag = "1")]
    pub run: u64,
    /// Ranges of chunks; their field `device` is not used.
    #[prost(message, repeated, tag = "2")]
    pub ranges: Vec<ChunkRange>,
    /// Whether each chunk must execute while nothing else executes in this process, because one of them poisoned a context before.
    #[prost(bool, tag = "3")]
    pub alone: bool,
}

/// Limits how many chunks of a run execute concurrently.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SetConcurrency {
    #[prost(uint64, tag = "1")]
    pub run: u64,
    #[prost(uint32, tag = "2")]
    pub limit: u32,
    /// Number of the change. It grows with every change, and the answer [`Settled`] repeats it.
    #[prost(uint64, tag = "3")]
    pub change: u64,
}

/// Pauses or resumes a run: a paused run starts no further chunks.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Pause {
    #[prost(uint64, tag = "1")]
    pub run: u64,
    /// Pauses the run if true, resumes it if false.
    #[prost(bool, tag = "2")]
    pub paused: bool,
}

/// Ends the chunks of a run that are executing now: they fail with `code`. Waiting chunks are not affected.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Revoke {
    #[prost(uint64, tag = "1")]
    pub run: u64,
    /// [`FailureCode`] of the ended chunks.
    #[prost(enumeration = "FailureCode", tag = "2")]
    pub code: i32,
}

/// Message from the executor to the supervisor.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FromExecutor {
    #[prost(oneof = "from_executor::Kind", tags = "1, 2, 3, 4, 5")]
    pub kind: Option<from_executor::Kind>,
}

/// Kinds of [`FromExecutor`].
pub mod from_executor {
    /// Content of a [`super::FromExecutor`].
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Kind {
        /// The device is open.
        #[prost(message, tag = "1")]
        Ready(super::Ready),
        /// The device cannot be opened, for the given reason; the process ends.
        #[prost(string, tag = "2")]
        Unavailable(String),
        /// Results of chunks that have ended.
        #[prost(message, tag = "3")]
        Ended(super::Ended),
        /// Chunks of a run that return without having been started.
        #[prost(message, tag = "4")]
        Returned(super::Returned),
        /// A change of concurrency has taken effect.
        #[prost(message, tag = "5")]
        Settled(super::Settled),
    }
}

/// The device is open.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Ready {
    /// Maximum number of lanes.
    #[prost(uint32, tag = "1")]
    pub lanes: u32,
}

/// Results of chunks of one run that have ended.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Ended {
    #[prost(uint64, tag = "1")]
    pub run: u64,
    #[prost(message, repeated, tag = "2")]
    pub succeeded: Vec<ResultRun>,
    #[prost(message, repeated, tag = "3")]
    pub failed: Vec<Failure>,
}

/// Chunks of a run that return without having been started.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Returned {
    #[prost(uint64, tag = "1")]
    pub run: u64,
    #[prost(message, repeated, tag = "2")]
    pub ranges: Vec<ChunkRange>,
}

/// A change of concurrency has taken effect.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Settled {
    #[prost(uint64, tag = "1")]
    pub run: u64,
    #[prost(uint32, tag = "2")]
    pub limit: u32,
    /// Number of the change in [`SetConcurrency`].
    #[prost(uint64, tag = "3")]
    pub change: u64,
}
