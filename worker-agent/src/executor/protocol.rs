//! What a supervisor and its executor say to each other: frames of [`sahasra_wire::frame`] over a socket pair, in both
//! directions. Both are the same program, so nothing here needs to be compatible with anything.

use bytes::Bytes;
use sahasra_wire::burst::{ChunkRange, Failure, FailureCode, ResultRun};

/// Supervisor to executor.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ToExecutor {
    /// One of them.
    #[prost(oneof = "to_executor::Kind", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub kind: Option<to_executor::Kind>,
}

/// Kinds of [`ToExecutor`].
pub mod to_executor {
    /// One of them.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Kind {
        /// A new run.
        #[prost(message, tag = "1")]
        Open(super::Open),
        /// Chunks for a run.
        #[prost(message, tag = "2")]
        Submit(super::Submit),
        /// At most so many chunks of a run at a time.
        #[prost(message, tag = "3")]
        SetConcurrency(super::SetConcurrency),
        /// Give back what has not started of this run.
        #[prost(uint64, tag = "4")]
        Withdraw(u64),
        /// Start nothing more of a run, or go on.
        #[prost(message, tag = "5")]
        Pause(super::Pause),
        /// Forget a run once its last chunk has ended.
        #[prost(uint64, tag = "6")]
        Close(u64),
        /// End what runs of a run, where the device can.
        #[prost(message, tag = "7")]
        Revoke(super::Revoke),
    }
}

/// A new run.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Open {
    /// Its number.
    #[prost(uint64, tag = "1")]
    pub run: u64,
    /// A `sahasra_wire::burst::Program`, encoded.
    #[prost(bytes = "bytes", tag = "2")]
    pub program: Bytes,
}

/// Chunks for a run.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Submit {
    /// The run.
    #[prost(uint64, tag = "1")]
    pub run: u64,
    /// Which, without a device.
    #[prost(message, repeated, tag = "2")]
    pub ranges: Vec<ChunkRange>,
    /// To be run while nothing else runs in this process: one of them has poisoned a context before.
    #[prost(bool, tag = "3")]
    pub alone: bool,
}

/// At most so many chunks of a run at a time.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SetConcurrency {
    /// The run.
    #[prost(uint64, tag = "1")]
    pub run: u64,
    /// The limit.
    #[prost(uint32, tag = "2")]
    pub limit: u32,
    /// Grows with every change: the answer names it.
    #[prost(uint64, tag = "3")]
    pub change: u64,
}

/// Start nothing more of a run, or go on.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Pause {
    /// The run.
    #[prost(uint64, tag = "1")]
    pub run: u64,
    /// Pause; otherwise go on.
    #[prost(bool, tag = "2")]
    pub paused: bool,
}

/// End the chunks of a run that run now: they fail with this cause. What waits is not touched.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Revoke {
    /// The run.
    #[prost(uint64, tag = "1")]
    pub run: u64,
    /// What they fail with, a [`FailureCode`].
    #[prost(enumeration = "FailureCode", tag = "2")]
    pub code: i32,
}

/// Executor to supervisor.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FromExecutor {
    /// One of them.
    #[prost(oneof = "from_executor::Kind", tags = "1, 2, 3, 4, 5")]
    pub kind: Option<from_executor::Kind>,
}

/// Kinds of [`FromExecutor`].
pub mod from_executor {
    /// One of them.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Kind {
        /// The device is open.
        #[prost(message, tag = "1")]
        Ready(super::Ready),
        /// The device cannot be opened: the process ends.
        #[prost(string, tag = "2")]
        Unavailable(String),
        /// Chunks of a run that ended.
        #[prost(message, tag = "3")]
        Ended(super::Ended),
        /// Chunks of a run that come back unstarted.
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
    /// Lanes there may be.
    #[prost(uint32, tag = "1")]
    pub lanes: u32,
}

/// Chunks of a run that ended.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Ended {
    /// The run.
    #[prost(uint64, tag = "1")]
    pub run: u64,
    /// Those that succeeded.
    #[prost(message, repeated, tag = "2")]
    pub succeeded: Vec<ResultRun>,
    /// Those that failed.
    #[prost(message, repeated, tag = "3")]
    pub failed: Vec<Failure>,
}

/// Chunks of a run that come back unstarted.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Returned {
    /// The run.
    #[prost(uint64, tag = "1")]
    pub run: u64,
    /// Which.
    #[prost(message, repeated, tag = "2")]
    pub ranges: Vec<ChunkRange>,
}

/// A change of concurrency has taken effect.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Settled {
    /// The run.
    #[prost(uint64, tag = "1")]
    pub run: u64,
    /// The limit.
    #[prost(uint32, tag = "2")]
    pub limit: u32,
    /// Which change.
    #[prost(uint64, tag = "3")]
    pub change: u64,
}
