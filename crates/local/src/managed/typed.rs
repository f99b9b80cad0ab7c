//! Operations of server-side apply on values with a schema: the set of fields of a value, the comparison and merging of two values, and the
//! removal of fields.
//!
//! Lists are atomic unless the schema declares them as sets or as maps with keys. Maps are merged field by field unless the schema declares
//! them as atomic. Without a schema, objects are merged and lists are atomic.

use std::collections::BTreeMap;
use std::mem::discriminant;

use serde_json::{Map, Value};

use super::set::{Element, FieldSet};
use crate::schema::Schema;

#[derive(Clone, Debug, Default)]
pub(crate) struct Comparison {
    /// Fields that were added or have another value.
    pub changed: FieldSet,
    pub removed: FieldSet,
}

/// Whether a value is atomic: compared and replaced as a whole.
fn is_leaf(value: &Value, schema: Option<&Schema>) -> bool {
    schema.map_or(!value.is_object(), |schema| schema.is_atomic(value))
}

fn child<'a>(schema: Option<&'a Schema>, name: &str) -> Option<&'a Schema> {
    schema.and_then(|schema| schema.field(name))
}

/// Whether the schema declares the field as a property. Keys of a map are not declared.
fn is_declared(schema: Option<&Schema>, name: &str) -> bool {
    schema.is_some_and(|schema| schema.properties.contains_key(name))
}

fn element_of(item: &Value, index: usize, schema: Option<&Schema>) -> Element {
    if schema.is_some_and(Schema::is_set) {
        return Element::Value(item.to_string());
    }
    let Some(keys) = schema.and_then(Schema::keys) else {
        return Element::Index(index);
    };
    let values = keys.iter().filter_map(|key| {
        let value = item.get(key).or_else(|| item_schema(schema)?.properties.get(key)?.default())?;
        Some((key.clone(), value.to_string()))
    });
    Element::Key(values.collect())
}

fn elements<'a>(items: &'a [Value], schema: Option<&Schema>) -> Vec<(Element, &'a Value)> {
    let elements = items.iter().enumerate();
    elements.map(|(index, item)| (element_of(item, index, schema), item)).collect()
}

fn item_schema(schema: Option<&Schema>) -> Option<&Schema> {
    schema.and_then(|schema| schema.items.as_deref())
}

fn children<'a>(value: &'a Value, schema: Option<&'a Schema>) -> Vec<(Element, &'a Value, Option<&'a Schema>)> {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter();
            fields
                .map(|(name, item)| (Element::field(name), item, child(schema, name)))
                .collect()
        }
        Value::Array(items) => {
            let items = elements(items, schema).into_iter();
            items.map(|(element, item)| (element, item, item_schema(schema))).collect()
        }
        _ => Vec::new(),
    }
}

pub(crate) fn fields_of(value: &Value, schema: &Schema) -> FieldSet {
    let mut set = FieldSet::default();
    collect(value, Some(schema), &mut Vec::new(), &mut set);
    set
}

fn collect(value: &Value, schema: Option<&Schema>, path: &mut Vec<Element>, set: &mut FieldSet) {
    if is_leaf(value, schema) {
        set.insert(path.clone());
        return;
    }
    for (element, item, below) in children(value, schema) {
        let is_declared = matches!(&element, Element::Field(name) if is_declared(schema, name));
        let is_filled = !item.is_null() && !item.as_object().is_some_and(Map::is_empty);
        path.push(element);
        collect(item, below, path, set);
        if !(is_declared && is_filled) {
            set.insert(path.clone());
        }
        path.pop();
    }
}

pub(crate) fn compare(old: &Value, new: &Value, schema: &Schema) -> Comparison {
    let mut comparison = Comparison::default();
    compare_at(Some(old), Some(new), Some(schema), &mut Vec::new(), &mut comparison);
    comparison
}

