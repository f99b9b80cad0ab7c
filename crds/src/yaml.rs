//! The only module that speaks YAML: everything else uses the types.

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
