//! `SelfSubjectAccessReview`: a caller asks what it may do. There is one identity here, and it may do everything.

use http::{Method, StatusCode};
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use serde_json::{Value, json};

use crate::refusal::{About, FieldError, Mistake, Refusal};
use crate::service::Answer;

/// Where reviews are made. They are not kept: there is nothing to read.
pub(crate) const PATH: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// Answers a review.
///
/// # Errors
/// When it asks for nothing, or for two things at once; when it is no review; another method than POST.
pub(crate) fn answer(method: &Method, body: &[u8]) -> Result<Answer, Refusal> {
    if method != Method::POST {
        return Err(Refusal::MethodNotAllowed);
    }
    let review: SelfSubjectAccessReview = serde_json::from_slice(body).map_err(|error| {
        Refusal::BadRequest(format!(
            "SelfSubjectAccessReview in version \"v1\" cannot be handled as a SelfSubjectAccessReview: {error}"
        ))
    })?;
    let spec = &review.spec;
    let mistake = match (&spec.resource_attributes, &spec.non_resource_attributes) {
        (Some(_), Some(asked)) => Some(FieldError::new(
            Mistake::Invalid,
            "spec.nonResourceAttributes",
            json!(asked),
            "cannot be specified in combination with resourceAttributes",
        )),
        (None, None) => Some(FieldError::new(
            Mistake::Invalid,
            "spec.resourceAttributes",
            Value::Null,
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        )),
        _ => None,
    };
    if let Some(mistake) = mistake {
        let about = About {
            group: "authorization.k8s.io".to_owned(),
            ..About::default()
        };
        let errors = vec![mistake];
        return Err(Refusal::Invalid { about, errors });
    }
    let status = json!({"allowed": true, "reason": "there is one identity here, and it may do everything"});
    let answer = json!({
        "kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "metadata": {}, "spec": spec, "status": status,
    });
    Ok(Answer::json(StatusCode::CREATED, &answer))
}
