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
