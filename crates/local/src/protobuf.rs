//! Decoding of Protocol Buffers. kubectl sends them for ConfigMaps, Secrets and Namespaces that it creates from flags (`kubectl create
//! configmap --from-file`). Responses are always JSON, which these clients accept too.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use prost::Message;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::resource::{Behaviour, Resource};

pub(crate) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";
/// Prefix of every body with this media type.
const MAGIC: &[u8] = b"k8s\0";

#[derive(Debug, thiserror::Error)]
pub(crate) enum ProtobufError {
    #[error("the body does not begin with the prefix of Kubernetes objects")]
    Prefix,
    #[error("failed to decode the body as a message of its kind")]
    Message(#[from] prost::DecodeError),
    #[error("objects of this kind are read as JSON")]
    Kind,
}

// Fields and tags as in the generated.proto files of k8s.io/apimachinery and k8s.io/api.

#[derive(Clone, PartialEq, Message)]
struct Envelope {
    #[prost(message, optional, tag = "1")]
    types: Option<Types>,
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Types {
    #[prost(string, tag = "1")]
    api_version: String,
    #[prost(string, tag = "2")]
    kind: String,
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    generate_name: String,
    #[prost(string, tag = "3")]
    namespace: String,
    #[prost(string, tag = "5")]
    uid: String,
    #[prost(string, tag = "6")]
    resource_version: String,
    #[prost(btree_map = "string, string", tag = "11")]
    labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "12")]
    annotations: BTreeMap<String, String>,
    #[prost(string, repeated, tag = "14")]
    finalizers: Vec<String>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct ConfigMap {
    #[prost(message, optional, tag = "1")]
    metadata: Option<Metadata>,
    #[prost(btree_map = "string, string", tag = "2")]
    data: BTreeMap<String, String>,
    #[prost(btree_map = "string, bytes", tag = "3")]
    #[serde(serialize_with = "encoded")]
    binary_data: BTreeMap<String, Vec<u8>>,
    #[prost(bool, optional, tag = "4")]
    immutable: Option<bool>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct Secret {
    #[prost(message, optional, tag = "1")]
    metadata: Option<Metadata>,
    #[prost(btree_map = "string, bytes", tag = "2")]
    #[serde(serialize_with = "encoded")]
    data: BTreeMap<String, Vec<u8>>,
    #[prost(string, tag = "3")]
    #[serde(rename = "type")]
    kind: String,
    #[prost(btree_map = "string, string", tag = "4")]
    string_data: BTreeMap<String, String>,
    #[prost(bool, optional, tag = "5")]
    immutable: Option<bool>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
struct Namespace {
    #[prost(message, optional, tag = "1")]
    metadata: Option<Metadata>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
struct AccessReview {
    #[prost(message, optional, tag = "2")]
    spec: Option<AccessReviewSpec>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct AccessReviewSpec {
    #[prost(message, optional, tag = "1")]
    resource_attributes: Option<ResourceAttributes>,
    #[prost(message, optional, tag = "2")]
    non_resource_attributes: Option<NonResourceAttributes>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
struct ResourceAttributes {
    #[prost(string, tag = "1")]
    namespace: String,
    #[prost(string, tag = "2")]
    verb: String,
    #[prost(string, tag = "3")]
    group: String,
    #[prost(string, tag = "4")]
    version: String,
    #[prost(string, tag = "5")]
    resource: String,
    #[prost(string, tag = "6")]
    subresource: String,
    #[prost(string, tag = "7")]
    name: String,
}

#[derive(Clone, PartialEq, Message, Serialize)]
struct NonResourceAttributes {
    #[prost(string, tag = "1")]
    path: String,
    #[prost(string, tag = "2")]
    verb: String,
}

/// Decodes a `SelfSubjectAccessReview`, which `kubectl auth can-i` sends, and returns it as JSON.
pub(crate) fn access_review(body: &[u8]) -> Result<Value, ProtobufError> {
    let mut review = AccessReview::decode(envelope(body)?.raw.as_slice())?;
    review.spec.get_or_insert_default();
    Ok(json!(review))
}

pub(crate) fn decode(body: &[u8], resource: &Resource) -> Result<Value, ProtobufError> {
    let envelope = envelope(body)?;
    let (types, raw) = (envelope.types.unwrap_or_default(), envelope.raw.as_slice());
    let mut object = match resource.behaviour {
        Behaviour::ConfigMap => json!(ConfigMap::decode(raw)?),
        Behaviour::Secret => json!(Secret::decode(raw)?),
        Behaviour::Namespace => json!(Namespace::decode(raw)?),
        _ => return Err(ProtobufError::Kind),
    };
    object["apiVersion"] = json!(types.api_version);
    object["kind"] = json!(types.kind);
    Ok(object)
}

fn envelope(body: &[u8]) -> Result<Envelope, ProtobufError> {
    Ok(Envelope::decode(body.strip_prefix(MAGIC).ok_or(ProtobufError::Prefix)?)?)
}

fn encoded<S: Serializer>(data: &BTreeMap<String, Vec<u8>>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(data.iter().map(|(key, bytes)| (key, STANDARD.encode(bytes))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::catalogue;

    #[test]
    fn an_access_review_is_read() {
        let asked = ResourceAttributes {
            verb: "create".to_owned(),
            resource: "burstjobs".to_owned(),
            ..ResourceAttributes::default()
        };
        let review = AccessReview {
            spec: Some(AccessReviewSpec {
                resource_attributes: Some(asked),
                non_resource_attributes: None,
            }),
        };
        let envelope = Envelope {
            types: None,
            raw: review.encode_to_vec(),
        };
        let read = access_review(&[MAGIC, &envelope.encode_to_vec()].concat()).expect("a review");
        assert_eq!(read["spec"]["resourceAttributes"]["resource"], "burstjobs");
        assert!(read["spec"]["nonResourceAttributes"].is_null());
    }

    #[test]
    fn a_config_map_is_read_and_other_kinds_are_not() {
        let config_map = ConfigMap {
            metadata: Some(Metadata {
                name: "a".to_owned(),
                ..Metadata::default()
            }),
            data: BTreeMap::from([("k".to_owned(), "v".to_owned())]),
            ..ConfigMap::default()
        };
        let envelope = Envelope {
            types: Some(Types {
                api_version: "v1".to_owned(),
                kind: "ConfigMap".to_owned(),
            }),
            raw: config_map.encode_to_vec(),
        };
        let body = [MAGIC, &envelope.encode_to_vec()].concat();
        let resources = &catalogue().resources;
        let kept = |behaviour| {
            resources
                .iter()
                .find(|resource| resource.behaviour == behaviour)
                .expect("it is served")
        };
        let read = decode(&body, kept(Behaviour::ConfigMap)).expect("a ConfigMap");
        assert_eq!(
            (&read["metadata"]["name"], &read["data"]["k"], &read["kind"]),
            (&json!("a"), &json!("v"), &json!("ConfigMap"))
        );
        assert!(matches!(decode(&body, kept(Behaviour::Node)), Err(ProtobufError::Kind)));
        assert!(matches!(decode(b"{}", kept(Behaviour::ConfigMap)), Err(ProtobufError::Prefix)));
    }
}
