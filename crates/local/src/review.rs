//! `SelfSubjectAccessReview` and `SelfSubjectReview`. The embedded control plane has one identity, which may do everything.

use http::{Method, StatusCode};
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use serde_json::{Value, json};

use crate::protobuf;
use crate::refusal::{FieldError, Refusal, about};
use crate::service::{self, ApiResponse};

const USER: &str = "sahasra";
const ACCESS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
const IDENTITY: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// Responds to a review in JSON; `None` if the path is not that of reviews. Reviews are answered and not stored, as in the API server: the
/// only method is POST. An access review may also be protobuf, which kubectl sends.
pub(crate) fn answer(path: &str, method: &Method, content_type: &str, body: &[u8]) -> Option<Result<ApiResponse, Refusal>> {
    Some(match path {
        ACCESS | IDENTITY if method != Method::POST => Err(Refusal::method_not_allowed()),
        ACCESS => access(content_type, body),
        IDENTITY => Ok(service::json(
            StatusCode::CREATED,
            &json!({
                "kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1", "metadata": {},
                "status": {"userInfo": {"username": USER, "groups": ["system:authenticated"]}},
            }),
        )),
        _ => return None,
    })
}

fn access(content_type: &str, body: &[u8]) -> Result<ApiResponse, Refusal> {
    let wrong = |why: String| {
        Refusal::bad_request(format!(
            "SelfSubjectAccessReview in version \"v1\" cannot be handled as a SelfSubjectAccessReview: {why}"
        ))
    };
    let review: SelfSubjectAccessReview = match content_type {
        protobuf::MEDIA_TYPE => {
            let review = protobuf::access_review(body).map_err(|error| wrong(error.to_string()))?;
            serde_json::from_value(review).map_err(|error| wrong(error.to_string()))?
        }
        _ => serde_json::from_slice(body).map_err(|error| wrong(error.to_string()))?,
    };
    let spec = &review.spec;
    let mistake = match (&spec.resource_attributes, &spec.non_resource_attributes) {
        (Some(_), Some(asked)) => Some((
            "spec.nonResourceAttributes",
            json!(asked),
            "cannot be specified in combination with resourceAttributes",
        )),
        (None, None) => Some((
            "spec.resourceAttributes",
            Value::Null,
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        )),
        _ => None,
    };
    if let Some((field, value, why)) = mistake {
        let error = FieldError::invalid(field, value, why);
        return Err(Refusal::invalid(about("authorization.k8s.io", "", ""), &[error]));
    }
    let status = json!({"allowed": true, "reason": "there is one identity here, and it may do everything"});
    let answer = json!({
        "kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "metadata": {}, "spec": spec, "status": status,
    });
    Ok(service::json(StatusCode::CREATED, &answer))
}
