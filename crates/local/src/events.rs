//! Conversion of Events. Both groups share the same objects, which are stored in the format of core/v1 and converted for requests of
//! events.k8s.io/v1.

use serde_json::{Value, json};

const FIELDS: [(&str, &str); 7] = [
    ("note", "message"),
    ("regarding", "involvedObject"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

pub(crate) fn to_core(event: &mut Value) {
    rename(event, FIELDS);
    event["apiVersion"] = json!("v1");
    for field in ["involvedObject", "source"] {
        if event[field].is_null() {
            event[field] = json!({});
        }
    }
}

pub(crate) fn from_core(event: &mut Value) {
    rename(event, FIELDS.map(|(new, core)| (core, new)));
    event["apiVersion"] = json!("events.k8s.io/v1");
}

fn rename(event: &mut Value, names: [(&str, &str); 7]) {
    let Some(fields) = event.as_object_mut() else { return };
    for (from, to) in names {
        if let Some(value) = fields.remove(from) {
            fields.insert(to.to_owned(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_unchanged_after_conversion_in_both_directions() {
        let event = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "note": "n", "regarding": {"name": "a"},
            "reportingController": "c", "deprecatedSource": {"component": "c"}, "action": "Do",
        });
        let mut converted = event.clone();
        to_core(&mut converted);
        assert_eq!(converted["message"], "n");
        assert_eq!(converted["involvedObject"]["name"], "a");
        from_core(&mut converted);
        assert_eq!(converted, event);
    }
}
