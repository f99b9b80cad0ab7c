//! Writes that all reconcilers share: adding and removing the finalizer, and deleting exactly one object.

use std::fmt::Debug;

use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use sahasra_crds::FINALIZER;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// A number as an integer of the API, which is signed.
pub(crate) fn integer(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// HTTP status of the API server's answer; 0 if it did not answer.
pub(crate) fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        _ => 0,
    }
}

/// A call to the API server that failed.
#[derive(Debug, thiserror::Error)]
#[error("failed to {operation}")]
pub struct ApiError {
    operation: &'static str,
    source: kube::Error,
}

impl ApiError {
    pub(crate) fn category(&self) -> &'static str {
        if code(&self.source) == 409 { "conflict" } else { "api" }
    }
}

/// Names the call that failed, for `map_err`.
pub(crate) fn api(operation: &'static str) -> impl Fn(kube::Error) -> ApiError {
    move |source| ApiError { operation, source }
}

/// The text, cut to at most `limit` bytes at a character boundary.
pub(crate) fn cut(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    format!("{}...", &text[..text.floor_char_boundary(limit - 3)])
}

/// Maximum length of an object's name: a DNS subdomain (RFC 1123), as the API server requires.
pub(crate) const MAX_NAME: usize = 253;

/// Name for an object that belongs to the object with this name and UID, and to no other: as much of the name as fits, the beginning of the
/// UID, and `suffix`.
pub(crate) fn derived_name(name: &str, uid: &str, suffix: &str) -> String {
    let uid = uid.split('-').next().unwrap_or_default();
    let most = MAX_NAME - suffix.len() - uid.len() - 1;
    // Names are ASCII. The part before a dash must end in a letter or digit.
    let name = name.get(..most).unwrap_or(name).trim_end_matches(['-', '.']);
    format!("{name}-{uid}{suffix}")
}

/// Whether the object has the finalizer, which keeps it until its VRAM is released.
pub(crate) fn has_finalizer<K: Resource>(object: &K) -> bool {
    object.finalizers().iter().any(|finalizer| finalizer == FINALIZER)
}

/// An object as the API server stores it.
pub(crate) trait Stored: Resource + Clone + Debug + DeserializeOwned {}

impl<K: Resource + Clone + Debug + DeserializeOwned> Stored for K {}

/// Adds the finalizer, which keeps the object until its VRAM is released. Returns the updated object. Writes nothing if the finalizer is
/// present.
///
/// # Errors
/// 409 if the object was written since it was read, 404 if it does not exist.
pub(crate) async fn add_finalizer<K: Stored>(api: &Api<K>, object: &K) -> kube::Result<K> {
    if has_finalizer(object) {
        return Ok(object.clone());
    }
    let finalizers: Vec<&str> = object.finalizers().iter().map(String::as_str).chain([FINALIZER]).collect();
    let patch = json!({"metadata": {"resourceVersion": object.resource_version(), "finalizers": finalizers}});
    api.patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await
}

/// Removes the finalizer. Succeeds if the object does not exist.
///
/// # Errors
/// 409 if the object was written since it was read.
pub(crate) async fn remove_finalizer<K: Stored>(api: &Api<K>, object: &K) -> kube::Result<()> {
    if !has_finalizer(object) {
        return Ok(());
    }
    let finalizers: Vec<&String> = object.finalizers().iter().filter(|finalizer| *finalizer != FINALIZER).collect();
    let patch = json!({"metadata": {"resourceVersion": object.resource_version(), "finalizers": finalizers}});
    let written = api
        .patch_metadata(&object.name_any(), &PatchParams::default(), &Patch::Merge(patch))
        .await;
    match written {
        Err(error) if code(&error) != 404 => Err(error),
        _ => Ok(()),
    }
}

/// Replaces the status of the object with this name, if it still has this resource version. A merge patch would keep the fields that `status`
/// leaves out.
///
/// # Errors
/// 409 if the object has another resource version, 404 if it does not exist.
pub(crate) async fn write_status<K: Stored>(api: &Api<K>, name: &str, version: Option<&str>, status: impl Serialize) -> kube::Result<K> {
    let version = version.map(|version| json!({"op": "add", "path": "/metadata/resourceVersion", "value": version}));
    let status = json!({"op": "add", "path": "/status", "value": status});
    let patch = serde_json::from_value(version.into_iter().chain([status]).collect()).map_err(kube::Error::SerdeError)?;
    api.patch_status(name, &PatchParams::default(), &Patch::<()>::Json(patch)).await
}

/// Writes these fields of the status of the object with this name, if it still has this resource version.
///
/// # Errors
/// 409 if the object has another resource version, 404 if it does not exist.
pub(crate) async fn write_status_fields<K: Stored>(api: &Api<K>, name: &str, version: Option<&str>, fields: Value) -> kube::Result<K> {
    let patch = json!({"metadata": {"resourceVersion": version}, "status": fields});
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await
}

/// Deletes this object, but not a later one with the same name. Succeeds if the object does not exist.
pub(crate) async fn delete_exactly<K: Stored>(api: &Api<K>, object: &K, parameters: DeleteParams) -> kube::Result<()> {
    let parameters = parameters.preconditions(Preconditions {
        uid: object.uid(),
        resource_version: None,
    });
    match api.delete(&object.name_any(), &parameters).await {
        Err(error) if !matches!(code(&error), 404 | 409) => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_derived_name_is_always_valid() {
        let uid = "0a1b2c3d-0000-0000-0000-000000000000";
        assert_eq!(derived_name("sweep", uid, "-results"), "sweep-0a1b2c3d-results");
        for length in 1..=MAX_NAME {
            for name in ["a".repeat(length), "a.".repeat(length).chars().take(length).collect()] {
                let derived = derived_name(&name, uid, "-results");
                assert!(derived.len() <= MAX_NAME && derived.ends_with("0a1b2c3d-results"), "{derived}");
                assert!(!derived.contains(".-") && !derived.contains("--"), "{derived}");
            }
        }
    }

    #[test]
    fn long_messages_are_cut_at_a_character() {
        assert_eq!(cut("éééé", 7), "éé...");
        assert_eq!(cut("éé", 4), "éé");
    }
}
