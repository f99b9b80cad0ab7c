//! Condition types and reasons: the words in which `status.conditions` speaks.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use schemars::{Schema, SchemaGenerator};

/// The spec was checked: `True`, or `False` with the field and the remedy in the message.
pub const ACCEPTED: &str = "Accepted";
/// VRAM for at least `slices.min` is held: `True`, or `False` with "why not" for each device.
pub const ADMITTED: &str = "Admitted";
/// Every chunk is counted and the results stand where `status.results` says.
pub const COMPLETE: &str = "Complete";
/// The object ended without success; the reason names the cause.
pub const FAILED: &str = "Failed";
/// The object waits because `spec.suspend` says so.
pub const SUSPENDED: &str = "Suspended";
/// A worker takes work; a session answers.
pub const READY: &str = "Ready";
/// A session has a device.
pub const PLACED: &str = "Placed";
/// A lease holds its slices.
pub const GRANTED: &str = "Granted";

/// Sets `kind` in `conditions`; the transition time moves only when the status does. Returns whether anything changed.
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
    let new = |last_transition_time| Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: generation,
        last_transition_time,
    };
    match conditions.iter_mut().find(|condition| condition.type_ == kind) {
        Some(old) => {
            let time = if old.status == status {
                old.last_transition_time.clone()
            } else {
                Time(now)
            };
            let new = new(time);
            let changed = *old != new;
            *old = new;
            changed
        }
        None => {
            conditions.push(new(Time(now)));
            true
        }
    }
}

/// The condition of that type, if there is one.
pub fn get<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

/// Whether the condition of that type is `True`.
pub fn is_true(conditions: &[Condition], kind: &str) -> bool {
    get(conditions, kind).is_some_and(|condition| condition.status == "True")
}

/// The schema of `status.conditions`: a list keyed by type, at most 16 long, so that server-side apply merges it by type.
pub fn schema(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = generator.subschema_for::<Vec<Condition>>();
    schema.insert("maxItems".into(), 16.into());
    schema.insert("x-kubernetes-list-type".into(), "map".into());
    schema.insert("x-kubernetes-list-map-keys".into(), serde_json::json!(["type"]));
    schema
}
