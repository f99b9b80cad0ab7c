//! Behaviour specific to built-in kinds.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::names;
use crate::refusal::FieldError;
use crate::resource::{Behaviour, Resource};

/// Maximum total size of the data of a ConfigMap or Secret, in bytes.
const DATA_LIMIT: i64 = 1024 * 1024;

pub(crate) const LASTING_NAMESPACES: [&str; 3] = ["default", "kube-public", "kube-system"];

/// Normalizes an object for storage: removes null fields and empty data, `spec` and `status`, and moves `stringData` of a Secret into
/// `data`.
pub(crate) fn normalise(object: &mut Value, resource: &Resource) {
    drop_nulls(object);
    let Some(fields) = object.as_object_mut() else { return };
    if resource.behaviour == Behaviour::Secret
        && let Some(Value::Object(texts)) = fields.remove("stringData")
    {
        let data = fields.entry("data").or_insert_with(|| json!({}));
        for (key, text) in texts {
            data[key] = json!(STANDARD.encode(text.as_str().unwrap_or_default()));
        }
    }
    for field in ["data", "binaryData", "spec", "status"] {
        if fields.get(field).and_then(Value::as_object).is_some_and(Map::is_empty) {
            fields.remove(field);
        }
    }
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

pub(crate) fn prepare_new(object: &mut Value, resource: &Resource) {
    match resource.behaviour {
        Behaviour::Secret if object["type"].as_str().is_none_or(str::is_empty) => object["type"] = json!("Opaque"),
        Behaviour::Namespace => {
            let name = object["metadata"]["name"].clone();
            object["metadata"]["labels"]["kubernetes.io/metadata.name"] = name;
            object["spec"] = json!({"finalizers": ["kubernetes"]});
            object["status"] = json!({"phase": "Active"});
        }
        _ => {}
    }
}

/// Reverts changes to fields that an update of the object or of its subresource must not change.
pub(crate) fn prepare_update(object: &mut Value, old: &Value, resource: &Resource, is_status: bool) {
    if !matches!(resource.behaviour, Behaviour::Namespace | Behaviour::Node) {
        return;
    }
    let kept: &[&str] = match (resource.behaviour, is_status) {
        (_, true) => &["spec"],
        (Behaviour::Namespace, false) => &["spec", "status"],
        _ => &["status"],
    };
    for field in kept {
        restore(object, old, field);
    }
    if resource.behaviour == Behaviour::Namespace {
        let name = object["metadata"]["name"].clone();
        object["metadata"]["labels"]["kubernetes.io/metadata.name"] = name;
    }
}

/// Restores the old value of a field, or removes the field if `old` does not have it.
pub(crate) fn restore(object: &mut Value, old: &Value, field: &str) {
    let Some(fields) = object.as_object_mut() else { return };
    match old.get(field) {
        Some(value) => fields.insert(field.to_owned(), value.clone()),
        None => fields.remove(field),
    };
}

pub(crate) fn validate(object: &Value, old: Option<&Value>, resource: &Resource) -> Vec<FieldError> {
    let mut errors = Vec::new();
    match resource.behaviour {
        Behaviour::ConfigMap => {
            validate_data(object, &["data", "binaryData"], &mut errors);
            for key in object["data"].as_object().into_iter().flat_map(Map::keys) {
                if object["binaryData"].get(key).is_some() {
                    let why = "duplicate of key present in binaryData";
                    errors.push(FieldError::invalid(format!("data[{key}]"), key.as_str(), why));
                }
            }
            validate_immutable(object, old, &["data", "binaryData"], &mut errors);
        }
        Behaviour::Secret => {
            validate_data(object, &["data"], &mut errors);
            if let Some(old) = old
                && old["type"] != object["type"]
            {
                errors.push(FieldError::invalid("type", object["type"].clone(), "field is immutable"));
            }
            validate_immutable(object, old, &["data"], &mut errors);
        }
        Behaviour::Lease => validate_lease(object, &mut errors),
        _ => {}
    }
    errors
}

fn validate_data(object: &Value, fields: &[&str], errors: &mut Vec<FieldError>) {
    let mut size = 0;
    for field in fields {
        for (key, value) in object[*field].as_object().into_iter().flatten() {
            errors.extend(FieldError::each(&format!("{field}[{key}]"), key, names::config_key(key)));
            let text = value.as_str().unwrap_or_default();
            let is_text = *field == "data" && fields.contains(&"binaryData");
            size += if is_text {
                text.len()
            } else {
                STANDARD.decode(text).map_or(0, |bytes| bytes.len())
            };
        }
    }
    if i64::try_from(size).unwrap_or(i64::MAX) > DATA_LIMIT {
        let field = if fields.len() > 1 { "[]" } else { "data" };
        errors.push(FieldError::too_long(field, DATA_LIMIT));
    }
}

fn validate_immutable(object: &Value, old: Option<&Value>, fields: &[&str], errors: &mut Vec<FieldError>) {
    let Some(old) = old.filter(|old| old["immutable"] == true) else {
        return;
    };
    let why = "field is immutable when `immutable` is set";
    if object["immutable"] != true {
        errors.push(FieldError::forbidden("immutable", why));
    }
    for field in fields {
        if object[*field] != old[*field] {
            errors.push(FieldError::forbidden(*field, why));
        }
    }
}

fn validate_lease(object: &Value, errors: &mut Vec<FieldError>) {
    let spec = &object["spec"];
    if let Some(seconds) = spec["leaseDurationSeconds"].as_i64().filter(|seconds| *seconds <= 0) {
        let why = "must be greater than 0";
        errors.push(FieldError::invalid("spec.leaseDurationSeconds", seconds, why));
    }
    if let Some(transitions) = spec["leaseTransitions"].as_i64().filter(|transitions| *transitions < 0) {
        let why = "must be greater than or equal to 0";
        errors.push(FieldError::invalid("spec.leaseTransitions", transitions, why));
    }
}
