//! `SelfSubjectAccessReview` and `SelfSubjectReview`. The embedded control plane has one identity, which may do everything.

use http::{Method, StatusCode};
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use serde_json::{Value, json};

use crate::protobuf;
use crate::refusal::{FieldError, Mistake, Refusal, about};
use crate::service::{self, Answer};

const USER: &str = "sahasra";

/// A kind of review. Reviews are answered and not stored, as in the API server: the only method is POST.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Review {
    Access,
    Identity,
}

impl Review {
    /// The kind whose collection has this path; `None` for all other paths.
    pub(crate) fn at(path: &str) -> Option<Self> {
        match path {
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" => Some(Self::Access),
            "/apis/authentication.k8s.io/v1/selfsubjectreviews" => Some(Self::Identity),
            _ => None,
        }
    }

    /// Responds to a review in JSON. Accepts JSON, and for an access review also protobuf, which kubectl sends.
    pub(crate) fn answer(self, method: &Method, content_type: &str, body: &[u8]) -> Result<Answer, Refusal> {
        if method != Method::POST {
            return Err(Refusal::method_not_allowed());
        }
        match self {
            Self::Access => access(content_type, body),
            Self::Identity => Ok(service::json(
                StatusCode::CREATED,
                &json!({
                    "kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1", "metadata": {},
                    "status": {"userInfo": {"username": USER, "groups": ["system:authenticated"]}},
                }),
            )),
        }
    }
}

fn access(content_type: &str, body: &[u8]) -> Result<Answer, Refusal> {
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
        return Err(Refusal::invalid(about("authorization.k8s.io", "", ""), &[mistake]));
    }
    let status = json!({"allowed": true, "reason": "there is one identity here, and it may do everything"});
    let answer = json!({
        "kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "metadata": {}, "spec": spec, "status": status,
    });
    Ok(service::json(StatusCode::CREATED, &answer))
}
