//! Validation rules that several kinds share. The API server evaluates them at `kubectl apply`; each message names the remedy, the
//! API server adds the field's path.

use kube::core::{Message, Reason, Rule};

/// A rule with a message made at run time.
pub(crate) fn rule(rule: impl Into<String>, message: impl Into<String>) -> Rule {
    Rule::new(rule).message(Message::Message(message.into()))
}

/// A string must match `pattern` (RE2), or `message` says what to write instead. Unlike the schema's own `pattern`, which
/// shows users the expression.
pub(crate) fn matches(pattern: &str, message: &str) -> Rule {
    rule(format!("self.matches('{pattern}')"), message)
}

/// A field of a spec, named as in YAML, keeps its value and its absence; `kind` is what to make anew.
pub(crate) fn immutable(field: &str, kind: &str) -> Rule {
    rule(
        format!("has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"),
        format!("{field} is immutable: make another {kind}"),
    )
    .field_path(format!(".{field}"))
    .reason(Reason::FieldValueForbidden)
}

/// Exactly one of an object's fields is given.
pub(crate) fn exactly_one(fields: &[&str]) -> Rule {
    let (expression, message) = sahasra_parameters::rules::exactly_one_expression(fields);
    rule(expression, message)
}

/// A class of devices, as the agents' configuration names them.
pub(crate) fn class_name() -> Rule {
    matches(
        "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        "a class is lower-case letters, digits and dashes, such as g5",
    )
}

/// The URL of an object store or of an object in it.
pub(crate) fn store_url() -> Rule {
    matches(
        "^((s3|gs|az)://[^/[:space:]]+(/[^[:space:]]*)?|file:///[^[:space:]]+)$",
        "start with s3://bucket, gs://bucket, az://container or file:///path, without blanks",
    )
}

/// The name of a Kubernetes object.
pub(crate) fn object_name() -> Rule {
    matches(
        "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        "must be the name of an object: lower-case letters, digits, dashes and dots",
    )
}

/// A term only grows: an earlier coordinator cannot take a burst back.
pub(crate) fn only_grows() -> Rule {
    rule("self >= oldSelf", "a term only grows: another coordinator has taken over")
}
