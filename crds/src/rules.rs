//! Validation rules that several kinds share. The API server evaluates them at `kubectl apply`. Each message names the remedy; the API server
//! adds the path of the field.

use kube::core::{Message, Reason, Rule};

/// Creates a rule with a message that is computed.
pub(crate) fn rule(rule: impl Into<String>, message: impl Into<String>) -> Rule {
    Rule::new(rule).message(Message::Message(message.into()))
}

/// A string must match `pattern` (RE2). The message of the schema's own `pattern` would be the expression instead of `message`.
pub(crate) fn matches(pattern: &str, message: &str) -> Rule {
    rule(format!("self.matches('{pattern}')"), message)
}

/// A field of a spec must not be changed, set or removed. To change it, an object of kind `kind` has to be created anew.
pub(crate) fn immutable(field: &str, kind: &str) -> Rule {
    rule(
        format!("has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"),
        format!("{field} is immutable: create another {kind} instead"),
    )
    .field_path(format!(".{field}"))
    .reason(Reason::FieldValueForbidden)
}

/// Exactly one of the fields must be set.
pub(crate) fn exactly_one(fields: &[&str]) -> Rule {
    let (expression, message) = sahasra_parameters::rules::exactly_one_expression(fields);
    rule(expression, message)
}

/// A class of devices must be a name that the configuration of an agent can have.
pub(crate) fn class_name() -> Rule {
    matches(
        "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        "a class is lower-case letters, digits and dashes, such as g5",
    )
}

/// A URL must be that of an object store, or of an object in it.
pub(crate) fn store_url() -> Rule {
    matches(
        "^((s3|gs|az)://[^/[:space:]]+(/[^[:space:]]*)?|file:///[^[:space:]]+)$",
        "start with s3://bucket, gs://bucket, az://container or file:///path, without blanks",
    )
}

/// A name must be valid for a Kubernetes object.
pub(crate) fn object_name() -> Rule {
    matches(
        "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        "must be the name of an object: lower-case letters, digits, dashes and dots",
    )
}

/// A term must not decrease, so that an earlier coordinator cannot take over again.
pub(crate) fn only_grows() -> Rule {
    rule("self >= oldSelf", "a term only grows: another coordinator has taken over")
}
