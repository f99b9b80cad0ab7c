//! Routes that create, list and delete sessions and bursts.

use bytes::Bytes;
use http::{HeaderMap, Method, header};
use sahasra_service::answer::Answer;
use serde_json::{Value, json};

use crate::{
    api::Caller,
    refusal::Refusal,
    route::{API_VERSION, Kind, Object},
};

const MANAGER: &str = "sahasra-gateway";
/// Default `limit` of a list: the client reads the next page with `continue`.
const PAGE: &str = "500";

pub(crate) async fn list(caller: &Caller<'_>, kind: Kind, namespace: &str) -> Result<Answer, Refusal> {
    let query = caller.query(&["limit", "continue", "labelSelector", "fieldSelector"])?;
    let more: &[(&str, &str)] = match query.number("limit", 1, 10_000)? {
        Some(_) => &[],
        None => &[("limit", PAGE)],
    };
    let path = format!("{}?{}", kind.path(namespace), query.and(more));
    caller.pass(Method::GET, &path, None).await
}

pub(crate) async fn create(caller: &Caller<'_>, kind: Kind, namespace: &str, body: &Bytes) -> Result<Answer, Refusal> {
    caller.query(&[])?;
    let object = completed(kind, body)?;
    let path = format!("{}?fieldValidation=Strict&fieldManager={MANAGER}", kind.path(namespace));
    caller.pass(Method::POST, &path, Some(Bytes::from(object.to_string()))).await
}

/// Parses the body and adds `apiVersion` and `kind` where they are missing: the path implies both.
fn completed(kind: Kind, body: &Bytes) -> Result<Value, Refusal> {
    let mut object: Value = serde_json::from_slice(body).map_err(|error| Refusal::NoJson(error.to_string()))?;
    let fields = object
        .as_object_mut()
        .ok_or_else(|| Refusal::NoJson("expected an object".to_owned()))?;
    for (field, right) in [("apiVersion", API_VERSION), ("kind", kind.name())] {
        let given = fields.entry(field).or_insert_with(|| json!(right));
        if given != right {
            return Err(Refusal::field(field, format!("must be {right}, or omitted")));
        }
    }
    // The API server would answer a create with a resource version with status 500.
    if object["metadata"]["resourceVersion"]
        .as_str()
        .is_some_and(|version| !version.is_empty())
    {
        let problem = "is set by the API server on creation: omit it";
        return Err(Refusal::field("metadata.resourceVersion", problem));
    }
    Ok(object)
}

/// Deletes an object, with the propagation policy of the query (default `Background`).
pub(crate) async fn delete(caller: &Caller<'_>, object: &Object) -> Result<Answer, Refusal> {
    let query = caller.query(&["propagationPolicy"])?;
    let policy = query.get("propagationPolicy").unwrap_or("Background");
    if !["Background", "Foreground", "Orphan"].contains(&policy) {
        let problem = "expected Background, Foreground or Orphan";
        return Err(Refusal::field("query.propagationPolicy", problem));
    }
    let path = format!("{}?propagationPolicy={policy}", object.path());
    caller.pass(Method::DELETE, &path, None).await
}

/// Checks that the content type is JSON. A missing content type is accepted too, as kubectl omits it.
pub(crate) fn is_json(headers: &HeaderMap) -> Result<(), Refusal> {
    let Some(given) = headers.get(header::CONTENT_TYPE) else {
        return Ok(());
    };
    let given = given.to_str().unwrap_or("?");
    let kind = given.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case("application/json") {
        Ok(())
    } else {
        Err(Refusal::MediaType)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_may_omit_what_the_path_implies_but_must_not_contradict_it() {
        let object = completed(Kind::Session, &Bytes::from_static(b"{\"spec\": {}}")).unwrap();
        assert_eq!(
            object,
            json!({"apiVersion": "sahasra.dev/v1alpha1", "kind": "GpuSession", "spec": {}})
        );
        let refusal = completed(Kind::Session, &Bytes::from_static(b"{\"kind\": \"BurstJob\"}")).unwrap_err();
        assert_eq!(refusal.to_string(), "kind: must be GpuSession, or omitted");
        let refusal = completed(Kind::Session, &Bytes::from_static(b"{\"metadata\": {\"resourceVersion\": \"5\"}}")).unwrap_err();
        assert!(refusal.to_string().starts_with("metadata.resourceVersion: "), "{refusal}");
        for wrong in ["", "[]", "7", "{", "\"x\""] {
            assert!(completed(Kind::Burst, &Bytes::from(wrong)).is_err(), "{wrong}");
        }
    }
}
