//! Description of a PTX file: which backends can run it, and the parameters and resources of its kernels. Does no I/O.

use std::collections::BTreeMap;

use sahasra_ptx::{EntryOutline, LoadError, LoadErrorKind, Module, Outline};
use serde::Serialize;

/// Prefix of a target, followed by the compute capability: two or three digits, of which the last is the minor version.
const TARGET: &str = "sm_";

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Description {
    pub file: String,
    /// Version of the PTX ISA, such as `8.8`.
    pub ptx_version: String,
    pub target: String,
    pub address_bits: u32,
    pub constant_bytes: u64,
    pub global_bytes: u64,
    pub backends: Backends,
    pub entries: Vec<Kernel>,
}

#[derive(Debug, PartialEq, Serialize)]
pub struct Backends {
    pub cpu: CpuVerdict,
    pub cuda: CudaVerdict,
}

#[derive(Debug, PartialEq, Serialize)]
pub struct CpuVerdict {
    pub runs: bool,
    /// First statement that the engine rejects, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refused>,
}

#[derive(Debug, PartialEq, Serialize)]
pub struct Refused {
    /// Line of the file, from 1.
    pub line: u32,
    /// Byte of the line, from 1.
    pub column: u32,
    /// Text of the statement; empty if the error is outside a statement.
    pub instruction: String,
    pub reason: String,
    /// Whether the PTX itself is invalid, so that no engine can run it.
    pub invalid: bool,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CudaVerdict {
    /// Whether a CUDA driver accepts the PTX, as far as its text shows. `None` if that was not checked: the PTX has a statement that this
    /// program does not know, which may be one of a newer PTX or none at all.
    pub runs: Option<bool>,
    /// Description of the devices, for messages.
    pub devices: String,
    /// Oldest CUDA version whose driver supports this version of PTX, from NVIDIA's PTX release notes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda_version: Option<String>,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Kernel {
    /// Name for `spec.kernel.entry`.
    pub name: String,
    pub parameters: Vec<Parameter>,
    /// Number of virtual registers by type; the driver assigns physical ones.
    pub registers: BTreeMap<String, u64>,
    /// Bytes of static shared memory of a block.
    pub shared_bytes: u64,
    /// Whether the launch may add dynamic shared memory.
    pub dynamic_shared: bool,
    /// Bytes of the `.const` variables that the kernel uses.
    pub constant_bytes: u64,
    pub local_bytes: u64,
    /// Maximum threads of a block by axis (`.maxntid`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_block: Option<[u32; 3]>,
    /// The only block size with which the kernel may be launched (`.reqntid`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required_block: Option<[u32; 3]>,
}

#[derive(Debug, PartialEq, Serialize)]
pub struct Parameter {
    pub name: String,
    /// Type of an element, such as `f32`. A `u64` is usually a pointer.
    #[serde(rename = "type")]
    pub scalar: String,
    pub bytes: u64,
    pub offset: u64,
}

/// Describes a PTX file, also one that no engine can run. Fails if the text is not PTX at all.
pub fn describe(file: &str, text: &str) -> Result<Description, LoadError> {
    let outline = Outline::of(text)?;
    let refused = Module::load(text).err();
    let invalid = refused
        .as_ref()
        .is_some_and(|error| !matches!(error.kind, LoadErrorKind::Unsupported(_)));
    let target = outline.targets.first().cloned().unwrap_or_default();
    Ok(Description {
        file: file.to_owned(),
        ptx_version: format!("{}.{}", outline.version.0, outline.version.1),
        address_bits: outline.address_size,
        constant_bytes: outline.constant_bytes,
        global_bytes: outline.global_bytes,
        backends: Backends {
            cuda: CudaVerdict {
                runs: cuda_runs(refused.as_ref()),
                devices: devices(&target),
                cuda_version: cuda_version(outline.version),
            },
            cpu: CpuVerdict {
                runs: refused.is_none(),
                refused: refused.map(|error| Refused {
                    line: error.line,
                    column: error.column,
                    reason: error.reason(),
                    instruction: error.instruction,
                    invalid,
                }),
            },
        },
        target,
        entries: outline.entries.into_iter().map(kernel).collect(),
    })
}

/// Whether a CUDA driver accepts PTX, given the first error of the CPU engine.
fn cuda_runs(refused: Option<&LoadError>) -> Option<bool> {
    match refused.map(|error| &error.kind) {
        None => Some(true),
        Some(LoadErrorKind::Unsupported(_)) => None,
        Some(_) => Some(false),
    }
}

fn kernel(entry: EntryOutline) -> Kernel {
    let parameters = entry.parameters.into_iter().map(|parameter| Parameter {
        name: parameter.name,
        scalar: parameter.scalar,
        bytes: parameter.bytes,
        offset: parameter.offset,
    });
    Kernel {
        name: entry.name,
        parameters: parameters.collect(),
        registers: entry.registers,
        shared_bytes: entry.shared_bytes,
        dynamic_shared: entry.has_dynamic_shared,
        constant_bytes: entry.constant_bytes,
        local_bytes: entry.local_bytes,
        max_block: entry.max_block,
        required_block: entry.required_block,
    }
}

/// Describes the devices that can run code for a target: also newer ones, unless the suffix limits the target to one architecture (`a`) or
/// family (`f`).
fn devices(target: &str) -> String {
    let Some(number) = target.strip_prefix(TARGET) else {
        return format!("unknown target {target}");
    };
    let digits = number.trim_end_matches(|character: char| character.is_ascii_alphabetic());
    let Some((major, minor)) = digits
        .len()
        .checked_sub(1)
        .map(|at| digits.split_at(at))
        .filter(|(major, _)| !major.is_empty())
    else {
        return format!("unknown target {target}");
    };
    match &number[digits.len()..] {
        "" => format!("compute capability {major}.{minor} or newer"),
        "a" => format!("compute capability {major}.{minor} and no other"),
        "f" => format!("compute capability {major}.{minor} and later ones of its family"),
        other => format!("unknown suffix {other} of {target}"),
    }
}

/// Returns the first CUDA release that supports a version of PTX (PTX ISA, release notes). The major version of CUDA is that of PTX plus 4,
/// except that PTX 6.0 to 6.2 belong to CUDA 9.
fn cuda_version((major, minor): (u32, u32)) -> Option<String> {
    let (cuda_major, cuda_minor) = match (major, minor) {
        (6, 0..=2) => (9, minor),
        (6, 3..=5) => (10, minor - 3),
        (7, 0..=8) => (11, minor),
        (8, 0..=5) => (12, minor),
        (8, 6..=8) => (12, minor + 1),
        (9, _) => (13, minor),
        _ => return None,
    };
    Some(format!("{cuda_major}.{cuda_minor}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_say_which_devices_run_them() {
        assert_eq!(devices("sm_80"), "compute capability 8.0 or newer");
        assert_eq!(devices("sm_90a"), "compute capability 9.0 and no other");
        assert_eq!(devices("sm_100f"), "compute capability 10.0 and later ones of its family");
        assert_eq!(devices("texmode_unified"), "unknown target texmode_unified");
        assert_eq!(devices("sm_"), "unknown target sm_");
    }

    #[test]
    fn versions_of_ptx_are_those_of_a_cuda_release() {
        let table = [
            ((7, 0), "11.0"),
            ((8, 5), "12.5"),
            ((8, 6), "12.7"),
            ((8, 8), "12.9"),
            ((9, 0), "13.0"),
            ((6, 5), "10.2"),
        ];
        for (ptx, cuda) in table {
            assert_eq!(cuda_version(ptx).as_deref(), Some(cuda));
        }
        assert_eq!(cuda_version((1, 4)), None);
    }

    #[test]
    fn a_statement_that_an_engine_rejects_is_reported_with_its_line() {
        let unsupported = describe(
            "k.ptx",
            ".version 8.8\n.target sm_90a\n.address_size 64\n.entry k() {\nwgmma.fence.sync.aligned;\nret;\n}",
        )
        .unwrap();
        let refused = unsupported.backends.cpu.refused.expect("refused");
        assert_eq!((refused.line, refused.invalid), (5, false), "{refused:?}");
        assert!(refused.instruction.contains("wgmma"), "{refused:?}");
        assert_eq!(unsupported.backends.cuda.runs, None);
        let unknown = describe(
            "k.ptx",
            ".version 8.8\n.target sm_80\n.address_size 64\n.entry k() {\n.reg .u32 %r1;\nfrobnicate.u32 %r1, %r1;\nret;\n}",
        )
        .unwrap();
        assert_eq!((unknown.backends.cpu.runs, unknown.backends.cuda.runs), (false, None));
        let known = describe("k.ptx", ".version 8.8\n.target sm_80\n.address_size 64\n.entry k() {\nret;\n}").unwrap();
        assert_eq!(known.backends.cuda.runs, Some(true));
        let wrong = describe(
            "k.ptx",
            ".version 8.8\n.target sm_80\n.address_size 64\n.entry k() {\nmov.u32 %r1, 1;\nret;\n}",
        )
        .unwrap();
        assert!(wrong.backends.cpu.refused.is_some_and(|refused| refused.invalid));
        assert_eq!(wrong.backends.cuda.runs, Some(false));
    }
}
