//! Schemas, defaults and CEL rules, with the messages that users see.

use kube::api::{Patch, PatchParams};
use kube::core::response::Status;
use serde_json::{Value, json};

use crate::subject::{Subject, answered, burst, causes, summary};

/// Creates a burst whose spec is a valid one with `changes` merged in.
async fn apply(subject: &Subject, changes: Value) -> Result<Value, Status> {
    let mut spec = burst();
    merge(&mut spec, &changes);
    let made = subject.create_own("BurstJob", "a", spec).await?;
    Ok(serde_json::to_value(made).unwrap())
}

pub(crate) fn merge(target: &mut Value, changes: &Value) {
    match (target, changes) {
        (Value::Object(target), Value::Object(changes)) => {
            for (name, value) in changes {
                if value == "<absent>" {
                    target.remove(name);
                } else {
                    merge(target.entry(name.clone()).or_insert(Value::Null), value);
                }
            }
        }
        (target, changes) => *target = changes.clone(),
    }
}

async fn refusal(subject: &Subject, changes: Value) -> Status {
    let status = apply(subject, changes).await.expect_err("it is refused");
    assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"));
    status
}

/// Asserts that the message contains only this error.
fn assert_mistake(status: &Status, mistake: &str) {
    assert_eq!(status.message, format!("BurstJob.sahasra.dev \"a\" is invalid: {mistake}"));
}

pub async fn defaults_are_filled_in(subject: &Subject) {
    let made = apply(subject, json!({})).await.unwrap();
    let expected = json!({
        "kernel": {
            "ptx": {"inline": "// no code"}, "entry": "empty", "grid": [1, 1, 1], "block": [1, 1, 1], "dynamicSharedBytes": 0, "args": [],
        },
        "chunks": {"count": 10, "seed": 0},
        "slice": {"vram": "1Mi"},
        "slices": {"min": 1},
        "lease": {"ttlSeconds": 60},
        "retryPolicy": {"maxRetries": 3, "initialBackoffSeconds": 1, "maxBackoffSeconds": 16},
        "chunkTimeoutSeconds": 60, "maxFailedChunks": 0, "suspend": false, "priority": 0,
        "results": "All",
    });
    assert_eq!(made["spec"], expected);
}

pub async fn null_is_replaced_by_the_default(subject: &Subject) {
    let made = apply(subject, json!({"chunks": {"seed": null}, "slices": null, "aggregate": null}))
        .await
        .unwrap();
    assert_eq!(made["spec"]["chunks"]["seed"], 0);
    assert_eq!(made["spec"]["slices"], json!({"min": 1}));
    assert_eq!(made["spec"].get("aggregate"), None);
}

pub async fn unknown_fields_are_dropped(subject: &Subject) {
    let made = apply(subject, json!({"unheard": 1, "kernel": {"unheard": 1}})).await.unwrap();
    assert_eq!(made["spec"].get("unheard"), None);
    assert_eq!(made["spec"]["kernel"].get("unheard"), None);
    let extra = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "unheard": 1}, "unheard": 1});
    let made = subject.send("POST", "configmaps", "application/json", &extra).await.unwrap();
    assert_eq!((made.get("unheard"), made["metadata"].get("unheard")), (None, None));
}

pub async fn unknown_fields_are_rejected_when_asked(subject: &Subject) {
    let mut spec = burst();
    spec["kernel"]["unheard"] = json!(1);
    spec["kernel"]["args"] = json!([{"parameter": "x", "odd": 1}]);
    let made = json!({"apiVersion": "sahasra.dev/v1alpha1", "kind": "BurstJob", "metadata": {"name": "a"}, "spec": spec});
    let path = "sahasra.dev/v1alpha1:burstjobs?fieldValidation=Strict";
    let status = subject.send("POST", path, "application/json", &made).await.unwrap_err();
    let expected = "BurstJob in version \"v1alpha1\" cannot be handled as a BurstJob: strict decoding error: unknown field \
                    \"spec.kernel.args[0].odd\", unknown field \"spec.kernel.unheard\"";
    assert_eq!(summary(&status), (400, "BadRequest", expected));
    subject.create_own("BurstJob", "a", burst()).await.unwrap();
    let path = "sahasra.dev/v1alpha1:burstjobs/a?fieldValidation=Strict";
    let patch = json!({"spec": {"unheard": 1}});
    let status = subject
        .send("PATCH", path, "application/merge-patch+json", &patch)
        .await
        .unwrap_err();
    assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"));
    assert!(
        status.message.ends_with("strict decoding error: unknown field \"spec.unheard\""),
        "{}",
        status.message
    );
}

