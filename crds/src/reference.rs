//! The reference of the API for users, in Markdown, made from the same definitions that the API server gets; and the names and
//! limits that the Python package checks.

use std::fmt::Write;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};

use sahasra_parameters::spec::MAX_VALUES;

use crate::{
    burst_job::{MAX_RETRIES, kernel::MAX_OUTPUT_BYTES},
    vram_lease::MAX_SLICES,
};

const INTRODUCTION: &str = "\
<!-- Generated from crds/src by `make generate`: do not edit. -->
# API reference

This page describes the kinds of the group `sahasra.dev`, version `v1alpha1`. You specify the desired state of an object in `spec`;
Sahasra reports its current state in `status`. `kubectl explain` shows the same descriptions:
`kubectl explain burstjob.spec.kernel --recursive`.

`kubectl apply` rejects an object that violates its schema or a rule. Errors that a schema cannot detect, such as those in a formula or
in the PTX, or a missing ConfigMap, are reported within a second: the condition `Accepted` becomes `False`, and its message names the
field. The [troubleshooting guide](guide/troubleshooting.md) lists the reasons of all conditions and the failure codes.

In the tables, `[]` stands for any element of a list, and `{}` for any key of a map. A field with the default `required` must be set if the
object that contains it is set.
";

/// The section on parameters, which no type defines.
const PARAMETERS: &str = include_str!("reference/parameters.md");

/// Returns the reference of all kinds as Markdown.
pub fn markdown() -> String {
    let mut text = INTRODUCTION.to_owned();
    for definition in crate::definitions() {
        kind(&mut text, &definition).expect("a String takes all text");
    }
    text.push('\n');
    text.push_str(PARAMETERS);
    text
}

/// Returns the Python module with the limits of a BurstJob that the package checks.
pub fn python() -> String {
    format!(
        "\"\"\"Limits of a BurstJob. Generated from crds/src by `make generate`: do not edit.\"\"\"\n\n\
         #: Largest number of values that a parameter may list.\nMAX_VALUES = {MAX_VALUES}\n\
         #: Largest number of retries of a chunk.\nMAX_RETRIES = {MAX_RETRIES}\n\
         #: Largest number of slices.\nMAX_SLICES = {MAX_SLICES}\n\
         #: Largest number of elements of an output.\nMAX_ELEMENTS = {MAX_OUTPUT_BYTES}\n"
    )
}

fn kind(text: &mut String, definition: &CustomResourceDefinition) -> std::fmt::Result {
    let names = &definition.spec.names;
    let short = names
        .short_names
        .iter()
        .flatten()
        .map(|name| format!("`{name}`"))
        .collect::<Vec<_>>();
    for version in &definition.spec.versions {
        let Some(schema) = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref()) else {
            continue;
        };
        writeln!(text, "\n## {}\n", names.kind)?;
        writeln!(text, "{}\n", prose(schema))?;
        let columns: Vec<&str> = version
            .additional_printer_columns
            .iter()
            .flatten()
            .map(|column| column.name.as_str())
            .collect();
        writeln!(
            text,
            "{} scope; `kubectl get {}`, short {}; columns {}.",
            definition.spec.scope.trim_end_matches('d'),
            names.plural,
            short.join(", "),
            columns.join(", ")
        )?;
        for part in ["spec", "status"] {
            let Some(schema) = schema.properties.as_ref().and_then(|properties| properties.get(part)) else {
                continue;
            };
            writeln!(text, "\n### {} {part}\n\n{}\n", names.kind, prose(schema))?;
            writeln!(text, "| Field | Type | Default | Bounds | |\n| --- | --- | --- | --- | --- |")?;
            rows(text, "", schema)?;
            let mut found = Vec::new();
            rules(&mut found, part, schema);
            if !found.is_empty() {
                writeln!(text, "\nRules:\n\n{}", found.join("\n"))?;
            }
        }
    }
    Ok(())
}

