//! Creating, reading and replacing objects.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::subject::{Subject, burst, object, refused, summary, typed};

fn plain() -> PostParams {
    PostParams::default()
}

fn config_map(name: &str) -> ConfigMap {
    typed(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}}))
}

pub async fn a_created_object_gets_an_identity(subject: &Subject) {
    let session = subject.session("a").await;
    assert_eq!(session.metadata.uid.as_ref().unwrap().len(), 36);
    assert!(session.metadata.creation_timestamp.is_some());
    assert_eq!(session.metadata.generation, Some(1));
    assert!(session.resource_version().unwrap().parse::<u64>().unwrap() > 0);
    assert_eq!(session.namespace().unwrap(), subject.namespace);
    let read = subject.sessions().get("a").await.unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), serde_json::to_value(&session).unwrap());
    assert_eq!(config_map_generation(subject).await, None);
}

async fn config_map_generation(subject: &Subject) -> Option<i64> {
    subject.config_map("a", json!({"k": "v"})).await.metadata.generation
}

pub async fn a_name_in_use_is_rejected(subject: &Subject) {
    subject.session("a").await;
    let status = subject.create_own("GpuSession", "a", json!({"vram": "1Gi"})).await.unwrap_err();
    assert_eq!(
        summary(&status),
        (409, "AlreadyExists", "gpusessions.sahasra.dev \"a\" already exists")
    );
    let details = status.details.unwrap();
    assert_eq!(
        (details.name.as_str(), details.group.as_str(), details.kind.as_str()),
        ("a", "sahasra.dev", "gpusessions")
    );
}

pub async fn a_name_is_generated_from_a_prefix(subject: &Subject) {
    let mut names = Vec::new();
    for _ in 0..2 {
        let mut made = config_map("");
        made.metadata.name = None;
        made.metadata.generate_name = Some("made-".to_owned());
        names.push(subject.config_maps().create(&plain(), &made).await.unwrap().name_any());
    }
    assert!(
        names
            .iter()
            .all(|name| name.starts_with("made-") && name.len() == "made-".len() + 5),
        "{names:?}"
    );
    assert_ne!(names[0], names[1]);
}

pub async fn an_object_without_a_name_is_rejected(subject: &Subject) {
    let status = subject.create_own("GpuSession", "", json!({"vram": "1Gi"})).await.unwrap_err();
    assert_eq!(
        summary(&status),
        (
            422,
            "Invalid",
            "GpuSession.sahasra.dev \"\" is invalid: [metadata.name: Required value: name or generateName is required, <nil>: Invalid value: \
             null: some validation rules were not checked because the object was invalid; correct the existing errors to complete \
             validation]"
        )
    );
}

pub async fn a_wrong_name_is_rejected_with_the_rule(subject: &Subject) {
    let status = subject.create_own("GpuSession", "Upper", json!({"vram": "1Gi"})).await.unwrap_err();
    let expected = "GpuSession.sahasra.dev \"Upper\" is invalid: metadata.name: Invalid value: \"Upper\": a lowercase RFC 1123 subdomain \
                    must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric \
                    character (e.g. 'example.com', regex used for validation is \
                    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
    assert_eq!(summary(&status), (422, "Invalid", expected));
}

pub async fn a_name_has_at_most_253_characters(subject: &Subject) {
    let made = subject.create_own("BurstJob", &"b".repeat(253), burst()).await.unwrap();
    assert_eq!(made.name_any().len(), 253);
    let status = subject.create_own("BurstJob", &"b".repeat(254), burst()).await.unwrap_err();
    assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"));
    assert!(status.message.contains("metadata.name: "), "{}", status.message);
    assert!(
        status.message.ends_with("must be no more than 253 characters"),
        "{}",
        status.message
    );
}

pub async fn wrong_labels_are_rejected(subject: &Subject) {
    let mut made = config_map("a");
    made.labels_mut().insert("team".to_owned(), "-".to_owned());
    let status = refused(subject.config_maps().create(&plain(), &made).await);
    let expected = "ConfigMap \"a\" is invalid: metadata.labels: Invalid value: \"-\": a valid label must be an empty string or consist of \
                    alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or \
                    'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
    assert_eq!(summary(&status), (422, "Invalid", expected));
}

pub async fn an_object_is_not_created_in_a_missing_namespace(subject: &Subject) {
    let api: Api<ConfigMap> = Api::namespaced(subject.client.clone(), "not-there");
    let status = refused(api.create(&plain(), &config_map("a")).await);
    assert_eq!(summary(&status), (404, "NotFound", "namespaces \"not-there\" not found"));
}