pub async fn a_missing_field_is_rejected(subject: &Subject) {
    let status = refusal(subject, json!({"kernel": {"entry": "<absent>"}})).await;
    let blocked = "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing \
                   errors to complete validation";
    assert_mistake(&status, &format!("[spec.kernel.entry: Required value, {blocked}]"));
    let expected = (
        "FieldValueRequired".to_owned(),
        "spec.kernel.entry".to_owned(),
        "Required value".to_owned(),
    );
    assert!(causes(&status).contains(&expected), "{:?}", causes(&status));
    let details = status.details.unwrap();
    assert_eq!(
        (details.name.as_str(), details.group.as_str(), details.kind.as_str()),
        ("a", "sahasra.dev", "BurstJob")
    );
}

pub async fn a_wrong_type_is_rejected(subject: &Subject) {
    for (changes, expected) in [
        (
            json!({"chunks": {"count": "ten"}}),
            "spec.chunks.count: Invalid value: \"string\": spec.chunks.count in body must be of type integer: \"string\"",
        ),
        (
            json!({"suspend": 1}),
            "spec.suspend: Invalid value: \"integer\": spec.suspend in body must be of type boolean: \"integer\"",
        ),
        (
            json!({"kernel": {"entry": 1}}),
            "spec.kernel.entry: Invalid value: \"integer\": spec.kernel.entry in body must be of type string: \"integer\"",
        ),
        (
            json!({"kernel": {"grid": {"x": 1}}}),
            "spec.kernel.grid: Invalid value: \"object\": spec.kernel.grid in body must be of type array: \"object\"",
        ),
        (
            json!({"kernel": {"grid": [1, "x"]}}),
            "spec.kernel.grid[1]: Invalid value: \"string\": spec.kernel.grid[1] in body must be of type integer: \"string\"",
        ),
        (
            json!({"chunks": {"count": 2.5}}),
            "spec.chunks.count: Invalid value: \"number\": spec.chunks.count in body must be of type integer: \"number\"",
        ),
        (
            json!({"priority": true}),
            "spec.priority: Invalid value: \"boolean\": spec.priority in body must be of type integer: \"boolean\"",
        ),
    ] {
        let status = refusal(subject, changes).await;
        let first = status.message.split(", <nil>").next().unwrap();
        assert_eq!(first, format!("BurstJob.sahasra.dev \"a\" is invalid: [{expected}"));
    }
    let status = refusal(subject, json!({"chunks": {"count": 1.5}})).await;
    assert!(
        causes(&status)
            .iter()
            .any(|(reason, field, _)| reason == "FieldValueTypeInvalid" && field == "spec.chunks.count")
    );
}

pub async fn an_integer_beyond_64_bits_is_rejected(subject: &Subject) {
    // Floats are integers up to 2^53 - 1.
    for seed in [json!(1_u64 << 63), json!(u64::MAX), json!(1e19), json!(9_007_199_254_740_992.0)] {
        let status = refusal(subject, json!({"chunks": {"seed": seed}})).await;
        let expected = "BurstJob.sahasra.dev \"a\" is invalid: [spec.chunks.seed: Invalid value: \"number\": spec.chunks.seed in body must be \
                        of type integer: \"number\", <nil>: ";
        assert!(status.message.starts_with(expected), "{}", status.message);
    }
    let status = refusal(subject, json!({"priority": 1_u64 << 63})).await;
    let expected = "spec.priority: Invalid value: 9.223372036854776e+18: spec.priority in body should be less than or equal to 1e+06";
    assert!(status.message.contains(expected), "{}", status.message);
}

