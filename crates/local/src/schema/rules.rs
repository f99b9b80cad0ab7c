//! CEL rules (`x-kubernetes-validations`), evaluated by `kube-cel`.
//!
//! Each node with rules is compiled separately, without the rules of nested nodes. This module walks the schema itself, so that the order
//! of errors, the correlation of list items with old items, and ratcheting are the same as in the API server.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{JSONSchemaProps, ValidationRule};
use kube_cel::{CompiledSchema, ErrorKind, Validator};
use serde_json::{Value, json};

use super::{Schema, field_path, join};
use crate::refusal::{FieldError, Mistake};

thread_local! {
    /// One validator per thread, because registering CEL's functions is more expensive than evaluating a rule.
    static VALIDATOR: Validator = Validator::new();
}

pub(crate) fn compile(schema: &JSONSchemaProps) -> CompiledSchema {
    let mut own = json!(schema);
    strip(&mut own, true);
    kube_cel::compile_schema(&own)
}

/// Whether a rule of the node itself refers to the old value.
pub(crate) fn has_transition(schema: &JSONSchemaProps) -> bool {
    schema.x_kubernetes_validations.iter().flatten().any(is_transition)
}

fn is_transition(rule: &ValidationRule) -> bool {
    rule.rule.contains("oldSelf")
}

/// Removes the rules of nested nodes, and all defaults, which have already been set before rules are evaluated.
fn strip(schema: &mut Value, is_top: bool) {
    if let Some(fields) = schema.as_object_mut() {
        fields.remove("default");
        if !is_top {
            fields.remove("x-kubernetes-validations");
        }
        if let Some(properties) = fields.get_mut("properties").and_then(Value::as_object_mut) {
            properties.values_mut().for_each(|property| strip(property, false));
        }
        for child in ["items", "additionalProperties"] {
            if let Some(child) = fields.get_mut(child) {
                strip(child, false);
            }
        }
    }
}

pub(crate) fn evaluate(value: &Value, old: Option<&Value>, schema: &Schema, path: &str, errors: &mut Vec<FieldError>) {
    // An unchanged value is not rejected again, unless a rule refers to the change.
    if value.is_null() || (old == Some(value) && !schema.has_transition) {
        return;
    }
    if let Some(rules) = &schema.rules {
        evaluate_node(value, old, schema, rules, path, errors);
    }
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let before = old.and_then(|old| old.get(name)).filter(|old| !old.is_null());
                if let Some(schema) = schema.properties.get(name) {
                    let path = field_path(path, name);
                    evaluate(value, before, schema, &path, errors);
                } else if let Some(schema) = &schema.values {
                    evaluate(value, before, schema, &format!("{path}[{name}]"), errors);
                }
            }
        }
        Value::Array(items) => {
            let Some(item_schema) = &schema.items else { return };
            let old = old.and_then(Value::as_array).map(Vec::as_slice);
            for (index, item) in items.iter().enumerate() {
                let before = schema.item_before(item, old);
                evaluate(item, before, item_schema, &format!("{path}[{index}]"), errors);
            }
        }
        _ => {}
    }
}

fn evaluate_node(value: &Value, old: Option<&Value>, schema: &Schema, rules: &CompiledSchema, path: &str, errors: &mut Vec<FieldError>) {
    let typed = typed(value, schema);
    let typed_old = old.map(|old| self::typed(old, schema));
    let refused = VALIDATOR.with(|validator| validator.validate_compiled(rules, &typed, typed_old.as_ref()));
    let Err(refused) = refused else { return };
    let unchanged = old == Some(value);
    for error in refused {
        let rule = schema
            .own
            .x_kubernetes_validations
            .iter()
            .flatten()
            .find(|rule| rule.rule == error.rule);
        if unchanged && error.kind == ErrorKind::ValidationFailure && !rule.is_some_and(is_transition) {
            continue;
        }
        let (field, detail) = match error.kind {
            ErrorKind::ValidationFailure => {
                let below = rule.and_then(|rule| rule.field_path.as_deref()).unwrap_or_default();
                (join(path, below.trim_start_matches('.')), error.message.trim().to_owned())
            }
            _ => (
                path.to_owned(),
                format!("{} evaluating rule: {}", error.message, said(rule, &error.rule)),
            ),
        };
        let field = if field.is_empty() { "<nil>".to_owned() } else { field };
        let reason = rule.and_then(|rule| rule.reason.as_deref());
        errors.push(match reason.filter(|_| error.kind == ErrorKind::ValidationFailure) {
            Some("FieldValueForbidden") => FieldError::forbidden(field, detail),
            Some("FieldValueRequired") => FieldError::required(field, detail),
            Some("FieldValueDuplicate") => FieldError::new(Mistake::Duplicate, field, schema.type_name(), ""),
            _ => FieldError::invalid(field, schema.type_name(), detail),
        });
    }
}

fn said<'a>(rule: Option<&'a ValidationRule>, expression: &'a str) -> &'a str {
    rule.and_then(|rule| rule.message.as_deref()).unwrap_or(expression).trim()
}

/// Converts numbers to the type that CEL expects: a double if the schema declares a number, regardless of the notation in JSON.
fn typed(value: &Value, schema: &Schema) -> Value {
    match value {
        Value::Number(number) if schema.type_name() == "number" => number.as_f64().map_or_else(|| value.clone(), Value::from),
        Value::Array(items) => match &schema.items {
            Some(schema) => items.iter().map(|item| typed(item, schema)).collect(),
            None => value.clone(),
        },
        Value::Object(fields) => {
            let typed = fields.iter().map(|(name, value)| {
                let value = schema.field(name).map_or_else(|| value.clone(), |schema| typed(value, schema));
                (name.clone(), value)
            });
            Value::Object(typed.collect())
        }
        _ => value.clone(),
    }
}
