//! Reading and writing of YAML: of manifests, and of the generated definitions.

mod manifest;

use manifest::Manifest;

/// Error of a text that is not YAML, or does not fit the requested type. Its source has the reason and the place.
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

/// Editors on Windows begin UTF-8 files with it.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// Reads all documents of a text, or consecutive JSON objects, as kubectl does. Returns each document with its number, starting at 1; empty
/// documents are omitted. Whole numbers such as 1e3 become integers, as in kubectl.
///
/// # Errors
/// The first document that is invalid, or has a key twice in one map, with its number.
pub fn documents(text: &str) -> Result<Vec<(usize, serde_json::Value)>, (usize, ParseError)> {
    let text = text.trim_start_matches(BYTE_ORDER_MARK);
    if text.trim_start().starts_with('{') {
        let objects = serde_json::Deserializer::from_str(text).into_iter();
        let objects: Result<Vec<serde_json::Value>, _> = objects.map(|object| object.map(|Manifest(value)| value)).collect();
        // A text that is not JSON may be YAML in flow style; otherwise the YAML parser reports the error.
        if let Ok(objects) = objects {
            return Ok((1..).zip(objects).collect());
        }
    }
    let mut found = Vec::new();
    for (place, document) in serde_yaml::Deserializer::from_str(text).enumerate() {
        let number = place + 1;
        let Manifest(value) = serde::Deserialize::deserialize(document).map_err(|error| (number, ParseError(error)))?;
        if !value.is_null() {
            found.push((number, value));
        }
    }
    Ok(found)
}

/// Returns the integer as which the API server stores a float. `None` for integers, and for floats that are too large or not whole.
pub fn whole(number: &serde_json::Number) -> Option<i64> {
    /// Largest float that the API server converts to an integer: 2^53 - 1.
    const LARGEST: f64 = 9_007_199_254_740_991.0;
    let float = number.as_f64().filter(|_| number.is_f64());
    let whole = float.filter(|float| float.fract() == 0.0 && float.abs() <= LARGEST);
    whole.map(|whole| whole as i64)
}

pub fn write(value: &impl serde::Serialize) -> String {
    serde_yaml::to_string(value).expect("plain data always reads as YAML")
}

/// Returns the file name and the content of each kind's definition.
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
    fn whole_numbers_are_integers_as_in_kubectl() {
        let read = |text: &str| documents(text).unwrap().remove(0).1.to_string();
        let expected = r#"{"n":[1000,5,-2,1.5,9007199254740993,1e+19,1.8446744073709552e+19,-0.0],"t":["1e3",null,true]}"#;
        let numbers = "n: [1e3, 5.0, -2.0, 1.5, 9007199254740993, 1e19, 18446744073709551616, -0.0]\nt: ['1e3', ~, true]\n";
        assert_eq!(read(numbers), expected);
        assert_eq!(read("{\"n\": [1e3, 5.0], \"t\": 0.5}"), r#"{"n":[1000,5],"t":0.5}"#);
        assert_eq!(read("n: 18446744073709551615"), r#"{"n":18446744073709551615}"#);
    }

    #[test]
    fn a_key_twice_is_refused_with_its_line() {
        let refused = |text: &str| std::error::Error::source(&documents(text).unwrap_err().1).unwrap().to_string();
        let found = refused("spec:\n  slice: {vram: 1Mi}\n  chunks: 1\n  slice: {vram: 2Mi}\n");
        assert_eq!(found, "spec: key \"slice\" is already set in this map at line 4 column 3");
        let found = refused("{\"a\": 1,\n \"a\": 2}");
        assert_eq!(found, "key \"a\" is already set in this map at line 2 column 2");
        // Two maps may have the same key.
        assert_eq!(documents("a: {b: 1}\nc: {b: 1}\n---\na: 1\n").unwrap().len(), 2);
    }

    #[test]
    fn documents_are_numbered_and_empty_ones_left_out() {
        let found = documents("# first\na: 1\n---\n# nothing\n---\nb: [2]\n").unwrap();
        assert_eq!(found, [(1, serde_json::json!({"a": 1})), (3, serde_json::json!({"b": [2]}))]);
        assert_eq!(documents("").unwrap(), []);
        assert_eq!(documents("\u{feff}a: 1\n").unwrap(), [(1, serde_json::json!({"a": 1}))]);
        let found = documents("{\"a\": 1}\n{\"b\": 2} {\"c\": 3}\n").unwrap();
        assert_eq!(found.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(documents("{\"a\": 1}\n---\n{b: 2}\n").unwrap().len(), 2);
        let (number, error) = documents("a: 1\n---\nb: [\n").unwrap_err();
        assert_eq!(number, 2);
        assert!(std::error::Error::source(&error).is_some_and(|cause| cause.to_string().contains("line")));
    }
}
