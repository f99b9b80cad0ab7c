//! Creating what manifests say, with the API server's own words where it refuses.

use kube::{Client, core::Status};
use serde_json::Value;

use crate::manifests::Manifest;

/// Why an object was not created.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The API refused it.
    #[error("{origin}: {message}{}", listed(fields))]
    Refused {
        /// File and document.
        origin: String,
        /// The API server's message.
        message: String,
        /// Fields that it names.
        fields: Vec<String>,
    },
    /// The API did not answer.
    #[error("{origin}: the object was not created: {source}")]
    Unanswered {
        /// File and document.
        origin: String,
        /// Why.
        source: Box<kube::Error>,
    },
}

/// The fields in a line of their own, where there are any.
fn listed(fields: &[String]) -> String {
    match fields {
        [] => String::new(),
        [one] => format!("\n  field: {one}"),
        many => format!("\n  fields: {}", many.join(", ")),
    }
}

/// Creates the object, as strictly as `kubectl apply`: fields that the kind does not have are refused.
///
/// # Errors
/// [`ApplyError`].
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
