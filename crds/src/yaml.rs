//! The only module that speaks YAML: everything else uses the types.

/// Why a text does not read as what was asked for.
#[derive(Debug, thiserror::Error)]
#[error("text is not the YAML that is expected here")]
pub struct ParseError(#[from] serde_yaml::Error);

/// Reads a value from one YAML document.
///
/// # Errors
/// [`ParseError`], with the place in its source.
pub fn parse<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, ParseError> {
    Ok(serde_yaml::from_str(text)?)
}

/// Reads every document of a text, or JSON objects that follow each other without a mark between them, as kubectl takes them; up to the first that does not read; empty ones are left out. Each comes with its number, from 1.
///
/// # Errors
/// [`ParseError`] and the number of that document.
pub fn documents(text: &str) -> Result<Vec<(usize, serde_json::Value)>, (usize, ParseError)> {
    if text.trim_start().starts_with('{') {
        let objects: Result<Vec<serde_json::Value>, _> = serde_json::Deserializer::from_str(text).into_iter().collect();
        // What is no JSON may still be YAML, which has braces too; and tells what is wrong.
        if let Ok(objects) = objects {
            return Ok((1..).zip(objects).collect());
        }
    }
    let mut found = Vec::new();
    for (place, document) in serde_yaml::Deserializer::from_str(text).enumerate() {
        let number = place + 1;
        let value = <serde_json::Value as serde::Deserialize>::deserialize(document).map_err(|error| (number, ParseError(error)))?;
        if !value.is_null() {
            found.push((number, value));
        }
    }
    Ok(found)
}

/// The value as YAML.
pub fn write(value: &impl serde::Serialize) -> String {
    serde_yaml::to_string(value).expect("plain data always reads as YAML")
}

/// File name and content of every kind's definition.
pub fn files() -> Vec<(String, String)> {
    crate::definitions()
        .into_iter()
        .map(|definition| {
            let name = format!("{}.yaml", definition.spec.names.plural);
            let body = serde_yaml::to_string(&definition).expect("a definition is plain data");
            (name, format!("# Generated from crds/src by `make generate`: do not edit.\n{body}"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_numbered_and_empty_ones_left_out() {
        let found = documents("# first\na: 1\n---\n# nothing\n---\nb: [2]\n").unwrap();
        assert_eq!(found, [(1, serde_json::json!({"a": 1})), (3, serde_json::json!({"b": [2]}))]);
        assert_eq!(documents("").unwrap(), []);
        let found = documents("{\"a\": 1}\n{\"b\": 2} {\"c\": 3}\n").unwrap();
        assert_eq!(found.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(documents("{\"a\": 1}\n---\n{b: 2}\n").unwrap().len(), 2);
        let (number, error) = documents("a: 1\n---\nb: [\n").unwrap_err();
        assert_eq!(number, 2);
        assert!(std::error::Error::source(&error).is_some_and(|cause| cause.to_string().contains("line")));
    }
}
