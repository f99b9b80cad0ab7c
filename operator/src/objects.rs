//! Writes that every reconciler makes alike: the finalizer, and the deletion of exactly one object.

use std::fmt::Debug;

use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use sahasra_crds::FINALIZER;
use serde::de::DeserializeOwned;
use serde_json::json;

/// HTTP status of the API server's answer; 0 where it did not answer.
pub(crate) fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        _ => 0,
    }
}

/// Whether the object stands until what it holds is back.
pub(crate) fn is_held<K: Resource>(object: &K) -> bool {
    object.finalizers().iter().any(|finalizer| finalizer == FINALIZER)
}

/// From now on the object stands until what it holds is back. Gives it back as it is then; writes only what is missing.
///
/// # Errors
///
/// 409 when it was written since it was read, 404 when it is gone.
pub(crate) async fn hold<K>(api: &Api<K>, object: &K) -> Result<K, kube::Error>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    if is_held(object) {
        return Ok(object.clone());
    }
    let finalizers: Vec<&str> = object.finalizers().iter().map(String::as_str).chain([FINALIZER]).collect();
    let patch = json!({"metadata": {"resourceVersion": object.resource_version(), "finalizers": finalizers}});
    api.patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await
}

/// The object may go. One that is gone is no error.
///
/// # Errors
///
/// 409 when it was written since it was read.
pub(crate) async fn let_go<K>(api: &Api<K>, object: &K) -> Result<(), kube::Error>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    if !is_held(object) {
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

/// Deletes that object, and no later one of its name. One that is gone is no error.
pub(crate) async fn delete_exactly<K>(api: &Api<K>, object: &K, parameters: DeleteParams) -> Result<(), kube::Error>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let parameters = parameters.preconditions(Preconditions {
        uid: object.uid(),
        resource_version: None,
    });
    match api.delete(&object.name_any(), &parameters).await {
        Err(error) if !matches!(code(&error), 404 | 409) => Err(error),
        _ => Ok(()),
    }
}
