//! Values as the API server decodes them from JSON into Go types.

use sahasra_crds::yaml::whole;
use serde_json::Value;

use super::{Schema, for_each_below};

/// Replaces whole floats by integers where the schema has an integer. The API server does so when it encodes the object for storage:
/// Go writes the float 5.0 as `5`.
pub(crate) fn integers(value: &mut Value, schema: &Schema) {
    match value {
        Value::Number(number) if schema.type_name() == "integer" || schema.int_or_string() => {
            if let Some(whole) = whole(number) {
                *value = Value::from(whole);
            }
        }
        _ => for_each_below(value, schema, integers),
    }
}

/// Replaces null by the empty string in maps and lists of strings, because Go decodes null as the zero value of the type.
pub(crate) fn strings(value: &mut Value, schema: &Schema) {
    let is_text = |schema: &Option<Box<Schema>>| schema.as_ref().is_some_and(|schema| schema.type_name() == "string");
    match value {
        Value::Object(fields) if is_text(&schema.values) => {
            for (name, value) in fields {
                if !schema.properties.contains_key(name) {
                    empty(value);
                }
            }
        }
        Value::Array(items) if is_text(&schema.items) => items.iter_mut().for_each(empty),
        _ => {}
    }
    for_each_below(value, schema, strings);
}

fn empty(value: &mut Value) {
    if value.is_null() {
        *value = Value::from("");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// 2^53 - 1.
    const LARGEST: f64 = 9_007_199_254_740_991.0;

    #[test]
    fn whole_floats_become_integers_where_the_schema_has_integers() {
        let schema = json!({"type": "object", "properties": {
            "count": {"type": "integer"},
            "size": {"x-kubernetes-int-or-string": true},
            "rate": {"type": "number"},
            "grid": {"type": "array", "items": {"type": "integer"}},
        }});
        let schema = Schema::parse(&schema, true);
        for (before, after) in [
            (
                json!({"count": 5.0, "size": 1e3, "rate": 5.0}),
                json!({"count": 5, "size": 1000, "rate": 5.0}),
            ),
            (json!({"grid": [1.0, 2, 2.5, -3.0]}), json!({"grid": [1, 2, 2.5, -3]})),
            (json!({"count": LARGEST}), json!({"count": 9_007_199_254_740_991_i64})),
            (json!({"count": 9_007_199_254_740_992.0}), json!({"count": 9_007_199_254_740_992.0})),
            (json!({"count": u64::MAX, "other": 5.0}), json!({"count": u64::MAX, "other": 5.0})),
        ] {
            let mut value = before;
            integers(&mut value, &schema);
            assert_eq!(value, after);
        }
    }

    #[test]
    fn null_is_the_empty_string_in_maps_and_lists_of_strings() {
        let schema = json!({"type": "object", "properties": {
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "finalizers": {"type": "array", "items": {"type": "string"}},
            "numbers": {"type": "array", "items": {"type": "integer"}},
            "name": {"type": "string"},
        }});
        let mut value = json!({"labels": {"a": null, "b": "c"}, "finalizers": [null, "d"], "numbers": [null], "name": null});
        strings(&mut value, &Schema::parse(&schema, true));
        assert_eq!(
            value,
            json!({"labels": {"a": "", "b": "c"}, "finalizers": ["", "d"], "numbers": [null], "name": null})
        );
    }
}
