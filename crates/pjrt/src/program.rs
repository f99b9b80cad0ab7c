//! What is to be compiled, and how.

use prost::Message;

/// How a program is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// StableHLO: a portable artifact (bytecode), or MLIR as text.
    StableHlo,
    /// A serialised `HloModuleProto`.
    Hlo,
}

impl Format {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::StableHlo => "mlir",
            Self::Hlo => "hlo",
        }
    }
}

/// A program.
#[derive(Clone, Debug)]
pub struct Program {
    /// How it is written.
    pub format: Format,
    /// The text or bytecode.
    pub code: Vec<u8>,
}

/// How to compile: for one device, as `xla/pjrt/proto/compile_options.proto` has it.
#[derive(Clone, Copy, Debug, Default)]
pub struct CompileOptions {}

/// `xla.CompileOptionsProto`, as far as it is used.
#[derive(Clone, PartialEq, Message)]
struct CompileOptionsProto {
    #[prost(message, optional, tag = "3")]
    executable_build_options: Option<ExecutableBuildOptionsProto>,
}

/// `xla.ExecutableBuildOptionsProto`, as far as it is used.
#[derive(Clone, PartialEq, Message)]
struct ExecutableBuildOptionsProto {
    #[prost(int64, tag = "1")]
    device_ordinal: i64,
    #[prost(int64, tag = "4")]
    num_replicas: i64,
    #[prost(int64, tag = "5")]
    num_partitions: i64,
}

impl CompileOptions {
    pub(crate) fn encode(self) -> Vec<u8> {
        let build = ExecutableBuildOptionsProto {
            // None in particular.
            device_ordinal: -1,
            num_replicas: 1,
            num_partitions: 1,
        };
        CompileOptionsProto {
            executable_build_options: Some(build),
        }
        .encode_to_vec()
    }
}
