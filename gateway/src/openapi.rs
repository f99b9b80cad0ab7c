//! OpenAPI 3.1 document served at `/openapi.json`: routes from `openapi/routes.json`, and schemas of objects from the custom resource
//! definitions.

use kube::CustomResourceExt;
use sahasra_crds::{BurstJob, GpuSession};
use serde_json::{Value, json};

/// The parts of the document that no Rust type defines: routes, errors and parameters.
const ROUTES: &str = include_str!("openapi/routes.json");

/// The document as JSON text. It depends on compiled-in data alone, so its errors are found by tests and not handled at run time.
pub(crate) fn document() -> String {
    let mut document: Value = serde_json::from_str(ROUTES).unwrap_or_default();
    document["info"]["version"] = json!(env!("CARGO_PKG_VERSION"));
    for (name, definition) in [("GpuSession", GpuSession::crd()), ("BurstJob", BurstJob::crd())] {
        let served = definition.spec.versions.into_iter().next();
        let schema = served.and_then(|version| version.schema?.open_api_v3_schema);
        let mut schema = serde_json::to_value(schema).unwrap_or_default();
        // The API server adds these fields; custom resource definitions leave them out.
        schema["properties"]["apiVersion"] = json!({"type": "string", "const": "sahasra.dev/v1alpha1"});
        schema["properties"]["kind"] = json!({"type": "string", "const": name});
        schema["properties"]["metadata"] = json!({"$ref": "#/components/schemas/ObjectMeta"});
        document["components"]["schemas"][name] = schema;
        document["components"]["schemas"][format!("{name}List")] = json!({
            "type": "object",
            "required": ["apiVersion", "kind", "metadata", "items"],
            "properties": {
                "apiVersion": {"type": "string"},
                "kind": {"type": "string", "const": format!("{name}List")},
                "metadata": {"type": "object", "properties": {
                    "resourceVersion": {"type": "string"},
                    "continue": {"type": "string", "description": "set if there are more objects: request them with ?continue= and this value"},
                }},
                "items": {"type": "array", "items": {"$ref": format!("#/components/schemas/{name}")}},
            },
        });
    }
    document.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::Route;
    use http::Method;

    fn parsed() -> Value {
        serde_json::from_str(&document()).unwrap()
    }

    #[test]
    fn the_document_contains_exactly_the_routes() {
        let document = parsed();
        assert_eq!(document["openapi"], "3.1.0");
        let mut labels = std::collections::BTreeSet::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            let route = Route::parse(&path.replace("{namespace}", "a").replace("{name}", "b")).unwrap();
            labels.insert(route.label());
            for method in [
                Method::GET,
                Method::POST,
                Method::PUT,
                Method::PATCH,
                Method::DELETE,
                Method::HEAD,
                Method::OPTIONS,
            ] {
                let documented = methods.get(method.as_str().to_lowercase()).is_some();
                assert_eq!(route.admits(&method).is_ok(), documented, "{method} {path}");
            }
        }
        let all = ["bursts", "health", "metrics", "openapi", "results", "sessions", "stream", "workers"];
        assert_eq!(labels.into_iter().collect::<Vec<_>>(), all);
    }

    #[test]
    fn every_reference_leads_somewhere() {
        fn references(value: &Value, found: &mut Vec<String>) {
            match value {
                Value::Object(fields) => {
                    if let Some(Value::String(reference)) = fields.get("$ref") {
                        found.push(reference.clone());
                    }
                    fields.values().for_each(|value| references(value, found));
                }
                Value::Array(items) => items.iter().for_each(|value| references(value, found)),
                _ => {}
            }
        }
        let document = parsed();
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 20);
        for reference in found {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
        let schema = &document["components"]["schemas"]["GpuSession"];
        assert!(schema["properties"]["spec"]["properties"]["vram"].is_object(), "{schema}");
    }
}
