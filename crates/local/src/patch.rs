//! Patches: JSON merge patch (RFC 7386), JSON patch (RFC 6902), and strategic merge patch for built-in kinds.

use serde_json::{Map, Value};

use crate::refusal::{FieldError, Refusal, about};
use crate::resource::{Behaviour, Resource};

pub(crate) fn operations(document: &mut Value, patch: &Value) -> Result<(), Refusal> {
    let patch: json_patch::Patch =
        serde_json::from_value(patch.clone()).map_err(|error| Refusal::bad_request(format!("error decoding patch: {error}")))?;
    json_patch::patch(document, &patch)
        .map_err(|error| Refusal::invalid(about("", "", ""), &[FieldError::invalid("", "", error.to_string())]))
}

/// Key that identifies the items of a list in a strategic merge patch; `None` for atomic lists.
fn merge_key(path: &[String], resource: &Resource) -> Option<&'static str> {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    match path[..] {
        ["metadata", "ownerReferences"] => Some("uid"),
        ["status", "conditions" | "addresses"] if matches!(resource.behaviour, Behaviour::Node | Behaviour::Namespace) => Some("type"),
        _ => None,
    }
}

/// Whether a strategic merge patch adds to this list of scalars instead of replacing it.
fn is_set(path: &[String]) -> bool {
    matches!(path.iter().map(String::as_str).collect::<Vec<_>>()[..], ["metadata", "finalizers"])
}

/// Applies a strategic merge patch, including the directives `$patch`, `$retainKeys` and `$deleteFromPrimitiveList/...`.
/// `$setElementOrder/...` is accepted and ignored.
pub(crate) fn strategic(document: &mut Value, patch: &Value, resource: &Resource) {
    strategic_at(document, patch, resource, &mut Vec::new());
}

fn strategic_at(document: &mut Value, patch: &Value, resource: &Resource, path: &mut Vec<String>) {
    let Value::Object(fields) = patch else {
        *document = patch.clone();
        return;
    };
    if fields.get("$patch").is_some_and(|directive| directive == "replace") {
        let mut replaced = fields.clone();
        replaced.remove("$patch");
        *document = Value::Object(replaced);
        return;
    }
    if !document.is_object() {
        *document = Value::Object(Map::new());
    }
    let Some(target) = document.as_object_mut() else { return };
    if let Some(kept) = fields.get("$retainKeys").and_then(Value::as_array) {
        target.retain(|name, _| kept.iter().any(|kept| kept == name));
    }
    for (name, value) in fields {
        if let Some(list) = name.strip_prefix("$deleteFromPrimitiveList/") {
            let gone = value.as_array().cloned().unwrap_or_default();
            if let Some(items) = target.get_mut(list).and_then(Value::as_array_mut) {
                items.retain(|item| !gone.contains(item));
            }
            continue;
        }
        if name.starts_with('$') {
            continue;
        }
        if value.is_null() || value.get("$patch").is_some_and(|directive| directive == "delete") {
            target.remove(name);
            continue;
        }
        path.push(name.clone());
        let entry = target.entry(name.clone()).or_insert(Value::Null);
        match value {
            Value::Array(items) if is_set(path) => {
                let mut merged = entry.as_array().cloned().unwrap_or_default();
                for item in items {
                    if !merged.contains(item) {
                        merged.push(item.clone());
                    }
                }
                *entry = Value::Array(merged);
            }
            Value::Array(items) if merge_key(path, resource).is_some() => {
                let key = merge_key(path, resource).unwrap_or_default();
                merge_list(entry, items, key, resource, path);
            }
            _ => strategic_at(entry, value, resource, path),
        }
        path.pop();
    }
}

fn merge_list(entry: &mut Value, patch: &[Value], key: &str, resource: &Resource, path: &mut Vec<String>) {
    let mut merged = entry.as_array().cloned().unwrap_or_default();
    if patch.iter().any(|item| item["$patch"] == "replace") {
        merged.clear();
    }
    for item in patch {
        let found = merged.iter().position(|other| other[key] == item[key]);
        match (item["$patch"].as_str(), found) {
            (Some("delete"), Some(index)) => {
                merged.remove(index);
            }
            (Some("delete" | "replace"), _) => {}
            (_, Some(index)) => strategic_at(&mut merged[index], item, resource, path),
            (_, None) => merged.push(item.clone()),
        }
    }
    *entry = Value::Array(merged);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::resource::catalogue;

    #[test]
    fn a_merge_removes_null_fields_and_replaces_lists() {
        let mut document = json!({"a": {"b": 1, "c": [1, 2]}, "d": "x"});
        json_patch::merge(&mut document, &json!({"a": {"b": null, "c": [3]}, "d": {"e": 1}}));
        assert_eq!(document, json!({"a": {"c": [3]}, "d": {"e": 1}}));
    }

    #[test]
    fn operations_change_what_their_path_names() {
        let mut document = json!({"a/b": [1, 2], "c": 1});
        let patch = json!([
            {"op": "test", "path": "/c", "value": 1},
            {"op": "add", "path": "/a~1b/1", "value": 9},
            {"op": "remove", "path": "/a~1b/0"},
            {"op": "move", "from": "/c", "path": "/d"},
            {"op": "copy", "from": "/d", "path": "/e"},
            {"op": "replace", "path": "/e", "value": 3},
        ]);
        operations(&mut document, &patch).expect("it applies");
        assert_eq!(document, json!({"a/b": [9, 2], "d": 1, "e": 3}));
        assert!(operations(&mut document, &json!([{"op": "test", "path": "/d", "value": 2}])).is_err());
        assert!(operations(&mut document, &json!({})).is_err());
    }

    #[test]
    fn a_strategic_merge_adds_to_finalizers_and_merges_owners() {
        let resource = &catalogue().resources[1];
        let mut document = json!({"metadata": {"finalizers": ["a/b"], "ownerReferences": [{"uid": "1", "name": "x"}]}});
        let patch = json!({"metadata": {
            "finalizers": ["c/d"],
            "$deleteFromPrimitiveList/finalizers": ["a/b"],
            "ownerReferences": [{"uid": "1", "controller": true}, {"uid": "2"}],
        }});
        strategic(&mut document, &patch, resource);
        assert_eq!(document["metadata"]["finalizers"].as_array().map(Vec::len), Some(1));
        assert_eq!(
            document["metadata"]["ownerReferences"][0],
            json!({"uid": "1", "name": "x", "controller": true})
        );
        strategic(
            &mut document,
            &json!({"metadata": {"ownerReferences": [{"uid": "2", "$patch": "delete"}]}}),
            resource,
        );
        assert_eq!(document["metadata"]["ownerReferences"].as_array().map(Vec::len), Some(1));
        let mut document = json!({"data": {"a": "1"}, "kept": 1});
        strategic(&mut document, &json!({"data": {"$patch": "delete"}}), resource);
        assert_eq!(document, json!({"kept": 1}));
    }
}
