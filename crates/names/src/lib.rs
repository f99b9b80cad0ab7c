//! Names that objects, messages and command lines share: the engines of sessions, the backends of devices, identifiers, and amounts of
//! memory.
//!
//! Code that treats the values differently matches all of them, so that the compiler names each place where a new one is missing.

use std::{fmt, str::FromStr};

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use identifiers::{BootId, ClassName, DeviceId, DeviceName, OwnerUid, WorkerName, WorkerUid};

mod identifiers;

/// Engine that runs programs on a device. [`Engine::description`] states which.
#[derive(JsonSchema, Serialize, Deserialize, ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    Ptx,
    #[default]
    Xla,
    Cuda,
}

impl Engine {
    /// Programs that the engine runs, for descriptions of the schema.
    pub const fn description(self) -> &'static str {
        match self {
            Self::Ptx => "PTX kernels: the CUDA driver on a GPU, the CPU engine elsewhere",
            Self::Xla => "StableHLO programs, through a PJRT plugin",
            Self::Cuda => "programs that use the CUDA driver API",
        }
    }

    /// Part that a worker needs to offer the engine, if it may be missing.
    pub const fn requirement(self) -> Option<Requirement> {
        match self {
            Self::Ptx | Self::Cuda => None,
            Self::Xla => Some(Requirement::PjrtPlugin),
        }
    }
}

/// Part of a worker that an engine needs and that may be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// A PJRT plugin that drives the device.
    PjrtPlugin,
}

impl fmt::Display for Requirement {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PjrtPlugin => formatter.write_str("PJRT plugin"),
        }
    }
}

/// Implementation of a device.
#[derive(Serialize, Deserialize, ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    Cpu,
    Cuda,
}

impl Backend {
    /// Whether the device is a GPU, for which a process needs the driver's files.
    pub const fn is_gpu(self) -> bool {
        match self {
            Self::Cpu => false,
            Self::Cuda => true,
        }
    }

    /// Whether a running kernel can be ended without ending its process.
    pub const fn cancels(self) -> bool {
        match self {
            Self::Cpu => true,
            Self::Cuda => false,
        }
    }
}

/// A name that this version does not know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown name {0:?}")]
pub struct UnknownName(pub String);

/// Implements the conversions of an enum to and from its names.
macro_rules! names {
    ($type:ident { $($variant:ident = $name:literal),+ }) => {
        impl $type {
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.pad(self.as_str())
            }
        }

        impl FromStr for $type {
            type Err = UnknownName;

            fn from_str(name: &str) -> Result<Self, UnknownName> {
                let known = Self::ALL.iter().find(|known| known.as_str() == name);
                known.copied().ok_or_else(|| UnknownName(name.to_owned()))
            }
        }
    };
}

names!(Engine { Ptx = "ptx", Xla = "xla", Cuda = "cuda" });
names!(Backend { Cpu = "cpu", Cuda = "cuda" });

/// Number of bytes in the style of Kubernetes quantities: `8Gi`, `1.5Ki`, `12`. Rounded down, so that free bytes never look sufficient when
/// they are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1_u64 << 40, "Ti"), (1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")];
        let (size, unit) = units.into_iter().find(|(size, _)| self.0 >= *size).unwrap_or((1, ""));
        match (self.0 / size, self.0 % size * 10 / size) {
            (whole, 0) => write!(formatter, "{whole}{unit}"),
            (whole, tenths) => write!(formatter, "{whole}.{tenths}{unit}"),
        }
    }
}

/// Maximum length of a DNS label (RFC 1123).
pub const MAX_LABEL_LENGTH: usize = 63;
/// Maximum length of a DNS subdomain (RFC 1123).
pub const MAX_SUBDOMAIN_LENGTH: usize = 253;

/// Whether `text` is a DNS label (RFC 1123), as the names of namespaces and classes are.
pub fn is_dns_label(text: &str) -> bool {
    text.len() <= MAX_LABEL_LENGTH && is_dns_part(text)
}

/// Whether `text` is a DNS subdomain (RFC 1123), as the names of objects are: without a limit on the length of its labels, as in the API
/// server. So a name contains neither `..` nor percent escapes.
pub fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= MAX_SUBDOMAIN_LENGTH && text.split('.').all(is_dns_part)
}

fn is_dns_part(text: &str) -> bool {
    let is_known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.bytes().all(is_known) && !text.starts_with('-') && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value's name as text, in objects and on command lines.
    fn spellings<T: ValueEnum + Serialize + fmt::Display>(value: &T) -> [String; 3] {
        let option = value.to_possible_value().expect("no value is hidden");
        let object = serde_json::to_value(value).expect("it serializes");
        [
            value.to_string(),
            object.as_str().expect("a string").to_owned(),
            option.get_name().to_owned(),
        ]
    }

    #[test]
    fn a_value_has_one_name_everywhere() {
        for engine in Engine::ALL {
            assert_eq!(spellings(engine), [(); 3].map(|()| engine.as_str()));
            assert_eq!(engine.as_str().parse(), Ok(*engine));
        }
        for backend in Backend::ALL {
            assert_eq!(spellings(backend), [(); 3].map(|()| backend.as_str()));
            assert_eq!(backend.as_str().parse(), Ok(*backend));
        }
        assert_eq!("XLA".parse::<Engine>(), Err(UnknownName("XLA".to_owned())));
    }
}