pub async fn a_whole_float_is_stored_as_an_integer(subject: &Subject) {
    let made = apply(subject, json!({"priority": 5.0, "chunks": {"seed": 1e15}})).await.unwrap();
    assert_eq!(
        (&made["spec"]["priority"], &made["spec"]["chunks"]["seed"]),
        (&json!(5), &json!(1_000_000_000_000_000_i64))
    );
}

pub async fn a_number_that_is_no_integer_is_rejected_for_a_built_in_kind(subject: &Subject) {
    for (seconds, shown) in [
        (json!(5.0), "5.0"),
        (json!(99_999_999_999_i64), "99999999999"),
        (json!(1_u64 << 63), "9223372036854775808"),
    ] {
        let wrong = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "a"}, "spec": {"leaseDurationSeconds": seconds},
        });
        let path = "coordination.k8s.io/v1:leases";
        let status = subject.send("POST", path, "application/json", &wrong).await.unwrap_err();
        assert_eq!((status.code, status.reason.as_str()), (400, "BadRequest"));
        let expected = format!("json: cannot unmarshal number {shown} into Go struct field ");
        assert!(status.message.contains(&expected), "{}", status.message);
        assert!(
            status.message.ends_with("spec.leaseDurationSeconds of type int32"),
            "{}",
            status.message
        );
    }
}

pub async fn null_in_a_map_of_strings_is_empty(subject: &Subject) {
    let metadata = json!({"name": "a", "labels": {"a": null}, "annotations": {"b": null, "c": "d"}});
    let session = json!({"apiVersion": "sahasra.dev/v1alpha1", "kind": "GpuSession", "metadata": metadata, "spec": {"vram": "1Gi"}});
    let path = "sahasra.dev/v1alpha1:gpusessions";
    let made = subject.send("POST", path, "application/json", &session).await.unwrap();
    let config_map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"k": null}});
    let kept = subject.send("POST", "configmaps", "application/json", &config_map).await.unwrap();
    for made in [&made, &kept] {
        assert_eq!(made["metadata"]["labels"], json!({"a": ""}));
        assert_eq!(made["metadata"]["annotations"], json!({"b": "", "c": "d"}));
    }
    assert_eq!(kept["data"], json!({"k": ""}));
    let patch = json!([{"op": "add", "path": "/metadata/labels/q", "value": null}]);
    let path = "sahasra.dev/v1alpha1:gpusessions/a";
    let patched = subject.send("PATCH", path, "application/json-patch+json", &patch).await.unwrap();
    assert_eq!(patched["metadata"]["labels"], json!({"a": "", "q": ""}));
    let mut wrong = session.clone();
    wrong["metadata"] = json!({"name": "b", "finalizers": [null]});
    let path = "sahasra.dev/v1alpha1:gpusessions";
    let status = subject.send("POST", path, "application/json", &wrong).await.unwrap_err();
    assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"));
}

pub async fn a_value_out_of_bounds_is_rejected(subject: &Subject) {
    let status = refusal(subject, json!({"chunkTimeoutSeconds": 0})).await;
    assert_mistake(
        &status,
        "spec.chunkTimeoutSeconds: Invalid value: 0: spec.chunkTimeoutSeconds in body should be greater than or equal to 1",
    );
    let status = refusal(subject, json!({"chunkTimeoutSeconds": 100_000})).await;
    assert_mistake(
        &status,
        "spec.chunkTimeoutSeconds: Invalid value: 100000: spec.chunkTimeoutSeconds in body should be less than or equal to 86400",
    );
}

pub async fn a_value_outside_the_enumeration_is_rejected(subject: &Subject) {
    let status = refusal(subject, json!({"kernel": {"args": [{"output": {"type": "f16"}}]}})).await;
    let first = status.message.split(", <nil>").next().unwrap();
    let expected = "BurstJob.sahasra.dev \"a\" is invalid: [spec.kernel.args[0].output.type: Unsupported value: \"f16\": supported values: \
                    \"u8\", \"s32\", \"u32\", \"s64\", \"u64\", \"f32\", \"f64\"";
    assert_eq!(first, expected);
}

