//! What is generated is what the types say.

#![allow(clippy::unwrap_used)]

use std::{collections::BTreeMap, fs, path::Path};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool};
use sahasra_crds::burst_job::{Aggregate, aggregate::most_elements};
use serde_json::json;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

#[test]
fn there_are_four_kinds_each_in_both_categories() {
    let kinds: Vec<_> = sahasra_crds::definitions()
        .into_iter()
        .map(|definition| {
            let names = definition.spec.names;
            assert_eq!(names.categories.unwrap(), ["all", "sahasra"], "{}", names.kind);
            (names.kind, definition.spec.scope, names.short_names.unwrap().join(","))
        })
        .collect();
    let expected = [
        ("GpuWorker", "Cluster", "gw"),
        ("VramLease", "Namespaced", "vl"),
        ("GpuSession", "Namespaced", "gs"),
        ("BurstJob", "Namespaced", "bj"),
    ];
    assert_eq!(
        kinds,
        expected.map(|(kind, scope, short)| (kind.to_owned(), scope.to_owned(), short.to_owned()))
    );
}

#[test]
fn the_definitions_of_the_chart_are_those_of_the_types() {
    let expected: BTreeMap<String, String> = sahasra_crds::yaml::files().into_iter().collect();
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(root().join("helm/sahasra/files/crds")).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        found.insert(name, fs::read_to_string(entry.path()).unwrap());
    }
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (name, yaml) in &expected {
        assert!(found[name] == *yaml, "helm/sahasra/files/crds/{name} is stale: run `make generate`");
    }
}

#[test]
fn the_reference_is_that_of_the_types() {
    let found = fs::read_to_string(root().join("docs/api.md")).unwrap();
    assert!(
        found == sahasra_crds::reference::markdown(),
        "docs/api.md is stale: run `make generate`"
    );
}

#[test]
fn the_limits_of_the_python_package_are_those_of_the_types() {
    let python = fs::read_to_string(root().join("python/sahasra/burst_schema.py")).unwrap();
    assert!(
        python == sahasra_crds::reference::python(),
        "python/sahasra/burst_schema.py is stale: run `make generate`"
    );
}

#[test]
fn every_aggregate_of_an_output_has_a_limit_of_elements() {
    for name in Aggregate::OPTIONS {
        let aggregate: Aggregate = serde_json::from_value(json!({*name: {"k": 1}})).unwrap();
        let takes_output = aggregate.choice().unwrap().output().is_some();
        assert_eq!(
            most_elements(name).is_some(),
            takes_output,
            "OUTPUT_ELEMENTS has a row for each aggregate that takes an output: {name}"
        );
    }
}

#[test]
fn every_list_map_and_string_is_bounded_and_every_field_described() {
    fn check(path: &str, schema: &JSONSchemaProps, wrong: &mut Vec<String>) {
        let free_text = schema.enum_.is_none() && schema.format.as_deref() != Some("date-time");
        if schema.type_.as_deref() == Some("string") && free_text && schema.max_length.is_none() {
            wrong.push(format!("{path}: no maxLength"));
        }
        if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
            if schema.max_items.is_none() {
                wrong.push(format!("{path}: no maxItems"));
            }
            check(&format!("{path}[]"), items, wrong);
        }
        if let Some(JSONSchemaPropsOrBool::Schema(values)) = &schema.additional_properties {
            if schema.max_properties.is_none() {
                wrong.push(format!("{path}: no maxProperties"));
            }
            check(&format!("{path}{{}}"), values, wrong);
        }
        for (name, property) in schema.properties.iter().flatten() {
            let path = format!("{path}.{name}");
            if property.description.as_deref().unwrap_or_default().is_empty() {
                wrong.push(format!("{path}: no description"));
            }
            // A condition's schema is Kubernetes' own.
            if name != "conditions" {
                check(&path, property, wrong);
            }
        }
    }
    let mut wrong = Vec::new();
    for definition in sahasra_crds::definitions() {
        for version in definition.spec.versions {
            assert!(version.subresources.unwrap().status.is_some());
            let schema = version.schema.unwrap().open_api_v3_schema.unwrap();
            for part in ["spec", "status"] {
                let kind = &definition.spec.names.kind;
                check(&format!("{kind}.{part}"), &schema.properties.as_ref().unwrap()[part], &mut wrong);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_rule_says_in_its_message_what_to_do() {
    fn check(path: &str, schema: &JSONSchemaProps, rules: &mut usize) {
        for rule in schema.x_kubernetes_validations.iter().flatten() {
            let message = rule.message.as_deref().unwrap_or_default();
            // A cause alone is no remedy; one sentence that begins with a verb, or a cause and such a sentence.
            let verbs = [
                "set ",
                "make ",
                "use ",
                "lower ",
                "choose ",
                "write ",
                "start with ",
                "declare ",
                "name ",
                "must ",
                "is ",
                "only grows",
            ];
            assert!(
                verbs.iter().any(|verb| message.contains(verb)),
                "{path}: {message:?} of {}",
                rule.rule
            );
            *rules += 1;
        }
        for (name, property) in schema.properties.iter().flatten() {
            check(&format!("{path}.{name}"), property, rules);
        }
        if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
            check(path, items, rules);
        }
        if let Some(JSONSchemaPropsOrBool::Schema(values)) = &schema.additional_properties {
            check(path, values, rules);
        }
    }
    let mut rules = 0;
    for definition in sahasra_crds::definitions() {
        for version in definition.spec.versions {
            check(
                &definition.spec.names.kind,
                &version.schema.unwrap().open_api_v3_schema.unwrap(),
                &mut rules,
            );
        }
    }
    assert!(rules > 40, "{rules} rules");
}
