//! Patches: JSON merge patch (RFC 7386), JSON patch (RFC 6902), and strategic merge patch for built-in kinds.

use serde_json::{Map, Value};

use crate::refusal::{FieldError, Refusal, about};
use crate::schema::Schema;

pub(crate) fn operations(document: &mut Value, patch: &Value) -> Result<(), Refusal> {
    let patch: json_patch::Patch =
        serde_json::from_value(patch.clone()).map_err(|error| Refusal::bad_request(format!("error decoding patch: {error}")))?;
    json_patch::patch(document, &patch)
        .map_err(|error| Refusal::invalid(about("", "", ""), &[FieldError::invalid("", "", error.to_string())]))
}

/// Applies a strategic merge patch, including the directives `$patch`, `$retainKeys` and `$deleteFromPrimitiveList/...`.
/// `$setElementOrder/...` is accepted and ignored.
/// Lists are merged like in an apply: by their keys, or as sets.
pub(crate) fn strategic(document: &mut Value, patch: &Value, schema: Option<&Schema>) {
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
        let schema = schema.and_then(|schema| schema.field(name));
        let entry = target.entry(name.clone()).or_insert(Value::Null);
        match (value, schema, schema.and_then(Schema::keys)) {
            (Value::Array(items), Some(schema), _) if schema.is_set() => {
                let mut merged = entry.as_array().cloned().unwrap_or_default();
                for item in items {
                    if !merged.contains(item) {
                        merged.push(item.clone());
                    }
                }
                *entry = Value::Array(merged);
            }
            (Value::Array(items), Some(schema), Some([key])) => merge_list(entry, items, key, schema.items.as_deref()),
            _ => strategic(entry, value, schema),
        }
    }
}

fn merge_list(entry: &mut Value, patch: &[Value], key: &str, schema: Option<&Schema>) {
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
            (_, Some(index)) => strategic(&mut merged[index], item, schema),
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
        let schema = Some(catalogue().resources[1].merge_schema());
        let mut document = json!({"metadata": {"finalizers": ["a/b"], "ownerReferences": [{"uid": "1", "name": "x"}]}});
        let patch = json!({"metadata": {
            "finalizers": ["c/d"],
            "$deleteFromPrimitiveList/finalizers": ["a/b"],
            "ownerReferences": [{"uid": "1", "controller": true}, {"uid": "2"}],
        }});
        strategic(&mut document, &patch, schema);
        assert_eq!(document["metadata"]["finalizers"].as_array().map(Vec::len), Some(1));
        assert_eq!(
            document["metadata"]["ownerReferences"][0],
            json!({"uid": "1", "name": "x", "controller": true})
        );
        strategic(
            &mut document,
            &json!({"metadata": {"ownerReferences": [{"uid": "2", "$patch": "delete"}]}}),
            schema,
        );
        assert_eq!(document["metadata"]["ownerReferences"].as_array().map(Vec::len), Some(1));
        let mut document = json!({"data": {"a": "1"}, "kept": 1});
        strategic(&mut document, &json!({"data": {"$patch": "delete"}}), schema);
        assert_eq!(document, json!({"kept": 1}));
    }
}
