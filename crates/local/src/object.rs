//! Access to the parts of an object that are the same for all kinds.

use serde_json::{Map, Value, json};

/// The string `metadata.{field}`; empty if absent.
pub(crate) fn metadata<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

pub(crate) fn name(object: &Value) -> &str {
    metadata(object, "name")
}

pub(crate) fn namespace(object: &Value) -> &str {
    metadata(object, "namespace")
}

pub(crate) fn uid(object: &Value) -> &str {
    metadata(object, "uid")
}

pub(crate) fn resource_version(object: &Value) -> &str {
    metadata(object, "resourceVersion")
}

pub(crate) fn is_deleting(object: &Value) -> bool {
    !metadata(object, "deletionTimestamp").is_empty()
}

pub(crate) fn finalizers(object: &Value) -> Vec<&str> {
    let list = object["metadata"]["finalizers"].as_array();
    list.map(|list| list.iter().filter_map(Value::as_str).collect()).unwrap_or_default()
}

pub(crate) fn owners(object: &Value) -> &[Value] {
    object["metadata"]["ownerReferences"].as_array().map_or(&[], Vec::as_slice)
}

pub(crate) fn only_metadata(object: &Value) -> Value {
    json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": object["metadata"]})
}

pub(crate) fn metadata_mut(object: &mut Value) -> &mut Map<String, Value> {
    if !object.is_object() {
        *object = json!({});
    }
    let map = object.as_object_mut().expect("made an object above");
    let metadata = map.entry("metadata").or_insert_with(|| json!({}));
    if !metadata.is_object() {
        *metadata = json!({});
    }
    metadata.as_object_mut().expect("made an object above")
}

/// Sets `metadata.{field}`, or removes the field if `value` is null.
pub(crate) fn set_metadata(object: &mut Value, field: &str, value: Value) {
    let map = metadata_mut(object);
    if value.is_null() {
        map.remove(field);
    } else {
        map.insert(field.to_owned(), value);
    }
}

/// Sets the finalizers, or removes the field if the list is empty.
pub(crate) fn set_finalizers(object: &mut Value, finalizers: &[String]) {
    let value = if finalizers.is_empty() { Value::Null } else { json!(finalizers) };
    set_metadata(object, "finalizers", value);
}

/// Copies `metadata.{field}` to another object, or removes the field there if it is absent.
pub(crate) fn copy_metadata(from: &Value, to: &mut Value, field: &str) {
    set_metadata(to, field, from["metadata"][field].clone());
}

/// Removes empty fields of the metadata, because the API does not distinguish absent and empty lists.
pub(crate) fn tidy_metadata(object: &mut Value) {
    let map = metadata_mut(object);
    map.retain(|_, value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => true,
    });
}

/// A number as Go's `%v` formats it in messages.
pub(crate) fn number(number: &serde_json::Number) -> String {
    if number.is_i64() || number.is_u64() {
        number.to_string()
    } else {
        float(number.as_f64().unwrap_or_default())
    }
}

/// A float as Go's `%v` formats it: shortest representation, with an exponent of at least two digits below 1e-4 and from 1e6.
pub(crate) fn float(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..6).contains(&exponent) {
        return format!("{value}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

/// A string as Go's `%q` formats it.
pub(crate) fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            '\r' => quoted.push_str("\\r"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{b}' => quoted.push_str("\\v"),
            '\u{c}' => quoted.push_str("\\f"),
            control if (control as u32) < 0x20 || control as u32 == 0x7f => quoted.push_str(&format!("\\x{:02x}", control as u32)),
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

/// A value as Go's `encoding/json` formats it in messages.
pub(crate) fn go_json(value: &Value) -> String {
    let text = value.to_string();
    text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_strings_read_as_the_api_server_prints_them() {
        assert_eq!(float(0.5), "0.5");
        assert_eq!(float(3.0), "3");
        assert_eq!(float(1e6), "1e+06");
        assert_eq!(float(123456.5), "123456.5");
        assert_eq!(float(1.5e-7), "1.5e-07");
        assert_eq!(quoted("a\"b\\\n\u{1}"), "\"a\\\"b\\\\\\n\\x01\"");
    }
}
