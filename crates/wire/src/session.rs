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
//!   latest after a quarter.

use bytes::Bytes;

pub mod frame;

/// Version of the protocol that this crate speaks.
pub const VERSION: u32 = 1;
/// Value of the `Upgrade` header, and subprotocol of a WebSocket.
pub const PROTOCOL: &str = "sahasra-session.v1";
/// Header of a request for a stream: the [`Welcome::resume`] that the client is about to show, in hexadecimal digits. Whoever has it was
/// let in before, so that nobody need be asked whether it may come in again.
pub const RESUME_HEADER: &str = "sahasra-resume";
/// Longest secret that is read from there, in bytes.
const RESUME_BYTES: usize = 64;
/// Bytes of payload in a [`Part`] that senders prefer.
pub const PART_BYTES: usize = 1 << 20;
/// Most frames that a window counts for, whatever is announced: what is sent is kept.
pub const LARGEST_WINDOW_FRAMES: u32 = 1 << 16;
/// Most bytes of payload that a window counts for.
pub const LARGEST_WINDOW_BYTES: u64 = 256 << 20;

/// A secret as the value of [`RESUME_HEADER`].
pub fn resume_value(secret: &[u8]) -> String {
    secret.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The secret in a value of [`RESUME_HEADER`]; `None` where it holds none.
pub fn resume_secret(value: &[u8]) -> Option<Vec<u8>> {
    if value.is_empty() || value.len() > 2 * RESUME_BYTES || !value.len().is_multiple_of(2) {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    value
        .chunks_exact(2)
        .map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?))
        .collect()
}

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
    /// Frames that may be on their way to the client, at most [`LARGEST_WINDOW_FRAMES`].
    #[prost(uint32, tag = "6")]
    pub window_frames: u32,
    /// Bytes of payload that may be on their way to the client, at most [`LARGEST_WINDOW_BYTES`].
    #[prost(uint64, tag = "7")]
    pub window_bytes: u64,
    /// For the log: library and version.
    #[prost(string, tag = "8")]
    pub client: String,
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

/// A tensor from the client's memory: dense, row-major, little-endian. [`Part`]s follow until `bytes` are complete; none for an
/// empty tensor.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Upload {
    /// Its name from here on.
    #[prost(uint64, tag = "1")]
    pub tensor: u64,
    /// Type of its elements as XLA writes it: `f32`, `bf16`, `pred`, `s32`, `c64`.
    #[prost(string, tag = "2")]
    pub element_type: String,
    /// Elements along each dimension, outermost first; none for a scalar.
    #[prost(int64, repeated, tag = "3")]
    pub dimensions: Vec<i64>,
    /// Bytes in host memory: what type and dimensions say.
    #[prost(uint64, tag = "4")]
    pub bytes: u64,
}

/// The next bytes of a tensor.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Part {
    /// How the payload is encoded.
    #[prost(enumeration = "Encoding", tag = "1")]
    pub encoding: i32,
    /// Bytes that it decodes to; the payload's own when it is raw.
    #[prost(uint64, tag = "2")]
    pub decoded_bytes: u64,
}

/// How bytes are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Encoding {
    /// As they are.
    Raw = 0,
    /// One LZ4 block.
    Lz4 = 1,
}

/// A zeroed tensor.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Allocate {
    /// Its name from here on.
    #[prost(uint64, tag = "1")]
    pub tensor: u64,
    /// As [`Upload::element_type`].
    #[prost(string, tag = "2")]
    pub element_type: String,
    /// As [`Upload::dimensions`].
    #[prost(int64, repeated, tag = "3")]
    pub dimensions: Vec<i64>,
}

/// A program.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Compile {
    /// Its name from here on.
    #[prost(uint64, tag = "1")]
    pub program: u64,
    /// What its author calls it: errors do.
    #[prost(string, tag = "2")]
    pub name: String,
    /// How the code is written.
    #[prost(enumeration = "Format", tag = "3")]
    pub format: i32,
    /// Not 0: [`Compiled`] is wanted, under this number.
    #[prost(uint64, tag = "4")]
    pub request: u64,
}

/// How code is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Format {
    /// Not said.
    Unspecified = 0,
    /// StableHLO: a portable artifact, or MLIR as text.
    StableHlo = 1,
    /// A serialised `HloModuleProto`.
    Hlo = 2,
    /// PTX text.
    Ptx = 3,
}

