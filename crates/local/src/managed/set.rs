//! Sets of fields and their encoding in `managedFields` (`FieldsV1`).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use serde_json::{Map, Value, json};

/// Path element: one step from a value into a nested value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Element {
    /// A field of an object or a key of a map.
    Field(String),
    /// An item of a list with keys, identified by the values of its keys, as JSON.
    Key(BTreeMap<String, String>),
    /// An item of a set, identified by its value, as JSON.
    Value(String),
    Index(usize),
}

impl Element {
    pub(crate) fn field(name: &str) -> Self {
        Self::Field(name.to_owned())
    }

    pub(crate) fn is_field(&self, name: &str) -> bool {
        matches!(self, Self::Field(own) if own == name)
    }

    fn encode(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Key(keys) => {
                let fields = keys.iter().map(|(name, value)| format!("{}:{value}", json!(name)));
                format!("k:{{{}}}", fields.collect::<Vec<_>>().join(","))
            }
            Self::Value(value) => format!("v:{value}"),
            Self::Index(index) => format!("i:{index}"),
        }
    }

    fn decode(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(':')?;
        Some(match kind {
            "f" => Self::Field(rest.to_owned()),
            "k" => {
                let keys: Map<String, Value> = serde_json::from_str(rest).ok()?;
                Self::Key(keys.into_iter().map(|(name, value)| (name, value.to_string())).collect())
            }
            "v" => Self::Value(serde_json::from_str::<Value>(rest).ok()?.to_string()),
            "i" => Self::Index(rest.parse().ok()?),
            _ => return None,
        })
    }

    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Field(name) => format!(".{name}"),
            Self::Key(keys) => {
                let keys = keys.iter().map(|(name, value)| format!("{name}={value}"));
                format!("[{}]", keys.collect::<Vec<_>>().join(","))
            }
            Self::Value(value) => format!("[={value}]"),
            Self::Index(index) => format!("[{index}]"),
        }
    }
}

/// Paths of fields. A set that contains a field does not imply the fields below it.
pub(crate) type FieldSet = BTreeSet<Vec<Element>>;

/// Paths of all fields in the format of conflicts: `.spec.class`, `.status.conditions[type="Ready"].status`.
pub(crate) fn shown(set: &FieldSet) -> Vec<String> {
    let mut paths: Vec<_> = set.iter().collect();
    // Like in the API server, the fields of an object that are in the set come before those that only have fields below them in it.
    paths.sort_by_cached_key(|path| {
        let elements = path.iter().enumerate();
        elements
            .map(|(index, element)| (index + 1 < path.len(), element))
            .collect::<Vec<_>>()
    });
    paths.iter().map(|path| path.iter().map(Element::shown).collect()).collect()
}

pub(crate) fn encode(set: &FieldSet) -> Value {
    let mut fields = json!({});
    for path in set {
        let mut at = &mut fields;
        for (depth, element) in path.iter().enumerate() {
            if depth > 0 && set.contains(&path[..depth]) {
                at["."] = json!({});
            }
            at = &mut at[element.encode()];
        }
        *at = json!({});
    }
    fields
}

/// Decodes `FieldsV1`; `None` if it is malformed.
pub(crate) fn decode(fields: &Value) -> Option<FieldSet> {
    let mut set = FieldSet::new();
    decode_below(fields, &mut Vec::new(), &mut set)?;
    Some(set)
}

fn decode_below(fields: &Value, path: &mut Vec<Element>, set: &mut FieldSet) -> Option<()> {
    for (name, below) in fields.as_object()?.iter().filter(|(name, _)| *name != ".") {
        path.push(Element::decode(name)?);
        if below.as_object()?.is_empty() || below.get(".").is_some() {
            set.insert(path.clone());
        }
        decode_below(below, path, set)?;
        path.pop();
    }
    Some(())
}

pub(crate) fn serialize<S: Serializer>(set: &FieldSet, serializer: S) -> Result<S::Ok, S::Error> {
    encode(set).serialize(serializer)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<FieldSet, D::Error> {
    decode(&Value::deserialize(deserializer)?).ok_or_else(|| D::Error::custom("malformed FieldsV1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(fields: Value) -> FieldSet {
        decode(&fields).expect("a set")
    }

    #[test]
    fn sets_are_unchanged_after_encoding_and_decoding() {
        let fields = json!({
            "f:metadata": {"f:labels": {".": {}, "f:a": {}}},
            "f:status": {"f:conditions": {"k:{\"type\":\"Ready\"}": {".": {}, "f:status": {}}}, "f:names": {"v:\"x\"": {}}},
        });
        assert_eq!(encode(&set(fields.clone())), fields);
        assert!(decode(&json!({"odd": {}})).is_none());
    }

    #[test]
    fn paths_read_as_conflicts_name_them() {
        let fields = json!({
            "f:a": {".": {}, "f:c": {}},
            "f:b": {},
            "f:status": {"f:conditions": {"k:{\"type\":\"Ready\"}": {"f:status": {}}}, "f:names": {"v:\"x\"": {}}},
        });
        let expected = [
            ".a",
            ".b",
            ".a.c",
            ".status.conditions[type=\"Ready\"].status",
            ".status.names[=\"x\"]",
        ];
        assert_eq!(shown(&set(fields)), expected);
    }
}
