//! Conditions in the status of an object.

use sahasra_crds::conditions::ACCEPTED;
use serde_json::Value;

pub(crate) fn is_true(object: &Value, condition: &str) -> bool {
    when_true(object, condition).is_some()
}

/// The condition, if the object has it with status `True`.
pub(crate) fn when_true<'a>(object: &'a Value, condition: &str) -> Option<&'a Value> {
    conditions_of(object).find(|one| one["type"] == condition && one["status"] == "True")
}

/// The condition `Accepted` of a burst, if it is `False` for the current generation of the spec.
pub(crate) fn rejection(burst: &Value) -> Option<&Value> {
    conditions_of(burst).find(|one| {
        let observed = one["observedGeneration"].as_i64();
        let is_current = observed.is_none() || observed == burst["metadata"]["generation"].as_i64();
        one["type"] == ACCEPTED && one["status"] == "False" && is_current
    })
}

fn conditions_of(object: &Value) -> impl Iterator<Item = &Value> {
    object["status"]["conditions"].as_array().into_iter().flatten()
}