fn compare_at<'a>(
    old: Option<&'a Value>,
    new: Option<&'a Value>,
    schema: Option<&'a Schema>,
    path: &mut Vec<Element>,
    found: &mut Comparison,
) {
    if old == new {
        return;
    }
    let is_leaf = [old, new]
        .into_iter()
        .flatten()
        .all(|value| is_leaf(value, schema) || is_empty(value));
    let differs_in_kind = matches!((old, new), (Some(old), Some(new)) if discriminant(old) != discriminant(new));
    if !is_leaf && !differs_in_kind {
        let below = |value: Option<&'a Value>| -> BTreeMap<_, _> {
            let children = value.into_iter().flat_map(|value| children(value, schema));
            children.map(|(element, item, schema)| (element, (item, schema))).collect()
        };
        let (before, after) = (below(old), below(new));
        for element in before.keys().chain(after.keys().filter(|element| !before.contains_key(element))) {
            let (old, new) = (before.get(element), after.get(element));
            let schema = old.or(new).and_then(|(_, schema)| *schema);
            path.push(element.clone());
            compare_at(old.map(|(item, _)| *item), new.map(|(item, _)| *item), schema, path, found);
            path.pop();
        }
        if old.is_some() && new.is_some() {
            return;
        }
    }
    let set = if new.is_some() { &mut found.changed } else { &mut found.removed };
    set.insert(path.clone());
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// Merges `config` into `live`: fields of `config` replace those of `live`, all other fields stay.
pub(crate) fn merge(live: &Value, config: &Value, schema: Option<&Schema>) -> Value {
    if is_leaf(live, schema) || is_leaf(config, schema) {
        return config.clone();
    }
    match (live, config) {
        (Value::Object(live), Value::Object(config)) => {
            let mut merged = live.clone();
            for (name, value) in config {
                let value = live
                    .get(name)
                    .map_or_else(|| value.clone(), |live| merge(live, value, child(schema, name)));
                merged.insert(name.clone(), value);
            }
            Value::Object(merged)
        }
        (Value::Array(live), Value::Array(config)) => Value::Array(merge_items(live, config, schema)),
        _ => config.clone(),
    }
}

/// Merges two lists: items that are only in `live` keep their positions, items of `config` keep the order of `config`.
fn merge_items(live: &[Value], config: &[Value], schema: Option<&Schema>) -> Vec<Value> {
    let (left, right) = (elements(live, schema), elements(config, schema));
    let in_live: BTreeMap<&Element, &Value> = left.iter().map(|(element, item)| (element, *item)).collect();
    let in_config: BTreeMap<&Element, &Value> = right.iter().map(|(element, item)| (element, *item)).collect();
    let merged = |element: &Element| match (in_live.get(element), in_config.get(element)) {
        (Some(live), Some(config)) => merge(live, config, item_schema(schema)),
        (Some(only), None) | (None, Some(only)) => Value::clone(only),
        (None, None) => Value::Null,
    };
    let mut shared = right
        .iter()
        .map(|(element, _)| element)
        .filter(|element| in_live.contains_key(element));
    let mut next_shared = shared.next();
    let (mut items, mut done) = (Vec::new(), std::collections::BTreeSet::new());
    let (mut left_index, mut right_index) = (0, 0);
    while left_index < left.len() || right_index < right.len() {
        if let (Some((left_element, _)), Some((right_element, _))) = (left.get(left_index), right.get(right_index)) {
            if left_element == right_element {
                items.push(merged(left_element));
                done.insert(left_element);
                next_shared = shared.next();
                left_index += 1;
                right_index += 1;
                continue;
            }
            if in_config.contains_key(left_element) && next_shared.is_some_and(|next| next != left_element) {
                left_index += 1;
                continue;
            }
        }
        if let Some((element, _)) = left.get(left_index) {
            if !in_config.contains_key(element) {
                items.push(merged(element));
                left_index += 1;
                continue;
            }
            if done.contains(element) {
                left_index += 1;
            }
        }
        if let Some((element, _)) = right.get(right_index) {
            items.push(merged(element));
            done.insert(element);
            right_index += 1;
            if next_shared == Some(element) {
                next_shared = shared.next();
            }
        }
    }
    items
}

/// Removes the fields in `set` from `value`, and objects and lists that become empty.
pub(crate) fn remove(value: &Value, set: &FieldSet, schema: &Schema) -> Value {
    remove_at(value, set, &mut Vec::new(), Some(schema)).unwrap_or(Value::Null)
}

fn remove_at(value: &Value, set: &FieldSet, path: &mut Vec<Element>, schema: Option<&Schema>) -> Option<Value> {
    if is_leaf(value, schema) || is_empty(value) {
        return Some(value.clone());
    }
    let mut keep = |element: Element, item: &Value, schema: Option<&Schema>| {
        path.push(element);
        let kept = (!set.contains(path)).then(|| remove_at(item, set, path, schema)).flatten();
        path.pop();
        kept
    };
    let kept: Value = match value {
        Value::Object(fields) => {
            let kept = |(name, item): (&String, &Value)| Some((name.clone(), keep(Element::field(name), item, child(schema, name))?));
            fields.iter().filter_map(kept).collect()
        }
        _ => children(value, schema)
            .into_iter()
            .filter_map(|(element, item, below)| keep(element, item, below))
            .collect(),
    };
    (!is_empty(&kept)).then_some(kept)
}