pub async fn the_namespace_of_object_and_request_must_agree(subject: &Subject) {
    let mut made = config_map("a");
    made.metadata.namespace = Some("another".to_owned());
    let status = refused(subject.config_maps().create(&plain(), &made).await);
    let expected = "the namespace of the provided object does not match the namespace sent on the request";
    assert_eq!(summary(&status), (400, "BadRequest", expected));
}

pub async fn a_missing_object_is_not_found(subject: &Subject) {
    let status = refused(subject.sessions().get("a").await);
    assert_eq!(summary(&status), (404, "NotFound", "gpusessions.sahasra.dev \"a\" not found"));
    let status = refused(subject.config_maps().get("a").await);
    assert_eq!(summary(&status), (404, "NotFound", "configmaps \"a\" not found"));
    let status = refused(subject.config_maps().delete("a", &Default::default()).await);
    assert_eq!(summary(&status), (404, "NotFound", "configmaps \"a\" not found"));
    let status = refused(subject.config_maps().replace("a", &plain(), &config_map("a")).await);
    assert_eq!(summary(&status), (404, "NotFound", "configmaps \"a\" not found"));
}

pub async fn a_replacement_needs_the_last_version(subject: &Subject) {
    let first = subject.session("a").await;
    let mut second = first.clone();
    second.data["spec"]["idleTimeoutSeconds"] = json!(60);
    let second = subject.sessions().replace("a", &plain(), &second).await.unwrap();
    assert_ne!(first.resource_version(), second.resource_version());
    let status = refused(subject.sessions().replace("a", &plain(), &first).await);
    let expected = "Operation cannot be fulfilled on gpusessions.sahasra.dev \"a\": the object has been modified; please apply your \
                    changes to the latest version and try again";
    assert_eq!(summary(&status), (409, "Conflict", expected));
}

pub async fn a_replacement_without_version_is_rejected_for_own_kinds(subject: &Subject) {
    let mut session = subject.session("a").await;
    session.metadata.resource_version = None;
    let status = refused(subject.sessions().replace("a", &plain(), &session).await);
    let expected = "gpusessions.sahasra.dev \"a\" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update";
    assert_eq!(summary(&status), (422, "Invalid", expected));
}

pub async fn a_replacement_without_version_is_accepted_for_config_maps(subject: &Subject) {
    subject.config_map("a", json!({"k": "old"})).await;
    let replaced = subject.config_maps().replace("a", &plain(), &config_map("a")).await.unwrap();
    assert_eq!(replaced.data.unwrap()["a"], "1");
}

pub async fn the_name_of_object_and_request_must_agree(subject: &Subject) {
    subject.config_map("a", json!({"k": "v"})).await;
    let status = refused(subject.config_maps().replace("a", &plain(), &config_map("b")).await);
    let expected = "the name of the object (b) does not match the name on the URL (a)";
    assert_eq!(summary(&status), (400, "BadRequest", expected));
}

pub async fn a_write_that_changes_nothing_keeps_the_version(subject: &Subject) {
    let session = subject.session("a").await;
    let again = subject.sessions().replace("a", &plain(), &session).await.unwrap();
    assert_eq!(again.resource_version(), session.resource_version());
    let made = subject.config_map("a", json!({"k": "v"})).await;
    let again = subject.config_maps().replace("a", &plain(), &made).await.unwrap();
    assert_eq!(again.resource_version(), made.resource_version());
}

pub async fn generation_counts_changes_of_the_spec_only(subject: &Subject) {
    let mut session = subject.session("a").await;
    session.labels_mut().insert("team".to_owned(), "one".to_owned());
    let session = subject.sessions().replace("a", &plain(), &session).await.unwrap();
    assert_eq!(session.metadata.generation, Some(1));
    let mut session = session;
    session.data["spec"]["idleTimeoutSeconds"] = json!(60);
    // The server ignores the generation in a client's request.
    session.metadata.generation = Some(7);
    let session = subject.sessions().replace("a", &plain(), &session).await.unwrap();
    assert_eq!(session.metadata.generation, Some(2));
}

