//! The rules under an evaluator that is not the API server's: what needs no cluster to be told wrong.
//! The same manifests go to a real API server in the end-to-end tests.

#![allow(clippy::unwrap_used)]

use std::{collections::BTreeMap, fs, path::PathBuf};

use kube_cel::Validator;
use serde::Deserialize;
use serde_json::Value;

fn manifests(folder: &str) -> BTreeMap<String, String> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../e2e/tests/data").join(folder);
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let named = entries.map(|path| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        (name, fs::read_to_string(path).unwrap())
    });
    named.collect()
}

/// Schemas as JSON, by kind.
fn schemas() -> BTreeMap<String, Value> {
    let definitions = sahasra_crds::definitions().into_iter().map(|definition| {
        let schema = definition.spec.versions[0].schema.clone().unwrap().open_api_v3_schema.unwrap();
        (definition.spec.names.kind, serde_json::to_value(schema).unwrap())
    });
    definitions.collect()
}

/// `field: message` of every rule that refuses one of the objects in `text`.
fn refusals(schemas: &BTreeMap<String, Value>, text: &str) -> Vec<String> {
    let objects = serde_yaml::Deserializer::from_str(text).map(|document| Value::deserialize(document).unwrap());
    objects
        .filter_map(|object| Some((schemas.get(object["kind"].as_str()?)?, object)))
        .filter_map(|(schema, object)| Validator::new().validate(schema, &object, None).err())
        .flat_map(|errors| errors.into_vec())
        .map(|error| format!("{}: {}", error.field_path, error.message))
        .collect()
}

#[test]
fn no_rule_refuses_a_right_manifest() {
    let schemas = schemas();
    for (name, text) in manifests("right") {
        assert_eq!(refusals(&schemas, &text), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn a_rule_refuses_each_manifest_that_expects_its_message() {
    let schemas = schemas();
    let rules = serde_json::to_string(&schemas).unwrap();
    let mut refused = 0;
    for (name, text) in manifests("wrong") {
        let expected = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).unwrap().to_owned();
        let (by, says) = (expected("# refused-by: "), expected("# says: "));
        let found = refusals(&schemas, &text);
        if by == "accepted" {
            assert_eq!(found, Vec::<String>::new(), "{name}");
        } else if rules.contains(&says) {
            assert!(found.iter().any(|refusal| refusal.contains(&says)), "{name}: {found:?}");
            refused += 1;
        }
    }
    assert!(refused >= 30, "{refused} manifests");
}
