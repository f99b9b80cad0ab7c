//! JSONPath of printer columns: fields, and items of a list by the value of a field (`.status.conditions[?(@.type=="Ready")].status`) or by
//! index.

use serde_json::Value;

/// The first value that the path matches; `None` if a part of the path does not exist.
pub(crate) fn find<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    let mut rest = path.trim_start_matches('$');
    let mut value = object;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[']).unwrap_or(after.len());
            value = value.get(&after[..end])?;
            rest = &after[end..];
        } else {
            let inside = rest.strip_prefix('[')?;
            let end = closing(inside)?;
            value = select(value, &inside[..end])?;
            rest = &inside[end + 1..];
        }
    }
    Some(value)
}

/// Index of the closing bracket outside of strings.
fn closing(text: &str) -> Option<usize> {
    let mut quote = None;
    for (index, character) in text.char_indices() {
        match (quote, character) {
            (None, ']') => return Some(index),
            (None, '"' | '\'') => quote = Some(character),
            (Some(open), _) if open == character => quote = None,
            _ => {}
        }
    }
    None
}

fn select<'a>(value: &'a Value, selector: &str) -> Option<&'a Value> {
    if let Some(filter) = selector.strip_prefix("?(@.").and_then(|filter| filter.strip_suffix(')')) {
        let (field, wanted) = filter.split_once("==")?;
        let wanted = wanted.trim().trim_matches(['"', '\'']);
        return value.as_array()?.iter().find(|item| item[field.trim()].as_str() == Some(wanted));
    }
    if let Ok(index) = selector.parse::<usize>() {
        return value.as_array()?.get(index);
    }
    value.get(selector.trim_matches(['"', '\'']))
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
        assert_eq!(find(&object, ".status.missing.more"), None);
        assert_eq!(find(&object, ".status.conditions[?(@.type==\"No\")].status"), None);
    }
}
