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
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use self::set::{Element, FieldSet};
use self::typed::Comparison;
use crate::object;
use crate::refusal::{Refusal, cause};
use crate::resource::Resource;
use crate::schema::Schema;
use crate::write::{Transaction, Writing};

/// Maximum number of entries of managers that do not apply. Like in the API server, the oldest entries beyond this limit are merged.
const UPDATERS_LIMIT: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Operation {
    Apply,
    Update,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum FieldsType {
    FieldsV1,
}

/// Entries are ordered like in the API server, which stores them in this order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    operation: Operation,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    time: String,
    #[serde(default)]
    manager: String,
    api_version: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    subresource: String,
    fields_type: FieldsType,
    #[serde(rename = "fieldsV1", with = "set")]
    fields: FieldSet,
}

impl Entry {
    fn new(transaction: &Transaction<'_>, writing: &Writing, operation: Operation, fields: FieldSet) -> Self {
        let manager = if writing.manager.is_empty() { "unknown" } else { &writing.manager };
        Self {
            operation,
            time: transaction.seconds(),
            manager: manager.to_owned(),
            api_version: transaction.catalogue.resources[writing.resource].api_version(),
            subresource: writing.subresource.clone(),
            fields_type: FieldsType::FieldsV1,
            fields,
        }
    }

    fn is_of(&self, other: &Self) -> bool {
        let same = self.manager == other.manager && self.operation == other.operation && self.subresource == other.subresource;
        same && (self.operation == Operation::Apply || self.api_version == other.api_version)
    }

    fn shown(&self) -> String {
        let mut shown = object::quoted(&self.manager);
        if !self.subresource.is_empty() {
            shown = format!("{shown} with subresource {}", object::quoted(&self.subresource));
        }
        if self.operation == Operation::Update {
            shown = format!("{shown} using {}", self.api_version);
        }
        shown
    }
}

fn decode(list: &Value) -> Option<Vec<Entry>> {
    let entries = Vec::<Entry>::deserialize(list).ok()?;
    entries.iter().all(|entry| !entry.api_version.is_empty()).then_some(entries)
}

fn encode(mut entries: Vec<Entry>) -> Value {
    entries.retain(|entry| !entry.fields.is_empty());
    entries.sort();
    if entries.is_empty() { Value::Null } else { json!(entries) }
}

fn unmanaged(object: &Value) -> Value {
    let mut bare = object.clone();
    object::set_metadata(&mut bare, "managedFields", Value::Null);
    bare
}

/// Whether a field has no manager: those of the object's identity, and those that the server sets.
fn is_unmanaged(path: &[Element]) -> bool {
    let is_one_of = |element: &Element, names: &[&str]| names.iter().any(|name| element.is_field(name));
    let in_metadata = [
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "clusterName",
        "generation",
        "managedFields",
        "resourceVersion",
    ];
    match path {
        [field] => is_one_of(field, &["apiVersion", "kind", "metadata"]),
        [metadata, field] => metadata.is_field("metadata") && is_one_of(field, &in_metadata),
        _ => false,
    }
}

/// Removes the fields that a write to this subresource cannot change.
fn filter(set: &mut FieldSet, resource: &Resource, subresource: &str) {
    if resource.has_status() {
        let other = if subresource == "status" { "spec" } else { "status" };
        set.retain(|path| !path.first().is_some_and(|first| first.is_field(other)));
    }
}

/// The fields that a write to this subresource changed.
fn compare(before: &Value, after: &Value, resource: &Resource, subresource: &str) -> Comparison {
    let mut found = typed::compare(before, after, resource.merge_schema());
    filter(&mut found.changed, resource, subresource);
    filter(&mut found.removed, resource, subresource);
    found
}

/// Removes changed fields from the entries of all managers.
fn disown(entries: &mut [Entry], found: &Comparison) {
    for entry in entries {
        let is_kept = |path: &Vec<Element>| !found.changed.contains(path) && !found.removed.contains(path);
        entry.fields.retain(is_kept);
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
    let mut found = compare(before, after, resource, &writing.subresource);
    disown(&mut entries, &found);
    found.changed.retain(|path| !is_unmanaged(path));
    let own = Entry::new(transaction, writing, Operation::Update, found.changed);
    if !own.fields.is_empty() {
        match entries.iter_mut().find(|entry| entry.is_of(&own)) {
            Some(entry) => {
                entry.fields.extend(own.fields);
                entry.time = own.time;
            }
            None => entries.push(own),
        }
    }
    entries.retain(|entry| !entry.fields.is_empty());
    cap(entries)
}

/// Merges the oldest entries of managers that do not apply until their number is within the limit.
fn cap(mut entries: Vec<Entry>) -> Vec<Entry> {
    loop {
        let mut updaters: Vec<usize> = (0..entries.len())
            .filter(|index| entries[*index].operation == Operation::Update)
            .collect();
        if updaters.len() <= UPDATERS_LIMIT {
            return entries;
        }
        updaters.sort_by_key(|index| (entries[*index].time.clone(), entries[*index].manager.clone()));
        let (first, second) = (updaters[0], updaters[1]);
        let joined = Entry {
            manager: "ancient-changes".to_owned(),
            subresource: String::new(),
            fields: &entries[first].fields | &entries[second].fields,
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
    let mut fields = typed::fields_of(config, schema);
    filter(&mut fields, resource, &writing.subresource);
    let mut own = Entry::new(transaction, writing, Operation::Apply, fields);
    let last = entries.iter().find(|entry| entry.is_of(&own)).cloned();
    entries.retain(|entry| !entry.is_of(&own));
    let merged = typed::merge(&live, config, Some(schema));
    let merged = match &last {
        Some(last) => prune(&merged, &last.fields, &own, &entries, schema),
        None => merged,
    };
    let found = compare(&live, &merged, resource, &writing.subresource);
    if !force {
        refuse_conflicts(&entries, &found.changed, writing, old, schema)?;
    }
    disown(&mut entries, &found);
    own.fields.retain(|path| !is_unmanaged(path));
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
        let mut set = typed::fields_of(&last, schema);
        set.insert(
            ["metadata", "annotations", "kubectl.kubernetes.io/last-applied-configuration"]
                .map(Element::field)
                .to_vec(),
        );
        Some(set)
    });
    let mut conflicts: Vec<(String, Vec<String>)> = Vec::new();
    for entry in entries {
        let mut set = &entry.fields & changed;
        if let Some(taken_over) = &taken_over {
            set = &set - taken_over;
        }
        if !set.is_empty() {
            conflicts.push((entry.shown(), set::shown(&set)));
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
    let with_declared = |set: &FieldSet| typed::with_declared(set.clone(), schema);
    let fields = |value: &Value| typed::with_declared(typed::fields_of(value, schema), schema);
    let last = with_declared(last);
    let pruned = typed::remove(merged, &last, schema);
    let owned = others.iter().fold(own.fields.clone(), |owned, entry| &owned | &entry.fields);
    let merged_fields = fields(merged);
    // Restore the fields that other managers own.
    let gone = &merged_fields - &(&fields(&pruned) | &with_declared(&owned));
    let pruned = typed::remove(merged, &gone, schema);
    // Also restore the fields that the previous apply did not own.
    let gone = &(&merged_fields - &fields(&pruned)) & &last;
    typed::remove(merged, &gone, schema)
}
