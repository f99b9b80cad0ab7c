//! Field management (`metadata.managedFields`) and server-side apply.
//!
//! Every write records the fields that it changed under the name of its field manager. An apply owns all fields of its configuration. An
//! apply conflicts with other owners of a field that it would change, and removes the fields that its previous configuration contained if
//! the new configuration does not contain them and they have no other owner (KEP 555).

pub(crate) mod set;
pub(crate) mod typed;

use std::sync::Arc;

use http::StatusCode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::StatusDetails;
use serde_json::{Value, json};

use self::set::{Element, FieldSet};
use crate::object;
use crate::refusal::{Refusal, cause};
use crate::resource::{Behaviour, Resource};
use crate::schema::Schema;
use crate::write::{Transaction, Writing};

/// Maximum number of entries of managers that do not apply. Like in the API server, the oldest entries beyond this limit are merged.
const UPDATERS_LIMIT: usize = 10;

#[derive(Clone, Debug, PartialEq)]
struct Entry {
    manager: String,
    is_apply: bool,
    api_version: String,
    subresource: String,
    time: String,
    fields: FieldSet,
}

impl Entry {
    fn decode(entry: &Value) -> Option<Self> {
        let text = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
        if text("fieldsType") != "FieldsV1" || text("apiVersion").is_empty() {
            return None;
        }
        Some(Self {
            manager: text("manager"),
            is_apply: match entry["operation"].as_str()? {
                "Apply" => true,
                "Update" => false,
                _ => return None,
            },
            api_version: text("apiVersion"),
            subresource: text("subresource"),
            time: text("time"),
            fields: FieldSet::decode(&entry["fieldsV1"])?,
        })
    }

    fn encode(&self) -> Value {
        let mut entry = json!({
            "manager": self.manager,
            "operation": if self.is_apply { "Apply" } else { "Update" },
            "apiVersion": self.api_version,
            "fieldsType": "FieldsV1",
            "fieldsV1": self.fields.encode(),
        });
        for (field, text) in [("time", &self.time), ("subresource", &self.subresource)] {
            if !text.is_empty() {
                entry[field] = json!(text);
            }
        }
        entry
    }

    fn is_of(&self, other: &Self) -> bool {
        let same = self.manager == other.manager && self.is_apply == other.is_apply && self.subresource == other.subresource;
        same && (self.is_apply || self.api_version == other.api_version)
    }

    fn shown(&self) -> String {
        let mut shown = object::quoted(&self.manager);
        if !self.subresource.is_empty() {
            shown = format!("{shown} with subresource {}", object::quoted(&self.subresource));
        }
        if !self.is_apply {
            shown = format!("{shown} using {}", self.api_version);
        }
        shown
    }
}

fn decode(list: &Value) -> Option<Vec<Entry>> {
    list.as_array()?.iter().map(Entry::decode).collect()
}

/// Encodes entries in the order in which the API server stores them.
fn encode(mut entries: Vec<Entry>) -> Value {
    entries.retain(|entry| !entry.fields.is_empty());
    entries.sort_by(|one, two| {
        let key = |entry: &Entry| {
            let operation = if entry.is_apply { "Apply" } else { "Update" };
            (
                operation,
                entry.time.clone(),
                entry.manager.clone(),
                entry.api_version.clone(),
                entry.subresource.clone(),
            )
        };
        key(one).cmp(&key(two))
    });
    if entries.is_empty() {
        Value::Null
    } else {
        entries.iter().map(Entry::encode).collect()
    }
}

fn unmanaged(object: &Value) -> Value {
    let mut bare = object.clone();
    object::set_metadata(&mut bare, "managedFields", Value::Null);
    bare
}

/// Fields that have no manager: the object's identity and the fields that the server sets.
fn stripped() -> FieldSet {
    let mut set = FieldSet::default();
    for name in ["apiVersion", "kind", "metadata"] {
        set.insert(&[Element::field(name)]);
    }
    for name in [
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "clusterName",
        "generation",
        "managedFields",
        "resourceVersion",
    ] {
        set.insert(&[Element::field("metadata"), Element::field(name)]);
    }
    set
}

/// Removes the fields that a write to this subresource cannot change.
fn filtered(set: FieldSet, resource: &Resource, subresource: &str) -> FieldSet {
    match (resource.behaviour, subresource) {
        (Behaviour::Custom | Behaviour::Node | Behaviour::Namespace, "status") => set.without("spec"),
        (Behaviour::Custom | Behaviour::Node | Behaviour::Namespace, _) => set.without("status"),
        _ => set,
    }
}

