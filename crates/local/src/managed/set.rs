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

/// Fields of a value, by their paths. A field can be in the set without the fields below it, and the reverse.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FieldSet(BTreeSet<Vec<Element>>);

impl FieldSet {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn insert(&mut self, path: &[Element]) {
        if !path.is_empty() {
            self.0.insert(path.to_owned());
        }
    }

    pub fn contains(&self, path: &[Element]) -> bool {
        self.0.contains(path)
    }

    pub fn union(&self, other: &Self) -> Self {
        Self(&self.0 | &other.0)
    }

    pub fn intersection(&self, other: &Self) -> Self {
        Self(&self.0 & &other.0)
    }

    /// Fields of this set that are not in `other`. A field in `other` does not remove the fields below it.
    pub fn difference(&self, other: &Self) -> Self {
        Self(&self.0 - &other.0)
    }

    /// The set without a field and those below it.
    pub fn without(mut self, field: &str) -> Self {
        let field = Element::field(field);
        self.0.retain(|path| !path.starts_with(std::slice::from_ref(&field)));
        self
    }

    /// The set extended by every declared field that has fields below it.
    pub fn with_declared(&self, is_declared: &dyn Fn(&[Element]) -> bool) -> Self {
        let above = self.0.iter().flat_map(|path| (1..path.len()).map(|length| &path[..length]));
        let declared = above.filter(|path| is_declared(path)).map(<[Element]>::to_vec);
        Self(declared.chain(self.0.iter().cloned()).collect())
    }

    /// Paths of all fields in the format of conflicts: `.spec.class`, `.status.conditions[type="Ready"].status`. At each level, the fields of
    /// the set come before those that have fields of the set below them.
    pub fn paths(&self) -> Vec<String> {
        let mut paths: Vec<&Vec<Element>> = self.0.iter().collect();
        paths.sort_by_key(|path| {
            let steps = path.iter().enumerate();
            steps.map(|(index, element)| (index + 1 < path.len(), element)).collect::<Vec<_>>()
        });
        let shown = |path: &Vec<Element>| path.iter().map(Element::shown).collect();
        paths.into_iter().map(shown).collect()
    }

    /// Encodes the set as `FieldsV1`.
    pub fn encode(&self) -> Value {
        let mut fields = json!({});
        for path in &self.0 {
            let mut at = &mut fields;
            for (index, element) in path.iter().enumerate() {
                // A set is ordered: a field comes before those below it.
                if index > 0 && self.contains(&path[..index]) {
                    at["."] = json!({});
                }
                let name = element.encode();
                if at.get(&name).is_none() {
                    at[&name] = json!({});
                }
                at = &mut at[&name];
            }
        }
        fields
    }

    /// Decodes `FieldsV1`; `None` if it is malformed.
    pub fn decode(fields: &Value) -> Option<Self> {
        let mut set = Self::default();
        set.decode_below(&mut Vec::new(), fields)?;
        Some(set)
    }

    fn decode_below(&mut self, path: &mut Vec<Element>, fields: &Value) -> Option<()> {
        for (name, below) in fields.as_object()?.iter().filter(|(name, _)| *name != ".") {
            path.push(Element::decode(name)?);
            if below.as_object()?.is_empty() || below.get(".").is_some() {
                self.insert(path);
            }
            self.decode_below(path, below)?;
            path.pop();
        }
        Some(())
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
