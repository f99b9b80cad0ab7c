//! Invalid manifests and their valid counterparts ("twins"), from the tables in `tests/data/manifests`.
//!
//! `bases.yaml` maps names to valid objects. Every other file is a list of cases:
//!
//! ```yaml
//! - name: block-of-too-many-threads        # metadata.name of its objects
//!   why: 32 × 33 = 1056.                   # what is wrong, for readers
//!   refused-by: apply                      # or `accepted`: by the operator, with the condition Accepted=False
//!   field: spec.kernel.block               # must stand in the refusal
//!   says: at most 1024 threads in all      # must stand in the refusal too
//!   base: burst                            # default: burst
//!   beside: {right: config-map}            # an object to apply before: for `wrong`, `right` or each, a base; default: none
//!   both: {spec: {slice: {vram: 2Mi}}}     # JSON merge patch of the base for both manifests; default: none
//!   wrong: {spec: {kernel: {block: [32, 33]}}}
//!   right: {spec: {kernel: {block: [32, 32]}}}    # default: none
//! ```
//!
//! A twin is valid: `kubectl apply` admits it, and if the invalid manifest is for the operator to reject, the operator accepts the twin.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use sahasra_crds::yaml;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::tools;

/// File of valid objects, to which the patches of the cases apply.
const BASES: &str = "bases.yaml";

/// Component that rejects a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RefusedBy {
    /// The API server or kubectl, at `kubectl apply`.
    Apply,
    /// The operator, with the condition `Accepted=False`.
    Accepted,
}

/// A manifest that must be rejected, and its valid twin.
#[derive(Debug, Clone)]
pub struct WrongManifest {
    /// Name of the case and of its objects.
    pub name: String,
    /// Explanation of the error, for readers.
    pub why: String,
    pub refused_by: RefusedBy,
    /// Field that the rejection must name.
    pub field: String,
    /// Text that the rejection must contain as well.
    pub says: String,
    /// YAML documents, each after a `---`, so that the texts of several manifests can be concatenated.
    pub text: String,
    /// The valid twin, in the same form.
    pub twin: String,
}

/// The manifests cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("read {}", path.display())]
    Read {
        path: PathBuf,
        /// Error of the system call.
        source: std::io::Error,
    },
    /// A file is not a table of cases or of bases.
    #[error("parse {}", path.display())]
    Parse {
        path: PathBuf,
        /// Error of the parser, with its position.
        source: yaml::ParseError,
    },
    /// A case is invalid.
    #[error("case {name:?}: {fault}")]
    Case {
        /// Name of the case.
        name: String,
        fault: CaseFault,
    },
}

/// Reason why a case is invalid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CaseFault {
    /// The name of the case is not a valid name of an object.
    #[error("use lower-case letters, digits and dashes in the name")]
    Name,
    #[error("another case has the same name")]
    Twice,
    /// An expectation is empty, so that every rejection would meet it.
    #[error("`{0}` is empty")]
    Empty(&'static str),
    /// The base of a case does not exist.
    #[error("base {0:?} not found in {BASES}")]
    NoBase(String),
    /// A patch does not change its object.
    #[error("`{0}` changes nothing")]
    Idle(&'static str),
    /// The wrong manifest and its twin are the same.
    #[error("`wrong` and `right` give the same object")]
    Same,
}

type Patch = Map<String, Value>;
type Bases = BTreeMap<String, Value>;

/// A row of the table of cases.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Case {
    name: String,
    why: String,
    refused_by: RefusedBy,
    field: String,
    says: String,
    #[serde(default = "burst")]
    base: String,
    #[serde(default)]
    beside: Beside,
    both: Option<Patch>,
    wrong: Patch,
    right: Option<Patch>,
}

/// Bases of the objects that are applied before the wrong manifest or its twin.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Beside {
    wrong: Option<String>,
    right: Option<String>,
}

fn burst() -> String {
    "burst".to_owned()
}

/// Returns every wrong manifest with its twin, sorted by name.
///
/// # Errors
/// When a file cannot be read, or a case in it is malformed.
pub fn wrong_manifests() -> Result<Vec<WrongManifest>, ManifestError> {
    let folder = tools::workspace_root().join("e2e/tests/data/manifests");
    let failed = |source| ManifestError::Read {
        path: folder.clone(),
        source,
    };
    let mut cases: Vec<Case> = Vec::new();
    for entry in fs::read_dir(&folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if !path.ends_with(BASES) {
            cases.extend(read::<Vec<Case>>(&path)?);
        }
    }
    manifests(&read(&folder.join(BASES))?, cases)
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T, ManifestError> {
    let path = path.to_owned();
    match fs::read_to_string(&path) {
        Ok(text) => yaml::parse(&text).map_err(|source| ManifestError::Parse { path, source }),
        Err(source) => Err(ManifestError::Read { path, source }),
    }
}

fn manifests(bases: &Bases, mut cases: Vec<Case>) -> Result<Vec<WrongManifest>, ManifestError> {
    cases.sort_by(|one, other| one.name.cmp(&other.name));
    let mut names = BTreeSet::new();
    let manifests = cases.into_iter().map(|case| {
        let name = case.name.clone();
        let manifest = if names.insert(name.clone()) {
            manifest(bases, case)
        } else {
            Err(CaseFault::Twice)
        };
        manifest.map_err(|fault| ManifestError::Case { name, fault })
    });
    manifests.collect()
}

fn manifest(bases: &Bases, case: Case) -> Result<WrongManifest, CaseFault> {
    let is_plain = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
    if case.name.is_empty() || !case.name.chars().all(is_plain) {
        return Err(CaseFault::Name);
    }
    for (key, text) in [("why", &case.why), ("field", &case.field), ("says", &case.says)] {
        if text.trim().is_empty() {
            return Err(CaseFault::Empty(key));
        }
    }
    let shared = patched(base(bases, &case.base)?, case.both, "both")?;
    let wrong = patched(&shared, Some(case.wrong), "wrong")?;
    let right = patched(&shared, case.right, "right")?;
    if wrong == right {
        return Err(CaseFault::Same);
    }
    let text = |beside: Option<String>, object: Value| -> Result<String, CaseFault> {
        let beside = beside.map(|beside| base(bases, &beside)).transpose()?;
        let objects = beside.cloned().into_iter().chain([object]);
        Ok(objects.map(|object| document(&case.name, object)).collect())
    };
    Ok(WrongManifest {
        text: text(case.beside.wrong, wrong)?,
        twin: text(case.beside.right, right)?,
        name: case.name,
        why: case.why,
        refused_by: case.refused_by,
        field: case.field,
        says: case.says,
    })
}

fn base<'a>(bases: &'a Bases, name: &str) -> Result<&'a Value, CaseFault> {
    bases.get(name).ok_or_else(|| CaseFault::NoBase(name.to_owned()))
}

/// Returns `object` after the JSON merge patch (RFC 7396) that the case has under `key`.
fn patched(object: &Value, patch: Option<Patch>, key: &'static str) -> Result<Value, CaseFault> {
    let mut patched = object.clone();
    if let Some(patch) = patch {
        json_patch::merge(&mut patched, &Value::Object(patch));
        if patched == *object {
            return Err(CaseFault::Idle(key));
        }
    }
    Ok(patched)
}

fn document(name: &str, mut object: Value) -> String {
    object["metadata"]["name"] = name.into();
    format!("---\n{}", yaml::write(&object))
}

#[cfg(test)]
mod tests;
