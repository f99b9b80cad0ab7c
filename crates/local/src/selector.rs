//! Label and field selectors.

use std::cmp::Ordering;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use crate::object;
use crate::refusal::Refusal;
use crate::resource::{Behaviour, Resource};

#[derive(Clone, Debug, Default)]
pub(crate) struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<(String, bool, String)>,
}

#[derive(Clone, Debug, PartialEq)]
enum Requirement {
    Exists(String),
    Absent(String),
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Compared(String, Ordering, i64),
}

impl Selector {
    pub(crate) fn parse(labels: &str, fields: &str, resource: &Resource) -> Result<Self, Refusal> {
        let mut selector = Self::default();
        for term in split(labels) {
            let requirement = parse_label(term.trim());
            let requirement =
                requirement.ok_or_else(|| Refusal::bad_request(format!("unable to parse requirement: {}", object::quoted(term.trim()))))?;
            selector.labels.push(requirement);
        }
        for term in fields.split(',').filter(|term| !term.is_empty()) {
            let (field, equal, value) = parse_field(term)
                .ok_or_else(|| Refusal::bad_request(format!("invalid selector: '{fields}'; can't understand '{term}'")))?;
            if !supports(resource, field) {
                return Err(Refusal::bad_request(match resource.behaviour {
                    Behaviour::ConfigMap | Behaviour::Lease => format!(
                        "{} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
                        object::quoted(field)
                    ),
                    _ => format!("field label not supported: {field}"),
                }));
            }
            selector
                .fields
                .push((field.to_owned(), equal, value.replace("\\,", ",").replace("\\=", "=")));
        }
        Ok(selector)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        let label = |name: &str| labels[name].as_str();
        let labels_match = self.labels.iter().all(|requirement| match requirement {
            Requirement::Exists(name) => label(name).is_some(),
            Requirement::Absent(name) => label(name).is_none(),
            Requirement::In(name, values) => label(name).is_some_and(|value| values.iter().any(|wanted| wanted == value)),
            Requirement::NotIn(name, values) => label(name).is_none_or(|value| values.iter().all(|wanted| wanted != value)),
            Requirement::Compared(name, ordering, bound) => label(name)
                .and_then(|value| value.parse::<i64>().ok())
                .is_some_and(|value| value.cmp(bound) == *ordering),
        });
        labels_match
            && self
                .fields
                .iter()
                .all(|(field, equal, value)| (field_of(object, field) == *value) == *equal)
    }
}

/// Splits a selector at the commas outside parentheses.
fn split(text: &str) -> Vec<&str> {
    let (mut terms, mut depth, mut start) = (Vec::new(), 0, 0);
    for (index, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                terms.push(&text[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    // An empty selector matches everything, but an empty term next to a comma is an error.
    if text.trim().is_empty() { Vec::new() } else { terms }
}

/// A term of a label selector, such as `tier`, `!tier`, `tier != gold`, `tier in (gold, silver)` or `rank > 7`.
static TERM: LazyLock<Regex> = LazyLock::new(|| {
    let key = "[-A-Za-z0-9_./]+";
    let condition = r"\s+(?<set>in|notin)\s*\((?<values>[^()]*)\)|\s*(?<operator>==?|!=|<|>)\s*(?<value>[^\s=!<>()]*)";
    Regex::new(&format!(r"^(?:!\s*(?<absent>{key})|(?<key>{key})\s*(?:{condition})?)$")).expect("a constant pattern")
});

fn parse_label(term: &str) -> Option<Requirement> {
    let term = TERM.captures(term)?;
    let part = |name: &str| term.name(name).map(|part| part.as_str().trim().to_owned());
    if let Some(name) = part("absent") {
        return Some(Requirement::Absent(name));
    }
    let (name, value) = (part("key")?, part("value").unwrap_or_default());
    let values = match part("values") {
        Some(list) => list.split(',').map(|value| value.trim().to_owned()).collect(),
        None => vec![value.clone()],
    };
    Some(match part("set").or(part("operator")).as_deref() {
        None => Requirement::Exists(name),
        Some("in" | "=" | "==") => Requirement::In(name, values),
        Some("notin" | "!=") => Requirement::NotIn(name, values),
        Some(">") => Requirement::Compared(name, Ordering::Greater, value.parse().ok()?),
        Some(_) => Requirement::Compared(name, Ordering::Less, value.parse().ok()?),
    })
}

fn parse_field(term: &str) -> Option<(&str, bool, &str)> {
    if let Some((field, value)) = term.split_once("!=") {
        return Some((field, false, value));
    }
    let (field, value) = term.split_once("==").or_else(|| term.split_once('='))?;
    Some((field, true, value))
}

fn supports(resource: &Resource, field: &str) -> bool {
    if field == "metadata.name" || (field == "metadata.namespace" && (resource.namespaced || !resource.is_custom())) {
        return true;
    }
    match resource.behaviour {
        Behaviour::Secret => field == "type",
        Behaviour::Namespace => field == "status.phase",
        Behaviour::Node => field == "spec.unschedulable",
        Behaviour::Event | Behaviour::NewEvent => matches!(
            field,
            "involvedObject.kind"
                | "involvedObject.namespace"
                | "involvedObject.name"
                | "involvedObject.uid"
                | "involvedObject.apiVersion"
                | "involvedObject.resourceVersion"
                | "involvedObject.fieldPath"
                | "regarding.kind"
                | "regarding.namespace"
                | "regarding.name"
                | "regarding.uid"
                | "reason"
                | "reportingComponent"
                | "reportingController"
                | "source"
                | "type"
        ),
        _ => false,
    }
}

fn field_of(object: &Value, field: &str) -> String {
    let field = match field {
        "source" => {
            return object["source"]["component"]
                .as_str()
                .or(object["reportingComponent"].as_str())
                .unwrap_or_default()
                .to_owned();
        }
        "reportingController" => "reportingComponent",
        other => other,
    };
    let field = field.replace("regarding.", "involvedObject.");
    let mut value = object;
    for part in field.split('.') {
        value = &value[part];
    }
    match value {
        Value::String(text) => text.clone(),
        Value::Null if field == "spec.unschedulable" => "false".to_owned(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::resource::catalogue;

    fn matches(labels: &str, fields: &str) -> bool {
        let object = json!({"metadata": {"name": "a", "labels": {"tier": "gold", "rank": "7"}}});
        Selector::parse(labels, fields, &catalogue().resources[1])
            .expect("a selector")
            .matches(&object)
    }

    #[test]
    fn label_selectors_of_every_form() {
        for (selector, expected) in [
            ("tier=gold", true),
            ("tier==silver", false),
            ("tier!=silver,rank", true),
            ("absent!=x", true),
            ("tier in (gold, silver)", true),
            ("tier notin (gold,silver)", false),
            ("!absent", true),
            ("!tier", false),
            ("rank>6,rank<8", true),
            ("", true),
        ] {
            assert_eq!(matches(selector, ""), expected, "{selector}");
        }
    }

    #[test]
    fn field_selectors_accept_only_selectable_fields() {
        assert!(matches("", "metadata.name=a"));
        assert!(!matches("", "metadata.name!=a"));
        let refused = Selector::parse("", "spec.class=g5", &catalogue().resources[2]).expect_err("not a field to select by");
        assert_eq!(refused.to_string(), "field label not supported: spec.class");
    }
}
