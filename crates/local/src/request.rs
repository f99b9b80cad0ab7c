//! Parsing of a request's path and query.

use std::collections::BTreeMap;

use http::{HeaderMap, header};
use percent_encoding::percent_decode_str;

use crate::refusal::Refusal;
use crate::resource::Catalogue;

#[derive(Clone, Debug, Default)]
pub(crate) struct Query(BTreeMap<String, String>);

impl Query {
    pub(crate) fn parse(query: &str) -> Self {
        let pairs = url::form_urlencoded::parse(query.as_bytes());
        Self(pairs.into_owned().collect())
    }

    /// Value of a parameter; empty if absent.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    pub(crate) fn is_true(&self, name: &str) -> bool {
        matches!(self.text(name), "true" | "1")
    }

    /// Whether the request must not be persisted (`dryRun=All`).
    pub(crate) fn is_dry_run(&self) -> bool {
        self.text("dryRun") == "All"
    }

    /// Value of a numeric parameter; `None` if absent.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, Refusal> {
        match self.text(name) {
            "" => Ok(None),
            text => {
                let parsed = text.parse().map(Some);
                parsed.map_err(|_| Refusal::bad_request(format!("strconv.ParseUint: parsing \"{text}\": invalid syntax")))
            }
        }
    }
}

/// Value of a header; empty if absent or not ASCII.
pub(crate) fn header(headers: &HeaderMap, name: header::HeaderName) -> &str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// The object or collection that a path names.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Target {
    /// Index of the kind in the server's `Catalogue`.
    pub resource: usize,
    /// Namespace; absent for all namespaces or a cluster-scoped kind.
    pub namespace: Option<String>,
    /// Name; empty for a collection.
    pub name: String,
    /// `status`, `finalize` (namespaces only), or empty for the object itself.
    pub subresource: String,
}

/// Parses a path: `/api/v1/...` or `/apis/{group}/{version}/...`. `None` if it names no object and no collection.
pub(crate) fn target(path: &str, catalogue: &Catalogue) -> Option<Target> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (group, version, rest) = match parts[..] {
        ["api", version, ref rest @ ..] => ("", version, rest),
        ["apis", group, version, ref rest @ ..] => (group, version, rest),
        _ => return None,
    };
    let objects = |plural: &str, namespace: Option<&str>, rest: &[&str]| {
        let resource = catalogue.find(group, version, plural)?;
        let is_namespaced = catalogue.resources[resource].namespaced;
        if namespace.is_some() != is_namespaced && !(namespace.is_none() && rest.is_empty()) {
            return None;
        }
        if rest.len() > 2 {
            return None;
        }
        let part = |index: usize| rest.get(index).map(|part| decoded(part)).unwrap_or_default();
        Some(Target {
            resource,
            namespace: namespace.map(decoded),
            name: part(0),
            subresource: part(1),
        })
    };
    match rest {
        ["namespaces"] => objects("namespaces", None, &[]),
        // `namespaces/x/status` is a subresource of the namespace; `namespaces/x/configmaps` is a collection in the namespace.
        ["namespaces", name, part] if group.is_empty() && matches!(*part, "status" | "finalize") => {
            objects("namespaces", None, &[*name, *part])
        }
        ["namespaces", name] => objects("namespaces", None, &[*name]),
        ["namespaces", namespace, plural, rest @ ..] => objects(plural, Some(namespace), rest),
        [plural, rest @ ..] => objects(plural, None, rest),
        [] => None,
    }
}

fn decoded(part: &str) -> String {
    percent_decode_str(part).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::catalogue;

    fn taken_apart(path: &str) -> Option<(String, Option<String>, String, String)> {
        let target = target(path, catalogue())?;
        let plural = catalogue().resources[target.resource].plural.clone();
        Some((plural, target.namespace, target.name, target.subresource))
    }

    #[test]
    fn paths_are_parsed() {
        let some = |plural: &str, namespace: Option<&str>, name: &str, subresource: &str| {
            Some((
                plural.to_owned(),
                namespace.map(str::to_owned),
                name.to_owned(),
                subresource.to_owned(),
            ))
        };
        assert_eq!(
            taken_apart("/api/v1/namespaces/a/configmaps/b"),
            some("configmaps", Some("a"), "b", "")
        );
        assert_eq!(taken_apart("/api/v1/configmaps"), some("configmaps", None, "", ""));
        assert_eq!(taken_apart("/api/v1/namespaces/a"), some("namespaces", None, "a", ""));
        assert_eq!(taken_apart("/api/v1/namespaces/a/status"), some("namespaces", None, "a", "status"));
        assert_eq!(
            taken_apart("/apis/sahasra.dev/v1alpha1/gpuworkers/n/status"),
            some("gpuworkers", None, "n", "status")
        );
        for path in ["/api/v1", "/apis", "/apis/apps/v1/deployments", "/api/v1/configmaps/b", "/version"] {
            assert_eq!(taken_apart(path), None, "{path}");
        }
    }
}
