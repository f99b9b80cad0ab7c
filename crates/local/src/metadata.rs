//! Validation of `metadata`, which is the same for all kinds.

use serde_json::Value;

use crate::names;
use crate::object;
use crate::refusal::FieldError;
use crate::resource::{Behaviour, Resource};

/// Maximum total size of the keys and values of all annotations, in bytes.
const ANNOTATIONS_LIMIT: usize = 256 * 1024;

type NameRule = fn(&str) -> Vec<String>;

pub(crate) fn validate_new(object: &Value, resource: &Resource) -> Vec<FieldError> {
    let rule: NameRule = if resource.behaviour == Behaviour::Namespace {
        names::label
    } else {
        names::subdomain
    };
    validate(object, resource, rule)
}

pub(crate) fn validate_update(object: &Value, old: &Value, resource: &Resource) -> Vec<FieldError> {
    let mut errors = validate(object, resource, names::path_segment);
    // For custom kinds, both the generic and the kind-specific validation of the API server check changes: the message contains each error
    // once, the causes contain it twice.
    for _ in 0..2 {
        validate_change(object, old, &mut errors);
        if !resource.is_custom() {
            break;
        }
    }
    errors
}

fn validate(object: &Value, resource: &Resource, name_rule: NameRule) -> Vec<FieldError> {
    let metadata = &object["metadata"];
    let mut errors = Vec::new();
    let prefix = object::metadata(object, "generateName");
    if !prefix.is_empty() {
        // A prefix may end in a dash, although a name may not: as in Kubernetes, an `a` replaces it and the character before it.
        let masked = prefix.strip_suffix('-').and_then(|stem| {
            let mut characters = stem.chars();
            characters.next_back()?;
            Some(format!("{}a", characters.as_str()))
        });
        let masked = masked.unwrap_or_else(|| prefix.to_owned());
        errors.extend(FieldError::each("metadata.generateName", prefix, name_rule(&masked)));
    }
    let name = object::name(object);
    if name.is_empty() {
        errors.push(FieldError::required("metadata.name", "name or generateName is required"));
    } else {
        errors.extend(FieldError::each("metadata.name", name, name_rule(name)));
    }
    let namespace = object::namespace(object);
    if resource.namespaced && namespace.is_empty() {
        errors.push(FieldError::required("metadata.namespace", ""));
    } else if resource.namespaced {
        errors.extend(FieldError::each("metadata.namespace", namespace, names::label(namespace)));
    } else if !namespace.is_empty() {
        errors.push(FieldError::forbidden("metadata.namespace", "not allowed on this type"));
    }
    validate_labels(metadata, &mut errors);
    validate_owners(metadata, &mut errors);
    let finalizers = object::finalizers(object);
    for finalizer in &finalizers {
        errors.extend(FieldError::each("metadata.finalizers", finalizer, names::qualified(finalizer)));
    }
    if finalizers.contains(&"orphan") && finalizers.contains(&"foregroundDeletion") {
        let both = "finalizer orphan and foregroundDeletion cannot be both set";
        errors.push(FieldError::invalid("metadata.finalizers", metadata["finalizers"].clone(), both));
    }
    errors
}

fn validate_labels(metadata: &Value, errors: &mut Vec<FieldError>) {
    for (key, value) in metadata["labels"].as_object().into_iter().flatten() {
        errors.extend(FieldError::each("metadata.labels", key, names::qualified(key)));
        let value = value.as_str().unwrap_or_default();
        errors.extend(FieldError::each("metadata.labels", value, names::label_value(value)));
    }
    let mut size = 0;
    for (key, value) in metadata["annotations"].as_object().into_iter().flatten() {
        errors.extend(FieldError::each("metadata.annotations", key, names::qualified(&key.to_lowercase())));
        size += key.len() + value.as_str().unwrap_or_default().len();
    }
    if size > ANNOTATIONS_LIMIT {
        let limit = i64::try_from(ANNOTATIONS_LIMIT).expect("a constant that fits");
        errors.push(FieldError::too_long("metadata.annotations", limit));
    }
}

fn validate_owners(metadata: &Value, errors: &mut Vec<FieldError>) {
    let mut controller: Option<String> = None;
    for owner in metadata["ownerReferences"].as_array().into_iter().flatten() {
        let text = |field: &str| owner[field].as_str().unwrap_or_default();
        for field in ["apiVersion", "kind", "name", "uid"] {
            if text(field).is_empty() {
                let what = if field == "apiVersion" { "version " } else { "" };
                let (field, why) = (format!("metadata.ownerReferences.{field}"), format!("{what}must not be empty"));
                errors.push(FieldError::invalid(field, "", why));
            }
        }
        if owner["controller"] == true {
            let this = format!("{}/{}", text("kind"), text("name"));
            match &controller {
                Some(first) => {
                    let why =
                        format!("Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}");
                    errors.push(FieldError::invalid(
                        "metadata.ownerReferences",
                        metadata["ownerReferences"].clone(),
                        why,
                    ));
                }
                None => controller = Some(this),
            }
        }
    }
}

fn validate_change(object: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    if object::is_deleting(old) {
        let before = object::finalizers(old);
        let mut added: Vec<&str> = object::finalizers(object)
            .into_iter()
            .filter(|finalizer| !before.contains(finalizer))
            .collect();
        added.sort_unstable();
        if !added.is_empty() {
            let list: Vec<String> = added.into_iter().map(object::quoted).collect();
            let list = list.join(", ");
            let why = format!("no new finalizers can be added if the object is being deleted, found new finalizers []string{{{list}}}");
            errors.push(FieldError::forbidden("metadata.finalizers", why));
        }
    }
    for field in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        let (new, old) = (&object["metadata"][field], &old["metadata"][field]);
        if new != old {
            errors.push(FieldError::invalid(format!("metadata.{field}"), new.clone(), "field is immutable"));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::resource::catalogue;

    #[test]
    fn a_prefix_may_end_with_a_dash_and_not_begin_with_one() {
        let wrong = |prefix: &str| {
            let catalogue = catalogue();
            let resource = catalogue
                .resources
                .iter()
                .find(|resource| resource.namespaced)
                .expect("there is one");
            let object = json!({"metadata": {"name": "a", "namespace": "b", "generateName": prefix}});
            validate_new(&object, resource).len()
        };
        assert_eq!(["job-", "a-"].map(wrong), [0, 0]);
        assert_eq!(["-", "-a-", "é-", "aé-a"].map(wrong), [1, 1, 0, 1]);
    }
}