/// Records in `object` the manager of the fields that changed since `old`. A write that changes nothing keeps the times of all entries.
pub(crate) fn record(transaction: &Transaction<'_>, writing: &Writing, old: Option<&Arc<Value>>, object: &mut Value) {
    let resource = &transaction.catalogue.resources[writing.resource];
    if let Some(entries) = &writing.applied {
        // The apply has already computed its entries.
        object::set_metadata(object, "managedFields", entries.clone());
        keep_times(old, object);
        return;
    }
    let given = object["metadata"]["managedFields"].clone();
    let is_reset = given.as_array().is_some_and(|list| list.is_empty() || *list == [json!({})]);
    let live = || old.and_then(|old| decode(&old["metadata"]["managedFields"])).unwrap_or_default();
    let given = decode(&given).filter(|entries| !entries.is_empty() && writing.subresource.is_empty());
    let entries = if is_reset { Vec::new() } else { given.unwrap_or_else(live) };
    let bare = unmanaged(object);
    if entries.is_empty() && old.is_some() {
        // Only an apply adds the first managed fields to an object without any.
        *object = bare;
        return;
    }
    let empty = json!({"apiVersion": object["apiVersion"], "kind": object["kind"]});
    let before = old.map_or(empty, |old| unmanaged(old));
    let entries = updated(transaction, writing, resource, entries, &before, &bare);
    *object = bare;
    object::set_metadata(object, "managedFields", encode(entries));
    keep_times(old, object);
}

fn updated(
    transaction: &Transaction<'_>,
    writing: &Writing,
    resource: &Resource,
    mut entries: Vec<Entry>,
    before: &Value,
    after: &Value,
) -> Vec<Entry> {
    let found = typed::compare(before, after, resource.merge_schema());
    let filter = |set: FieldSet| filtered(set, resource, &writing.subresource);
    let (changed, removed) = (filter(found.added.union(&found.modified)), filter(found.removed));
    for entry in &mut entries {
        entry.fields = entry.fields.difference(&changed).difference(&removed);
    }
    let own = Entry {
        manager: named(&writing.manager),
        is_apply: false,
        api_version: resource.api_version(),
        subresource: writing.subresource.clone(),
        time: transaction.seconds(),
        fields: changed.difference(&stripped()),
    };
    if !own.fields.is_empty() {
        match entries.iter_mut().find(|entry| entry.is_of(&own)) {
            Some(entry) => {
                entry.fields = entry.fields.union(&own.fields);
                entry.time = own.time;
            }
            None => entries.push(own),
        }
    }
    entries.retain(|entry| !entry.fields.is_empty());
    cap(entries)
}

fn named(manager: &str) -> String {
    if manager.is_empty() {
        "unknown".to_owned()
    } else {
        manager.to_owned()
    }
}

/// Merges the oldest entries of managers that do not apply until their number is within the limit.
fn cap(mut entries: Vec<Entry>) -> Vec<Entry> {
    loop {
        let mut updaters: Vec<usize> = (0..entries.len()).filter(|index| !entries[*index].is_apply).collect();
        if updaters.len() <= UPDATERS_LIMIT {
            return entries;
        }
        updaters.sort_by_key(|index| (entries[*index].time.clone(), entries[*index].manager.clone()));
        let (first, second) = (updaters[0], updaters[1]);
        let joined = Entry {
            manager: "ancient-changes".to_owned(),
            subresource: String::new(),
            fields: entries[first].fields.union(&entries[second].fields),
            ..entries[second].clone()
        };
        entries[second] = joined;
        entries.remove(first);
    }
}

/// Restores the old entries if the objects differ in the entries' times only.
fn keep_times(old: Option<&Arc<Value>>, object: &mut Value) {
    let Some(old) = old else { return };
    let timeless = |object: &Value| {
        let list = object["metadata"]["managedFields"].as_array().into_iter().flatten();
        let entries = list.map(|entry| {
            let mut entry = entry.clone();
            if let Some(fields) = entry.as_object_mut() {
                fields.remove("time");
            }
            entry
        });
        entries.collect::<Vec<_>>()
    };
    if timeless(old) == timeless(object) && unmanaged(old) == unmanaged(object) {
        object::copy_metadata(old, object, "managedFields");
    }
}

