//! Types of the conditions in `status.conditions`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use schemars::{Schema, SchemaGenerator};

/// The spec was checked: `True`, or `False` with the field and the remedy in the message.
pub const ACCEPTED: &str = "Accepted";
/// The burst holds at least `slices.min` slices. The message of `False` has the reason for each device.
pub const ADMITTED: &str = "Admitted";
/// Every chunk is counted, and `status.results` names the places of the results.
pub const COMPLETE: &str = "Complete";
/// The object ended without success; the reason names the cause.
pub const FAILED: &str = "Failed";
/// The object is suspended by `spec.suspend`.
pub const SUSPENDED: &str = "Suspended";
/// The counted chunks are saved: `False` with the cause while saving fails; absent if it has never failed.
pub const CHECKPOINTED: &str = "Checkpointed";
/// A worker accepts work, or a session accepts clients.
pub const READY: &str = "Ready";
/// A session has a device.
pub const PLACED: &str = "Placed";
/// A lease holds its slices.
pub const GRANTED: &str = "Granted";

/// Sets the condition of type `kind`, and its transition time if its status changes. Returns whether anything changed.
pub fn set(
    conditions: &mut Vec<Condition>,
    kind: &str,
    status: bool,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: Timestamp,
) -> bool {
    let status = if status { "True" } else { "False" };
    let old = conditions.iter_mut().find(|condition| condition.type_ == kind);
    let since = old.as_ref().filter(|old| old.status == status);
    let new = Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: generation,
        last_transition_time: since.map_or(Time(now), |old| old.last_transition_time.clone()),
    };
    match old {
        Some(old) if *old == new => return false,
        Some(old) => *old = new,
        None => conditions.push(new),
    }
    true
}

pub fn get<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

/// Whether the condition of this type is `True`.
pub fn is_true(conditions: &[Condition], kind: &str) -> bool {
    get(conditions, kind).is_some_and(|condition| condition.status == "True")
}

/// Schema of `status.conditions`: a list of at most 16 items that server-side apply merges by type.
pub fn schema(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = generator.subschema_for::<Vec<Condition>>();
    schema.insert("maxItems".into(), 16.into());
    schema.insert("x-kubernetes-list-type".into(), "map".into());
    schema.insert("x-kubernetes-list-map-keys".into(), serde_json::json!(["type"]));
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn the_transition_time_moves_with_the_status_alone() {
        let mut conditions = Vec::new();
        assert!(set(
            &mut conditions,
            ACCEPTED,
            false,
            "ConfigMapNotFound",
            "create it",
            Some(1),
            at(10)
        ));
        assert!(set(&mut conditions, ACCEPTED, false, "InvalidPtx", "compile it", Some(2), at(20)));
        let condition = get(&conditions, ACCEPTED).unwrap();
        assert_eq!((condition.reason.as_str(), condition.observed_generation), ("InvalidPtx", Some(2)));
        assert_eq!(condition.last_transition_time, Time(at(10)));
        assert!(!is_true(&conditions, ACCEPTED));

        assert!(set(&mut conditions, ACCEPTED, true, "Valid", "", Some(2), at(30)));
        assert_eq!(get(&conditions, ACCEPTED).unwrap().last_transition_time, Time(at(30)));
        assert!(is_true(&conditions, ACCEPTED));
        assert_eq!(conditions.len(), 1);
    }

    #[test]
    fn the_same_again_changes_nothing() {
        let mut conditions = Vec::new();
        set(&mut conditions, READY, true, "Serving", "", Some(1), at(10));
        let before = conditions.clone();
        assert!(!set(&mut conditions, READY, true, "Serving", "", Some(1), at(99)));
        assert_eq!(conditions, before);
        assert!(get(&conditions, PLACED).is_none());
    }
}
