//! Applies, reads, deletes and waits for Sahasra's custom resources.

use std::time::{Duration, Instant};

use kube::Api;
use kube::api::{ApiResource, DeleteParams, DynamicObject};
use kube::core::GroupVersionKind;
use kube::runtime::wait::await_condition;
use serde_json::Value;

use super::{ControlPlane, ControlPlaneError};
use crate::process::POLL_INTERVAL;

impl ControlPlane {
    /// Runs `kubectl apply --server-side` with a manifest and returns kubectl's output.
    ///
    /// # Errors
    /// When the API server rejects the manifest; the message names the field.
    pub async fn apply(&self, manifest: &str) -> Result<String, ControlPlaneError> {
        let apply = ["apply", "--server-side", "-f", "-"];
        Ok(self.kubectl_with_input(apply, manifest).await?.success()?)
    }

    /// Returns an object of one of the kinds of `sahasra.dev/v1alpha1`, such as `BurstJob`; `namespace` is empty for a `GpuWorker`.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn object(&self, kind: &str, namespace: &str, name: &str) -> Result<Option<DynamicObject>, ControlPlaneError> {
        Ok(self.objects(kind, namespace).await?.get_opt(name).await?)
    }

    /// Deletes an object without waiting until its deletion is complete.
    ///
    /// # Errors
    /// When the object does not exist or the API server does not answer.
    pub async fn delete(&self, kind: &str, namespace: &str, name: &str) -> Result<(), ControlPlaneError> {
        self.objects(kind, namespace).await?.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Watches an object until `wanted` accepts it, and returns it; `None` stands for an object that does not exist. Outages of the API
    /// server are waited for as well.
    ///
    /// # Errors
    /// [`ControlPlaneError::NotReady`] with the last state of the object, when `wanted` does not accept it within `within`.
    pub async fn wait_until(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
        within: Duration,
        wanted: impl Fn(Option<&DynamicObject>) -> bool,
    ) -> Result<Option<DynamicObject>, ControlPlaneError> {
        let objects = self.objects(kind, namespace).await?;
        let started = Instant::now();
        let watched = async {
            loop {
                if let Ok(object) = await_condition(objects.clone(), name, |object: Option<&DynamicObject>| wanted(object)).await {
                    return object;
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        match tokio::time::timeout(within, watched).await {
            Ok(object) => Ok(object),
            Err(_) => Err(ControlPlaneError::NotReady {
                what: "what was waited for",
                waited: started.elapsed(),
                last: match objects.get_opt(name).await {
                    Ok(Some(object)) => format!("{kind} {name} is {:#}", object.data),
                    Ok(None) => format!("{kind} {name} does not exist"),
                    Err(error) => error.to_string(),
                },
            }),
        }
    }

    async fn objects(&self, kind: &str, namespace: &str) -> Result<Api<DynamicObject>, ControlPlaneError> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("sahasra.dev", "v1alpha1", kind));
        let client = self.client().await?;
        Ok(match namespace {
            "" => Api::all_with(client, &resource),
            namespace => Api::namespaced_with(client, namespace, &resource),
        })
    }
}

/// Returns the condition with this type, if there is one.
#[must_use]
pub fn condition<'a>(object: &'a DynamicObject, kind: &str) -> Option<&'a Value> {
    let conditions = object.data.pointer("/status/conditions")?.as_array()?;
    conditions.iter().find(|condition| condition["type"] == kind)
}

/// Returns the condition with this type, if its status is `True`.
#[must_use]
pub fn true_condition<'a>(object: &'a DynamicObject, kind: &str) -> Option<&'a Value> {
    condition(object, kind).filter(|condition| condition["status"] == "True")
}