pub async fn a_dry_run_stores_nothing(subject: &Subject) {
    let dry = PostParams { dry_run: true, ..plain() };
    let made = subject.config_maps().create(&dry, &config_map("a")).await.unwrap();
    assert!(made.uid().is_some());
    assert_eq!(made.resource_version(), None);
    assert_eq!(refused(subject.config_maps().get("a").await).code, 404);

    let kept = subject.session("a").await;
    let patch = Patch::Merge(json!({"spec": {"idleTimeoutSeconds": 60}}));
    let params = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let patched = subject.sessions().patch("a", &params, &patch).await.unwrap();
    assert_eq!(patched.data["spec"]["idleTimeoutSeconds"], 60);
    assert_eq!(patched.metadata.generation, Some(2));
    let read = subject.sessions().get("a").await.unwrap();
    assert_eq!(serde_json::to_value(read).unwrap(), serde_json::to_value(kept).unwrap());

    let invalid = object(json!({"apiVersion": "sahasra.dev/v1alpha1", "kind": "GpuSession", "metadata": {"name": "b"}, "spec": {}}));
    assert_eq!(refused(subject.sessions().create(&dry, &invalid).await).code, 422);
}

pub async fn a_uid_cannot_change(subject: &Subject) {
    let made = subject.config_map("a", json!({"k": "v"})).await;
    let uid = made.uid().unwrap();
    let mut other = made.clone();
    other.metadata.uid = Some("11111111-1111-1111-1111-111111111111".to_owned());
    let status = refused(subject.config_maps().replace("a", &plain(), &other).await);
    let expected = format!(
        "Operation cannot be fulfilled on configmaps \"a\": StorageError: invalid object, Code: 4, Key: {}, ResourceVersion: 0, \
         AdditionalErrorMsg: Precondition failed: UID in precondition: 11111111-1111-1111-1111-111111111111, UID in object meta: {uid}",
        format_args!("/registry/configmaps/{}/a", subject.namespace),
    );
    assert_eq!(summary(&status), (409, "Conflict", expected.as_str()));
}

pub async fn a_secret_keeps_text_as_data(subject: &Subject) {
    let secrets: Api<Secret> = Api::namespaced(subject.client.clone(), &subject.namespace);
    let made: Secret = typed(json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}, "stringData": {"key": "text"}, "data": {"other": "AAE="},
    }));
    let made = secrets.create(&plain(), &made).await.unwrap();
    assert_eq!(made.type_.as_deref(), Some("Opaque"));
    assert_eq!(made.string_data, None);
    let data = made.data.unwrap();
    assert_eq!(data["key"].0, b"text");
    assert_eq!(data["other"].0, [0, 1]);
}

pub async fn an_immutable_config_map_stays_as_it_is(subject: &Subject) {
    let mut made = config_map("a");
    made.immutable = Some(true);
    subject.config_maps().create(&plain(), &made).await.unwrap();
    let patch = Patch::Merge(json!({"data": {"a": "2"}}));
    let status = refused(subject.config_maps().patch("a", &PatchParams::default(), &patch).await);
    let expected = "ConfigMap \"a\" is invalid: data: Forbidden: field is immutable when `immutable` is set";
    assert_eq!(summary(&status), (422, "Invalid", expected));
    let patch = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    subject.config_maps().patch("a", &PatchParams::default(), &patch).await.unwrap();
}

pub async fn a_lease_can_be_made_by_a_replacement(subject: &Subject) {
    let leases: Api<Lease> = Api::namespaced(subject.client.clone(), &subject.namespace);
    let mut lease: Lease = typed(json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "a"},
        "spec": {"holderIdentity": "x", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z"},
    }));
    lease.metadata.uid = Some("another".to_owned());
    let status = refused(leases.replace("a", &plain(), &lease).await);
    assert_eq!((status.code, status.reason.as_str()), (409, "Conflict"));
    let expected = "Precondition failed: UID in precondition: another, UID in object meta: ";
    assert!(status.message.ends_with(expected), "{}", status.message);
    lease.metadata.uid = None;
    // The version of a deleted object does not matter.
    lease.metadata.resource_version = Some("1".to_owned());
    let made = leases.replace("a", &plain(), &lease).await.unwrap();
    lease.metadata.resource_version = None;
    assert_eq!(made.spec.as_ref().unwrap().holder_identity.as_deref(), Some("x"));
    let status = refused(leases.replace("a", &plain(), &lease).await);
    let expected =
        "leases.coordination.k8s.io \"a\" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update";
    assert_eq!(summary(&status), (422, "Invalid", expected));
    lease.metadata.resource_version = made.resource_version();
    lease.spec.as_mut().unwrap().lease_duration_seconds = Some(0);
    let status = refused(leases.replace("a", &plain(), &lease).await);
    let expected = "Lease.coordination.k8s.io \"a\" is invalid: spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0";
    assert_eq!(summary(&status), (422, "Invalid", expected));
}

