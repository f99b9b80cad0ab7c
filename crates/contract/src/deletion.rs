//! Deletion, finalizers and namespaces.

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::subject::{Subject, answered, eventually, refused, summary, typed};

const FINALIZER: &str = "sahasra.dev/release-vram";

async fn held_session(subject: &Subject, name: &str) {
    subject.session(name).await;
    finalizers(subject, name, &json!([FINALIZER])).await.unwrap();
}

async fn finalizers(subject: &Subject, name: &str, list: &Value) -> Result<(), kube::core::response::Status> {
    let patch = Patch::Merge(json!({"metadata": {"finalizers": list}}));
    answered(subject.sessions().patch(name, &PatchParams::default(), &patch).await).map(drop)
}

pub async fn deletion_answers_with_the_uid(subject: &Subject) {
    let made = subject.config_map("a", json!({"k": "v"})).await;
    let answer = subject
        .send("DELETE", "configmaps/a", "application/json", &json!({}))
        .await
        .unwrap();
    let expected = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
        "details": {"name": "a", "kind": "configmaps", "uid": made.uid()},
    });
    assert_eq!(answer, expected);
    assert_eq!(refused(subject.config_maps().get("a").await).code, 404);
}

pub async fn a_finalizer_holds_an_object_until_it_is_dropped(subject: &Subject) {
    held_session(subject, "a").await;
    let deleting = subject.sessions().delete("a", &DeleteParams::default()).await.unwrap();
    let deleting = deleting.left().expect("it is still there");
    assert!(deleting.metadata.deletion_timestamp.is_some());
    assert_eq!(deleting.metadata.deletion_grace_period_seconds, Some(0));
    // A second deletion changes nothing.
    let again = subject
        .sessions()
        .delete("a", &DeleteParams::default())
        .await
        .unwrap()
        .left()
        .unwrap();
    assert_eq!(again.metadata.deletion_timestamp, deleting.metadata.deletion_timestamp);
    assert_eq!(again.resource_version(), deleting.resource_version());
    finalizers(subject, "a", &Value::Null).await.unwrap();
    assert_eq!(refused(subject.sessions().get("a").await).code, 404);
}

pub async fn deletion_counts_as_a_generation(subject: &Subject) {
    held_session(subject, "a").await;
    let deleting = subject
        .sessions()
        .delete("a", &DeleteParams::default())
        .await
        .unwrap()
        .left()
        .unwrap();
    assert_eq!(deleting.metadata.generation, Some(2));
    finalizers(subject, "a", &Value::Null).await.unwrap();
}

pub async fn no_finalizer_is_added_once_deletion_began(subject: &Subject) {
    held_session(subject, "a").await;
    subject.sessions().delete("a", &DeleteParams::default()).await.unwrap();
    let status = finalizers(subject, "a", &json!([FINALIZER, "example.com/other"]))
        .await
        .unwrap_err();
    let expected = "GpuSession.sahasra.dev \"a\" is invalid: metadata.finalizers: Forbidden: no new finalizers can be added if the object \
                    is being deleted, found new finalizers []string{\"example.com/other\"}";
    assert_eq!(summary(&status), (422, "Invalid", expected));
    finalizers(subject, "a", &Value::Null).await.unwrap();
}

pub async fn the_last_finalizer_dropped_by_a_replacement_deletes(subject: &Subject) {
    held_session(subject, "a").await;
    let mut deleting = subject
        .sessions()
        .delete("a", &DeleteParams::default())
        .await
        .unwrap()
        .left()
        .unwrap();
    deleting.metadata.finalizers = None;
    subject.sessions().replace("a", &PostParams::default(), &deleting).await.unwrap();
    assert_eq!(refused(subject.sessions().get("a").await).code, 404);
}

fn preconditions(uid: Option<&str>, version: Option<&str>) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions {
            uid: uid.map(str::to_owned),
            resource_version: version.map(str::to_owned),
        }),
        ..DeleteParams::default()
    }
}

pub async fn deletion_with_another_uid_is_rejected(subject: &Subject) {
    let session = subject.session("a").await;
    let uid = session.uid().unwrap();
    let status = refused(subject.sessions().delete("a", &preconditions(Some("other"), None)).await);
    let expected = format!(
        "Operation cannot be fulfilled on GpuSession.sahasra.dev \"a\": the UID in the precondition (other) does not match the UID in record \
         ({uid}). The object might have been deleted and then recreated"
    );
    assert_eq!(summary(&status), (409, "Conflict", expected.as_str()));
    subject.sessions().delete("a", &preconditions(Some(&uid), None)).await.unwrap();
}

