//! OpenAPI v3: the parts that kubectl needs to explain kinds, and to detect that the server validates fields and supports dry runs.

use http::StatusCode;
use serde_json::{Map, Value, json};

use crate::resource::{Catalogue, Resource, root_path};
use crate::service::{self, ApiResponse};

const METADATA: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// Index of the documents. Clients cache documents by their hash, which is the version of the crate because definitions change only with
/// it.
pub(crate) fn index(groups: &[(&str, &str)]) -> Value {
    let mut paths = Map::new();
    for (group, version) in groups {
        let path = root_path(group, version);
        let url = format!("/openapi/v3/{path}?hash={}", env!("CARGO_PKG_VERSION"));
        paths.insert(path, json!({ "serverRelativeURL": url }));
    }
    json!({ "paths": paths })
}

/// An empty OpenAPI v2 document. kubectl requests it before it splits a `v1 List`, and leaves the validation of kinds that are missing from
/// it to the server. Kubernetes clients receive it as Protocol Buffers.
pub(crate) fn version_two(accept: &str) -> ApiResponse {
    // Clients request `spec.v2@v1.0`, which is not a valid media type. kube-apiserver responds with this one, and Go rejects the other.
    const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
    if !accept.contains("proto-openapi.spec.v2") {
        let info = json!({"title": "Sahasra's embedded control plane", "version": env!("CARGO_PKG_VERSION")});
        let document = json!({"swagger": "2.0", "info": info, "paths": {}, "definitions": {}});
        return service::json(StatusCode::OK, &document);
    }
    // The message `openapi.v2.Document` with only its first field, `swagger`.
    service::ok(PROTOBUF, "\x0a\x032.0")
}

pub(crate) fn document(catalogue: &Catalogue, group: &str, version: &str) -> Option<Value> {
    let mut resources = catalogue.of_version(group, version).peekable();
    resources.peek()?;
    let (mut paths, mut schemas) = (Map::new(), Map::new());
    describe_metadata(catalogue, &mut schemas);
    for resource in resources {
        let within = if resource.namespaced { "namespaces/{namespace}/" } else { "" };
        let collection = format!("/{}/{within}{}", root_path(group, version), resource.plural);
        paths.insert(
            collection.clone(),
            json!({"get": operation(resource, "list", false), "post": operation(resource, "post", true)}),
        );
        paths.insert(
            format!("{collection}/{{name}}"),
            json!({
                "get": operation(resource, "get", false),
                "put": operation(resource, "put", true),
                "patch": patch(resource),
                "delete": operation(resource, "delete", true),
            }),
        );
        schemas.insert(schema_name(resource), schema(resource));
    }
    Some(json!({
        "openapi": "3.0.0",
        "info": {"title": "Sahasra's embedded control plane", "version": env!("CARGO_PKG_VERSION")},
        "paths": paths,
        "components": {"schemas": schemas},
    }))
}

/// Adds the schema of `metadata` and the schemas that it refers to, under their Kubernetes names.
fn describe_metadata(catalogue: &Catalogue, schemas: &mut Map<String, Value>) {
    let mut metadata = catalogue.metadata_json.clone();
    // Nested schemas come first, because each schema is removed from the one that contains it.
    for (pointer, name) in [
        ("/properties/managedFields/items/properties/fieldsV1", "FieldsV1"),
        ("/properties/managedFields/items", "ManagedFieldsEntry"),
        ("/properties/ownerReferences/items", "OwnerReference"),
    ] {
        if let Some(place) = metadata.pointer_mut(pointer) {
            let full = METADATA.replace("ObjectMeta", name);
            // The description of the field stays at the field.
            let description = place["description"].clone();
            let reference = json!({"$ref": format!("#/components/schemas/{full}")});
            let described = json!({"description": description, "allOf": [reference]});
            schemas.insert(full, std::mem::replace(place, described));
        }
    }
    schemas.insert(METADATA.to_owned(), metadata);
}

fn kind(resource: &Resource) -> Value {
    json!({"group": resource.group, "version": resource.version, "kind": resource.kind})
}

fn operation(resource: &Resource, action: &str, is_write: bool) -> Value {
    let names: &[&str] = if is_write {
        &["dryRun", "fieldManager", "fieldValidation"]
    } else {
        &[]
    };
    let parameters: Vec<Value> = names
        .iter()
        .map(|name| json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}}))
        .collect();
    json!({
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": kind(resource),
        "parameters": parameters,
        "responses": {"200": {"description": "OK"}},
    })
}

fn patch(resource: &Resource) -> Value {
    let mut operation = operation(resource, "patch", true);
    let mut types = vec![
        "application/apply-patch+yaml",
        "application/json-patch+json",
        "application/merge-patch+json",
    ];
    if !resource.is_custom() {
        types.push("application/strategic-merge-patch+json");
    }
    let content: Map<String, Value> = types
        .into_iter()
        .map(|name| (name.to_owned(), json!({"schema": {"type": "object"}})))
        .collect();
    operation["requestBody"] = json!({ "content": content });
    operation
}

/// Name of a kind's schema, beginning with the group in reverse order: `dev.sahasra.v1alpha1.BurstJob`.
fn schema_name(resource: &Resource) -> String {
    let mut parts: Vec<&str> = match resource.group.split('.').next() {
        _ if resource.is_custom() => resource.group.rsplit('.').collect(),
        None | Some("") => vec!["io", "k8s", "api", "core"],
        Some(group) => vec!["io", "k8s", "api", group],
    };
    parts.extend([resource.version.as_str(), resource.kind.as_str()]);
    parts.join(".")
}

const API_VERSION: &str = "APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources";
const KIND: &str = "Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";
const METADATA_TEXT: &str =
    "Standard object's metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";

fn schema(resource: &Resource) -> Value {
    let mut schema = resource.json_schema.clone();
    schema["properties"]["apiVersion"] = json!({"type": "string", "description": API_VERSION});
    schema["properties"]["kind"] = json!({"type": "string", "description": KIND});
    let reference = json!({"$ref": format!("#/components/schemas/{METADATA}")});
    schema["properties"]["metadata"] = json!({"description": METADATA_TEXT, "default": {}, "allOf": [reference]});
    schema["x-kubernetes-group-version-kind"] = json!([kind(resource)]);
    schema
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::catalogue;

    #[test]
    fn a_kind_is_described_with_its_group_and_the_parameters_of_its_patch() {
        let document = document(catalogue(), "sahasra.dev", "v1alpha1").expect("ours");
        let schema = &document["components"]["schemas"]["dev.sahasra.v1alpha1.BurstJob"];
        assert_eq!(schema["x-kubernetes-group-version-kind"][0]["kind"], "BurstJob");
        assert!(schema["properties"]["spec"]["description"].is_string());
        let patch = &document["paths"]["/apis/sahasra.dev/v1alpha1/namespaces/{namespace}/burstjobs/{name}"]["patch"];
        assert!(patch["parameters"].to_string().contains("fieldValidation"));
        assert!(super::document(catalogue(), "apps", "v1").is_none());
    }
}
