//! Validation against a schema, with the API server's messages.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::Value;

use super::{Schema, field_path};
use crate::object;
use crate::refusal::{FieldError, Mistake};

/// Errors in `value`, in the order of the fields. Values that are unchanged since `old` are not checked again (validation ratcheting).
pub(crate) fn validate(value: &Value, old: Option<&Value>, schema: &Schema, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    check(value, old, schema, path, &mut errors);
    errors
}

fn check(value: &Value, old: Option<&Value>, schema: &Schema, path: &str, errors: &mut Vec<FieldError>) {
    if old == Some(value) {
        return;
    }
    if !check_type(value, schema, path, errors) {
        // The API server checks the bounds of a number that is no integer, too.
        if let (Value::Number(number), "integer") = (value, schema.type_name()) {
            check_number(number, schema, path, errors);
        }
        return;
    }
    match value {
        Value::String(text) => check_string(text, schema, path, errors),
        Value::Number(number) => check_number(number, schema, path, errors),
        Value::Array(items) => {
            let old_items = old.and_then(Value::as_array).map(Vec::as_slice);
            check_items(items, old_items, schema, path, errors);
        }
        Value::Object(_) => check_fields(value, old, schema, path, errors),
        _ => {}
    }
    if let Some(allowed) = &schema.own.enum_
        && !allowed.iter().any(|allowed| allowed.0 == *value)
    {
        let names = allowed.iter().map(|allowed| match &allowed.0 {
            Value::String(text) => object::quoted(text),
            other => object::quoted(&other.to_string()),
        });
        let detail = format!("supported values: {}", names.collect::<Vec<_>>().join(", "));
        errors.push(FieldError::new(Mistake::NotSupported, path, value.clone(), detail));
    }
}

