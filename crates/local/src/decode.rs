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
    pub fn parse(text: &str) -> Result<Self, Refusal> {
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
}

pub(crate) fn parse(body: &[u8], resource: &Resource) -> Result<Value, Refusal> {
    let mut object: Value = serde_json::from_slice(body).map_err(|error| {
        Refusal::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): couldn't get version/kind; json parse error: {error}",
            resource.kind
        ))
    })?;
    check_type(&mut object, resource)?;
    Ok(object)
}

/// Checks that an object has the kind and API version of the request's path. Sets absent ones if the kind allows that.
pub(crate) fn check_type(object: &mut Value, resource: &Resource) -> Result<(), Refusal> {
    if !object.is_object() {
        return Err(Refusal::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): it is not a JSON object",
            resource.kind
        )));
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
                return Err(Refusal::bad_request(format!(
                    "{given} in version {} cannot be handled as a {}: converting (v1.{given}) to (v1.{}): unknown conversion",
                    object::quoted(&resource.version),
                    resource.kind,
                    resource.kind
                )));
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
    let mut unknown = schema::prune::prune(object, &resource.schema);
    if resource.is_custom() {
        let mut metadata = object["metadata"].take();
        if metadata.is_null() {
            metadata = json!({});
        }
        schema::decode::strings(&mut metadata, &catalogue.metadata);
        refuse_wrong_types(&metadata, &catalogue.metadata, "ObjectMeta", resource)?;
        let in_metadata = schema::prune::prune(&mut metadata, &catalogue.metadata);
        unknown.extend(in_metadata.into_iter().map(|field| format!("metadata.{field}")));
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
    let is_wrong = |error: &FieldError| error.mistake == Mistake::TypeInvalid && error.value.as_ref().is_none_or(|found| found != "null");
    let Some(error) = errors.into_iter().find(is_wrong) else {
        return Ok(());
    };
    let found = match error.value.as_ref().and_then(Value::as_str).unwrap_or_default() {
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
    Err(Refusal::bad_request(format!(
        "{} in version {} cannot be handled as a {}: json: cannot unmarshal {found} into Go struct field {kind}.{} of type {wanted}",
        resource.kind,
        object::quoted(&resource.version),
        resource.kind,
        declared(&error.field, schema)
    )))
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

pub(crate) fn strict_message(unknown: &[String]) -> String {
    format!("strict decoding error: {}", unknown_fields(unknown).join(", "))
}

pub(crate) fn unknown_fields(paths: &[String]) -> Vec<String> {
    let quoted = paths.iter().map(|path| object::quoted(path));
    quoted.map(|path| format!("unknown field {path}")).collect()
}
