//! Beginning of a connection: the first message of each side.

use bytes::Bytes;

/// First frame of a connection, from the client.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Hello {
    #[prost(uint32, tag = "1")]
    pub lowest_version: u32,
    #[prost(uint32, tag = "2")]
    pub highest_version: u32,
    /// Value of [`Welcome::resume`] from the broken connection. Empty for a new client; the tensors and programs of an earlier client are
    /// freed then.
    #[prost(bytes = "bytes", tag = "3")]
    pub resume: Bytes,
    /// Whether to start as a new client even if another client is connected; the other client's connection ends.
    #[prost(bool, tag = "4")]
    pub replace: bool,
    /// Time for which the client's tensors and programs are kept after its connection broke, in milliseconds, at most 600 000; 0 selects
    /// the executor's default of 60 000.
    #[prost(uint64, tag = "5")]
    pub grace_milliseconds: u64,
    /// Number of frames that may be outstanding to the client, at most 65,536.
    #[prost(uint32, tag = "6")]
    pub window_frames: u32,
    /// Payload bytes that may be outstanding to the client, at most 256 MiB.
    #[prost(uint64, tag = "7")]
    pub window_bytes: u64,
    /// Library and version of the client, for the log.
    #[prost(string, tag = "8")]
    pub client: String,
    /// Encodings of parts, besides raw, that the client can decode. Values of [`Encoding`](super::Encoding); unknown values are allowed.
    #[prost(int32, repeated, tag = "9")]
    pub encodings: Vec<i32>,
    /// Whether bytes are more expensive than time, so that parts should be encoded whenever this makes them shorter, on fast connections
    /// too.
    #[prost(bool, tag = "10")]
    pub spares_bytes: bool,
}

/// Accepts a [`Hello`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct Welcome {
    /// Highest protocol version that both sides support.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Secret with which the client can resume after a broken connection.
    #[prost(bytes = "bytes", tag = "2")]
    pub resume: Bytes,
    /// Whether the client resumed, so that its tensors and programs are still present. Otherwise it starts as a new client.
    #[prost(bool, tag = "3")]
    pub resumed: bool,
    /// Time for which the client's tensors and programs are kept after its connection broke, in milliseconds.
    #[prost(uint64, tag = "4")]
    pub grace_milliseconds: u64,
    /// Number of frames that may be outstanding to the executor.
    #[prost(uint32, tag = "5")]
    pub window_frames: u32,
    /// Payload bytes that may be outstanding to the executor.
    #[prost(uint64, tag = "6")]
    pub window_bytes: u64,
    /// Engine of the session, as in the spec of the `GpuSession`.
    #[prost(string, tag = "7")]
    pub engine: String,
    /// Platform as named by the engine, such as `cpu` or `cuda`.
    #[prost(string, tag = "8")]
    pub platform: String,
    #[prost(string, tag = "9")]
    pub platform_version: String,
    #[prost(string, tag = "10")]
    pub device: String,
    /// Device memory that the session may use, in bytes.
    #[prost(uint64, tag = "11")]
    pub limit_bytes: u64,
    /// Highest StableHLO version that the PJRT plugin reads, as `major.minor.patch`. Empty if the plugin does not report it.
    #[prost(string, tag = "12")]
    pub stablehlo_version: String,
    /// Encodings of parts, besides raw, that the executor can decode. Values of [`Encoding`](super::Encoding).
    #[prost(int32, repeated, tag = "13")]
    pub encodings: Vec<i32>,
}

/// Rejects a [`Hello`]; the connection ends.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Refused {
    #[prost(enumeration = "RefusalCode", tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub message: String,
}

/// Causes for which an executor rejects a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum RefusalCode {
    Unspecified = 0,
    /// The client and the executor have no protocol version in common.
    Version = 1,
    Busy = 2,
    /// The state to resume does not exist any more: the grace period is over, or another client has started.
    Unknown = 3,
    /// The first frame is not a valid [`Hello`].
    Malformed = 4,
    /// The session's engine is not available.
    Unavailable = 5,
}
