//! Validation rules of the custom resources under an evaluator other than the API server's, so that mistakes are found without a cluster.
//! `admission.rs` sends the same manifests to a real API server.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use kube_cel::Validator;
use sahasra_crds::yaml;
use sahasra_e2e::manifests::{RefusedBy, wrong_manifests};
use serde_json::Value;

/// Schemas as JSON, by kind.
fn schemas() -> BTreeMap<String, Value> {
    let definitions = sahasra_crds::definitions().into_iter().map(|definition| {
        let schema = definition.spec.versions[0].schema.clone().unwrap().open_api_v3_schema.unwrap();
        (definition.spec.names.kind, serde_json::to_value(schema).unwrap())
    });
    definitions.collect()
}

/// `field: message` of every rule that rejects one of the objects in `text`.
fn refusals(schemas: &BTreeMap<String, Value>, text: &str) -> Vec<String> {
    let objects = yaml::documents(text).unwrap().into_iter();
    objects
        .filter_map(|(_, object)| Some((schemas.get(object["kind"].as_str()?)?, object)))
        .filter_map(|(schema, object)| Validator::new().validate(schema, &object, None).err())
        .flat_map(|errors| errors.into_vec())
        .map(|error| format!("{}: {}", error.field_path, error.message))
        .collect()
}

#[test]
fn no_rule_rejects_a_valid_manifest() {
    let schemas = schemas();
    for manifest in wrong_manifests().unwrap() {
        assert_eq!(refusals(&schemas, &manifest.twin), Vec::<String>::new(), "{}", manifest.name);
    }
}

#[test]
fn a_rule_rejects_each_manifest_that_expects_its_message() {
    let schemas = schemas();
    let rules = serde_json::to_string(&schemas).unwrap();
    let mut refused = 0;
    for manifest in wrong_manifests().unwrap() {
        let (name, says) = (manifest.name, manifest.says);
        let found = refusals(&schemas, &manifest.text);
        if manifest.refused_by == RefusedBy::Accepted {
            assert_eq!(found, Vec::<String>::new(), "{name}");
        } else if rules.contains(&says) {
            assert!(found.iter().any(|refusal| refusal.contains(&says)), "{name}: {found:?}");
            refused += 1;
        }
    }
    assert!(refused >= 30, "{refused} manifests");
}
