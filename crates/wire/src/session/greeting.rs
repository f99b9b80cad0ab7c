//! How a connection begins: what either side says of itself before anything else.

use bytes::Bytes;

/// Begins a connection.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Hello {
    /// Versions that the client speaks: the lowest and the highest.
    #[prost(uint32, tag = "1")]
    pub lowest_version: u32,
    /// See `lowest_version`.
    #[prost(uint32, tag = "2")]
    pub highest_version: u32,
    /// [`Welcome::resume`] of the connection that broke; empty for a client that begins anew. What an earlier client left is
    /// freed then.
    #[prost(bytes = "bytes", tag = "3")]
    pub resume: Bytes,
    /// Begin anew although another client is connected: its connection ends.
    #[prost(bool, tag = "4")]
    pub replace: bool,
    /// How long what the client has here is kept after its connection broke, in milliseconds, at most 600 000; 0 for
    /// the executor's own choice, 60 000.
    #[prost(uint64, tag = "5")]
    pub grace_milliseconds: u64,
    /// Frames that may be on their way to the client, at most [`LARGEST_WINDOW_FRAMES`](super::LARGEST_WINDOW_FRAMES).
    #[prost(uint32, tag = "6")]
    pub window_frames: u32,
    /// Bytes of payload that may be on their way to the client, at most [`LARGEST_WINDOW_BYTES`](super::LARGEST_WINDOW_BYTES).
    #[prost(uint64, tag = "7")]
    pub window_bytes: u64,
    /// For the log: library and version.
    #[prost(string, tag = "8")]
    pub client: String,
    /// Encodings of parts, besides raw, that the client takes: each an [`Encoding`](super::Encoding), those not known among them.
    #[prost(int32, repeated, tag = "9")]
    pub encodings: Vec<i32>,
    /// Bytes cost more than time: parts are to be encoded wherever that makes them shorter, on a fast line as well.
    #[prost(bool, tag = "10")]
    pub spares_bytes: bool,
}

/// The connection stands.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Welcome {
    /// The highest version that both speak.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// A secret: who shows it resumes.
    #[prost(bytes = "bytes", tag = "2")]
    pub resume: Bytes,
    /// What was here is here still; otherwise the client begins anew.
    #[prost(bool, tag = "3")]
    pub resumed: bool,
    /// How long what the client has here is kept after its connection broke, in milliseconds.
    #[prost(uint64, tag = "4")]
    pub grace_milliseconds: u64,
    /// Frames that may be on their way to the executor.
    #[prost(uint32, tag = "5")]
    pub window_frames: u32,
    /// Bytes of payload that may be on their way to the executor.
    #[prost(uint64, tag = "6")]
    pub window_bytes: u64,
    /// `xla` or `ptx`.
    #[prost(string, tag = "7")]
    pub engine: String,
    /// The engine's platform, in its own words: `cpu`, `cuda`.
    #[prost(string, tag = "8")]
    pub platform: String,
    /// Its version, in its own words.
    #[prost(string, tag = "9")]
    pub platform_version: String,
    /// The device, in its own words.
    #[prost(string, tag = "10")]
    pub device: String,
    /// Device memory that the session may use, in bytes.
    #[prost(uint64, tag = "11")]
    pub limit_bytes: u64,
    /// Highest StableHLO version that the plugin reads, as `major.minor.patch`; empty when it does not say.
    #[prost(string, tag = "12")]
    pub stablehlo_version: String,
    /// Encodings of parts, besides raw, that the executor takes.
    #[prost(int32, repeated, tag = "13")]
    pub encodings: Vec<i32>,
}

/// There is no connection.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Refused {
    /// The cause.
    #[prost(enumeration = "RefusalCode", tag = "1")]
    pub code: i32,
    /// For people.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// Causes of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum RefusalCode {
    /// Not said.
    Unspecified = 0,
    /// No version is spoken by both.
    Version = 1,
    /// Another client is connected.
    Busy = 2,
    /// What is to be resumed is not here: the grace is over, or another client began anew.
    Unknown = 3,
    /// The first frame is no [`Hello`].
    Malformed = 4,
    /// The engine cannot be used here.
    Unavailable = 5,
}
