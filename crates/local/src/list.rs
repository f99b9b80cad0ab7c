//! Lists: selectors, pages, and lists as of a revision.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use serde_json::{Value, json};

use crate::refusal::Refusal;
use crate::request::Query;
use crate::selector::Selector;
use crate::store::{Key, Store};

#[derive(Debug)]
pub(crate) struct Page {
    pub items: Vec<Arc<Value>>,
    pub metadata: ListMeta,
}

const EXPIRED: &str = "The provided continue parameter is too old to display a consistent list result. You can start a new list without \
     the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the \
     provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk \
     was returned and now may show up in the list.";

/// Encodes a continue token in the API server's format: the revision of the list, and the key after which the next page begins.
fn encode(revision: i64, start: &str) -> String {
    URL_SAFE_NO_PAD.encode(json!({"v": "meta.k8s.io/v1", "rv": revision, "start": start}).to_string())
}

fn decode(token: &str) -> Result<(i64, String), Refusal> {
    let invalid = || Refusal::bad_request("invalid continue token: continue key is not valid");
    let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| invalid())?;
    let token: Value = serde_json::from_slice(&bytes).map_err(|_| invalid())?;
    let start = token["start"].as_str().filter(|start| !start.is_empty()).ok_or_else(invalid)?;
    Ok((
        token["rv"].as_i64().filter(|revision| *revision != 0).ok_or_else(invalid)?,
        start.to_owned(),
    ))
}

fn path(key: &Key, namespace: Option<&str>) -> String {
    if namespace.is_some() || key.namespace.is_empty() {
        key.name.clone()
    } else {
        format!("{}/{}", key.namespace, key.name)
    }
}

/// Fails with [`Refusal::expired`] (410) if the revision of a list or of its continue token is no longer available.
pub(crate) fn list(store: &Store, resource: usize, namespace: Option<&str>, selector: &Selector, query: &Query) -> Result<Page, Refusal> {
    let limit = query.number("limit")?.unwrap_or_default();
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let asked = query.number("resourceVersion")?.unwrap_or_default();
    let current = store.revision;
    if asked > current {
        return Err(Refusal::too_large_resource_version(asked, current));
    }
    let token = query.text("continue");
    let (mut revision, mut after) = (current, None);
    if !token.is_empty() {
        let (token_revision, start) = decode(token)?;
        revision = u64::try_from(token_revision).unwrap_or(current);
        if asked > 0 {
            return Err(Refusal::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        after = Some(start);
    } else if query.text("resourceVersionMatch") == "Exact" {
        revision = asked;
    }
    let objects = store.objects_at(resource, namespace, revision).ok_or_else(|| match &after {
        Some(start) => Refusal::expired(EXPIRED, Some(encode(-1, start))),
        None => Refusal::expired("The resourceVersion for the provided list is too old.", None),
    })?;
    let start = after.as_deref().map(|start| {
        let start = start.trim_end_matches('\0');
        match (namespace, start.split_once('/')) {
            (None, Some((namespace, name))) => (namespace.to_owned(), name.to_owned()),
            _ => (namespace.unwrap_or_default().to_owned(), start.to_owned()),
        }
    });
    let is_after = |key: &Key| {
        start
            .as_ref()
            .is_none_or(|(namespace, name)| (&key.namespace, &key.name) > (namespace, name))
    };
    let mut rest = objects
        .into_iter()
        .filter(|(key, object)| is_after(key) && selector.matches(object));
    let (mut items, mut last) = (Vec::new(), None);
    for (key, object) in rest.by_ref().take(if limit == 0 { usize::MAX } else { limit }) {
        items.push(object);
        last = Some(path(&key, namespace));
    }
    let mut metadata = ListMeta {
        resource_version: Some(revision.to_string()),
        ..ListMeta::default()
    };
    let left = rest.count();
    if let (true, Some(last)) = (left > 0, last) {
        let revision = i64::try_from(revision).unwrap_or(i64::MAX);
        metadata.continue_ = Some(encode(revision, &format!("{last}\0")));
        metadata.remaining_item_count = selector.is_empty().then(|| i64::try_from(left).unwrap_or(i64::MAX));
    }
    Ok(Page { items, metadata })
}
