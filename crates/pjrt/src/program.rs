//! Programs to compile, and compile options.

use std::collections::BTreeMap;

use prost::Message;

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

#[derive(Clone, Debug)]
pub struct Program {
    pub format: Format,
    /// Text or bytecode, depending on the format.
    pub code: Vec<u8>,
}

/// With this option, XLA's compiler for CPUs ignores NaN in reductions to a maximum or a minimum.
const FAST_MIN_MAX: &str = "xla_cpu_enable_fast_min_max";

/// Compile options for one device, encoded as in `xla/pjrt/proto/compile_options.proto`. The default has only the plugin's own options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompileOptions {
    /// Values of fields of `xla.DebugOptions`, by name. A plugin rejects names that its XLA does not have.
    pub debug_options: BTreeMap<String, bool>,
}

/// The used fields of `xla.CompileOptionsProto`.
#[derive(Clone, PartialEq, Message)]
struct CompileOptionsProto {
    #[prost(message, optional, tag = "3")]
    executable_build_options: Option<ExecutableBuildOptionsProto>,
    #[prost(btree_map = "string, message", tag = "7")]
    env_option_overrides: BTreeMap<String, OptionOverrideProto>,
}

/// The used field of `xla.OptionOverrideProto`.
#[derive(Clone, PartialEq, Message)]
struct OptionOverrideProto {
    #[prost(bool, optional, tag = "2")]
    bool_field: Option<bool>,
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
    /// Options with which the compiler of a platform (`cpu`, `cuda`) computes what NumPy and JAX do: a maximum or minimum with a NaN is NaN.
    pub fn of_platform(platform: &str) -> Self {
        let debug_options = match platform {
            "cpu" => BTreeMap::from([(FAST_MIN_MAX.to_owned(), false)]),
            _ => BTreeMap::new(),
        };
        Self { debug_options }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let build = ExecutableBuildOptionsProto {
            // -1 selects no particular device.
            device_ordinal: -1,
            num_replicas: 1,
            num_partitions: 1,
        };
        let overrides = self.debug_options.iter().map(|(name, value)| {
            let value = OptionOverrideProto { bool_field: Some(*value) };
            (name.clone(), value)
        });
        CompileOptionsProto {
            executable_build_options: Some(build),
            env_option_overrides: overrides.collect(),
        }
        .encode_to_vec()
    }
}
