//! Reads manifests as `kubectl apply -f` does: files, folders or standard input, with several documents a file and `List` objects.

use std::{
    fmt,
    io::Read,
    path::{Path, PathBuf},
};

use sahasra_names::is_dns_label;
use serde_json::Value;

/// Extensions of the files read from a folder, the same as in kubectl.
const EXTENSIONS: [&str; 3] = ["json", "yaml", "yml"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    file: String,
    /// Number of the document in its file, from 1.
    document: usize,
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}, document {}", self.file, self.document)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Manifest {
    pub origin: Origin,
    pub kind: Kind,
    /// Namespace of the object; empty for kinds without namespaces.
    pub namespace: String,
    pub name: String,
    pub object: Value,
}

/// Kinds of objects that manifests may contain, in the order of creation: objects come after those that they refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Namespace,
    ConfigMap,
    Secret,
    VramLease,
    BurstJob,
}

/// Kind, API version, name and plural, in the order of [`Kind`].
const KINDS: [(Kind, &str, &str, &str); 5] = [
    (Kind::Namespace, "v1", "Namespace", "namespaces"),
    (Kind::ConfigMap, "v1", "ConfigMap", "configmaps"),
    (Kind::Secret, "v1", "Secret", "secrets"),
    (Kind::VramLease, "sahasra.dev/v1alpha1", "VramLease", "vramleases"),
    (Kind::BurstJob, "sahasra.dev/v1alpha1", "BurstJob", "burstjobs"),
];

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        KINDS[self as usize].2
    }

    pub(crate) fn path(self, namespace: &str) -> String {
        let (_, version, _, plural) = KINDS[self as usize];
        let prefix = if version.contains('/') { "apis" } else { "api" };
        match self {
            Self::Namespace => format!("/{prefix}/{version}/{plural}"),
            _ => format!("/{prefix}/{version}/namespaces/{namespace}/{plural}"),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ManifestError {
    #[error("{file}: {source}")]
    Read { file: String, source: std::io::Error },
    #[error("{0}: no .yaml, .yml or .json file in it")]
    EmptyFolder(String),
    #[error("no object in {0}")]
    Empty(String),
    #[error("{origin}: {reason}")]
    Invalid { origin: Origin, reason: String },
    #[error(
        "{origin}: no matches for kind {kind:?} in version {version:?}: a pool on this machine supports {}",
        known()
    )]
    UnknownKind { origin: Origin, kind: String, version: String },
    #[error("{origin}: a {kind} needs a pool that stays up: start one with `sahasra up`, then kubectl apply")]
    OfUp { origin: Origin, kind: String },
    #[error("{second}: duplicate {kind} {name:?}, already defined in {first}")]
    Twice {
        first: Origin,
        second: Origin,
        kind: &'static str,
        name: String,
    },
}

/// Checks the name of a namespace, which is a DNS label (RFC 1123), and returns it.
pub(crate) fn namespace(name: &str) -> Result<String, String> {
    if is_dns_label(name) {
        return Ok(name.to_owned());
    }
    Err("write lower case letters, digits and '-', 63 at most, with a letter or digit at both ends, such as team-a".to_owned())
}

fn known() -> String {
    let names: Vec<&str> = KINDS.iter().map(|row| row.2).collect();
    names.join(", ")
}

/// Reads all manifests and returns their objects in the order of creation. An object without a namespace gets `namespace`.
pub(crate) fn read(paths: &[PathBuf], namespace: &str) -> Result<Vec<Manifest>, ManifestError> {
    let mut manifests: Vec<Manifest> = Vec::new();
    for path in paths {
        for (file, text) in texts(path)? {
            parse(&file, &text, namespace, &mut manifests)?;
        }
    }
    if manifests.is_empty() {
        let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        return Err(ManifestError::Empty(names.join(", ")));
    }
    for (place, second) in manifests.iter().enumerate() {
        let key = |manifest: &Manifest| (manifest.kind, manifest.namespace.clone(), manifest.name.clone());
        if let Some(first) = manifests[..place].iter().find(|first| key(first) == key(second)) {
            return Err(ManifestError::Twice {
                first: first.origin.clone(),
                second: second.origin.clone(),
                kind: second.kind.name(),
                name: second.name.clone(),
            });
        }
    }
    manifests.sort_by_key(|manifest| manifest.kind);
    Ok(manifests)
}

fn texts(path: &Path) -> Result<Vec<(String, String)>, ManifestError> {
    let file = path.display().to_string();
    let failed = |file: &str| {
        let file = file.to_owned();
        move |source| ManifestError::Read { file, source }
    };
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map_err(failed("standard input"))?;
        return Ok(vec![("standard input".to_owned(), text)]);
    }
    if !path.is_dir() {
        return Ok(vec![(file.clone(), std::fs::read_to_string(path).map_err(failed(&file))?)]);
    }
    let entries = std::fs::read_dir(path).map_err(failed(&file))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.extension()
                .and_then(|extension| extension.to_str())
                .is_some_and(|extension| EXTENSIONS.contains(&extension))
        })
        .collect();
    files.sort();
    if files.is_empty() {
        return Err(ManifestError::EmptyFolder(file));
    }
    let read = |path: PathBuf| {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(&path).map_err(failed(&file))?;
        Ok((file, text))
    };
    files.into_iter().map(read).collect()
}