pub async fn a_text_of_the_wrong_length_is_rejected(subject: &Subject) {
    let status = refusal(subject, json!({"kernel": {"entry": "e".repeat(513)}})).await;
    let first = status.message.split(", <nil>").next().unwrap();
    let expected = "BurstJob.sahasra.dev \"a\" is invalid: [spec.kernel.entry: Too long: may not be more than 512 bytes";
    assert_eq!(first, expected);
    let status = refusal(subject, json!({"kernel": {"ptx": {"inline": ""}}})).await;
    assert_mistake(
        &status,
        "spec.kernel.ptx.inline: Invalid value: \"\": spec.kernel.ptx.inline in body should be at least 1 chars long",
    );
}

pub async fn a_list_of_the_wrong_length_is_rejected(subject: &Subject) {
    let status = refusal(subject, json!({"kernel": {"grid": [1, 1, 1, 1]}})).await;
    let first = status.message.split(", <nil>").next().unwrap();
    let expected = "BurstJob.sahasra.dev \"a\" is invalid: [spec.kernel.grid: Too many: 4: must have at most 3 items";
    assert_eq!(first, expected);
    let status = refusal(subject, json!({"kernel": {"grid": []}})).await;
    assert!(
        status
            .message
            .contains("spec.kernel.grid: Invalid value: 0: spec.kernel.grid in body should have at least 1 items"),
        "{}",
        status.message
    );
}

pub async fn several_mistakes_are_reported_together(subject: &Subject) {
    let status = refusal(
        subject,
        json!({"chunks": {"count": 0}, "priority": 1_000_000_000_000_i64, "suspend": "no"}),
    )
    .await;
    let fields: Vec<String> = causes(&status).into_iter().map(|(_, field, _)| field).collect();
    for field in ["spec.chunks.count", "spec.priority", "spec.suspend", "<nil>"] {
        assert!(fields.contains(&field.to_owned()), "{field} in {fields:?}");
    }
    assert!(status.message.starts_with("BurstJob.sahasra.dev \"a\" is invalid: ["));
}

pub async fn a_rule_rejects_with_field_and_message(subject: &Subject) {
    let status = refusal(subject, json!({"slices": {"min": 5, "max": 2}})).await;
    assert_mistake(
        &status,
        "spec.slices.min: Invalid value: \"object\": min must not exceed max: lower min or raise max",
    );
    let status = refusal(subject, json!({"slice": {"vram": "much"}})).await;
    assert_mistake(
        &status,
        "spec.slice.vram: Invalid value: \"string\": write a whole number with Ki, Mi, Gi or Ti, such as 512Mi",
    );
    let status = refusal(subject, json!({"chunks": {"count": "<absent>"}})).await;
    assert_mistake(&status, "spec.chunks: Invalid value: \"object\": set exactly one of count, product");
}

pub async fn a_rule_of_a_nested_item_names_its_place(subject: &Subject) {
    let status = refusal(subject, json!({"kernel": {"args": [{"parameter": "x"}, {}]}})).await;
    assert!(
        status.message.contains(
            "spec.kernel.args[1]: Invalid value: \"object\": set exactly one of output, parameter, input, constant, chunkIndex, scalar"
        ),
        "{}",
        status.message
    );
}

pub async fn a_parameter_that_is_not_declared_is_named(subject: &Subject) {
    let arguments = json!([{"output": {"type": "f32"}}, {"parameter": "known"}, {"parameter": "unheard"}]);
    let known = json!({"known": {"type": "f32", "list": [1]}});
    let changes = json!({"kernel": {"args": arguments}, "chunks": {"count": 1, "parameters": known}});
    assert_mistake(
        &refusal(subject, changes).await,
        "spec.kernel.args: Invalid value: \"object\": an argument names the parameter unheard, which chunks does not declare: declare it in \
         chunks.parameters or as a list of chunks.product",
    );
}

pub async fn a_burst_without_chunks_is_told_its_cause_alone(subject: &Subject) {
    assert_mistake(
        &refusal(subject, json!({"chunks": {"count": 0}})).await,
        "spec.chunks.count: Invalid value: 0: spec.chunks.count in body should be greater than or equal to 1",
    );
}

