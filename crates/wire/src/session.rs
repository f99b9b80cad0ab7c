//! The session stream: a client's half and a session executor's half. `docs/protocol.md` tells the whole of it.
//!
//! Each half is a sequence of [`frame`]s: a message, and bytes that travel beside it without being copied into it. The client
//! names tensors and programs by numbers of its own choice, so that it need not wait for an answer before it uses them: a
//! steady step is one [`Execute`] and nothing comes back.
//!
//! - **Order.** Operations act in the order sent. What fails makes its results failed too; the first failure since the last
//!   [`Synchronise`] is the answer to the next one, with the name of the operation that it began with.
//! - **Sequence numbers.** Operations and answers are numbered from 1 in each direction; `received` in every frame says how far
//!   the sender has taken what came. A connection that breaks is replaced: [`Hello::resume`] proves that it is the same
//!   client, and each side sends again what the other has not taken. Nothing is lost and nothing happens twice.
//! - **Credits.** Neither side has more than the other's window of frames and payload bytes outstanding (sent and not in
//!   `received`), save that a frame may always be sent while no more than a quarter of it is. Each side tells how far it is at the
//!   latest after a quarter. An encoded part counts for what it decodes to.
//! - **Encodings.** A [`Part`] may be compressed where its peer takes that: [`compression`] says when.

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

/// Version of the protocol that this crate speaks.
pub const VERSION: u32 = 1;
/// Value of the `Upgrade` header, and subprotocol of a WebSocket.
pub const PROTOCOL: &str = "sahasra-session.v1";
/// Most frames that a window counts for, whatever is announced: what is sent is kept.
pub const LARGEST_WINDOW_FRAMES: u32 = 1 << 16;
/// Most bytes of payload that a window counts for.
pub const LARGEST_WINDOW_BYTES: u64 = 256 << 20;

/// Client to executor.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ClientFrame {
    /// Number of this operation, from 1; 0 for frames that are no operation ([`Hello`], and those without a kind).
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    /// Answers up to this number were taken.
    #[prost(uint64, tag = "2")]
    pub received: u64,
    /// The operation; none where only `received` is told.
    #[prost(oneof = "client_frame::Kind", tags = "3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14")]
    pub kind: Option<client_frame::Kind>,
    /// Bytes a second to which the client decodes parts, as measured; 0 where it has decoded none.
    #[prost(uint64, tag = "16")]
    pub decoding_rate: u64,
}

/// Kinds of [`ClientFrame`].
pub mod client_frame {
    /// One of them.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Kind {
        /// First frame of a connection.
        #[prost(message, tag = "3")]
        Hello(super::Hello),
        /// A tensor from the client's memory.
        #[prost(message, tag = "4")]
        Upload(super::Upload),
        /// The next bytes of the upload before. Payload: the bytes, as encoded.
        #[prost(message, tag = "5")]
        Part(super::Part),
        /// A zeroed tensor.
        #[prost(message, tag = "6")]
        Allocate(super::Allocate),
        /// A program. Payload: its code.
        #[prost(message, tag = "7")]
        Compile(super::Compile),
        /// One execution of a program of engine `xla`.
        #[prost(message, tag = "8")]
        Execute(super::Execute),
        /// One launch of a kernel of engine `ptx`.
        #[prost(message, tag = "9")]
        Launch(super::Launch),
        /// A tensor to the client's memory.
        #[prost(message, tag = "10")]
        Download(super::Download),
        /// Tensors and programs that are not needed any more.
        #[prost(message, tag = "11")]
        Delete(super::Delete),
        /// Waits for everything before it.
        #[prost(message, tag = "12")]
        Synchronise(super::Synchronise),
        /// Asks for figures.
        #[prost(message, tag = "13")]
        Load(super::Load),
        /// The client needs nothing any more: everything is freed, nobody may resume.
        #[prost(message, tag = "14")]
        Close(super::Close),
    }
}

/// Executor to client.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ServerFrame {
    /// Number of this answer, from 1; 0 for frames that are no answer ([`Welcome`], [`Refused`], and those without a kind).
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    /// Operations up to this number were taken.
    #[prost(uint64, tag = "2")]
    pub received: u64,
    /// The answer; none where only `received` is told.
    #[prost(oneof = "server_frame::Kind", tags = "3, 4, 5, 6, 7, 8, 9, 10")]
    pub kind: Option<server_frame::Kind>,
    /// Bytes a second to which the executor decodes parts, as measured; 0 where it has decoded none.
    #[prost(uint64, tag = "16")]
    pub decoding_rate: u64,
}

/// Kinds of [`ServerFrame`].
pub mod server_frame {
    /// One of them.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Kind {
        /// Answers a [`super::Hello`].
        #[prost(message, tag = "3")]
        Welcome(super::Welcome),
        /// Answers a [`super::Hello`] otherwise; the connection ends.
        #[prost(message, tag = "4")]
        Refused(super::Refused),
        /// Answers a [`super::Compile`] with a request.
        #[prost(message, tag = "5")]
        Compiled(super::Compiled),
        /// Answers a [`super::Download`]; [`super::Part`]s follow.
        #[prost(message, tag = "6")]
        Tensor(super::Tensor),
        /// The next bytes of the tensor before. Payload: the bytes, as encoded.
        #[prost(message, tag = "7")]
        Part(super::Part),
        /// Answers a [`super::Synchronise`] or a [`super::Close`]: all went well.
        #[prost(message, tag = "8")]
        Done(super::Done),
        /// Answers any request that failed.
        #[prost(message, tag = "9")]
        Failed(super::Failed),
        /// Answers a [`super::Load`].
        #[prost(message, tag = "10")]
        Figures(super::Figures),
    }
}
