//! Setting of default values from a schema.

use serde_json::Value;

use super::{Schema, for_each_below};

/// Sets the default of every absent property, and of every property that is null but not nullable. Like in the API server, a null that is
/// not allowed and has no default is removed before validation.
pub(crate) fn fill(value: &mut Value, schema: &Schema) {
    if let Value::Object(fields) = value {
        for (name, property) in &schema.properties {
            let forbidden_null = fields.get(name).is_some_and(Value::is_null) && property.own.nullable != Some(true);
            match property.default() {
                Some(default) if forbidden_null || !fields.contains_key(name) => {
                    fields.insert(name.clone(), default.clone());
                }
                None if forbidden_null => {
                    fields.remove(name);
                }
                _ => {}
            }
        }
    }
    for_each_below(value, schema, fill);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_replace_absent_and_null_fields() {
        let schema = json!({"type": "object", "properties": {
            "plain": {"type": "integer"},
            "given": {"type": "integer", "default": 3},
            "nullable": {"type": "integer", "nullable": true, "default": 4},
            "nested": {"type": "object", "default": {}, "properties": {"deep": {"type": "string", "default": "x"}}},
        }});
        let mut value = json!({"given": null, "nullable": null, "plain": null});
        fill(&mut value, &Schema::parse(&schema, true));
        assert_eq!(value, json!({"given": 3, "nullable": null, "nested": {"deep": "x"}}));
    }
}
