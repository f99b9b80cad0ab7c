//! Paths other than objects: discovery, version, health and OpenAPI.

use http::StatusCode;
use serde_json::{Value, json};

use crate::openapi;
use crate::refusal::Refusal;
use crate::resource::{Behaviour, Catalogue, Resource, catalogue, group_version};
use crate::service::{self, ApiResponse};

/// Kubernetes version whose behaviour this API implements: major, minor and full version.
const KUBERNETES: (&str, &str, &str) = ("1", "34", "v1.34.4+sahasra");

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

pub(crate) fn answer(path: &str, accept: &str) -> Result<ApiResponse, Refusal> {
    let catalogue = catalogue();
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let json = |value: Value| Some(service::json(StatusCode::OK, &value));
    let answer = match parts[..] {
        ["healthz" | "readyz" | "livez"] => Some(service::ok("text/plain; charset=utf-8", "ok")),
        ["version"] => json(version()),
        ["api"] if wants_aggregated(accept) => Some(aggregated(catalogue, |group| group.is_empty())),
        ["apis"] if wants_aggregated(accept) => Some(aggregated(catalogue, |group| !group.is_empty())),
        ["api"] => json(json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})),
        ["apis"] => json(json!({
            "kind": "APIGroupList", "apiVersion": "v1",
            "groups": groups(catalogue).iter().filter(|(group, _)| !group.is_empty()).map(|(group, version)| api_group(group, version)).collect::<Vec<_>>(),
        })),
        ["api", version] => resources(catalogue, "", version).and_then(json),
        ["apis", group] => {
            let found = groups(catalogue).into_iter().find(|(name, _)| *name == group);
            found.and_then(|(group, version)| {
                let mut group = api_group(group, version);
                group["kind"] = json!("APIGroup");
                group["apiVersion"] = json!("v1");
                json(group)
            })
        }
        ["apis", group, version] => resources(catalogue, group, version).and_then(json),
        ["openapi", "v2"] => Some(openapi::version_two(accept)),
        ["openapi", "v3"] => json(openapi::index(&groups(catalogue))),
        ["openapi", "v3", "api", version] => openapi::document(catalogue, "", version).and_then(json),
        ["openapi", "v3", "apis", group, version] => openapi::document(catalogue, group, version).and_then(json),
        [""] => {
            let paths = [
                "/api",
                "/api/v1",
                "/apis",
                "/healthz",
                "/livez",
                "/openapi/v2",
                "/openapi/v3",
                "/readyz",
                "/version",
            ];
            json(json!({ "paths": paths }))
        }
        _ => None,
    };
    answer.ok_or_else(Refusal::no_such_path)
}

fn version() -> Value {
    let (major, minor, version) = KUBERNETES;
    json!({
        "major": major, "minor": minor, "gitVersion": version, "gitCommit": "", "gitTreeState": "", "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "", "compiler": "rustc", "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}

fn wants_aggregated(accept: &str) -> bool {
    accept
        .split(',')
        .any(|media| media.contains("as=APIGroupDiscoveryList") && media.contains("v=v2") && !media.contains("v2beta1"))
}

fn groups(catalogue: &Catalogue) -> Vec<(&str, &str)> {
    let mut groups: Vec<(&str, &str)> = Vec::new();
    for resource in &catalogue.resources {
        let group = (resource.group.as_str(), resource.version.as_str());
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    groups
}

fn api_group(group: &str, version: &str) -> Value {
    let version = json!({"groupVersion": format!("{group}/{version}"), "version": version});
    json!({"name": group, "versions": [version], "preferredVersion": version})
}

fn verbs(resource: &Resource) -> Vec<&'static str> {
    let mut verbs = vec!["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
    if resource.behaviour == Behaviour::Namespace {
        verbs.retain(|verb| *verb != "deletecollection");
    }
    verbs
}

fn resources(catalogue: &Catalogue, group: &str, version: &str) -> Option<Value> {
    let mut list = Vec::new();
    for resource in catalogue.of_version(group, version) {
        let mut entry = json!({
            "name": resource.plural, "singularName": resource.singular, "namespaced": resource.namespaced, "kind": resource.kind,
            "verbs": verbs(resource),
        });
        add_names(&mut entry, resource);
        list.push(entry);
        if resource.has_status() {
            list.push(json!({
                "name": format!("{}/status", resource.plural), "singularName": "", "namespaced": resource.namespaced,
                "kind": resource.kind, "verbs": ["get", "patch", "update"],
            }));
        }
    }
    let group_version = group_version(group, version);
    (!list.is_empty()).then(|| json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": list}))
}

fn add_names(entry: &mut Value, resource: &Resource) {
    for (field, names) in [("shortNames", &resource.short_names), ("categories", &resource.categories)] {
        if !names.is_empty() {
            entry[field] = json!(names);
        }
    }
}

fn aggregated(catalogue: &Catalogue, wanted: impl Fn(&str) -> bool) -> ApiResponse {
    let items: Vec<Value> = groups(catalogue)
        .into_iter()
        .filter(|(group, _)| wanted(group))
        .map(|(group, version)| {
            let resources: Vec<Value> = catalogue.of_version(group, version).map(aggregated_resource).collect();
            let version = json!({"version": version, "freshness": "Current", "resources": resources});
            let metadata = if group.is_empty() {
                json!({"creationTimestamp": null})
            } else {
                json!({"name": group, "creationTimestamp": null})
            };
            json!({"metadata": metadata, "versions": [version]})
        })
        .collect();
    let list = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items});
    service::ok(AGGREGATED, list.to_string())
}

fn aggregated_resource(resource: &Resource) -> Value {
    let response_kind = json!({"group": resource.group, "version": resource.version, "kind": resource.kind});
    let mut entry = json!({
        "resource": resource.plural, "responseKind": response_kind, "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": resource.singular, "verbs": verbs(resource),
    });
    add_names(&mut entry, resource);
    if resource.has_status() {
        entry["subresources"] = json!([{"subresource": "status", "responseKind": response_kind, "verbs": ["get", "patch", "update"]}]);
    }
    entry
}
