//! Sahasra's own objects: applied, read and waited for.

use std::time::{Duration, Instant};

use kube::Api;
use kube::api::{ApiResource, DeleteParams, DynamicObject};
use kube::core::GroupVersionKind;
use kube::runtime::wait::await_condition;
use serde_json::Value;

use super::{ControlPlane, ControlPlaneError};
use crate::process::POLL_INTERVAL;

impl ControlPlane {
    /// `kubectl apply --server-side` of a manifest; what kubectl printed.
    ///
    /// # Errors
    /// When the API server refuses: the message names the field.
    pub async fn apply(&self, manifest: &str) -> Result<String, ControlPlaneError> {
        let apply = ["apply", "--server-side", "-f", "-"];
        Ok(self.kubectl_with_input(apply, manifest).await?.success()?)
    }

    /// An object of one of the kinds of `sahasra.dev/v1alpha1`, such as `BurstJob`; `namespace` is empty for a `GpuWorker`.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn object(&self, kind: &str, namespace: &str, name: &str) -> Result<Option<DynamicObject>, ControlPlaneError> {
        Ok(self.objects(kind, namespace).await?.get_opt(name).await?)
    }

    /// Deletes an object, without waiting until it is gone.
    ///
    /// # Errors
    /// When it does not exist or the API server does not answer.
    pub async fn delete(&self, kind: &str, namespace: &str, name: &str) -> Result<(), ControlPlaneError> {
        self.objects(kind, namespace).await?.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Watches an object until `wanted` accepts it (`None`: it does not exist) and returns it. An API server that is gone
    /// for a while is waited for too.
    ///
    /// # Errors
    /// [`ControlPlaneError::NotReady`] with what the object last was, when that takes longer than `within`.
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

/// The condition of that type, if there is one.
#[must_use]
pub fn condition<'a>(object: &'a DynamicObject, kind: &str) -> Option<&'a Value> {
    let conditions = object.data.pointer("/status/conditions")?.as_array()?;
    conditions.iter().find(|condition| condition["type"] == kind)
}

/// The condition of that type that is `True`, if it is.
#[must_use]
pub fn true_condition<'a>(object: &'a DynamicObject, kind: &str) -> Option<&'a Value> {
    condition(object, kind).filter(|condition| condition["status"] == "True")
}
