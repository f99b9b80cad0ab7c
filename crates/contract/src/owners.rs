//! Garbage collection by owner references.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::{DeleteParams, DynamicObject, PostParams, PropagationPolicy};
use serde_json::{Value, json};

use crate::subject::{Subject, answered, eventually, refused, summary, typed};

fn reference(owner: &DynamicObject) -> Value {
    json!({"apiVersion": "sahasra.dev/v1alpha1", "kind": "GpuSession", "name": owner.name_any(), "uid": owner.uid()})
}

async fn dependent(subject: &Subject, name: &str, owners: Value) -> ConfigMap {
    let made: ConfigMap = typed(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "ownerReferences": owners},
    }));
    subject.config_maps().create(&PostParams::default(), &made).await.unwrap()
}

async fn gone(subject: &Subject, name: &str) {
    eventually(name, async || {
        answered(subject.config_maps().get_opt(name).await).unwrap().is_none().then_some(())
    })
    .await;
}

pub async fn dependents_are_deleted_with_their_owner(subject: &Subject) {
    let owner = subject.session("owner").await;
    dependent(subject, "a", json!([reference(&owner)])).await;
    dependent(subject, "b", json!([reference(&owner)])).await;
    subject.config_map("bystander", json!({"k": "v"})).await;
    subject.sessions().delete("owner", &DeleteParams::default()).await.unwrap();
    gone(subject, "a").await;
    gone(subject, "b").await;
    subject.config_maps().get("bystander").await.unwrap();
}

pub async fn dependents_of_dependents_are_deleted(subject: &Subject) {
    let owner = subject.session("owner").await;
    let child = dependent(subject, "child", json!([reference(&owner)])).await;
    let grandchild = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "child", "uid": child.uid()}]);
    dependent(subject, "grandchild", grandchild).await;
    subject.sessions().delete("owner", &DeleteParams::default()).await.unwrap();
    gone(subject, "grandchild").await;
}

pub async fn a_dependent_with_two_owners_stays_with_the_other(subject: &Subject) {
    let (one, two) = (subject.session("one").await, subject.session("two").await);
    dependent(subject, "a", json!([reference(&one), reference(&two)])).await;
    subject.sessions().delete("one", &DeleteParams::default()).await.unwrap();
    let left = eventually("the reference is dropped", async || {
        let owners = subject.config_maps().get("a").await.unwrap().metadata.owner_references.unwrap();
        (owners.len() == 1).then_some(owners)
    })
    .await;
    assert_eq!(left[0].name, "two");
    subject.sessions().delete("two", &DeleteParams::default()).await.unwrap();
    gone(subject, "a").await;
}

pub async fn a_dependent_of_a_missing_owner_is_deleted(subject: &Subject) {
    let owner = json!({
        "apiVersion": "sahasra.dev/v1alpha1", "kind": "GpuSession", "name": "never", "uid": "11111111-1111-1111-1111-111111111111",
    });
    dependent(subject, "a", json!([owner])).await;
    gone(subject, "a").await;
}

pub async fn a_dependent_of_another_uid_is_deleted(subject: &Subject) {
    let owner = subject.session("owner").await;
    let mut wrong = reference(&owner);
    wrong["uid"] = json!("11111111-1111-1111-1111-111111111111");
    dependent(subject, "a", json!([wrong])).await;
    gone(subject, "a").await;
    subject.sessions().get("owner").await.unwrap();
}

pub async fn a_dependents_finalizer_holds_it(subject: &Subject) {
    let owner = subject.session("owner").await;
    let made: ConfigMap = typed(json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "a", "ownerReferences": [reference(&owner)], "finalizers": ["example.com/hold"]},
    }));
    subject.config_maps().create(&PostParams::default(), &made).await.unwrap();
    subject.sessions().delete("owner", &DeleteParams::default()).await.unwrap();
    eventually("deletion is asked for", async || {
        subject.config_maps().get("a").await.unwrap().metadata.deletion_timestamp
    })
    .await;
    let patch = kube::api::Patch::Merge(json!({"metadata": {"finalizers": null}}));
    subject.config_maps().patch("a", &Default::default(), &patch).await.unwrap();
    gone(subject, "a").await;
}

fn propagating(policy: PropagationPolicy) -> DeleteParams {
    DeleteParams {
        propagation_policy: Some(policy),
        ..DeleteParams::default()
    }
}

pub async fn orphans_stay_without_their_reference(subject: &Subject) {
    let owner = subject.session("owner").await;
    dependent(subject, "a", json!([reference(&owner)])).await;
    // Kubernetes' garbage collector finds dependents in its own cache, and deletes one that it sees after its owner has gone.
    tokio::time::sleep(Duration::from_secs(2)).await;
    subject
        .sessions()
        .delete("owner", &propagating(PropagationPolicy::Orphan))
        .await
        .unwrap();
    eventually("the owner goes", async || answered(subject.sessions().get("owner").await).err()).await;
    let orphan = subject.config_maps().get("a").await.unwrap();
    assert_eq!(orphan.metadata.owner_references, None);
}

pub async fn foreground_deletion_waits_for_blocking_dependents(subject: &Subject) {
    let owner = subject.session("owner").await;
    let mut blocking = reference(&owner);
    blocking["blockOwnerDeletion"] = json!(true);
    let made: ConfigMap = typed(json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "a", "ownerReferences": [blocking], "finalizers": ["example.com/hold"]},
    }));
    subject.config_maps().create(&PostParams::default(), &made).await.unwrap();
    subject
        .sessions()
        .delete("owner", &propagating(PropagationPolicy::Foreground))
        .await
        .unwrap();
    eventually("deletion of the dependent is asked for", async || {
        subject.config_maps().get("a").await.unwrap().metadata.deletion_timestamp
    })
    .await;
    let waiting = subject.sessions().get("owner").await.unwrap();
    assert_eq!(waiting.finalizers(), ["foregroundDeletion"]);
    let patch = kube::api::Patch::Merge(json!({"metadata": {"finalizers": null}}));
    subject.config_maps().patch("a", &Default::default(), &patch).await.unwrap();
    eventually("the owner goes", async || answered(subject.sessions().get("owner").await).err()).await;
}

pub async fn an_owner_reference_without_uid_is_rejected(subject: &Subject) {
    let made: ConfigMap = typed(json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "a", "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": ""}]},
    }));
    let status = refused(subject.config_maps().create(&PostParams::default(), &made).await);
    let expected = "ConfigMap \"a\" is invalid: metadata.ownerReferences.uid: Invalid value: \"\": must not be empty";
    assert_eq!(summary(&status), (422, "Invalid", expected));
}

pub async fn two_controllers_are_rejected(subject: &Subject) {
    let owner = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": name, "controller": true});
    let made: ConfigMap = typed(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "ownerReferences": [owner("x"), owner("y")]},
    }));
    let status = refused(subject.config_maps().create(&PostParams::default(), &made).await);
    let expected = "Only one reference can have Controller set to true. Found \"true\" in references for ConfigMap/x and ConfigMap/y";
    assert!(status.message.ends_with(expected), "{}", status.message);
}
