//! Removal of fields that a schema does not declare.

use serde_json::Value;

use super::{Schema, field_path};

/// Removes the unknown fields of the value at `path`, and adds their paths, such as `spec.chunks.cuont` or `spec.kernel.args[0].x`, to
/// `unknown`.
pub(crate) fn prune(value: &mut Value, schema: &Schema, path: &str, unknown: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            let names: Vec<String> = fields.keys().cloned().collect();
            for name in names {
                let child = field_path(path, &name);
                match schema.field(&name) {
                    Some(schema) => prune(&mut fields[&name], schema, &child, unknown),
                    None if schema.keeps_unknown => {}
                    None => {
                        fields.remove(&name);
                        unknown.push(child);
                    }
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = &schema.items {
                for (index, item) in items.iter_mut().enumerate() {
                    prune(item, schema, &format!("{path}[{index}]"), unknown);
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

    #[test]
    fn unknown_fields_are_removed_and_reported_by_path() {
        let schema = json!({"type": "object", "properties": {
            "list": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
            "map": {"type": "object", "additionalProperties": {"type": "string"}},
            "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        }});
        let mut value = json!({"list": [{"a": "1", "b": 2}], "map": {"x": "y"}, "any": {"z": 1}, "other": 1});
        let mut unknown = Vec::new();
        prune(&mut value, &Schema::parse(&schema, true), "", &mut unknown);
        assert_eq!(unknown, ["list[0].b", "other"]);
        assert_eq!(value, json!({"list": [{"a": "1"}], "map": {"x": "y"}, "any": {"z": 1}}));
    }
}
