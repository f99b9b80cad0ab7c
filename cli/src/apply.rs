//! Creates the objects of manifests, and reports rejections with the API server's message.

use kube::{Client, core::Status};
use serde_json::Value;

use crate::manifests::Manifest;

/// An object was not created.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The API server rejected the object.
    #[error("{origin}: {message}{}", listed(fields))]
    Refused {
        /// File and document number of the manifest.
        origin: String,
        /// Message of the API server.
        message: String,
        /// Fields that the message is about.
        fields: Vec<String>,
    },
    /// The API server gave no answer.
    #[error("{origin}: the object was not created: {source}")]
    Unanswered {
        /// File and document number of the manifest.
        origin: String,
        source: Box<kube::Error>,
    },
}

/// Formats the fields as a line of its own, or nothing if there are none.
fn listed(fields: &[String]) -> String {
    match fields {
        [] => String::new(),
        [one] => format!("\n  field: {one}"),
        many => format!("\n  fields: {}", many.join(", ")),
    }
}

/// Creates the object, with the strictness of `kubectl apply`: unknown fields are rejected. Returns the created object.
///
/// # Errors
/// [`ApplyError`] when the API server rejects the object or does not answer.
pub async fn create(client: &Client, manifest: &Manifest) -> Result<Value, ApplyError> {
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
    for cause in causes.filter(|cause| !cause.field.is_empty()) {
        if !fields.contains(&cause.field) {
            fields.push(cause.field.clone());
        }
    }
    ApplyError::Refused {
        origin: manifest.origin.to_string(),
        message: status.message.clone(),
        fields,
    }
}