pub async fn deletion_with_another_version_is_rejected(subject: &Subject) {
    let session = subject.session("a").await;
    let version = session.resource_version().unwrap();
    let status = refused(subject.sessions().delete("a", &preconditions(None, Some("1"))).await);
    let expected = format!(
        "Operation cannot be fulfilled on GpuSession.sahasra.dev \"a\": the ResourceVersion in the precondition (1) does not match the \
         ResourceVersion in record ({version}). The object might have been modified"
    );
    assert_eq!(summary(&status), (409, "Conflict", expected.as_str()));
    subject.sessions().delete("a", &preconditions(None, Some(&version))).await.unwrap();
}

pub async fn a_dry_run_deletes_nothing(subject: &Subject) {
    subject.session("a").await;
    let dry = DeleteParams {
        dry_run: true,
        ..DeleteParams::default()
    };
    subject.sessions().delete("a", &dry).await.unwrap();
    let kept = subject.sessions().get("a").await.unwrap();
    assert!(kept.metadata.deletion_timestamp.is_none());
}

pub async fn a_collection_is_deleted_by_label(subject: &Subject) {
    for (name, team) in [("a", "one"), ("b", "one"), ("c", "two")] {
        subject.session(name).await;
        let patch = Patch::Merge(json!({"metadata": {"labels": {"team": team}}}));
        subject.sessions().patch(name, &PatchParams::default(), &patch).await.unwrap();
    }
    let selected = ListParams::default().labels("team=one");
    subject
        .sessions()
        .delete_collection(&DeleteParams::default(), &selected)
        .await
        .unwrap();
    let left = subject.sessions().list(&ListParams::default()).await.unwrap();
    assert_eq!(left.items.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["c"]);
}

pub async fn a_namespace_is_deleted_with_its_content(subject: &Subject) {
    let namespaces: Api<Namespace> = Api::all(subject.client.clone());
    let name = format!("{}-inner", subject.namespace);
    let made: Namespace = typed(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
    let made = namespaces.create(&PostParams::default(), &made).await.unwrap();
    assert_eq!(made.labels()["kubernetes.io/metadata.name"], name);
    assert_eq!(made.status.unwrap().phase.as_deref(), Some("Active"));
    assert_eq!(made.spec.unwrap().finalizers.unwrap(), ["kubernetes"]);
    let inside = Subject {
        namespace: name.clone(),
        ..subject.clone()
    };
    held_session(&inside, "held").await;
    inside.config_map("a", json!({"k": "v"})).await;
    namespaces.delete(&name, &DeleteParams::default()).await.unwrap();
    eventually("the content goes", async || answered(inside.config_maps().get("a").await).err()).await;
    let terminating = namespaces.get(&name).await.unwrap();
    assert_eq!(terminating.status.unwrap().phase.as_deref(), Some("Terminating"));
    let late: ConfigMap = typed(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late"}}));
    let status = refused(inside.config_maps().create(&PostParams::default(), &late).await);
    let expected =
        format!("configmaps \"late\" is forbidden: unable to create new content in namespace {name} because it is being terminated");
    assert_eq!(summary(&status), (403, "Forbidden", expected.as_str()));
    eventually("deletion of what is held is asked for", async || {
        inside.sessions().get("held").await.unwrap().metadata.deletion_timestamp
    })
    .await;
    finalizers(&inside, "held", &Value::Null).await.unwrap();
    eventually("the namespace goes", async || answered(namespaces.get(&name).await).err()).await;
}

pub async fn a_lasting_namespace_cannot_be_deleted(subject: &Subject) {
    let namespaces: Api<Namespace> = Api::all(subject.client.clone());
    let status = refused(namespaces.delete("default", &DeleteParams::default()).await);
    let expected = "namespaces \"default\" is forbidden: this namespace may not be deleted";
    assert_eq!(summary(&status), (403, "Forbidden", expected));
}

pub async fn the_name_of_an_object_that_is_being_deleted_is_in_use(subject: &Subject) {
    held_session(subject, "a").await;
    subject.sessions().delete("a", &DeleteParams::default()).await.unwrap();
    let status = subject.create_own("GpuSession", "a", json!({"vram": "1Gi"})).await.unwrap_err();
    let expected = "object is being deleted: gpusessions.sahasra.dev \"a\" already exists";
    assert_eq!(summary(&status), (409, "AlreadyExists", expected));
    finalizers(subject, "a", &Value::Null).await.unwrap();
}

pub async fn an_unknown_propagation_is_rejected(subject: &Subject) {
    subject.config_map("a", json!({"k": "v"})).await;
    let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Odd"});
    let status = subject
        .send("DELETE", "configmaps/a", "application/json", &options)
        .await
        .unwrap_err();
    let expected = "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Unsupported value: \"Odd\": supported values: \
                    \"Foreground\", \"Background\", \"Orphan\", \"nil\"";
    assert_eq!(summary(&status), (422, "Invalid", expected));
    subject.config_maps().get("a").await.unwrap();
}
