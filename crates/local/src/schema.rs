//! Structural schemas: those of Sahasra's kinds from their definitions, those of built-in kinds from `k8s-openapi`.
//!
//! A schema is used to remove unknown fields ([`prune`]), to set defaults ([`default`]), to validate values with the API server's field
//! paths and messages ([`validate`]) and CEL rules ([`rules`]), and to merge lists by their keys in server-side apply.

pub(crate) mod decode;
pub(crate) mod default;
pub(crate) mod prune;
pub(crate) mod rules;
pub(crate) mod validate;

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool};
use kube_cel::CompiledSchema;
use regex::Regex;
use serde_json::{Value, json};

#[derive(Default)]
pub(crate) struct Schema {
    /// The node without the nodes below it.
    pub own: JSONSchemaProps,
    pub properties: BTreeMap<String, Schema>,
    /// Schema of the values of a map.
    pub values: Option<Box<Schema>>,
    pub items: Option<Box<Schema>>,
    /// Whether fields beyond `properties` are kept.
    pub keeps_unknown: bool,
    pub pattern: Option<Regex>,
    pub rules: Option<CompiledSchema>,
    /// Whether a rule of this node or below refers to the old value. Such rules are evaluated even if the value did not change.
    pub has_transition: bool,
}

impl Schema {
    /// Parses the `openAPIV3Schema` of a definition (`structural`), or the schema of a built-in type (not `structural`: an object without
    /// properties may have any fields; rules and defaults are ignored).
    pub(crate) fn parse(schema: &Value, structural: bool) -> Self {
        let own = serde_json::from_value(schema.clone());
        Self::new(own.expect("definitions and built-in types have valid schemas"), structural)
    }

    fn new(mut own: JSONSchemaProps, structural: bool) -> Self {
        if structural {
            // The API server ignores formats of numbers in definitions.
            own.format = own
                .format
                .filter(|format| !matches!(format.as_str(), "int32" | "int64" | "float" | "double"));
        } else {
            own.default = None;
            own.x_kubernetes_validations = None;
        }
        let rules = own.x_kubernetes_validations.as_ref().map(|_| rules::compile(&own));
        let child = |schema: Box<JSONSchemaProps>| Box::new(Self::new(*schema, structural));
        let properties = own.properties.take().into_iter().flatten();
        let properties: BTreeMap<String, Self> = properties.map(|(name, schema)| (name, Self::new(schema, structural))).collect();
        let additional = own.additional_properties.take();
        let any_values = matches!(additional, Some(JSONSchemaPropsOrBool::Bool(true)));
        let values = match additional {
            Some(JSONSchemaPropsOrBool::Schema(values)) => Some(child(values)),
            _ => None,
        };
        let items = match own.items.take() {
            Some(JSONSchemaPropsOrArray::Schema(items)) => Some(child(items)),
            _ => None,
        };
        let below = properties.values().chain(values.as_deref()).chain(items.as_deref());
        let has_transition = rules::has_transition(&own) | below.fold(false, |any, schema| any | schema.has_transition);
        let mut schema = Self {
            pattern: own.pattern.as_deref().and_then(|pattern| Regex::new(pattern).ok()),
            own,
            properties,
            values,
            items,
            keeps_unknown: false,
            rules,
            has_transition,
        };
        let may_be_object = !schema.int_or_string() && matches!(schema.type_name(), "" | "object");
        let is_open = may_be_object && schema.properties.is_empty() && schema.values.is_none();
        schema.keeps_unknown = schema.own.x_kubernetes_preserve_unknown_fields == Some(true) || any_values || (!structural && is_open);
        schema
    }

    /// Name of the type; empty if the schema has none.
    pub(crate) fn type_name(&self) -> &str {
        self.own.type_.as_deref().unwrap_or_default()
    }

    /// Name of the format; empty if the schema has none.
    pub(crate) fn format(&self) -> &str {
        self.own.format.as_deref().unwrap_or_default()
    }

    pub(crate) fn int_or_string(&self) -> bool {
        self.own.x_kubernetes_int_or_string == Some(true)
    }

    pub(crate) fn default(&self) -> Option<&Value> {
        self.own.default.as_ref().map(|default| &default.0)
    }

    /// Whether the value is a set of distinct scalars.
    pub(crate) fn is_set(&self) -> bool {
        self.own.x_kubernetes_list_type.as_deref() == Some("set")
    }

    /// The keys that identify the items of the value; `None` if it is not a list of objects with keys.
    pub(crate) fn keys(&self) -> Option<&[String]> {
        self.own.x_kubernetes_list_map_keys.as_deref()
    }

    /// Whether a value is replaced as a whole by an apply: a scalar, a list that is neither a set nor has keys, or an object that the schema
    /// declares as atomic.
    pub(crate) fn is_atomic(&self, value: &Value) -> bool {
        match value {
            Value::Object(_) => self.own.x_kubernetes_map_type.as_deref() == Some("atomic"),
            Value::Array(_) => !self.is_set() && self.keys().is_none(),
            _ => true,
        }
    }

    /// Schema of a field, which is either a property or a value of a map.
    pub(crate) fn field(&self, name: &str) -> Option<&Self> {
        self.properties.get(name).or(self.values.as_deref())
    }

    /// The item of `old` that has the same keys as `item`. Only items with keys can be matched to old items.
    pub(crate) fn item_before<'a>(&self, item: &Value, old: Option<&'a [Value]>) -> Option<&'a Value> {
        let keys = self.keys()?;
        old?.iter().find(|other| keys.iter().all(|key| other[key] == item[key]))
    }
}

/// Applies `change` to every field or item of a value that has a schema.
fn for_each_below(value: &mut Value, schema: &Schema, change: fn(&mut Value, &Schema)) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if let Some(schema) = schema.field(name) {
                    change(value, schema);
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = &schema.items {
                items.iter_mut().for_each(|item| change(item, schema));
            }
        }
        _ => {}
    }
}

pub(crate) fn field_path(path: &str, field: &str) -> String {
    match path {
        "" => field.to_owned(),
        path => format!("{path}.{field}"),
    }
}

/// Path of what is at `below` in the value at `path`.
pub(crate) fn join(path: &str, below: &str) -> String {
    match below {
        "" => path.to_owned(),
        below => field_path(path, below),
    }
}

/// Schema of a built-in type as JSON, without references, and with the list types of the API server's schema.
pub(crate) fn built_in<T: schemars::JsonSchema>(list_types: &[(&str, Value)]) -> Value {
    let mut generator = schemars::generate::SchemaSettings::openapi3()
        .with(|settings| settings.inline_subschemas = true)
        .into_generator();
    let mut schema = T::json_schema(&mut generator).to_value();
    let metadata = [
        (
            "metadata.ownerReferences",
            json!({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["uid"]}),
        ),
        ("metadata.finalizers", json!({"x-kubernetes-list-type": "set"})),
        // Owner references are replaced as a whole.
        ("metadata.ownerReferences.[]", json!({"x-kubernetes-map-type": "atomic"})),
    ];
    for (path, extensions) in metadata.iter().chain(list_types) {
        let mut node = &mut schema;
        for field in path.split('.') {
            node = if field == "[]" {
                &mut node["items"]
            } else {
                &mut node["properties"][field]
            };
        }
        if let (Some(node), Some(extensions)) = (node.as_object_mut(), extensions.as_object()) {
            node.extend(extensions.clone());
        }
    }
    schema
}
