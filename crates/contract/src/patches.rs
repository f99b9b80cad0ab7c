//! Patches of all types except apply.

use kube::ResourceExt;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::subject::{Subject, refused, summary};

const MERGE: &str = "application/merge-patch+json";

pub async fn a_merge_patch_removes_null_fields(subject: &Subject) {
    subject.config_map("a", json!({"k": "v", "l": "w"})).await;
    let patch = Patch::Merge(json!({"data": {"k": null, "m": "x"}, "metadata": {"labels": {"a": "b", "c": null}}}));
    let patched = subject.config_maps().patch("a", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(serde_json::to_value(&patched.data).unwrap(), json!({"l": "w", "m": "x"}));
    assert_eq!(serde_json::to_value(patched.labels()).unwrap(), json!({"a": "b"}));

    subject
        .create_own("GpuSession", "s", json!({"vram": "1Gi", "idleTimeoutSeconds": 60}))
        .await
        .unwrap();
    let patch = Patch::Merge(json!({"spec": {"idleTimeoutSeconds": null}}));
    let patched = subject.sessions().patch("s", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(patched.data["spec"]["idleTimeoutSeconds"], 1800, "the default takes its place");
}

pub async fn a_merge_patch_with_an_old_version_conflicts(subject: &Subject) {
    let session = subject.session("a").await;
    let version = session.resource_version().unwrap();
    let patch = |seconds: u32| Patch::Merge(json!({"metadata": {"resourceVersion": version}, "spec": {"idleTimeoutSeconds": seconds}}));
    subject.sessions().patch("a", &PatchParams::default(), &patch(60)).await.unwrap();
    let status = refused(subject.sessions().patch("a", &PatchParams::default(), &patch(61)).await);
    let expected = "Operation cannot be fulfilled on gpusessions.sahasra.dev \"a\": the object has been modified; please apply your \
                    changes to the latest version and try again";
    assert_eq!(summary(&status), (409, "Conflict", expected));
    let status = refused(subject.sessions().patch_status("a", &PatchParams::default(), &patch(62)).await);
    assert_eq!(summary(&status), (409, "Conflict", expected));
}

pub async fn a_merge_patch_without_changes_keeps_the_version(subject: &Subject) {
    let session = subject.session("a").await;
    for patch in [json!({}), json!({"spec": {"vram": "1Gi"}}), json!({"metadata": {"labels": null}})] {
        let patched = subject
            .sessions()
            .patch("a", &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap();
        assert_eq!(patched.resource_version(), session.resource_version());
    }
}

pub async fn a_merge_patch_of_a_missing_object_is_rejected(subject: &Subject) {
    let status = refused(
        subject
            .sessions()
            .patch("a", &PatchParams::default(), &Patch::Merge(json!({})))
            .await,
    );
    assert_eq!(summary(&status), (404, "NotFound", "gpusessions.sahasra.dev \"a\" not found"));
}

pub async fn a_json_patch_tests_and_changes(subject: &Subject) {
    subject.config_map("a", json!({"k": "v"})).await;
    let patch = json!([
        {"op": "test", "path": "/data/k", "value": "v"},
        {"op": "replace", "path": "/data/k", "value": "w"},
        {"op": "add", "path": "/metadata/labels", "value": {"example.com/a": "b"}},
        {"op": "add", "path": "/metadata/labels/example.com~1c", "value": "d"},
    ]);
    let patched = subject
        .send("PATCH", "configmaps/a", "application/json-patch+json", &patch)
        .await
        .unwrap();
    assert_eq!(patched["data"], json!({"k": "w"}));
    assert_eq!(patched["metadata"]["labels"], json!({"example.com/a": "b", "example.com/c": "d"}));
}

pub async fn a_failing_json_patch_is_rejected(subject: &Subject) {
    subject.config_map("a", json!({"k": "v"})).await;
    for patch in [
        json!([{"op": "test", "path": "/data/k", "value": "w"}]),
        json!([{"op": "remove", "path": "/data/missing"}]),
    ] {
        let status = subject
            .send("PATCH", "configmaps/a", "application/json-patch+json", &patch)
            .await
            .unwrap_err();
        assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"), "{}", status.message);
    }
    let status = subject
        .send("PATCH", "configmaps/a", "application/json-patch+json", &json!({}))
        .await
        .unwrap_err();
    assert_eq!((status.code, status.reason.as_str()), (400, "BadRequest"));
}

pub async fn a_strategic_patch_of_an_own_kind_is_rejected(subject: &Subject) {
    subject.session("a").await;
    let status = refused(
        subject
            .sessions()
            .patch("a", &PatchParams::default(), &Patch::Strategic(json!({})))
            .await,
    );
    let expected = "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, \
                    application/merge-patch+json, application/apply-patch+yaml";
    assert_eq!(summary(&status), (415, "UnsupportedMediaType", expected));
}

pub async fn a_strategic_patch_adds_to_finalizers(subject: &Subject) {
    let mut made = subject.config_map("a", json!({"k": "v"})).await;
    made.finalizers_mut().push("example.com/one".to_owned());
    subject.config_maps().replace("a", &PostParams::default(), &made).await.unwrap();
    let patch = Patch::Strategic(json!({"metadata": {"finalizers": ["example.com/two"]}, "data": {"k": null, "l": "w"}}));
    let patched = subject.config_maps().patch("a", &PatchParams::default(), &patch).await.unwrap();
    let mut finalizers = patched.finalizers().to_vec();
    finalizers.sort();
    assert_eq!(finalizers, ["example.com/one", "example.com/two"]);
    assert_eq!(serde_json::to_value(&patched.data).unwrap(), json!({"l": "w"}));
    let patch = Patch::Strategic(json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/one", "example.com/two"]}}));
    let patched = subject.config_maps().patch("a", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(patched.finalizers().len(), 0);
}

pub async fn an_unknown_kind_of_patch_is_rejected(subject: &Subject) {
    subject.config_map("a", json!({"k": "v"})).await;
    let status = subject
        .send("PATCH", "configmaps/a", "application/json", &json!({}))
        .await
        .unwrap_err();
    assert_eq!(summary(&status), (415, "UnsupportedMediaType", "415: Unsupported Media Type"));
}

pub async fn a_patch_cannot_rename(subject: &Subject) {
    subject.config_map("a", json!({"k": "v"})).await;
    let status = subject
        .send("PATCH", "configmaps/a", MERGE, &json!({"metadata": {"name": "b"}}))
        .await
        .unwrap_err();
    let expected = "the name of the object (b) does not match the name on the URL (a)";
    assert_eq!(summary(&status), (400, "BadRequest", expected));
    let status = subject
        .send("PATCH", "configmaps/a", MERGE, &json!({"metadata": {"uid": "other"}}))
        .await
        .unwrap_err();
    let expected = "ConfigMap \"a\" is invalid: metadata.uid: Invalid value: \"other\": field is immutable";
    assert_eq!(summary(&status), (422, "Invalid", expected));
}

pub async fn only_metadata_can_be_patched(subject: &Subject) {
    subject.session("a").await;
    let patch: Patch<Value> = Patch::Merge(json!({"metadata": {"annotations": {"k": "v"}}}));
    let patched = subject
        .sessions()
        .patch_metadata("a", &PatchParams::default(), &patch)
        .await
        .unwrap();
    assert_eq!(patched.annotations()["k"], "v");
    assert_eq!(patched.metadata.generation, Some(1));
}
