//! Server-side apply: ownership of fields, conflicts, force, and removal of fields.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::response::Status;
use serde_json::{Value, json};

use crate::subject::{Subject, answered, causes, summary};

/// Applies the data of a ConfigMap as `manager`.
async fn apply_data(subject: &Subject, manager: &str, force: bool, data: Value) -> Result<ConfigMap, Status> {
    let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data});
    let mut parameters = PatchParams::apply(manager);
    parameters.force = force;
    answered(subject.config_maps().patch("a", &parameters, &Patch::Apply(config)).await)
}

/// Applies the spec of a session as `manager`.
async fn apply_session(subject: &Subject, manager: &str, force: bool, spec: Value) -> Result<DynamicObject, Status> {
    let config = json!({"apiVersion": "sahasra.dev/v1alpha1", "kind": "GpuSession", "metadata": {"name": "a"}, "spec": spec});
    let mut parameters = PatchParams::apply(manager);
    parameters.force = force;
    answered(subject.sessions().patch("a", &parameters, &Patch::Apply(config)).await)
}

/// Applies the status of a session as `manager`.
async fn apply_status(subject: &Subject, manager: &str, status: Value) -> Result<DynamicObject, Status> {
    let config = json!({"apiVersion": "sahasra.dev/v1alpha1", "kind": "GpuSession", "metadata": {"name": "a"}, "status": status});
    answered(
        subject
            .sessions()
            .patch_status("a", &PatchParams::apply(manager), &Patch::Apply(config))
            .await,
    )
}

/// The entries of `managedFields`: `manager operation subresource`, and the fields.
fn managed(object: &impl ResourceExt) -> Vec<(String, Value)> {
    let entries = object.managed_fields().iter().map(|entry| {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let who = format!("{} {} {}", text(&entry.manager), text(&entry.operation), text(&entry.subresource));
        (
            who.trim().to_owned(),
            entry.fields_v1.clone().map(|fields| fields.0).unwrap_or_default(),
        )
    });
    entries.collect()
}

fn data(config_map: &ConfigMap) -> Value {
    serde_json::to_value(&config_map.data).unwrap()
}

pub async fn an_apply_creates_a_missing_object(subject: &Subject) {
    let made = apply_data(subject, "one", false, json!({"k": "v"})).await.unwrap();
    assert_eq!(data(&made), json!({"k": "v"}));
    assert_eq!(managed(&made), [("one Apply".to_owned(), json!({"f:data": {"f:k": {}}}))]);
    let session = apply_session(subject, "one", false, json!({"vram": "1Gi"})).await.unwrap();
    assert_eq!(session.data["spec"]["idleTimeoutSeconds"], 1800);
    assert_eq!(session.metadata.generation, Some(1));
}

pub async fn an_apply_of_the_same_configuration_changes_nothing(subject: &Subject) {
    let made = apply_data(subject, "one", false, json!({"k": "v"})).await.unwrap();
    let again = apply_data(subject, "one", false, json!({"k": "v"})).await.unwrap();
    assert_eq!(again.resource_version(), made.resource_version());
    let session = apply_session(subject, "one", false, json!({"vram": "1Gi"})).await.unwrap();
    let again = apply_session(subject, "one", false, json!({"vram": "1Gi"})).await.unwrap();
    assert_eq!(again.resource_version(), session.resource_version());
}

pub async fn appliers_share_an_object(subject: &Subject) {
    apply_data(subject, "one", false, json!({"k": "v"})).await.unwrap();
    let both = apply_data(subject, "two", false, json!({"l": "w"})).await.unwrap();
    assert_eq!(data(&both), json!({"k": "v", "l": "w"}));
    let expected = [
        ("one Apply".to_owned(), json!({"f:data": {"f:k": {}}})),
        ("two Apply".to_owned(), json!({"f:data": {"f:l": {}}})),
    ];
    assert_eq!(managed(&both), expected);
}

pub async fn an_apply_that_would_change_anothers_field_conflicts(subject: &Subject) {
    apply_data(subject, "one", false, json!({"k": "v", "l": "v"})).await.unwrap();
    let status = apply_data(subject, "two", false, json!({"k": "w"})).await.unwrap_err();
    let expected = "Apply failed with 1 conflict: conflict with \"one\": .data.k";
    assert_eq!(summary(&status), (409, "Conflict", expected));
    let cause = (
        "FieldManagerConflict".to_owned(),
        ".data.k".to_owned(),
        "conflict with \"one\"".to_owned(),
    );
    assert_eq!(causes(&status), [cause]);
    let status = apply_data(subject, "two", false, json!({"k": "w", "l": "w"})).await.unwrap_err();
    let expected = "Apply failed with 2 conflicts: conflicts with \"one\":\n- .data.k\n- .data.l";
    assert_eq!(summary(&status), (409, "Conflict", expected));
    // Applying the same value causes no conflict: both managers own the field.
    let both = apply_data(subject, "two", false, json!({"k": "v"})).await.unwrap();
    assert_eq!(managed(&both).len(), 2);
}

