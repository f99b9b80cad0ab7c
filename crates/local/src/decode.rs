//! Decoding of request bodies to normalized objects.

use serde_json::{Value, json};

use crate::built_in;
use crate::events;
use crate::object;
use crate::refusal::{FieldError, Mistake, Refusal, about};
use crate::resource::{Behaviour, Catalogue, Resource};
use crate::schema;

/// Treatment of unknown fields (`fieldValidation`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

impl FieldValidation {
    pub(crate) fn parse(text: &str) -> Result<Self, Refusal> {
        match text {
            "" | "Warn" => Ok(Self::Warn),
            "Ignore" => Ok(Self::Ignore),
            "Strict" => Ok(Self::Strict),
            other => Err(Refusal::bad_request(format!(
                "invalid fieldValidation: Unsupported value: {}: supported values: \"\", \"Ignore\", \"Strict\", \"Warn\"",
                object::quoted(other)
            ))),
        }
    }

    /// Returns warnings about unknown fields, or the error of `refuse` if there must be none.
    pub(crate) fn check(self, unknown: &[String], refuse: impl FnOnce(&str) -> Refusal) -> Result<Vec<String>, Refusal> {
        let texts: Vec<String> = unknown
            .iter()
            .map(|path| format!("unknown field {}", object::quoted(path)))
            .collect();
        match self {
            Self::Strict if !texts.is_empty() => Err(refuse(&format!("strict decoding error: {}", texts.join(", ")))),
            Self::Warn => Ok(texts),
            _ => Ok(Vec::new()),
        }
    }
}

pub(crate) fn parse(body: &[u8], resource: &Resource) -> Result<Value, Refusal> {
    serde_json::from_slice(body).map_err(|error| unrecognized(resource, &format!("couldn't get version/kind; json parse error: {error}")))
}

fn unrecognized(resource: &Resource, why: &str) -> Refusal {
    Refusal::bad_request(format!(
        "the object provided is unrecognized (must be of type {}): {why}",
        resource.kind
    ))
}

/// Checks that an object has the kind and API version of the request's path. Sets absent ones if the kind allows that.
pub(crate) fn check_type(object: &mut Value, resource: &Resource) -> Result<(), Refusal> {
    if !object.is_object() {
        return Err(unrecognized(resource, "it is not a JSON object"));
    }
    let api_version = resource.api_version();
    for (field, expected, what) in [
        ("kind", resource.kind.as_str(), "kind"),
        ("apiVersion", &api_version, "API version"),
    ] {
        match object[field].as_str().unwrap_or_default() {
            "" if resource.is_custom() && field == "kind" => {
                return Err(Refusal::bad_request(format!("Object 'Kind' is missing in '{object}'")));
            }
            "" => object[field] = json!(expected),
            given if given == expected => {}
            given if field == "kind" && resource.is_custom() => {
                let error = FieldError::invalid("kind", given, format!("must be {expected}"));
                return Err(Refusal::invalid(about(&resource.group, given, object::name(object)), &[error]));
            }
            given if field == "kind" => {
                let why = format!("converting (v1.{given}) to (v1.{}): unknown conversion", resource.kind);
                return Err(resource.cannot_handle(given, &why));
            }
            given => {
                return Err(Refusal::bad_request(format!(
                    "the {what} in the data ({given}) does not match the expected {what} ({expected})"
                )));
            }
        }
    }
    Ok(())
}

/// Removes unknown fields and sets defaults. Returns the paths of the unknown fields.
pub(crate) fn normalise(object: &mut Value, resource: &Resource, catalogue: &Catalogue) -> Result<Vec<String>, Refusal> {
    let mut unknown = Vec::new();
    schema::prune::prune(object, &resource.schema, "", &mut unknown);
    if resource.is_custom() {
        let mut metadata = object["metadata"].take();
        if metadata.is_null() {
            metadata = json!({});
        }
        schema::decode::strings(&mut metadata, &catalogue.metadata);
        refuse_wrong_types(&metadata, &catalogue.metadata, "ObjectMeta", resource)?;
        schema::prune::prune(&mut metadata, &catalogue.metadata, "metadata", &mut unknown);
        object["metadata"] = metadata;
        schema::default::fill(object, &resource.schema);
        schema::decode::integers(object, &resource.schema);
    } else {
        schema::decode::strings(object, &resource.schema);
        refuse_wrong_types(object, &resource.schema, &resource.kind, resource)?;
        built_in::normalise(object, resource);
        if resource.behaviour == Behaviour::NewEvent {
            events::to_core(object);
        }
    }
    object::tidy_metadata(object);
    Ok(unknown)
}

/// Rejects wrong types before validation: the API server decodes built-in kinds into Go structs, which fails for a wrong type.
fn refuse_wrong_types(value: &Value, schema: &schema::Schema, kind: &str, resource: &Resource) -> Result<(), Refusal> {
    let errors = schema::validate::validate(value, None, schema, "");
    // Go decodes null as the zero value of any type.
    let is_wrong = |error: &FieldError| error.mistake == Mistake::TypeInvalid && error.value != "null";
    let Some(error) = errors.into_iter().find(is_wrong) else {
        return Ok(());
    };
    let found = match error.value.as_str().unwrap_or_default() {
        "integer" => "number",
        "boolean" => "bool",
        found => found,
    };
    let wanted = error.detail.split("must be of type ").nth(1).unwrap_or_default();
    let wanted = match wanted.split(':').next().unwrap_or_default() {
        "integer" => "int64",
        "boolean" => "bool",
        "object" => "map[string]string",
        other => other,
    };
    let field = declared(&error.field, schema);
    let why = format!("json: cannot unmarshal {found} into Go struct field {kind}.{field} of type {wanted}");
    Err(resource.cannot_handle(&resource.kind, &why))
}

/// The field names of a path, without map keys and list indices, because Go's error message contains only struct fields.
fn declared(path: &str, schema: &schema::Schema) -> String {
    let (mut at, mut fields) = (Some(schema), Vec::new());
    for part in path.split('.') {
        let name = part.split('[').next().unwrap_or_default();
        if at.is_some_and(|schema| schema.properties.contains_key(name)) {
            fields.push(name);
        }
        at = at.and_then(|schema| schema.field(name));
        if part.contains('[') {
            at = at.and_then(|schema| schema.items.as_deref());
        }
    }
    fields.join(".")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::catalogue;

    #[test]
    fn a_value_that_is_no_object_is_rejected() {
        for value in [json!(3), json!([]), json!("a"), Value::Null] {
            for resource in &catalogue().resources {
                assert!(check_type(&mut value.clone(), resource).is_err(), "{value}");
            }
        }
    }
}