/// Adds a row for every field below `schema`, children after their parent.
fn rows(text: &mut String, prefix: &str, schema: &JSONSchemaProps) -> std::fmt::Result {
    let required = schema.required.as_deref().unwrap_or_default();
    for (name, property) in schema.properties.iter().flatten() {
        let path = format!("{prefix}{name}");
        let default = match &property.default {
            _ if required.contains(name) => "required".to_owned(),
            Some(default) => format!("`{}`", default.0),
            None => String::new(),
        };
        writeln!(
            text,
            "| `{path}` | {} | {default} | {} | {} |",
            type_of(property),
            bounds(property).join(", "),
            prose(property).replace('\n', " ")
        )?;
        // Kubernetes documents the fields of a condition.
        if name != "conditions" {
            rows(text, &format!("{path}."), property)?;
            for (element, below) in elements(property) {
                rows(text, &format!("{path}{element}."), below)?;
            }
        }
    }
    Ok(())
}

/// Collects the messages of the rules at and below `schema`, each with its path.
fn rules(found: &mut Vec<String>, path: &str, schema: &JSONSchemaProps) {
    for rule in schema.x_kubernetes_validations.iter().flatten() {
        let message = rule.message.as_deref().unwrap_or(&rule.rule);
        let at = rule.field_path.as_deref().unwrap_or_default();
        let entry = format!("- `{path}{at}`: {message}");
        if !found.contains(&entry) {
            found.push(entry);
        }
    }
    for (name, property) in schema.properties.iter().flatten() {
        rules(found, &format!("{path}.{name}"), property);
    }
    for (element, below) in elements(schema) {
        rules(found, &format!("{path}{element}"), below);
    }
}

fn type_of(schema: &JSONSchemaProps) -> String {
    if let Some(items) = items(schema) {
        return format!("list of {}", type_of(items));
    }
    if let Some(values) = values(schema) {
        return format!("map of {}", type_of(values));
    }
    match (schema.type_.as_deref(), schema.format.as_deref()) {
        (Some("string"), Some("date-time")) => "time".to_owned(),
        (Some(type_), _) => type_.to_owned(),
        (None, _) => "any".to_owned(),
    }
}

/// Returns the constraints of a value, without its type.
fn bounds(schema: &JSONSchemaProps) -> Vec<String> {
    let mut bounds = Vec::new();
    if let Some(values) = &schema.enum_ {
        let values: Vec<String> = values
            .iter()
            .map(|value| format!("`{}`", value.0.as_str().unwrap_or_default()))
            .collect();
        bounds.push(values.join(" "));
    }
    bounds.extend(interval("", schema.minimum, schema.maximum));
    let lengths = [
        ("characters", schema.min_length, schema.max_length),
        ("items", schema.min_items, schema.max_items),
        ("keys", schema.min_properties, schema.max_properties),
    ];
    for (unit, min, max) in lengths {
        bounds.extend(interval(unit, min.map(|min| min as f64), max.map(|max| max as f64)));
    }
    if let Some(items) = items(schema) {
        bounds.extend(self::bounds(items).into_iter().map(|bound| format!("each {bound}")));
    }
    bounds
}

fn interval(unit: &str, min: Option<f64>, max: Option<f64>) -> Option<String> {
    let text = match (min, max) {
        (Some(min), Some(max)) => format!("{min} to {max}"),
        (Some(min), None) => format!("from {min}"),
        (None, Some(max)) => format!("up to {max}"),
        (None, None) => return None,
    };
    Some(format!("{text} {unit}").trim_end().to_owned())
}

/// Returns the schemas of a list's items and of a map's values, with their notation in a path.
fn elements(schema: &JSONSchemaProps) -> impl Iterator<Item = (&'static str, &JSONSchemaProps)> {
    let items = items(schema).map(|items| ("[]", items));
    items.into_iter().chain(values(schema).map(|values| ("{}", values)))
}

fn items(schema: &JSONSchemaProps) -> Option<&JSONSchemaProps> {
    match &schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => Some(items),
        _ => None,
    }
}

fn values(schema: &JSONSchemaProps) -> Option<&JSONSchemaProps> {
    match &schema.additional_properties {
        Some(JSONSchemaPropsOrBool::Schema(values)) => Some(values),
        _ => None,
    }
}

fn prose(schema: &JSONSchemaProps) -> String {
    schema.description.as_deref().unwrap_or_default().replace('|', "\\|")
}