pub async fn a_rule_of_a_map_value_names_its_key(subject: &Subject) {
    let status = refusal(subject, json!({"chunks": {"parameters": {"rate": {"type": "f32"}}}})).await;
    assert_mistake(
        &status,
        "spec.chunks.parameters[rate]: Invalid value: \"object\": set exactly one of cel, list, range, random",
    );
    // A number is compared as a number, whether or not it is written as an integer.
    let reversed = json!({"chunks": {"parameters": {"rate": {"type": "f32", "random": {"uniform": {"min": 2, "max": 1.5}}}}}});
    let status = refusal(subject, reversed).await;
    assert_mistake(
        &status,
        "spec.chunks.parameters[rate].random.uniform.min: Invalid value: \"object\": min must be smaller than max: lower min or raise max",
    );
}

pub async fn a_required_reason_is_reported_as_such(subject: &Subject) {
    let status = refusal(subject, json!({"output": {"store": {"url": "s3://bucket/prefix"}}})).await;
    assert_mistake(
        &status,
        "spec.output.store.secretRef: Required value: s3, gs and az stores need secretRef: name a Secret of this namespace with the \
         store's settings",
    );
}

pub async fn rules_wait_until_the_schema_is_kept(subject: &Subject) {
    let status = refusal(subject, json!({"slices": {"min": 5, "max": 2}, "suspend": "no"})).await;
    assert!(!status.message.contains("min must not exceed max"), "{}", status.message);
    assert!(
        status.message.contains("some validation rules were not checked"),
        "{}",
        status.message
    );
    // A violated bound does not prevent the evaluation of rules.
    let status = refusal(subject, json!({"slices": {"min": 5, "max": 2}, "chunkTimeoutSeconds": 0})).await;
    assert!(status.message.contains("min must not exceed max"), "{}", status.message);
}

pub async fn an_immutable_field_is_forbidden_to_change(subject: &Subject) {
    subject.create_own("BurstJob", "a", burst()).await.unwrap();
    let patch = Patch::Merge(json!({"spec": {"chunks": {"count": 11}}}));
    let status = answered(subject.bursts().patch("a", &PatchParams::default(), &patch).await).unwrap_err();
    assert_mistake(
        &status,
        "spec.chunks: Forbidden: chunks is immutable: create another BurstJob instead",
    );
    assert_eq!(causes(&status)[0].0, "FieldValueForbidden");
    let patch = Patch::Merge(json!({"spec": {"aggregate": {"none": {}}}}));
    let status = answered(subject.bursts().patch("a", &PatchParams::default(), &patch).await).unwrap_err();
    assert_mistake(
        &status,
        "spec.aggregate: Forbidden: aggregate is immutable: create another BurstJob instead",
    );
}

pub async fn mutable_fields_can_be_changed(subject: &Subject) {
    subject.create_own("BurstJob", "a", burst()).await.unwrap();
    for change in [
        json!({"suspend": true}),
        json!({"priority": 7}),
        json!({"slices": {"min": 2, "max": 5}}),
        json!({"slices": {"max": null}}),
        json!({"ttlSecondsAfterFinished": 60}),
        json!({"ttlSecondsAfterFinished": null}),
    ] {
        let patch = Patch::Merge(json!({"spec": change}));
        subject.bursts().patch("a", &PatchParams::default(), &patch).await.unwrap();
    }
    assert_eq!(subject.bursts().get("a").await.unwrap().metadata.generation, Some(7));
}

pub async fn a_wrong_type_in_a_built_in_kind_is_a_bad_request(subject: &Subject) {
    let wrong = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": 1}});
    let status = subject.send("POST", "configmaps", "application/json", &wrong).await.unwrap_err();
    let expected = "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: json: cannot unmarshal number into Go struct field \
                    ConfigMap.data of type string";
    assert_eq!(summary(&status), (400, "BadRequest", expected));
}

pub async fn wrong_data_keys_are_rejected(subject: &Subject) {
    let wrong = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"a b": "c"}});
    let status = subject.send("POST", "configmaps", "application/json", &wrong).await.unwrap_err();
    let expected = "ConfigMap \"a\" is invalid: data[a b]: Invalid value: \"a b\": a valid config key must consist of alphanumeric \
                    characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is \
                    '[-._a-zA-Z0-9]+')";
    assert_eq!(summary(&status), (422, "Invalid", expected));
}