pub async fn events_of_both_groups_are_the_same_objects(subject: &Subject) {
    let event = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "a"},
        "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "sahasra.dev/operator", "reportingInstance": "pod-0",
        "action": "Accept", "reason": "SpecValid", "type": "Normal", "note": "the spec is right",
        "regarding": {"apiVersion": "sahasra.dev/v1alpha1", "kind": "BurstJob", "name": "b", "namespace": subject.namespace, "uid": "u"},
    });
    subject
        .send("POST", "events.k8s.io/v1:events", "application/json", &event)
        .await
        .unwrap();
    let core = subject.send("GET", "events/a", "application/json", &Value::Null).await.unwrap();
    assert_eq!((&core["apiVersion"], &core["message"]), (&json!("v1"), &json!("the spec is right")));
    assert_eq!(core["involvedObject"]["name"], "b");
    let found = subject
        .send(
            "GET",
            "events?fieldSelector=involvedObject.name=b",
            "application/json",
            &Value::Null,
        )
        .await
        .unwrap();
    assert_eq!(found["items"].as_array().unwrap().len(), 1);
    let patch = json!({"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z"}});
    let new = subject
        .send("PATCH", "events.k8s.io/v1:events/a", "application/merge-patch+json", &patch)
        .await
        .unwrap();
    assert_eq!((&new["note"], &new["series"]["count"]), (&json!("the spec is right"), &json!(2)));
}

pub async fn unknown_paths_are_not_found(subject: &Subject) {
    let status = subject
        .send("GET", "sahasra.dev/v1alpha1:unheard", "application/json", &Value::Null)
        .await
        .unwrap_err();
    assert_eq!(status.code, 404);
}

pub async fn an_unparsable_body_is_rejected(subject: &Subject) {
    let uri = format!("/api/v1/namespaces/{}/configmaps", subject.namespace);
    let status = subject.send_to("POST", &uri, "application/json", b"{".to_vec()).await.unwrap_err();
    assert_eq!((status.code, status.reason.as_str()), (400, "BadRequest"));
    let uri = format!("/apis/sahasra.dev/v1alpha1/namespaces/{}/gpusessions", subject.namespace);
    let other = json!({"apiVersion": "sahasra.dev/v1alpha1", "kind": "BurstJob", "metadata": {"name": "a"}, "spec": {}});
    let status = subject
        .send_to("POST", &uri, "application/json", other.to_string().into_bytes())
        .await
        .unwrap_err();
    assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"));
    assert!(
        status.message.contains("kind: Invalid value: \"BurstJob\": must be GpuSession"),
        "{}",
        status.message
    );
}

pub async fn a_new_object_cannot_have_a_version(subject: &Subject) {
    let mut made = config_map("a");
    made.metadata.resource_version = Some("1".to_owned());
    let status = refused(subject.config_maps().create(&plain(), &made).await);
    assert_eq!(
        (status.code, status.message.as_str()),
        (500, "resourceVersion should not be set on objects to be created")
    );
}

pub async fn a_config_map_of_the_maximum_size_is_accepted(subject: &Subject) {
    let mut made = config_map("a");
    made.data = Some([("k".to_owned(), "x".repeat(1024 * 1024))].into());
    subject.config_maps().create(&plain(), &made).await.unwrap();
    assert_eq!(subject.config_maps().get("a").await.unwrap().data, made.data);
}

pub async fn a_config_map_that_is_too_large_is_rejected(subject: &Subject) {
    let mut made = config_map("a");
    made.data = Some([("k".to_owned(), "x".repeat(1024 * 1024 + 1))].into());
    let status = refused(subject.config_maps().create(&plain(), &made).await);
    let expected = "ConfigMap \"a\" is invalid: []: Too long: may not be more than 1048576 bytes";
    assert_eq!(summary(&status), (422, "Invalid", expected));
}

pub async fn doubles_are_kept_to_the_last_bit(subject: &Subject) {
    // Numbers with 17 significant digits and any exponent that a parameter may have: some of them are numbers that an inexact parser rounds
    // to a neighbour.
    let mut bits = 1_u64;
    let doubles: Vec<f64> = std::iter::repeat_with(|| {
        bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f64::from_bits(bits)
    })
    .filter(|value| value.is_finite())
    .take(1000)
    .collect();
    let mut spec = burst();
    spec["chunks"]["parameters"] = json!({"x": {"type": "f64", "list": doubles}});
    spec["kernel"]["args"] = json!([{"parameter": "x"}]);
    subject.create_own("BurstJob", "a", spec).await.unwrap();
    let read = subject.bursts().get("a").await.unwrap();
    let kept: Vec<f64> = typed_list(&read.data["spec"]["chunks"]["parameters"]["x"]["list"]);
    assert_eq!(kept, doubles);
}

fn typed_list(value: &Value) -> Vec<f64> {
    serde_json::from_value(value.clone()).unwrap()
}