pub async fn force_takes_over_a_field(subject: &Subject) {
    apply_data(subject, "one", false, json!({"k": "v", "l": "v"})).await.unwrap();
    let forced = apply_data(subject, "two", true, json!({"k": "w"})).await.unwrap();
    assert_eq!(data(&forced), json!({"k": "w", "l": "v"}));
    let expected = [
        ("one Apply".to_owned(), json!({"f:data": {"f:l": {}}})),
        ("two Apply".to_owned(), json!({"f:data": {"f:k": {}}})),
    ];
    assert_eq!(managed(&forced), expected);
}

pub async fn fields_that_are_no_longer_applied_are_removed(subject: &Subject) {
    apply_data(subject, "one", false, json!({"k": "v", "l": "v"})).await.unwrap();
    let left = apply_data(subject, "one", false, json!({"k": "v"})).await.unwrap();
    assert_eq!(data(&left), json!({"k": "v"}));
    apply_session(subject, "one", false, json!({"vram": "1Gi", "idleTimeoutSeconds": 60}))
        .await
        .unwrap();
    let session = apply_session(subject, "one", false, json!({"vram": "1Gi"})).await.unwrap();
    assert_eq!(session.data["spec"]["idleTimeoutSeconds"], 1800, "the default takes its place");
    assert_eq!(session.metadata.generation, Some(2));
}

pub async fn fields_that_another_manager_applies_stay(subject: &Subject) {
    apply_data(subject, "one", false, json!({"k": "v", "l": "v"})).await.unwrap();
    apply_data(subject, "two", false, json!({"l": "v"})).await.unwrap();
    let left = apply_data(subject, "one", false, json!({"k": "v"})).await.unwrap();
    assert_eq!(data(&left), json!({"k": "v", "l": "v"}));
    let left = apply_data(subject, "two", false, json!({"m": "v"})).await.unwrap();
    assert_eq!(data(&left), json!({"k": "v", "m": "v"}));
}

pub async fn a_patch_takes_over_applied_fields(subject: &Subject) {
    apply_session(subject, "one", false, json!({"vram": "1Gi", "idleTimeoutSeconds": 60}))
        .await
        .unwrap();
    let parameters = PatchParams {
        field_manager: Some("two".to_owned()),
        ..PatchParams::default()
    };
    let patch = Patch::Merge(json!({"spec": {"idleTimeoutSeconds": 61}}));
    let patched = subject.sessions().patch("a", &parameters, &patch).await.unwrap();
    let expected = [
        ("one Apply".to_owned(), json!({"f:spec": {"f:vram": {}}})),
        ("two Update".to_owned(), json!({"f:spec": {"f:idleTimeoutSeconds": {}}})),
    ];
    assert_eq!(managed(&patched), expected);
    let status = apply_session(subject, "one", false, json!({"vram": "1Gi", "idleTimeoutSeconds": 60}))
        .await
        .unwrap_err();
    let expected = "Apply failed with 1 conflict: conflict with \"two\" using sahasra.dev/v1alpha1: .spec.idleTimeoutSeconds";
    assert_eq!(summary(&status), (409, "Conflict", expected));
}

