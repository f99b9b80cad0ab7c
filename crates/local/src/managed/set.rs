//! Sets of fields and their encoding in `managedFields` (`FieldsV1`).

use std::collections::{BTreeMap, BTreeSet};

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
    pub fn field(name: &str) -> Self {
        Self::Field(name.to_owned())
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

    fn shown(&self) -> String {
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

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FieldSet {
    members: BTreeSet<Element>,
    children: BTreeMap<Element, FieldSet>,
}

impl FieldSet {
    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && self.children.values().all(Self::is_empty)
    }

    pub fn insert(&mut self, path: &[Element]) {
        match path {
            [] => {}
            [last] => {
                self.members.insert(last.clone());
            }
            [first, rest @ ..] => self.children.entry(first.clone()).or_default().insert(rest),
        }
    }

    pub fn has(&self, element: &Element) -> bool {
        self.members.contains(element)
    }

    /// The fields below an element; `None` if there are none.
    pub fn below(&self, element: &Element) -> Option<&Self> {
        self.children.get(element).filter(|set| !set.is_empty())
    }

    pub fn union(&self, other: &Self) -> Self {
        let mut union = self.clone();
        union.members.extend(other.members.iter().cloned());
        for (element, set) in &other.children {
            let merged = union.children.get(element).map_or_else(|| set.clone(), |own| own.union(set));
            union.children.insert(element.clone(), merged);
        }
        union
    }

    pub fn intersection(&self, other: &Self) -> Self {
        let children = self.children.iter().filter_map(|(element, set)| {
            let common = set.intersection(other.children.get(element)?);
            (!common.is_empty()).then(|| (element.clone(), common))
        });
        Self {
            members: self.members.intersection(&other.members).cloned().collect(),
            children: children.collect(),
        }
    }

    /// Fields of this set that are not in `other`. A field in `other` does not remove the fields below it.
    pub fn difference(&self, other: &Self) -> Self {
        let children = self.children.iter().filter_map(|(element, set)| {
            let left = other
                .children
                .get(element)
                .map_or_else(|| set.clone(), |other| set.difference(other));
            (!left.is_empty()).then(|| (element.clone(), left))
        });
        Self {
            members: self.members.difference(&other.members).cloned().collect(),
            children: children.collect(),
        }
    }

    pub fn without(mut self, field: &str) -> Self {
        let element = Element::field(field);
        self.members.remove(&element);
        self.children.remove(&element);
        self
    }

    /// The set extended by every declared field that has fields below it.
    pub fn with_declared(&self, is_declared: &dyn Fn(&[Element]) -> bool) -> Self {
        self.with_declared_at(&mut Vec::new(), is_declared)
    }

    fn with_declared_at(&self, path: &mut Vec<Element>, is_declared: &dyn Fn(&[Element]) -> bool) -> Self {
        let mut set = Self {
            members: self.members.clone(),
            children: BTreeMap::new(),
        };
        for (element, below) in &self.children {
            path.push(element.clone());
            if is_declared(path) {
                set.members.insert(element.clone());
            }
            set.children.insert(element.clone(), below.with_declared_at(path, is_declared));
            path.pop();
        }
        set
    }

    /// Paths of all fields in the format of conflicts: `.spec.class`, `.status.conditions[type="Ready"].status`.
    pub fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.paths_below("", &mut paths);
        paths
    }

    fn paths_below(&self, prefix: &str, paths: &mut Vec<String>) {
        paths.extend(self.members.iter().map(|element| format!("{prefix}{}", element.shown())));
        for (element, set) in &self.children {
            set.paths_below(&format!("{prefix}{}", element.shown()), paths);
        }
    }

    pub fn encode(&self) -> Value {
        let mut fields = Map::new();
        for element in &self.members {
            fields.insert(element.encode(), json!({}));
        }
        for (element, set) in &self.children {
            if set.is_empty() {
                continue;
            }
            let mut below = set.encode();
            if self.members.contains(element) {
                below["."] = json!({});
            }
            fields.insert(element.encode(), below);
        }
        Value::Object(fields)
    }

    /// Decodes `FieldsV1`; `None` if it is malformed.
    pub fn decode(fields: &Value) -> Option<Self> {
        let mut set = Self::default();
        for (name, below) in fields.as_object()? {
            if name == "." {
                continue;
            }
            let element = Element::decode(name)?;
            let is_leaf = below.as_object()?.is_empty();
            if is_leaf || below.get(".").is_some() {
                set.members.insert(element.clone());
            }
            let below = Self::decode(below)?;
            if !below.is_empty() {
                set.children.insert(element, below);
            }
        }
        Some(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(fields: Value) -> FieldSet {
        FieldSet::decode(&fields).expect("a set")
    }

    #[test]
    fn sets_are_unchanged_after_encoding_and_decoding() {
        let fields = json!({
            "f:metadata": {"f:labels": {".": {}, "f:a": {}}},
            "f:status": {"f:conditions": {"k:{\"type\":\"Ready\"}": {".": {}, "f:status": {}}}, "f:names": {"v:\"x\"": {}}},
        });
        assert_eq!(set(fields.clone()).encode(), fields);
        assert!(FieldSet::decode(&json!({"odd": {}})).is_none());
    }

    #[test]
    fn sets_are_united_and_subtracted() {
        let (one, two) = (
            set(json!({"f:a": {}, "f:b": {"f:c": {}}})),
            set(json!({"f:b": {"f:c": {}, "f:d": {}}})),
        );
        assert_eq!(one.union(&two).encode(), json!({"f:a": {}, "f:b": {"f:c": {}, "f:d": {}}}));
        assert_eq!(one.intersection(&two).encode(), json!({"f:b": {"f:c": {}}}));
        assert_eq!(one.difference(&two).encode(), json!({"f:a": {}}));
        assert_eq!(two.without("b").encode(), json!({}));
    }

    #[test]
    fn paths_read_as_conflicts_name_them() {
        let fields = json!({"f:status": {"f:conditions": {"k:{\"type\":\"Ready\"}": {"f:status": {}}}, "f:names": {"v:\"x\"": {}}}});
        assert_eq!(
            set(fields).paths(),
            [".status.conditions[type=\"Ready\"].status", ".status.names[=\"x\"]"]
        );
    }
}
