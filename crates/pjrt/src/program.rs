//! Programs to compile, and compile options.

use prost::Message;

/// Format of a program's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// StableHLO, as a portable artifact (bytecode) or as MLIR text.
    StableHlo,
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

/// Code of a program.
#[derive(Clone, Debug)]
pub struct Program {
    pub format: Format,
    /// Text or bytecode, depending on the format.
    pub code: Vec<u8>,
}

/// Compile options for one device, encoded as in `xla/pjrt/proto/compile_options.proto`.
#[derive(Clone, Copy, Debug, Default)]
pub struct CompileOptions {}

/// The used fields of `xla.CompileOptionsProto`.
#[derive(Clone, PartialEq, Message)]
struct CompileOptionsProto {
    #[prost(message, optional, tag = "3")]
    executable_build_options: Option<ExecutableBuildOptionsProto>,
}

/// The used fields of `xla.ExecutableBuildOptionsProto`.
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
            // -1 selects no particular device.
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
