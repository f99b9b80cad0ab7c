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

use serde_json::{Value, json};

use self::rules::Rules;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

impl Type {
    const NAMES: [(Self, &'static str); 6] = [
        (Self::Object, "object"),
        (Self::Array, "array"),
        (Self::String, "string"),
        (Self::Integer, "integer"),
        (Self::Number, "number"),
        (Self::Boolean, "boolean"),
    ];

    fn parse(name: &str) -> Option<Self> {
        let row = Self::NAMES.iter().find(|row| row.1 == name)?;
        Some(row.0)
    }

    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|row| row.0 == self).map_or("", |row| row.1)
    }
}

/// Type of a list (`x-kubernetes-list-type`).
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum ListType {
    /// The list is replaced as a whole.
    #[default]
    Atomic,
    /// The list is a set of distinct scalars.
    Set,
    /// The items of the list are objects that these keys identify.
    Map(Vec<String>),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Bounds<T> {
    pub minimum: Option<T>,
    pub maximum: Option<T>,
}

#[derive(Debug, Default)]
pub(crate) struct Schema {
    pub kind: Option<Type>,
    pub format: String,
    pub nullable: bool,
    pub int_or_string: bool,
    /// Whether fields beyond `properties` are kept.
    pub keeps_unknown: bool,
    pub properties: BTreeMap<String, Schema>,
    /// Schema of the values of a map.
    pub values: Option<Box<Schema>>,
    pub items: Option<Box<Schema>>,
    pub required: Vec<String>,
    pub enumeration: Vec<Value>,
    pub number: Bounds<f64>,
    pub exclusive_minimum: bool,
    pub exclusive_maximum: bool,
    pub length: Bounds<i64>,
    pub pattern: Option<(String, regex::Regex)>,
    pub count: Bounds<i64>,
    pub fields: Bounds<i64>,
    pub default: Option<Value>,
    pub list_type: ListType,
    /// Whether the value is replaced as a whole (`x-kubernetes-map-type: atomic`).
    pub atomic: bool,
    pub rules: Option<Rules>,
    /// Whether a rule of this node or below refers to the old value. Such rules are evaluated even if the value did not change.
    pub has_transition: bool,
}

impl Schema {
    /// Parses the `openAPIV3Schema` of a definition (`structural`), or the schema that schemars generates for a built-in type (not
    /// `structural`: an object without properties may have any fields; rules and defaults are ignored).
    pub fn parse(schema: &Value, structural: bool) -> Self {
        let integer = |field: &str| schema[field].as_i64();
        let kind = match &schema["type"] {
            Value::String(name) => Type::parse(name),
            // schemars generates `["string", "null"]` for optional values.
            Value::Array(names) => names.iter().filter_map(Value::as_str).find_map(Type::parse),
            _ => None,
        };
        let child = |schema: &Value| Box::new(Self::parse(schema, structural));
        let properties: BTreeMap<String, Self> = schema["properties"]
            .as_object()
            .map(|properties| {
                let parsed = properties
                    .iter()
                    .map(|(name, schema)| (name.clone(), Self::parse(schema, structural)));
                parsed.collect()
            })
            .unwrap_or_default();
        let additional = &schema["additionalProperties"];
        let values = additional.is_object().then(|| child(additional));
        let int_or_string = schema["x-kubernetes-int-or-string"] == true;
        let keeps_unknown = schema["x-kubernetes-preserve-unknown-fields"] == true
            || *additional == Value::Bool(true)
            || (!structural && !int_or_string && kind.is_none_or(|kind| kind == Type::Object) && properties.is_empty() && values.is_none());
        let list_type = match schema["x-kubernetes-list-type"].as_str() {
            Some("set") => ListType::Set,
            Some("map") => ListType::Map(strings(&schema["x-kubernetes-list-map-keys"])),
            _ => ListType::Atomic,
        };
        let pattern = schema["pattern"].as_str().and_then(|pattern| {
            let compiled = regex::Regex::new(pattern).ok()?;
            Some((pattern.to_owned(), compiled))
        });
        let items = schema["items"].is_object().then(|| child(&schema["items"]));
        let rules = structural.then(|| Rules::compile(schema)).flatten();
        let below = properties.values().chain(values.as_deref()).chain(items.as_deref());
        let has_transition =
            rules.as_ref().is_some_and(Rules::has_transition) | below.fold(false, |any, schema| any | schema.has_transition);
        Self {
            kind,
            format: schema["format"]
                .as_str()
                .filter(|format| !structural || !is_numeric(format))
                .unwrap_or_default()
                .to_owned(),
            nullable: schema["nullable"] == true,
            int_or_string,
            keeps_unknown,
            properties,
            values,
            items,
            required: strings(&schema["required"]),
            enumeration: schema["enum"].as_array().cloned().unwrap_or_default(),
            number: Bounds {
                minimum: schema["minimum"].as_f64(),
                maximum: schema["maximum"].as_f64(),
            },
            exclusive_minimum: schema["exclusiveMinimum"] == true,
            exclusive_maximum: schema["exclusiveMaximum"] == true,
            length: Bounds {
                minimum: integer("minLength"),
                maximum: integer("maxLength"),
            },
            pattern,
            count: Bounds {
                minimum: integer("minItems"),
                maximum: integer("maxItems"),
            },
            fields: Bounds {
                minimum: integer("minProperties"),
                maximum: integer("maxProperties"),
            },
            default: if structural { schema.get("default").cloned() } else { None },
            list_type,
            atomic: schema["x-kubernetes-map-type"] == "atomic",
            rules,
            has_transition,
        }
    }

    /// Schema of a field, which is either a property or a value of a map.
    pub fn field(&self, name: &str) -> Option<&Self> {
        self.properties.get(name).or(self.values.as_deref())
    }

    /// The item of `old` that has the same keys as `item`. Only items with keys can be matched to old items.
    pub fn item_before<'a>(&self, item: &Value, old: Option<&'a [Value]>) -> Option<&'a Value> {
        let ListType::Map(keys) = &self.list_type else { return None };
        old?.iter().find(|other| keys.iter().all(|key| other[key] == item[key]))
    }

    pub fn type_name(&self) -> &'static str {
        self.kind.map_or("", Type::name)
    }
}

/// Whether the API server ignores a format in definitions: it does so for those of numbers.
fn is_numeric(format: &str) -> bool {
    matches!(format, "int32" | "int64" | "float" | "double")
}

fn strings(value: &Value) -> Vec<String> {
    let list = value.as_array().into_iter().flatten();
    list.filter_map(|item| Some(item.as_str()?.to_owned())).collect()
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
