//! `SelfSubjectAccessReview` and `SelfSubjectReview`: a caller asks what it may do, and who it is. There is one identity here, and it may
//! do everything.

use http::{Method, StatusCode};
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use serde_json::{Value, json};

use crate::protobuf;
use crate::refusal::{About, FieldError, Mistake, Refusal};
use crate::service::Answer;

/// Name of the one identity.
const USER: &str = "sahasra";

/// A kind of review. They are not kept: there is nothing to read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Review {
    /// What the caller may do.
    Access,
    /// Who the caller is.
    Identity,
}

impl Review {
    /// The kind that is made at that path.
    pub(crate) fn at(path: &str) -> Option<Self> {
        match path {
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" => Some(Self::Access),
            "/apis/authentication.k8s.io/v1/selfsubjectreviews" => Some(Self::Identity),
            _ => None,
        }
    }

    /// Answers a review.
    ///
    /// # Errors
    /// When it asks for nothing, or for two things at once; when it is no review; another method than POST.
    pub(crate) fn answer(self, method: &Method, content_type: &str, body: &[u8]) -> Result<Answer, Refusal> {
        if method != Method::POST {
            return Err(Refusal::MethodNotAllowed);
        }
        match self {
            Self::Access => access(content_type, body),
            Self::Identity => Ok(Answer::json(
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
        Refusal::BadRequest(format!(
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
