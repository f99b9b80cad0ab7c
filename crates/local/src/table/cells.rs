//! Cells of built-in kinds.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::age;
use crate::events;
use crate::object;
use crate::resource::Behaviour;

pub(crate) fn cells(object: &Value, behaviour: Behaviour, now: Timestamp) -> Vec<Value> {
    let age = || json!(age_of(&object["metadata"]["creationTimestamp"], now));
    let name = || json!(object::name(object));
    let count = |field: &str| object[field].as_object().map_or(0, Map::len);
    match behaviour {
        Behaviour::Namespace => vec![name(), object["status"]["phase"].clone(), age()],
        Behaviour::ConfigMap => vec![name(), json!(count("data") + count("binaryData")), age()],
        Behaviour::Secret => vec![name(), object["type"].clone(), json!(count("data")), age()],
        Behaviour::Lease => vec![name(), json!(object["spec"]["holderIdentity"].as_str().unwrap_or_default()), age()],
        Behaviour::Node => node(object, now),
        Behaviour::Event => event(object, now),
        Behaviour::NewEvent => {
            let mut core = object.clone();
            events::to_core(&mut core);
            event(&core, now)
        }
        Behaviour::Custom => Vec::new(),
    }
}

fn age_of(timestamp: &Value, now: Timestamp) -> String {
    match timestamp.as_str().map(str::parse) {
        Some(Ok(since)) => age::since(since, now),
        _ => "<unknown>".to_owned(),
    }
}

fn node(node: &Value, now: Timestamp) -> Vec<Value> {
    let ready = node["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == "Ready");
    let mut status = match ready.map(|condition| condition["status"].as_str().unwrap_or_default()) {
        Some("True") => "Ready".to_owned(),
        Some(_) => "NotReady".to_owned(),
        None => "Unknown".to_owned(),
    };
    if node["spec"]["unschedulable"] == true {
        status.push_str(",SchedulingDisabled");
    }
    let labels = node["metadata"]["labels"].as_object();
    let roles: Vec<&str> = labels
        .into_iter()
        .flatten()
        .filter_map(|(label, _)| label.strip_prefix("node-role.kubernetes.io/"))
        .collect();
    let roles = if roles.is_empty() { "<none>".to_owned() } else { roles.join(",") };
    let address = |kind: &str| {
        let addresses = node["status"]["addresses"].as_array();
        let found = addresses.into_iter().flatten().find(|address| address["type"] == kind);
        found.and_then(|address| address["address"].as_str()).unwrap_or("<none>")
    };
    let info = |field: &str| {
        node["status"]["nodeInfo"][field]
            .as_str()
            .filter(|text| !text.is_empty())
            .unwrap_or("<unknown>")
    };
    vec![
        json!(object::name(node)),
        json!(status),
        json!(roles),
        json!(age_of(&node["metadata"]["creationTimestamp"], now)),
        json!(node["status"]["nodeInfo"]["kubeletVersion"].as_str().unwrap_or_default()),
        json!(address("InternalIP")),
        json!(address("ExternalIP")),
        json!(info("osImage")),
        json!(info("kernelVersion")),
        json!(info("containerRuntimeVersion")),
    ]
}

fn event(event: &Value, now: Timestamp) -> Vec<Value> {
    let first_known = if event["firstTimestamp"].is_null() {
        "eventTime"
    } else {
        "firstTimestamp"
    };
    let first = age_of(&event[first_known], now);
    let series = &event["series"];
    let last = match (series, &event["lastTimestamp"]) {
        (Value::Null, Value::Null) => first.clone(),
        (Value::Null, last) => age_of(last, now),
        (series, _) => age_of(&series["lastObservedTime"], now),
    };
    let count = series["count"].as_i64().or(event["count"].as_i64()).unwrap_or(1);
    let about = &event["involvedObject"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let target = match text(&about["name"]).as_str() {
        "" => text(&about["kind"]).to_lowercase(),
        name => format!("{}/{name}", text(&about["kind"]).to_lowercase()),
    };
    let first_given = |one: &Value, other: &Value| if text(one).is_empty() { text(other) } else { text(one) };
    let component = first_given(&event["source"]["component"], &event["reportingComponent"]);
    let host = first_given(&event["source"]["host"], &event["reportingInstance"]);
    let source = if host.is_empty() {
        component
    } else {
        format!("{component}, {host}")
    };
    vec![
        json!(last),
        json!(text(&event["type"])),
        json!(text(&event["reason"])),
        json!(target),
        json!(text(&about["fieldPath"])),
        json!(source),
        json!(text(&event["message"]).trim()),
        json!(first),
        json!(count),
        json!(object::name(event)),
    ]
}