fn parse(file: &str, text: &str, namespace: &str, manifests: &mut Vec<Manifest>) -> Result<(), ManifestError> {
    let origin = |document| Origin {
        file: file.to_owned(),
        document,
    };
    let documents = sahasra_crds::yaml::documents(text).map_err(|(number, error)| ManifestError::Invalid {
        origin: origin(number),
        reason: std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string),
    })?;
    for (number, document) in documents {
        let items = match document.get("items").and_then(Value::as_array) {
            Some(items) if document["kind"].as_str().is_some_and(|kind| kind.ends_with("List")) => items.clone(),
            _ => vec![document],
        };
        for item in items {
            manifests.push(manifest(origin(number), item, namespace)?);
        }
    }
    Ok(())
}

fn manifest(origin: Origin, mut object: Value, namespace: &str) -> Result<Manifest, ManifestError> {
    let no_object = |reason: &str| ManifestError::Invalid {
        origin: origin.clone(),
        reason: reason.to_owned(),
    };
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    if !object.is_object() {
        return Err(no_object("invalid object: expected apiVersion, kind, metadata and spec"));
    }
    let (version, kind, name) = (text("/apiVersion"), text("/kind"), text("/metadata/name"));
    let missing: Vec<&str> = [(&version, "apiVersion not set"), (&kind, "kind not set")]
        .iter()
        .filter(|(value, _)| value.is_empty())
        .map(|(_, missing)| *missing)
        .collect();
    if !missing.is_empty() {
        return Err(no_object(&missing.join(", ")));
    }
    if name.is_empty() {
        return Err(no_object("metadata.name: Required value: name is required"));
    }
    if version == "sahasra.dev/v1alpha1" && kind == "GpuSession" {
        return Err(ManifestError::OfUp { origin, kind });
    }
    let Some((known, ..)) = KINDS.iter().find(|row| row.1 == version && row.2 == kind) else {
        return Err(ManifestError::UnknownKind { origin, kind, version });
    };
    let own = text("/metadata/namespace");
    let namespace = match (*known, own.is_empty()) {
        (Kind::Namespace, _) => String::new(),
        (_, true) => namespace.to_owned(),
        (_, false) => own,
    };
    if *known != Kind::Namespace {
        if let Err(remedy) = self::namespace(&namespace) {
            return Err(no_object(&format!("metadata.namespace: Invalid value: {namespace:?}: {remedy}")));
        }
        object["metadata"]["namespace"] = Value::String(namespace.clone());
    }
    Ok(Manifest {
        origin,
        kind: *known,
        namespace,
        name,
        object,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Vec<Manifest>, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("all.yaml");
        std::fs::write(&file, text).unwrap();
        let read = read(std::slice::from_ref(&file), "mine");
        read.map_err(|error| error.to_string().replace(&format!("{}/", folder.path().display()), ""))
    }

    #[test]
    fn objects_come_after_those_that_they_refer_to() {
        let found = of("apiVersion: sahasra.dev/v1alpha1\nkind: BurstJob\nmetadata: {name: b}\n---\n\
             apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: c, namespace: other}}\n\
             - {apiVersion: v1, kind: Namespace, metadata: {name: other}}\n")
        .unwrap();
        let found: Vec<(Kind, &str, &str)> = found.iter().map(|m| (m.kind, m.namespace.as_str(), m.name.as_str())).collect();
        assert_eq!(
            found,
            [
                (Kind::Namespace, "", "other"),
                (Kind::ConfigMap, "other", "c"),
                (Kind::BurstJob, "mine", "b")
            ]
        );
        assert_eq!(Kind::BurstJob.path("mine"), "/apis/sahasra.dev/v1alpha1/namespaces/mine/burstjobs");
        assert_eq!(Kind::Namespace.path(""), "/api/v1/namespaces");
        for (kind, _, name, _) in KINDS {
            assert_eq!(kind.name(), name);
        }
    }

    #[test]
    fn whole_numbers_are_integers() {
        let found =
            of("apiVersion: sahasra.dev/v1alpha1\nkind: BurstJob\nmetadata: {name: b}\nspec: {chunks: {count: 1e3}, priority: 5.0}\n");
        assert_eq!(
            found.unwrap()[0].object["spec"],
            serde_json::json!({"chunks": {"count": 1000}, "priority": 5})
        );
    }

    #[test]
    fn an_error_names_file_and_document() {
        let cases = [
            ("a: [", "all.yaml, document 1: "),
            ("kind: BurstJob\n---\n", "all.yaml, document 1: apiVersion not set"),
            ("a: 1\n", "all.yaml, document 1: apiVersion not set, kind not set"),
            (
                "{apiVersion: v1, kind: ConfigMap}",
                "all.yaml, document 1: metadata.name: Required value",
            ),
            ("---\n---\n- 1\n", "all.yaml, document 2: invalid object"),
            (
                "{apiVersion: apps/v1, kind: Deployment, metadata: {name: x}}",
                "all.yaml, document 1: no matches for kind \"Deployment\" in version \"apps/v1\"",
            ),
            (
                "{apiVersion: v1, kind: ConfigMap, metadata: {name: x}}\n---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: x}}",
                "all.yaml, document 2: duplicate ConfigMap \"x\", already defined in all.yaml, document 1",
            ),
            (
                "{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: Bad_ns}}",
                "all.yaml, document 1: metadata.namespace: Invalid value: \"Bad_ns\": write lower case letters",
            ),
            (
                "a: 1\n---\nspec:\n  slice: {vram: 1Mi}\n  slice: {vram: 2Mi}\n",
                "all.yaml, document 2: spec: key \"slice\" is already set in this map at line 5 column 3",
            ),
            ("# nothing\n", "no object in all.yaml"),
        ];
        for (text, expected) in cases {
            let found = of(text).unwrap_err();
            assert!(found.starts_with(expected), "{found:?} for {text:?}");
        }
    }
}
