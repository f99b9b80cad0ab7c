//! The status and its subresource.

use kube::ResourceExt;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::response::Status;
use serde_json::{Value, json};

use crate::subject::{Subject, answered, burst, causes, object, summary};

const JSON_PATCH: &str = "application/json-patch+json";

async fn patch_status(subject: &Subject, kind: &str, name: &str, patch: Value) -> Result<DynamicObject, Status> {
    answered(
        subject
            .own(kind)
            .patch_status(name, &PatchParams::default(), &Patch::Merge(patch))
            .await,
    )
}

pub async fn a_new_object_has_no_status(subject: &Subject) {
    let made = object(json!({
        "apiVersion": "sahasra.dev/v1alpha1", "kind": "GpuSession", "metadata": {"name": "a"},
        "spec": {"vram": "1Gi"}, "status": {"state": "Ready"},
    }));
    let made = subject.sessions().create(&PostParams::default(), &made).await.unwrap();
    assert!(made.data.get("status").is_none());
}

pub async fn a_write_to_the_object_leaves_the_status(subject: &Subject) {
    subject.session("a").await;
    patch_status(subject, "GpuSession", "a", json!({"status": {"state": "Ready"}}))
        .await
        .unwrap();
    let patch = Patch::Merge(json!({"spec": {"idleTimeoutSeconds": 60}, "status": {"state": "Failed"}}));
    let patched = subject.sessions().patch("a", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(patched.data["status"]["state"], "Ready");
    assert_eq!(patched.metadata.generation, Some(2));
    let before = patched.resource_version();
    let patch = Patch::Merge(json!({"status": {"state": "Failed"}}));
    let patched = subject.sessions().patch("a", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(patched.resource_version(), before, "nothing changed");
    let patch = Patch::Merge(json!({"status": null}));
    let patched = subject.sessions().patch("a", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(patched.data["status"]["state"], "Ready");
}

pub async fn a_write_to_the_status_leaves_the_rest(subject: &Subject) {
    subject.session("a").await;
    let patch = json!({
        "spec": {"idleTimeoutSeconds": 60}, "metadata": {"labels": {"a": "b"}, "finalizers": ["example.com/hold"]},
        "status": {"state": "Ready"},
    });
    let patched = patch_status(subject, "GpuSession", "a", patch).await.unwrap();
    assert_eq!(patched.data["spec"]["idleTimeoutSeconds"], 1800);
    assert_eq!((patched.labels().len(), patched.finalizers().len()), (0, 0));
    assert_eq!(patched.data["status"]["state"], "Ready");
}

pub async fn a_place_in_a_list_may_be_empty(subject: &Subject) {
    subject.create_own("BurstJob", "a", burst()).await.unwrap();
    let status = json!({"aggregate": {"values": [1.5, null], "exact": ["1.5", "NaN"], "count": 2, "nan": 1}});
    let patched = patch_status(subject, "BurstJob", "a", json!({"status": status})).await.unwrap();
    assert_eq!(patched.data["status"]["aggregate"]["values"], json!([1.5, null]));
}

pub async fn a_status_can_be_replaced(subject: &Subject) {
    let mut session = subject.session("a").await;
    session.data["status"] = json!({"state": "Ready", "worker": "w"});
    let session = subject
        .sessions()
        .replace_status("a", &PostParams::default(), &session)
        .await
        .unwrap();
    assert_eq!(session.data["status"]["worker"], "w");
    let mut session = session;
    session.data["status"] = json!({"state": "Ready"});
    let session = subject
        .sessions()
        .replace_status("a", &PostParams::default(), &session)
        .await
        .unwrap();
    assert_eq!(session.data["status"].get("worker"), None);
    let read = subject.sessions().get_status("a").await.unwrap();
    assert_eq!(read.resource_version(), session.resource_version());
}

pub async fn a_field_left_out_by_a_replaced_status_is_removed(subject: &Subject) {
    subject.session("a").await;
    let replace = async |status: Value| {
        let patch = json!([{"op": "add", "path": "/status", "value": status}]);
        subject
            .send("PATCH", "sahasra.dev/v1alpha1:gpusessions/a/status", JSON_PATCH, &patch)
            .await
            .unwrap()
    };
    let session = replace(json!({"state": "Ready", "worker": "w"})).await;
    assert_eq!(session["status"]["worker"], "w");
    let session = replace(json!({"state": "Ready"})).await;
    assert_eq!(session["status"].get("worker"), None);
    let read = subject.sessions().get_status("a").await.unwrap();
    assert_eq!(read.data["status"], session["status"]);
    assert_eq!(read.metadata.generation, Some(1));
}

pub async fn a_json_patch_of_the_status_with_an_old_version_is_rejected(subject: &Subject) {
    let version = subject.session("a").await.resource_version().unwrap();
    let patch = async |op: &str, version: &str, state: &str| {
        let patch = json!([
            {"op": op, "path": "/metadata/resourceVersion", "value": version},
            {"op": "add", "path": "/status", "value": {"state": state}},
        ]);
        subject
            .send("PATCH", "sahasra.dev/v1alpha1:gpusessions/a/status", JSON_PATCH, &patch)
            .await
    };
    let session = patch("add", &version, "Ready").await.unwrap();
    assert_eq!(session["status"]["state"], "Ready");
    // A version that the patch sets is a precondition of the write, a version that it tests is a condition of the patch.
    let status = patch("add", &version, "Failed").await.unwrap_err();
    let expected = "Operation cannot be fulfilled on gpusessions.sahasra.dev \"a\": the object has been modified; please apply your \
                    changes to the latest version and try again";
    assert_eq!(summary(&status), (409, "Conflict", expected));
    let status = patch("test", &version, "Failed").await.unwrap_err();
    assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"), "{}", status.message);
    let read = subject.sessions().get_status("a").await.unwrap();
    assert_eq!(read.data["status"]["state"], "Ready");
}

pub async fn a_status_write_counts_no_generation(subject: &Subject) {
    let made = subject.session("a").await;
    let patched = patch_status(subject, "GpuSession", "a", json!({"status": {"state": "Ready"}}))
        .await
        .unwrap();
    assert_eq!(patched.metadata.generation, Some(1));
    assert_ne!(patched.resource_version(), made.resource_version());
    let again = patch_status(subject, "GpuSession", "a", json!({"status": {"state": "Ready"}}))
        .await
        .unwrap();
    assert_eq!(again.resource_version(), patched.resource_version());
    // Once a status exists, its defaults are set too.
    assert_eq!(again.data["status"]["tensorCount"], 0);
}

pub async fn a_wrong_status_is_rejected(subject: &Subject) {
    subject.session("a").await;
    let status = patch_status(subject, "GpuSession", "a", json!({"status": {"tensorCount": -1}}))
        .await
        .unwrap_err();
    let expected = "GpuSession.sahasra.dev \"a\" is invalid: status.tensorCount: Invalid value: -1: tensorCount in body should be \
                    greater than or equal to 0";
    assert_eq!(summary(&status), (422, "Invalid", expected));
    let status = patch_status(subject, "GpuSession", "a", json!({"status": {"tensorCount": "many"}}))
        .await
        .unwrap_err();
    assert_eq!(status.code, 422);
    assert!(
        status
            .message
            .contains("status.tensorCount: Invalid value: \"string\": tensorCount in body must be of type integer: \"string\""),
        "{}",
        status.message
    );
}

pub async fn a_term_only_grows(subject: &Subject) {
    subject.create_own("BurstJob", "a", burst()).await.unwrap();
    let term = async |term: i64| patch_status(subject, "BurstJob", "a", json!({"status": {"term": term}})).await;
    term(2).await.unwrap();
    term(2).await.unwrap();
    let status = term(1).await.unwrap_err();
    let expected = "BurstJob.sahasra.dev \"a\" is invalid: status.term: Invalid value: \"integer\": a term only grows: another coordinator \
                    has taken over";
    assert_eq!(summary(&status), (422, "Invalid", expected));
    term(3).await.unwrap();
}

pub async fn a_status_with_a_condition_twice_is_rejected(subject: &Subject) {
    subject.session("a").await;
    let condition = json!({"type": "Ready", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let patch = json!({"status": {"conditions": [condition, condition]}});
    let status = patch_status(subject, "GpuSession", "a", patch).await.unwrap_err();
    let expected = "GpuSession.sahasra.dev \"a\" is invalid: status.conditions[1]: Duplicate value: {\"type\":\"Ready\"}";
    assert_eq!(summary(&status), (422, "Invalid", expected));
    assert_eq!(causes(&status)[0].0, "FieldValueDuplicate");
}
