//! Tables: the server-side output of `kubectl get`.

pub(crate) mod age;
mod cells;

use jsonpath_rust::JsonPath;
use serde_json::{Value, json};

use crate::object;
use crate::resource::Column;
use crate::view::View;

impl View {
    pub(crate) fn table(&self, objects: &[Value], metadata: Value) -> Value {
        let rows: Vec<Value> = objects.iter().map(|object| self.row(object)).collect();
        json!({
            "kind": "Table",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": metadata,
            "columnDefinitions": self.columns(),
            "rows": rows,
        })
    }

    fn columns(&self) -> Vec<Value> {
        self.resource()
            .columns
            .iter()
            .map(|column| {
                let description = match column.description.as_deref().unwrap_or_default() {
                    "" => format!("Custom resource definition column (in JSONPath format): {}", column.json_path),
                    given => given.to_owned(),
                };
                json!({
                    "name": column.name,
                    "type": column.type_,
                    "format": column.format.as_deref().unwrap_or_default(),
                    "description": description,
                    "priority": column.priority.unwrap_or_default(),
                })
            })
            .collect()
    }

    fn row(&self, object: &Value) -> Value {
        let resource = self.resource();
        let cells = if resource.is_custom() {
            resource.columns.iter().map(|column| self.cell(object, column)).collect()
        } else {
            cells::cells(object, resource.behaviour, self.now)
        };
        let shown = match self.include_object.as_str() {
            "None" => Value::Null,
            "Object" => object.clone(),
            _ => object::only_metadata(object),
        };
        json!({"cells": cells, "object": shown})
    }

    fn cell(&self, object: &Value, column: &Column) -> Value {
        let Some(value) = find(object, &column.json_path) else {
            return Value::Null;
        };
        match (column.type_.as_str(), value) {
            ("string", Value::String(_)) => value.clone(),
            ("string", Value::Null) => json!(""),
            ("string", Value::Number(number)) => json!(object::number(number)),
            ("string", other) => json!(other.to_string()),
            #[expect(clippy::cast_possible_truncation, reason = "the API server cuts the same way")]
            ("integer", Value::Number(number)) => number
                .as_i64()
                .map_or_else(|| json!(number.as_f64().unwrap_or_default() as i64), Value::from),
            ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => value.clone(),
            ("date", Value::String(text)) => match text.parse() {
                Ok(since) => json!(age::since(since, self.now)),
                Err(_) => json!("<invalid>"),
            },
            _ => Value::Null,
        }
    }
}

/// The first value that a JSONPath without `$` matches; `None` if a part of the path does not exist.
fn find<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    object.query(&format!("${}", in_brackets(path))).ok()?.into_iter().next()
}

/// Writes the names of a path that have escaped dots in brackets, as RFC 9535 requires: `.a\.b/c` becomes `["a.b/c"]`.
fn in_brackets(path: &str) -> String {
    const ESCAPED: char = '\0';
    let marked = path.replace("\\.", &ESCAPED.to_string());
    let mut parts = marked.split('.');
    let mut written = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        if part.contains(ESCAPED) {
            let name = part.replace(ESCAPED, ".");
            written.push_str(&format!("[\"{name}\"]"));
        } else {
            written.push('.');
            written.push_str(part);
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_find_fields_conditions_and_items() {
        let object = json!({"status": {"conditions": [{"type": "A.b]", "status": "1"}, {"type": "Ready", "status": "True"}], "n": 3}});
        assert_eq!(find(&object, ".status.n"), Some(&json!(3)));
        assert_eq!(
            find(&object, ".status.conditions[?(@.type==\"Ready\")].status"),
            Some(&json!("True"))
        );
        assert_eq!(find(&object, ".status.conditions[?(@.type==\"A.b]\")].status"), Some(&json!("1")));
        assert_eq!(find(&object, ".status.conditions[0].type"), Some(&json!("A.b]")));
        assert_eq!(find(&object, ".status['n']"), Some(&json!(3)));
        let annotated = json!({"metadata": {"annotations": {"sahasra.dev/program": "train.py"}}});
        assert_eq!(
            find(&annotated, ".metadata.annotations.sahasra\\.dev/program"),
            Some(&json!("train.py"))
        );
        assert_eq!(find(&object, ".status.missing.more"), None);
        assert_eq!(find(&object, ".status.conditions[?(@.type==\"No\")].status"), None);
    }
}
