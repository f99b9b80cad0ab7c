//! The session stream: frames of a client and of a session executor. `docs/protocol.md` is its specification.
//!
//! Each direction is a sequence of [`frame`]s: a message, and a payload that follows the message without being copied into it. The client
//! chooses the numbers that identify tensors and programs, so it can use them without waiting for an answer: in the steady state, a
//! training step is one [`Execute`] without an answer.
//!
//! - **Order.** Operations take effect in the order in which they were sent. The results of a failed operation count as failed too. The
//!   first failure since the last [`Synchronise`] is the answer to the next one, and identifies the operation that failed first.
//! - **Sequence numbers.** Operations and answers are numbered from 1 in each direction; `received` in every frame is the highest number
//!   that the sender has processed. A broken connection is replaced: [`Hello::resume`] proves that the client is the same, and each side
//!   sends again what the other has not processed. Nothing is lost and nothing takes effect twice.
//! - **Windows.** Neither side has more frames and payload bytes outstanding (sent and not confirmed by `received`) than the other's window
//!   allows. As an exception, a frame may always be sent while at most a quarter of the window is outstanding. Each side sends its
//!   `received` at the latest after a quarter of its window. An encoded part counts with its decoded size.
//! - **Encodings.** A [`Part`] may be compressed if its receiver supports that (`docs/protocol.md`).

mod answer;
pub mod compression;
pub mod frame;
mod greeting;
pub mod keepalive;
mod operation;
mod part;
mod resume;

pub use answer::*;
pub use greeting::*;
pub use operation::*;
pub use part::*;
pub use resume::*;

/// Version of the session protocol that this crate implements.
pub const VERSION: u32 = 1;
/// Value of the `Upgrade` header, and name of the WebSocket subprotocol.
pub const PROTOCOL: &str = "sahasra-session.v1";
/// Largest window in frames. Larger announced windows are reduced to this size, because the sender keeps all outstanding frames.
pub const LARGEST_WINDOW_FRAMES: u32 = 1 << 16;
/// Largest window in payload bytes. Larger announced windows are reduced to this size.
pub const LARGEST_WINDOW_BYTES: u64 = 256 << 20;

/// Frame from client to executor.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ClientFrame {
    /// Sequence number of the operation, starting at 1; 0 for frames that are no operation ([`Hello`], and frames without a kind).
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    /// Highest sequence number of the answers that the client has processed.
    #[prost(uint64, tag = "2")]
    pub received: u64,
    /// The operation. Absent if the frame only confirms answers by `received`.
    #[prost(oneof = "client_frame::Kind", tags = "3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14")]
    pub kind: Option<client_frame::Kind>,
    /// Measured rate at which the client decodes parts, in decoded bytes per second; 0 if it has decoded none.
    #[prost(uint64, tag = "16")]
    pub decoding_rate: u64,
}

pub mod client_frame {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Kind {
        #[prost(message, tag = "3")]
        Hello(super::Hello),
        #[prost(message, tag = "4")]
        Upload(super::Upload),
        #[prost(message, tag = "5")]
        Part(super::Part),
        #[prost(message, tag = "6")]
        Allocate(super::Allocate),
        #[prost(message, tag = "7")]
        Compile(super::Compile),
        #[prost(message, tag = "8")]
        Execute(super::Execute),
        #[prost(message, tag = "9")]
        Launch(super::Launch),
        #[prost(message, tag = "10")]
        Download(super::Download),
        #[prost(message, tag = "11")]
        Delete(super::Delete),
        #[prost(message, tag = "12")]
        Synchronise(super::Synchronise),
        #[prost(message, tag = "13")]
        Load(super::Load),
        #[prost(message, tag = "14")]
        Close(super::Close),
    }
}

/// Frame from executor to client.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ServerFrame {
    /// Sequence number of the answer, starting at 1; 0 for frames that are no answer ([`Welcome`], [`Refused`], and frames without a kind).
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    /// Highest sequence number of the operations that the executor has processed.
    #[prost(uint64, tag = "2")]
    pub received: u64,
    /// The answer. Absent if the frame only confirms operations by `received`.
    #[prost(oneof = "server_frame::Kind", tags = "3, 4, 5, 6, 7, 8, 9, 10")]
    pub kind: Option<server_frame::Kind>,
    /// Measured rate at which the executor decodes parts, in decoded bytes per second; 0 if it has decoded none.
    #[prost(uint64, tag = "16")]
    pub decoding_rate: u64,
}

pub mod server_frame {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Kind {
        #[prost(message, tag = "3")]
        Welcome(super::Welcome),
        #[prost(message, tag = "4")]
        Refused(super::Refused),
        #[prost(message, tag = "5")]
        Compiled(super::Compiled),
        #[prost(message, tag = "6")]
        Tensor(super::Tensor),
        #[prost(message, tag = "7")]
        Part(super::Part),
        /// Answers a [`super::Synchronise`] or a [`super::Close`] in case of success.
        #[prost(message, tag = "8")]
        Done(super::Done),
        /// Answers any request in case of failure.
        #[prost(message, tag = "9")]
        Failed(super::Failed),
        #[prost(message, tag = "10")]
        Stats(super::Stats),
    }
}