/// One execution.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Execute {
    /// The program.
    #[prost(uint64, tag = "1")]
    pub program: u64,
    /// Tensors in the order of its parameters.
    #[prost(uint64, repeated, tag = "2")]
    pub arguments: Vec<u64>,
    /// Names of its results from here on; 0 for one that nobody needs.
    #[prost(uint64, repeated, tag = "3")]
    pub outputs: Vec<u64>,
    /// Places of arguments whose tensors end here, so that results may take their memory.
    #[prost(uint32, repeated, tag = "4")]
    pub donated: Vec<u32>,
}

/// One launch.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Launch {
    /// The program.
    #[prost(uint64, tag = "1")]
    pub program: u64,
    /// Name of the `.entry`.
    #[prost(string, tag = "2")]
    pub entry: String,
    /// Blocks in x, y, z.
    #[prost(uint32, repeated, tag = "3")]
    pub grid: Vec<u32>,
    /// Threads in x, y, z.
    #[prost(uint32, repeated, tag = "4")]
    pub block: Vec<u32>,
    /// Dynamic shared memory in bytes.
    #[prost(uint32, tag = "5")]
    pub dynamic_shared_bytes: u32,
    /// Arguments in the kernel's order.
    #[prost(message, repeated, tag = "6")]
    pub arguments: Vec<Argument>,
}

/// One argument: exactly one kind.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Argument {
    /// The kind.
    #[prost(oneof = "argument::Kind", tags = "1, 2")]
    pub kind: Option<argument::Kind>,
}

/// Kinds of [`Argument`].
pub mod argument {
    /// One of them.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Kind {
        /// Address of a tensor, which the kernel may read and write.
        #[prost(uint64, tag = "1")]
        Tensor(u64),
        /// Little-endian bytes of a scalar, as many as the parameter has.
        #[prost(bytes = "bytes", tag = "2")]
        Scalar(bytes::Bytes),
    }
}

/// A tensor to the client's memory.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Download {
    /// Which.
    #[prost(uint64, tag = "1")]
    pub tensor: u64,
    /// The answer carries it.
    #[prost(uint64, tag = "2")]
    pub request: u64,
}

/// What is not needed any more. Unknown names are no error.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Delete {
    /// Tensors.
    #[prost(uint64, repeated, tag = "1")]
    pub tensors: Vec<u64>,
    /// Programs.
    #[prost(uint64, repeated, tag = "2")]
    pub programs: Vec<u64>,
}

/// Waits for everything before it.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Synchronise {
    /// The answer carries it.
    #[prost(uint64, tag = "1")]
    pub request: u64,
}

/// Asks for figures.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Load {
    /// The answer carries it.
    #[prost(uint64, tag = "1")]
    pub request: u64,
}

/// Ends what the client has here.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Close {
    /// The answer carries it.
    #[prost(uint64, tag = "1")]
    pub request: u64,
}

/// Type and dimensions of an array.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Shape {
    /// As [`Upload::element_type`].
    #[prost(string, tag = "1")]
    pub element_type: String,
    /// As [`Upload::dimensions`].
    #[prost(int64, repeated, tag = "2")]
    pub dimensions: Vec<i64>,
}

/// A program stands, and what it takes to run it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Compiled {
    /// Of the [`Compile`].
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

/// A tensor is about to come: [`Part`]s follow until `bytes` are complete; none for an empty one.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Tensor {
    /// Of the [`Download`].
    #[prost(uint64, tag = "1")]
    pub request: u64,
    /// As [`Upload::element_type`].
    #[prost(string, tag = "2")]
    pub element_type: String,
    /// As [`Upload::dimensions`].
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
    /// Of the [`Load`].
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_comes_out_of_its_header_as_it_went_in() {
        let secret: Vec<u8> = (0..32).map(|place| place * 8 + 1).collect();
        assert_eq!(resume_value(&secret).len(), 64);
        assert_eq!(resume_secret(resume_value(&secret).as_bytes()), Some(secret));
        let long = "00".repeat(RESUME_BYTES + 1);
        for wrong in ["", "0", "0g", "+1", "é0", &long] {
            assert_eq!(resume_secret(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