pub(crate) fn apply(
    transaction: &Transaction<'_>,
    writing: &Writing,
    force: bool,
    old: Option<&Value>,
    config: &Value,
) -> Result<(Value, Value), Refusal> {
    let resource = &transaction.catalogue.resources[writing.resource];
    let schema = resource.merge_schema();
    let empty = json!({"apiVersion": config["apiVersion"], "kind": config["kind"]});
    let live = old.map_or_else(|| empty.clone(), unmanaged);
    let mut entries = old.and_then(|old| decode(&old["metadata"]["managedFields"])).unwrap_or_default();
    if entries.is_empty() && old.is_some() {
        // Fields that were set before fields had managers belong to the manager `before-first-apply`.
        let before = Writing {
            manager: "before-first-apply".to_owned(),
            subresource: writing.subresource.clone(),
            ..Writing::default()
        };
        entries = updated(transaction, &before, resource, entries, &empty, &live);
    }
    let own = Entry {
        manager: named(&writing.manager),
        is_apply: true,
        api_version: resource.api_version(),
        subresource: writing.subresource.clone(),
        time: transaction.seconds(),
        fields: filtered(typed::fields_of(config, schema), resource, &writing.subresource),
    };
    let last = entries.iter().find(|entry| entry.is_of(&own)).cloned();
    entries.retain(|entry| !entry.is_of(&own));
    let merged = typed::merge(&live, config, schema);
    let merged = match &last {
        Some(last) => prune(&merged, &last.fields, &own, &entries, schema),
        None => merged,
    };
    let found = typed::compare(&live, &merged, schema);
    let filter = |set: FieldSet| filtered(set, resource, &writing.subresource);
    let (changed, removed) = (filter(found.added.union(&found.modified)), filter(found.removed));
    if !force {
        refuse_conflicts(&entries, &changed, writing, old, schema)?;
    }
    for entry in &mut entries {
        entry.fields = entry.fields.difference(&changed).difference(&removed);
    }
    let mut own = own;
    own.fields = own.fields.difference(&stripped());
    if live == merged
        && let Some(last) = last
    {
        own.time = last.time;
    }
    entries.push(own);
    Ok((merged, encode(entries)))
}

fn refuse_conflicts(entries: &[Entry], changed: &FieldSet, writing: &Writing, old: Option<&Value>, schema: &Schema) -> Result<(), Refusal> {
    // kubectl may take over the fields of its own client-side apply without force.
    let taken_over = old.filter(|_| writing.manager == "kubectl").and_then(|old| {
        let annotation = &old["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"];
        let last: Value = serde_json::from_str(annotation.as_str()?).ok()?;
        let set = typed::fields_of(&last, schema);
        let mut own = FieldSet::default();
        own.insert(&["metadata", "annotations", "kubectl.kubernetes.io/last-applied-configuration"].map(Element::field));
        Some(set.union(&own))
    });
    let mut conflicts: Vec<(String, Vec<String>)> = Vec::new();
    for entry in entries {
        let mut set = entry.fields.intersection(changed);
        if let Some(taken_over) = &taken_over {
            set = set.difference(taken_over);
        }
        if !set.is_empty() {
            conflicts.push((entry.shown(), set.paths()));
        }
    }
    conflicts.sort();
    let causes: Vec<(String, String)> = conflicts
        .iter()
        .flat_map(|(manager, paths)| paths.iter().map(move |path| (format!("conflict with {manager}"), path.clone())))
        .collect();
    let message = match causes.as_slice() {
        [] => return Ok(()),
        [(conflict, path)] => format!("Apply failed with 1 conflict: {conflict}: {path}"),
        _ => {
            let lines = conflicts.iter().flat_map(|(manager, paths)| {
                let paths = paths.iter().map(|path| format!("- {path}"));
                std::iter::once(format!("conflicts with {manager}:")).chain(paths)
            });
            format!(
                "Apply failed with {} conflicts: {}",
                causes.len(),
                lines.collect::<Vec<_>>().join("\n")
            )
        }
    };
    let causes = causes
        .into_iter()
        .map(|(conflict, path)| cause("FieldManagerConflict", conflict, &path));
    let details = StatusDetails {
        causes: Some(causes.collect()),
        ..StatusDetails::default()
    };
    Err(Refusal::new(StatusCode::CONFLICT, "Conflict", message, details))
}

/// Removes the fields of the previous apply that this apply does not contain and that have no other owner.
fn prune(merged: &Value, last: &FieldSet, own: &Entry, others: &[Entry], schema: &Schema) -> Value {
    let declared = |path: &[Element]| typed::declares(schema, path);
    let with_declared = |set: &FieldSet| set.with_declared(&declared);
    let fields = |value: &Value| with_declared(&typed::fields_of(value, schema));
    let last = with_declared(last);
    let pruned = typed::remove(merged, &last, schema);
    let owned = others.iter().fold(own.fields.clone(), |owned, entry| owned.union(&entry.fields));
    let merged_fields = fields(merged);
    // Restore the fields that other managers own.
    let gone = merged_fields.difference(&fields(&pruned).union(&with_declared(&owned)));
    let pruned = typed::remove(merged, &gone, schema);
    // Also restore the fields that the previous apply did not own.
    let gone = merged_fields.difference(&fields(&pruned)).intersection(&last);
    typed::remove(merged, &gone, schema)
}
