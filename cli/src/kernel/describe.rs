//! Description of a PTX file: which backends can run it, and the parameters and resources of its kernels. Does no I/O.

use sahasra_ptx::{EntryOutline, LoadError, LoadErrorKind, Module, NEWEST_VERSION, Outline};
use serde_json::{Value, json};

/// Prefix of a target, followed by the compute capability: two or three digits, of which the last is the minor version.
const TARGET: &str = "sm_";

/// A PTX file, and whether the backends can run it.
#[derive(Debug)]
pub(super) struct Description {
    pub file: String,
    pub outline: Outline,
    /// First statement that the CPU engine rejects, if any.
    pub error: Option<LoadError>,
}

impl Description {
    /// Describes a PTX file, also one that no engine can run. Fails if the text is not PTX at all.
    pub(super) fn of(file: &str, text: &str) -> Result<Self, LoadError> {
        Ok(Self {
            file: file.to_owned(),
            outline: Outline::of(text)?,
            error: Module::load(text).err(),
        })
    }

    /// Whether a CUDA driver accepts the PTX, as far as its text shows. `None` if that was not checked: the PTX has a statement that this
    /// program does not know, which may be one of a newer PTX or none at all.
    pub(super) fn cuda_runs(&self) -> Option<bool> {
        match self.error.as_ref().map(|error| &error.kind) {
            None if self.outline.version > NEWEST_VERSION => None,
            None => Some(true),
            Some(LoadErrorKind::Unsupported(_)) => None,
            Some(_) => Some(false),
        }
    }

    pub(super) fn target(&self) -> &str {
        self.outline.targets.first().map(String::as_str).unwrap_or_default()
    }

    /// Version of the PTX ISA, such as `8.8`.
    pub(super) fn ptx_version(&self) -> String {
        format!("{}.{}", self.outline.version.0, self.outline.version.1)
    }

    /// Returns the description for scripts.
    pub(super) fn json(&self) -> Value {
        let Self { file, outline, error } = self;
        let mut cpu = json!({"runs": error.is_none()});
        if let Some(error) = error {
            cpu["error"] = json!({
                "line": error.line,
                "column": error.column,
                "instruction": error.instruction,
                "reason": error.reason(),
                // Whether the PTX itself is invalid, so that no engine can run it.
                "invalid": self.cuda_runs() == Some(false),
            });
        }
        let mut cuda = json!({"runs": self.cuda_runs(), "devices": devices(self.target())});
        if let Some(version) = cuda_version(outline.version) {
            cuda["cudaVersion"] = json!(version);
        }
        json!({
            "file": file,
            "ptxVersion": self.ptx_version(),
            "target": self.target(),
            "addressBits": outline.address_size,
            "constantBytes": outline.constant_bytes,
            "globalBytes": outline.global_bytes,
            "backends": {"cpu": cpu, "cuda": cuda},
            "entries": outline.entries.iter().map(kernel).collect::<Vec<_>>(),
        })
    }
}

fn kernel(entry: &EntryOutline) -> Value {
    let parameters = entry.parameters.iter().map(|parameter| {
        json!({
            "name": parameter.name,
            "type": parameter.scalar,
            "bytes": parameter.bytes,
            "offset": parameter.offset,
        })
    });
    let mut kernel = json!({
        "name": entry.name,
        "parameters": parameters.collect::<Vec<_>>(),
        "registers": entry.registers,
        "sharedBytes": entry.shared_bytes,
        "dynamicShared": entry.has_dynamic_shared,
        "constantBytes": entry.constant_bytes,
        "localBytes": entry.local_bytes,
    });
    for (field, block) in [("maxBlock", entry.max_block), ("requiredBlock", entry.required_block)] {
        if let Some(block) = block {
            kernel[field] = json!(block);
        }
    }
    kernel
}

/// Describes the devices that can run code for a target: also newer ones, unless the suffix limits the target to one architecture (`a`) or
/// family (`f`).
pub(super) fn devices(target: &str) -> String {
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
pub(super) fn cuda_version((major, minor): (u32, u32)) -> Option<String> {
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
        let unsupported = Description::of(
            "k.ptx",
            ".version 8.8\n.target sm_90a\n.address_size 64\n.entry k() {\nwgmma.fence.sync.aligned;\nret;\n}",
        )
        .unwrap();
        let error = unsupported.error.as_ref().expect("an error");
        assert_eq!(
            (error.line, &unsupported.json()["backends"]["cpu"]["error"]["invalid"]),
            (5, &json!(false)),
            "{error:?}"
        );
        assert!(error.instruction.contains("wgmma"), "{error:?}");
        assert_eq!(unsupported.cuda_runs(), None);
        let unknown = Description::of(
            "k.ptx",
            ".version 8.8\n.target sm_80\n.address_size 64\n.entry k() {\n.reg .u32 %r1;\nfrobnicate.u32 %r1, %r1;\nret;\n}",
        )
        .unwrap();
        assert_eq!((unknown.error.is_none(), unknown.cuda_runs()), (false, None));
        let known = Description::of("k.ptx", ".version 8.8\n.target sm_80\n.address_size 64\n.entry k() {\nret;\n}").unwrap();
        assert_eq!(known.cuda_runs(), Some(true));
        let wrong = Description::of(
            "k.ptx",
            ".version 8.8\n.target sm_80\n.address_size 64\n.entry k() {\nmov.u32 %r1, 1;\nret;\n}",
        )
        .unwrap();
        assert_eq!(wrong.json()["backends"]["cpu"]["error"]["invalid"], json!(true));
        assert_eq!(wrong.cuda_runs(), Some(false));
    }

    #[test]
    fn no_driver_takes_a_target_that_does_not_exist() {
        for (version, target, runs) in [
            ("8.0", "foo", Some(false)),
            ("8.0", "sm_999", Some(false)),
            ("7.0", "sm_100", Some(false)),
            ("7.9", "sm_80", Some(false)),
            ("8.6", "sm_100", Some(true)),
            // Newer than the versions that this program knows.
            ("9.99", "sm_999", None),
        ] {
            let text = format!(".version {version}\n.target {target}\n.address_size 64\n.entry k() {{ ret; }}");
            let description = Description::of("k.ptx", &text).unwrap();
            assert_eq!(description.cuda_runs(), runs, "{version} {target}");
            assert_eq!(description.error.is_some(), runs == Some(false), "{:?}", description.error);
        }
    }
}
