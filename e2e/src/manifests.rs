//! The wrong manifests of `tests/data/wrong` with what their first lines say is expected of them.
//!
//! ```yaml
//! # 32 × 33 = 1056.                        what is wrong
//! # refused-by: apply                      or `accepted`: by the operator, with the condition Accepted=False
//! # field: spec.kernel.block               must stand in the refusal
//! # says: at most 1024 threads in all      must stand in the refusal too
//! ```
//!
//! `tests/data/right` has a twin of the same name for each that differs in little else and is admitted at apply; the twin of one
//! that the operator refuses is accepted by it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::tools;

/// Who refuses a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusedBy {
    /// The API server or kubectl, at `kubectl apply`.
    Apply,
    /// The operator, by `Accepted=False`.
    Accepted,
}

/// A manifest that must be refused.
#[derive(Debug, Clone)]
pub struct WrongManifest {
    /// Name of the file without extension, which is the object's name too.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// Who refuses it.
    pub refused_by: RefusedBy,
    /// The field that the refusal names.
    pub field: String,
    /// What else the refusal says.
    pub says: String,
    /// The whole text.
    pub text: String,
}

/// Why the manifests cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// A file or the folder cannot be read.
    #[error("read {}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file does not say what is expected of it.
    #[error("{}: no line `# {key}: ...` with a known value", path.display())]
    Expectation {
        /// The file.
        path: PathBuf,
        /// What is missing.
        key: &'static str,
    },
}

/// The folder of the right twins.
#[must_use]
pub fn right_manifests() -> PathBuf {
    tools::workspace_root().join("e2e/tests/data/right")
}

/// Every wrong manifest, in the order of their names.
///
/// # Errors
/// When one cannot be read or does not say what is expected of it.
pub fn wrong_manifests() -> Result<Vec<WrongManifest>, ManifestError> {
    let folder = tools::workspace_root().join("e2e/tests/data/wrong");
    let failed = |path: &Path| {
        let path = path.to_owned();
        |source| ManifestError::Read { path, source }
    };
    let mut manifests = Vec::new();
    for entry in fs::read_dir(&folder).map_err(failed(&folder))? {
        let path = entry.map_err(failed(&folder))?.path();
        let text = fs::read_to_string(&path).map_err(failed(&path))?;
        manifests.push(parse(path, text)?);
    }
    manifests.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(manifests)
}

fn parse(path: PathBuf, text: String) -> Result<WrongManifest, ManifestError> {
    let value = |key: &'static str| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("# ")?.strip_prefix(key)?.strip_prefix(": "));
        line.map(str::to_owned)
            .ok_or(ManifestError::Expectation { path: path.clone(), key })
    };
    let refused_by = match value("refused-by")?.as_str() {
        "apply" => RefusedBy::Apply,
        "accepted" => RefusedBy::Accepted,
        _ => return Err(ManifestError::Expectation { path, key: "refused-by" }),
    };
    let (field, says) = (value("field")?, value("says")?);
    Ok(WrongManifest {
        name: path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        path,
        refused_by,
        field,
        says,
        text,
    })
}
