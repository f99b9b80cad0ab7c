//! Sessions and bursts as objects: create, get, list, delete.

use bytes::Bytes;
use http::{HeaderMap, Method, header};
use serde_json::{Value, json};

use crate::{api::ApiServer, query::Query, refusal::Refusal, route::Kind, service::Answer, token::Token};

/// Group and version of what is served.
const API_VERSION: &str = "sahasra.dev/v1alpha1";
/// Field manager of this gateway's writes.
const MANAGER: &str = "sahasra-gateway";
/// Default `limit` of a list: the client reads the next page with `continue`.
const PAGE: &str = "500";

/// Path of all objects of a kind in a namespace, at the API server.
pub fn collection(kind: Kind, namespace: &str) -> String {
    format!("/apis/{API_VERSION}/namespaces/{namespace}/{}", kind.plural())
}

/// Path of an object, at the API server.
pub fn path(kind: Kind, namespace: &str, name: &str) -> String {
    format!("{}/{name}", collection(kind, namespace))
}

/// All objects of a kind in a namespace.
///
/// # Errors
/// A [`Refusal`].
pub async fn list(api: &ApiServer, token: &Token, kind: Kind, namespace: &str, query: Option<&str>) -> Result<Answer, Refusal> {
    let query = Query::parse(query, &["limit", "continue", "labelSelector", "fieldSelector"])?;
    let more: &[(&str, &str)] = match query.number("limit", 1, 10_000)? {
        Some(_) => &[],
        None => &[("limit", PAGE)],
    };
    let path = format!("{}?{}", collection(kind, namespace), query.and(more));
    api.pass(token, Method::GET, &path, None).await
}

/// Makes an object. A misspelt field is refused.
///
/// # Errors
/// A [`Refusal`].
pub async fn create(
    api: &ApiServer,
    token: &Token,
    kind: Kind,
    namespace: &str,
    query: Option<&str>,
    body: &Bytes,
) -> Result<Answer, Refusal> {
    Query::parse(query, &[])?;
    let object = completed(kind, body)?;
    let path = format!("{}?fieldValidation=Strict&fieldManager={MANAGER}", collection(kind, namespace));
    api.pass(token, Method::POST, &path, Some(Bytes::from(object.to_string()))).await
}

/// The body with `apiVersion` and `kind`, which may be left out: the path says them.
fn completed(kind: Kind, body: &Bytes) -> Result<Value, Refusal> {
    let mut object: Value = serde_json::from_slice(body).map_err(|error| Refusal::NoJson(error.to_string()))?;
    let fields = object
        .as_object_mut()
        .ok_or_else(|| Refusal::NoJson("it is no object".to_owned()))?;
    for (field, right) in [("apiVersion", API_VERSION), ("kind", kind.name())] {
        let given = fields.entry(field).or_insert_with(|| json!(right));
        if given != right {
            return Err(Refusal::field(field, format!("has to be {right} here, or to be left out")));
        }
    }
    // The API server would answer 500.
    if object["metadata"]["resourceVersion"]
        .as_str()
        .is_some_and(|version| !version.is_empty())
    {
        let problem = "is given by the API server when the object is made: leave it out";
        return Err(Refusal::field("metadata.resourceVersion", problem));
    }
    Ok(object)
}

/// Deletes an object.
///
/// # Errors
/// A [`Refusal`].
pub async fn delete(
    api: &ApiServer,
    token: &Token,
    kind: Kind,
    namespace: &str,
    name: &str,
    query: Option<&str>,
) -> Result<Answer, Refusal> {
    let query = Query::parse(query, &["propagationPolicy"])?;
    let policy = query.get("propagationPolicy").unwrap_or("Background");
    if !["Background", "Foreground", "Orphan"].contains(&policy) {
        let problem = "write Background, Foreground or Orphan";
        return Err(Refusal::field("query.propagationPolicy", problem));
    }
    let path = format!("{}?propagationPolicy={policy}", path(kind, namespace, name));
    api.pass(token, Method::DELETE, &path, None).await
}

/// Whether a body is said to be JSON; nothing said is right too, as with kubectl.
///
/// # Errors
/// When something else is said.
pub fn is_json(headers: &HeaderMap) -> Result<(), Refusal> {
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
    fn a_body_need_not_say_what_the_path_says_but_may_not_contradict_it() {
        let object = completed(Kind::Session, &Bytes::from_static(b"{\"spec\": {}}")).unwrap();
        assert_eq!(
            object,
            json!({"apiVersion": "sahasra.dev/v1alpha1", "kind": "GpuSession", "spec": {}})
        );
        let refusal = completed(Kind::Session, &Bytes::from_static(b"{\"kind\": \"BurstJob\"}")).unwrap_err();
        assert_eq!(refusal.to_string(), "kind: has to be GpuSession here, or to be left out");
        let refusal = completed(Kind::Session, &Bytes::from_static(b"{\"metadata\": {\"resourceVersion\": \"5\"}}")).unwrap_err();
        assert!(refusal.to_string().starts_with("metadata.resourceVersion: "), "{refusal}");
        for wrong in ["", "[]", "7", "{", "\"x\""] {
            assert!(completed(Kind::Burst, &Bytes::from(wrong)).is_err(), "{wrong}");
        }
    }
}