pub async fn writes_note_their_manager(subject: &Subject) {
    let parameters = kube::api::PostParams {
        field_manager: Some("maker".to_owned()),
        ..Default::default()
    };
    let made = crate::subject::object(json!({
        "apiVersion": "sahasra.dev/v1alpha1", "kind": "GpuSession",
        "metadata": {"name": "a", "labels": {"l": "m"}}, "spec": {"vram": "1Gi"},
    }));
    let made = subject.sessions().create(&parameters, &made).await.unwrap();
    let fields = json!({
        "f:metadata": {"f:labels": {".": {}, "f:l": {}}},
        "f:spec": {".": {}, "f:engine": {}, "f:idleTimeoutSeconds": {}, "f:ttlSeconds": {}, "f:vram": {}},
    });
    assert_eq!(managed(&made), [("maker Update".to_owned(), fields)]);
    let parameters = PatchParams {
        field_manager: Some("teller".to_owned()),
        ..PatchParams::default()
    };
    let condition = json!({"type": "Ready", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let patch = Patch::Merge(json!({"status": {"state": "Ready", "conditions": [condition]}}));
    let patched = subject.sessions().patch_status("a", &parameters, &patch).await.unwrap();
    let condition = json!({
        ".": {}, "f:lastTransitionTime": {}, "f:message": {}, "f:reason": {}, "f:status": {}, "f:type": {},
    });
    let fields = json!({"f:status": {
        ".": {}, "f:activeExecutions": {}, "f:state": {}, "f:storedTensorBytes": {}, "f:tensorCount": {},
        "f:conditions": {".": {}, "k:{\"type\":\"Ready\"}": condition},
    }});
    assert_eq!(managed(&patched)[1], ("teller Update status".to_owned(), fields));
}

pub async fn conditions_are_merged_by_type(subject: &Subject) {
    subject.session("a").await;
    let condition = |kind: &str, status: &str| json!({"type": kind, "status": status, "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    apply_status(subject, "one", json!({"conditions": [condition("Placed", "True")]}))
        .await
        .unwrap();
    let both = apply_status(subject, "two", json!({"conditions": [condition("Ready", "True")]}))
        .await
        .unwrap();
    let kinds = |object: &DynamicObject| -> Vec<Value> {
        let conditions = object.data["status"]["conditions"].as_array().unwrap();
        conditions.iter().map(|condition| condition["type"].clone()).collect()
    };
    assert_eq!(kinds(&both), ["Placed", "Ready"]);
    let status = apply_status(subject, "two", json!({"conditions": [condition("Placed", "False")]}))
        .await
        .unwrap_err();
    assert!(
        status
            .message
            .contains("conflict with \"one\" with subresource \"status\": .status.conditions[type=\"Placed\"].status"),
        "{}",
        status.message
    );
    let left = apply_status(subject, "two", json!({"conditions": [condition("Ready", "False")]}))
        .await
        .unwrap();
    assert_eq!(kinds(&left), ["Placed", "Ready"]);
    let left = apply_status(subject, "two", json!({"state": "Ready"})).await.unwrap();
    assert_eq!(kinds(&left), ["Placed"]);
}

pub async fn an_apply_without_manager_is_rejected(subject: &Subject) {
    let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    let status = subject
        .send("PATCH", "configmaps/a", "application/apply-patch+yaml", &config)
        .await
        .unwrap_err();
    let expected = "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch";
    assert_eq!(summary(&status), (422, "Invalid", expected));
}

pub async fn an_apply_of_unknown_fields_is_rejected(subject: &Subject) {
    let status = apply_session(subject, "one", false, json!({"vram": "1Gi", "unheard": 1}))
        .await
        .unwrap_err();
    let expected = "failed to create typed patch object (/a; sahasra.dev/v1alpha1, Kind=GpuSession): .spec.unheard: field not declared in \
                    schema";
    assert_eq!((status.code, status.message.as_str()), (500, expected));
}

pub async fn an_apply_is_validated(subject: &Subject) {
    let status = apply_session(subject, "one", false, json!({"vram": "much"})).await.unwrap_err();
    let expected = "GpuSession.sahasra.dev \"a\" is invalid: spec.vram: Invalid value: \"string\": write a whole number with Ki, Mi, Gi or \
                    Ti, such as 512Mi";
    assert_eq!(summary(&status), (422, "Invalid", expected));
}

pub async fn an_apply_with_managed_fields_is_rejected(subject: &Subject) {
    let config = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "a", "managedFields": [{"manager": "x", "operation": "Apply", "apiVersion": "v1"}]},
    });
    let path = "configmaps/a?fieldManager=one";
    let status = subject
        .send("PATCH", path, "application/apply-patch+yaml", &config)
        .await
        .unwrap_err();
    assert_eq!(summary(&status), (400, "BadRequest", "metadata.managedFields must be nil"));
}

pub async fn an_apply_can_be_yaml(subject: &Subject) {
    let text = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  k: v\n";
    let uri = format!("/api/v1/namespaces/{}/configmaps/a?fieldManager=one", subject.namespace);
    let made = subject
        .send_to("PATCH", &uri, "application/apply-patch+yaml", text.into())
        .await
        .unwrap();
    assert_eq!(made["data"], json!({"k": "v"}));
}

pub async fn finalizers_are_a_set(subject: &Subject) {
    let apply = async |manager: &str, finalizers: Value| {
        let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "finalizers": finalizers}});
        subject
            .config_maps()
            .patch("a", &PatchParams::apply(manager), &Patch::Apply(config))
            .await
            .unwrap()
    };
    apply("one", json!(["example.com/one"])).await;
    let both = apply("two", json!(["example.com/two"])).await;
    assert_eq!(both.finalizers(), ["example.com/one", "example.com/two"]);
    let fields = json!({"f:metadata": {"f:finalizers": {"v:\"example.com/two\"": {}}}});
    assert_eq!(managed(&both)[1], ("two Apply".to_owned(), fields));
    let left = apply("one", json!([])).await;
    assert_eq!(left.finalizers(), ["example.com/two"]);
}