/// The set extended by every declared field that has fields below it.
pub(crate) fn with_declared(mut set: FieldSet, schema: &Schema) -> FieldSet {
    let above = set.iter().flat_map(|path| (1..path.len()).map(|length| &path[..length]));
    let declared: FieldSet = above.filter(|path| declares(schema, path)).map(<[_]>::to_vec).collect();
    set.extend(declared);
    set
}

fn declares(schema: &Schema, path: &[Element]) -> bool {
    let Some((Element::Field(last), above)) = path.split_last() else {
        return false;
    };
    let parent = above.iter().try_fold(schema, |at, element| match element {
        Element::Field(name) => at.field(name),
        _ => at.items.as_deref(),
    });
    is_declared(parent, last)
}

/// Paths of the fields that the schema does not declare, in the format of apply's messages.
pub(crate) fn undeclared(value: &Value, schema: &Schema) -> Vec<String> {
    let mut paths = Vec::new();
    undeclared_at(value, schema, String::new(), &mut paths);
    paths
}

fn undeclared_at(value: &Value, schema: &Schema, path: String, paths: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let below = format!("{path}.{name}");
                match schema.field(name) {
                    Some(schema) => undeclared_at(value, schema, below, paths),
                    None if schema.keeps_unknown => {}
                    None => paths.push(below),
                }
            }
        }
        Value::Array(items) => {
            if let Some(item_schema) = &schema.items {
                for (element, item) in elements(items, Some(schema)) {
                    undeclared_at(item, item_schema, format!("{path}{}", element.shown()), paths);
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::managed::set;

    fn schema() -> Schema {
        let keyed = json!({
            "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
            "items": {"type": "object", "properties": {"name": {"type": "string"}, "value": {"type": "integer"}}},
        });
        let schema = json!({"type": "object", "properties": {
            "plain": {"type": "string"},
            "keyed": keyed,
            "atomic": {"type": "array", "items": {"type": "integer"}},
            "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        }});
        Schema::parse(&schema, true)
    }

    #[test]
    fn an_applied_value_owns_its_leaves_items_and_keys() {
        let value = json!({"plain": "x", "keyed": [{"name": "a", "value": 1}], "atomic": [1], "set": ["s"], "labels": {"l": "m"}});
        let expected = json!({
            "f:plain": {}, "f:keyed": {"k:{\"name\":\"a\"}": {".": {}, "f:name": {}, "f:value": {}}}, "f:atomic": {},
            "f:set": {"v:\"s\"": {}}, "f:labels": {"f:l": {}},
        });
        assert_eq!(set::encode(&fields_of(&value, &schema())), expected);
    }

    #[test]
    fn a_comparison_distinguishes_changed_and_removed() {
        let old = json!({"plain": "x", "keyed": [{"name": "a", "value": 1}], "atomic": [1], "set": ["s"]});
        let new = json!({"plain": "y", "keyed": [{"name": "a", "value": 2}, {"name": "b"}], "labels": {"l": "m"}, "set": ["t"]});
        let found = compare(&old, &new, &schema());
        let changed = json!({
            "f:plain": {},
            "f:keyed": {"k:{\"name\":\"a\"}": {"f:value": {}}, "k:{\"name\":\"b\"}": {".": {}, "f:name": {}}},
            "f:labels": {".": {}, "f:l": {}}, "f:set": {"v:\"t\"": {}},
        });
        assert_eq!(set::encode(&found.changed), changed);
        assert_eq!(set::encode(&found.removed), json!({"f:atomic": {}, "f:set": {"v:\"s\"": {}}}));
    }

    #[test]
    fn items_are_merged_by_their_keys() {
        let live = json!({"keyed": [{"name": "a", "value": 1}, {"name": "b", "value": 2}], "atomic": [1, 2], "set": ["s"]});
        let config = json!({"keyed": [{"name": "c"}, {"name": "b", "value": 3}], "atomic": [3], "set": ["t", "s"]});
        let merged = merge(&live, &config, Some(&schema()));
        let names: Vec<_> = merged["keyed"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|item| item["name"].clone())
            .collect();
        assert_eq!(names, ["a", "c", "b"]);
        assert_eq!(merged["keyed"][2]["value"], 3);
        assert_eq!((&merged["atomic"], &merged["set"]), (&json!([3]), &json!(["t", "s"])));
    }

    #[test]
    fn the_fields_of_a_set_are_removed() {
        let value = json!({"plain": "x", "keyed": [{"name": "a"}, {"name": "b"}], "labels": {"l": "m"}});
        let set = json!({"f:keyed": {"k:{\"name\":\"a\"}": {}}, "f:labels": {"f:l": {}}});
        let left = remove(&value, &set::decode(&set).expect("a set"), &schema());
        assert_eq!(left, json!({"plain": "x", "keyed": [{"name": "b"}]}));
    }
}