/// Checks the type of a value. Returns `false` if nothing else can be checked: the type is wrong, or the value is an allowed null.
fn check_type(value: &Value, schema: &Schema, path: &str, errors: &mut Vec<FieldError>) -> bool {
    let (kind, format) = (schema.type_name(), schema.format());
    let found = match value {
        Value::Null => {
            if schema.own.nullable == Some(true) || (kind.is_empty() && !schema.int_or_string()) {
                return false;
            }
            "null"
        }
        Value::Bool(_) => "boolean",
        // Go decodes an integer beyond 64 bits as a float.
        Value::Number(number) if !number.is_i64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let (right, wanted) = if schema.int_or_string() {
        (found == "string" || found == "integer", "integer,string")
    } else {
        let right = match kind {
            "" => true,
            "integer" => found == "integer" && in_format(value, format),
            "number" => found == "integer" || found == "number",
            other => found == other,
        };
        // For values other than strings, lists and null, the API server names the format instead of the type.
        let names_format = !matches!(value, Value::String(_) | Value::Array(_) | Value::Null) && !format.is_empty();
        (right, if names_format { format } else { kind })
    };
    if right {
        return true;
    }
    let said = match (value, format.is_empty()) {
        // Go's decoder quotes a number that does not fit an integer. Only built-in kinds have formats of integers.
        (Value::Number(number), false) if kind == "integer" => format!("number {number}"),
        (_, false) if kind == "integer" => found.to_owned(),
        // With a format, the API server names formats for both types. Those of booleans and objects are empty.
        (Value::String(_) | Value::Array(_) | Value::Null, _) | (_, true) => found.to_owned(),
        (Value::Number(number), false) if number.is_f64() => "double".to_owned(),
        (Value::Number(_), false) => "int64".to_owned(),
        (_, false) => String::new(),
    };
    let detail = format!("{path} in body must be of type {wanted}: {}", object::quoted(&said));
    errors.push(FieldError::new(Mistake::TypeInvalid, path, said, detail));
    false
}

/// Whether an integer fits its format. Other formats than `int32` have no bounds beyond those of 64 bits.
fn in_format(value: &Value, format: &str) -> bool {
    format != "int32" || value.as_i64().is_some_and(|value| i32::try_from(value).is_ok())
}

fn check_string(text: &str, schema: &Schema, path: &str, errors: &mut Vec<FieldError>) {
    let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    if let Some(limit) = schema.own.max_length.filter(|limit| length > *limit) {
        errors.push(FieldError::too_long(path, limit));
    } else if let Some(limit) = schema.own.min_length.filter(|limit| length < *limit) {
        let detail = format!("{path} in body should be at least {limit} chars long");
        errors.push(FieldError::invalid(path, text, detail));
    } else if let Some(pattern) = &schema.pattern
        && !pattern.is_match(text)
    {
        errors.push(FieldError::invalid(path, text, format!("{path} in body should match '{pattern}'")));
    }
    if !has_format(text, schema.format()) {
        let detail = format!("{path} in body must be of type {}: {}", schema.format(), object::quoted(text));
        errors.push(FieldError::new(Mistake::TypeInvalid, path, text, detail));
    }
}

/// Whether a text has the format. Formats that the API server does not know accept any text.
fn has_format(text: &str, format: &str) -> bool {
    match format {
        "date-time" | "datetime" => text.parse::<jiff::Timestamp>().is_ok(),
        "byte" => STANDARD.decode(text).is_ok(),
        _ => true,
    }
}

fn check_number(number: &serde_json::Number, schema: &Schema, path: &str, errors: &mut Vec<FieldError>) {
    let value = number.as_f64().unwrap_or_default();
    // The API server formats the bound of an integer as an integer.
    let whole = number.is_i64();
    let print = |bound: f64| if whole { format!("{bound:.0}") } else { object::float(bound) };
    let mut refuse = |relation: &str, bound: f64| {
        let detail = format!("{path} in body should be {relation} {}", print(bound));
        let shown = if whole { Value::from(number.clone()) } else { Value::from(value) };
        errors.push(FieldError::invalid(path, shown, detail));
    };
    if let Some(bound) = schema.own.maximum {
        if schema.own.exclusive_maximum == Some(true) && value >= bound {
            refuse("less than", bound);
        } else if value > bound {
            refuse("less than or equal to", bound);
        }
    }
    if let Some(bound) = schema.own.minimum {
        if schema.own.exclusive_minimum == Some(true) && value <= bound {
            refuse("greater than", bound);
        } else if value < bound {
            refuse("greater than or equal to", bound);
        }
    }
}

fn check_items(items: &[Value], old: Option<&[Value]>, schema: &Schema, path: &str, errors: &mut Vec<FieldError>) {
    if let Some(item_schema) = &schema.items {
        for (index, item) in items.iter().enumerate() {
            let before = schema.item_before(item, old);
            check(item, before, item_schema, &format!("{path}[{index}]"), errors);
        }
    }
    let count = i64::try_from(items.len()).unwrap_or(i64::MAX);
    if let Some(limit) = schema.own.min_items.filter(|limit| count < *limit) {
        let detail = format!("{path} in body should have at least {limit} items");
        errors.push(FieldError::invalid(path, count, detail));
    }
    if let Some(limit) = schema.own.max_items.filter(|limit| count > *limit) {
        errors.push(FieldError::too_many(path, items.len(), limit));
    }
}

fn check_fields(value: &Value, old: Option<&Value>, schema: &Schema, path: &str, errors: &mut Vec<FieldError>) {
    let Some(fields) = value.as_object() else { return };
    let count = i64::try_from(fields.len()).unwrap_or(i64::MAX);
    if let Some(limit) = schema.own.min_properties.filter(|limit| count < *limit) {
        let detail = format!("{path} in body should have at least {limit} properties");
        errors.push(FieldError::invalid(path, count, detail));
    }
    if let Some(limit) = schema.own.max_properties.filter(|limit| count > *limit) {
        errors.push(FieldError::too_many(path, fields.len(), limit));
    }
    for (name, value) in fields {
        if let Some(schema) = schema.field(name) {
            let before = old.and_then(|old| old.get(name));
            check(value, before, schema, &field_path(path, name), errors);
        }
    }
    for name in schema.own.required.iter().flatten() {
        if !fields.contains_key(name) {
            errors.push(FieldError::required(field_path(path, name), ""));
        }
    }
}

pub(crate) fn duplicates(value: &Value, schema: &Schema, path: &str, errors: &mut Vec<FieldError>) {
    match value {
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                let at = format!("{path}[{index}]");
                let before = &items[..index];
                if (schema.is_set() && before.contains(item)) || schema.item_before(item, Some(before)).is_some() {
                    let shown = match schema.keys() {
                        Some(keys) => keys.iter().map(|key| (key.clone(), item[key].clone())).collect(),
                        None => item.clone(),
                    };
                    errors.push(FieldError::new(Mistake::Duplicate, at.clone(), shown, ""));
                }
                if let Some(schema) = &schema.items {
                    duplicates(item, schema, &at, errors);
                }
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                if let Some(schema) = schema.field(name) {
                    let at = field_path(path, name);
                    duplicates(value, schema, &at, errors);
                }
            }
        }
        _ => {}
    }
}
