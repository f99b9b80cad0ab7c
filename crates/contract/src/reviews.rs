//! Reviews of the caller's own access and identity.

use serde_json::{Value, json};

use crate::subject::Subject;

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

fn review(spec: Value) -> Value {
    json!({"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "spec": spec})
}

pub async fn a_caller_may_review_its_own_access(subject: &Subject) {
    let stream = json!({
        "verb": "create", "group": "sahasra.dev", "resource": "gpusessions", "subresource": "stream",
        "namespace": subject.namespace, "name": "mine",
    });
    let asked = review(json!({"resourceAttributes": stream})).to_string();
    let answer = subject
        .send_to("POST", REVIEWS, "application/json", asked.into_bytes())
        .await
        .unwrap();
    assert_eq!(answer["status"]["allowed"], true);
    assert_ne!(answer["status"]["denied"], true);
    assert_eq!(answer["kind"], "SelfSubjectAccessReview");
    assert_eq!(answer["spec"]["resourceAttributes"]["subresource"], "stream");
    assert!(answer["metadata"].get("uid").is_none(), "it is not kept");
}

pub async fn a_review_of_no_or_two_actions_is_rejected(subject: &Subject) {
    let two = json!({"resourceAttributes": {"verb": "get"}, "nonResourceAttributes": {"path": "/", "verb": "get"}});
    for (spec, field, why) in [
        (
            json!({}),
            "spec.resourceAttributes",
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        ),
        (
            two,
            "spec.nonResourceAttributes",
            "cannot be specified in combination with resourceAttributes",
        ),
    ] {
        let asked = review(spec).to_string().into_bytes();
        let refused = subject.send_to("POST", REVIEWS, "application/json", asked).await.unwrap_err();
        assert_eq!((refused.code, refused.reason.as_str()), (422, "Invalid"));
        let causes = refused.details.unwrap().causes;
        assert_eq!((causes.len(), causes[0].field.as_str()), (1, field));
        assert!(causes[0].message.ends_with(why), "{}", causes[0].message);
    }
}

pub async fn reviews_are_not_kept(subject: &Subject) {
    let refused = subject.send_to("GET", REVIEWS, "application/json", Vec::new()).await.unwrap_err();
    assert_eq!((refused.code, refused.reason.as_str()), (405, "MethodNotAllowed"));
}
