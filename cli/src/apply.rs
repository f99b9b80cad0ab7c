//! Creates the objects of manifests, and reports rejections with the API server's message.

use kube::{Client, core::Status};
use serde_json::Value;

use crate::manifests::Manifest;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ApplyError {
    #[error("{origin}: {message}{}", listed(fields))]
    Refused {
        origin: String,
        message: String,
        fields: Vec<String>,
    },
    #[error("{origin}: the object was not created: {source}")]
    Unanswered { origin: String, source: Box<kube::Error> },
}

const NO_FIELD: &str = "<nil>";

/// Formats the fields as a line of its own, or nothing if there are none.
fn listed(fields: &[String]) -> String {
    match fields {
        [] => String::new(),
        [one] => format!("\n  field: {one}"),
        many => format!("\n  fields: {}", many.join(", ")),
    }
}

/// Creates the object, with the strictness of `kubectl apply`: unknown fields are rejected. Returns the created object.
pub(crate) async fn create(client: &Client, manifest: &Manifest) -> Result<Value, ApplyError> {
    let path = manifest.kind.path(&manifest.namespace);
    let request = http::Request::post(format!("{path}?fieldManager=sahasra&fieldValidation=Strict"))
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(manifest.object.to_string().into_bytes())
        .expect("a kind's path and two headers make a request");
    client.request(request).await.map_err(|error| match error {
        kube::Error::Api(status) => refused(manifest, &status),
        source => ApplyError::Unanswered {
            origin: manifest.origin.to_string(),
            source: Box::new(source),
        },
    })
}

fn refused(manifest: &Manifest, status: &Status) -> ApplyError {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let mut fields: Vec<String> = Vec::new();
    for cause in causes.filter(|cause| !cause.field.is_empty() && cause.field != NO_FIELD) {
        if !fields.contains(&cause.field) {
            fields.push(cause.field.clone());
        }
    }
    ApplyError::Refused {
        origin: manifest.origin.to_string(),
        message: without_notes(status),
        fields,
    }
}

/// Returns the message without the errors that name no field, unless there are no others. With such an error the API server says that it
/// skipped rules because of the other errors.
fn without_notes(status: &Status) -> String {
    let causes: Vec<_> = status.details.iter().flat_map(|details| &details.causes).collect();
    let errors = causes.iter().filter(|cause| cause.field != NO_FIELD).count();
    if errors == 0 {
        return status.message.clone();
    }
    let mut message = status.message.clone();
    for note in causes.iter().filter(|cause| cause.field == NO_FIELD) {
        let text = format!("{NO_FIELD}: {}", note.message);
        message = message.replace(&format!(", {text}"), "").replace(&format!("{text}, "), "");
    }
    // A list has brackets, a single error has none.
    if errors == 1
        && message != status.message
        && let Some((head, list)) = message.split_once(": [")
        && let Some(error) = list.strip_suffix(']')
    {
        message = format!("{head}: {error}");
    }
    message
}

#[cfg(test)]
mod tests {
    use kube::core::response::{StatusCause, StatusDetails};

    use super::*;

    fn status(errors: &[(&str, &str)]) -> Status {
        let listed: Vec<String> = errors.iter().map(|(field, message)| format!("{field}: {message}")).collect();
        let list = match &listed[..] {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let cause = |(field, message): &(&str, &str)| StatusCause {
            reason: "FieldValueInvalid".to_owned(),
            message: (*message).to_owned(),
            field: (*field).to_owned(),
        };
        Status {
            message: format!("BurstJob.sahasra.dev \"a\" is invalid: {list}"),
            details: Some(StatusDetails {
                name: "a".to_owned(),
                group: "sahasra.dev".to_owned(),
                kind: "BurstJob".to_owned(),
                uid: String::new(),
                causes: errors.iter().map(cause).collect(),
                retry_after_seconds: 0,
            }),
            ..Status::default()
        }
    }

    #[test]
    fn a_note_on_skipped_rules_is_omitted_if_there_are_errors() {
        let note = (
            "<nil>",
            "Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to \
             complete validation",
        );
        let (one, two) = (
            ("spec.chunks", "Required value"),
            ("spec.slices", "Invalid value: 3: [1, 2] is right"),
        );
        let head = "BurstJob.sahasra.dev \"a\" is invalid: ";
        for (errors, expected) in [
            (vec![one, note], format!("{head}spec.chunks: Required value")),
            (vec![two, note], format!("{head}spec.slices: {}", two.1)),
            (
                vec![one, note, two],
                format!("{head}[spec.chunks: Required value, spec.slices: {}]", two.1),
            ),
            (vec![note, one], format!("{head}spec.chunks: Required value")),
            (vec![two], format!("{head}spec.slices: {}", two.1)),
            (vec![note], format!("{head}<nil>: {}", note.1)),
        ] {
            assert_eq!(without_notes(&status(&errors)), expected);
        }
    }
}
