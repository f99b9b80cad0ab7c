//! Create, update and delete operations, each as one transaction.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Preconditions;
use serde_json::{Value, json};

use crate::built_in;
use crate::metadata;
use crate::object;
use crate::refusal::{self, FieldError, Refusal};
use crate::resource::{Behaviour, Catalogue, NAMESPACES, Resource};
use crate::schema;
use crate::store::{Key, Store};

/// Message of a conflict: the write is based on an old resource version.
pub(crate) const MODIFIED: &str = "the object has been modified; please apply your changes to the latest version and try again";

/// Time since the last write of an Event after which it is deleted, the same as the default of kube-apiserver's `--event-ttl`.
const EVENT_LIFETIME: Duration = Duration::from_secs(60 * 60);

const NAME_ATTEMPTS: usize = 8;

#[derive(Clone, Debug, Default)]
pub(crate) struct Writing {
    pub resource: usize,
    pub namespace: Option<String>,
    pub subresource: String,
    pub manager: String,
    /// Managed fields computed by server-side apply.
    pub applied: Option<Value>,
    pub dry_run: bool,
}

/// Propagation policy of a deletion: the treatment of dependents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Propagation {
    Background,
    Foreground,
    Orphan,
}

impl Propagation {
    /// Policy that the finalizers of an object set.
    pub(crate) fn of(finalizers: &[&str]) -> Option<Self> {
        let is_set = |policy: &Self| policy.finalizer().is_some_and(|finalizer| finalizers.contains(&finalizer));
        [Self::Orphan, Self::Foreground].into_iter().find(is_set)
    }

    /// Finalizer that an object has until its dependents have been treated.
    fn finalizer(self) -> Option<&'static str> {
        match self {
            Self::Background => None,
            Self::Foreground => Some("foregroundDeletion"),
            Self::Orphan => Some("orphan"),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Deletion {
    pub propagation: Option<Propagation>,
    pub preconditions: Preconditions,
    pub dry_run: bool,
}

#[derive(Debug)]
pub(crate) enum Deleted {
    Gone(Arc<Value>),
    /// The object is marked as deleted and waits for its finalizers.
    Waiting(Arc<Value>),
}

pub(crate) struct Transaction<'a> {
    pub catalogue: &'static Catalogue,
    pub store: &'a mut Store,
    pub now: Timestamp,
    /// A namespace that cannot be deleted, in addition to [`built_in::LASTING_NAMESPACES`].
    pub lasting_namespace: Option<&'a str>,
}

impl Transaction<'_> {
    fn resource(&self, index: usize) -> &'static Resource {
        &self.catalogue.resources[index]
    }

    /// Current time in the format of metadata timestamps, in whole seconds.
    pub(crate) fn seconds(&self) -> String {
        self.now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }

    /// Creates an object. `object` must be decoded, pruned and defaulted.
    pub(crate) fn create(&mut self, writing: &Writing, mut object: Value) -> Result<Arc<Value>, Refusal> {
        let resource = self.resource(writing.resource);
        place(&mut object, writing.namespace.as_deref())?;
        if !object::resource_version(&object).is_empty() {
            return Err(Refusal::plain("resourceVersion should not be set on objects to be created"));
        }
        for field in [
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "selfLink",
            "generation",
        ] {
            object::set_metadata(&mut object, field, Value::Null);
        }
        let prefix = object::metadata(&object, "generateName").to_owned();
        let is_generated = object::name(&object).is_empty() && !prefix.is_empty();
        self.check_namespace(resource, &object, writing.namespace.as_deref())?;
        object::set_metadata(&mut object, "creationTimestamp", json!(self.seconds()));
        object::set_metadata(&mut object, "uid", json!(self.store.identities.uid()));
        if resource.is_custom() {
            // The status is written through the subresource only.
            built_in::restore(&mut object, &Value::Null, "status");
            object::set_metadata(&mut object, "generation", json!(1));
        }
        object::tidy_metadata(&mut object);
        for attempt in 1..=NAME_ATTEMPTS {
            if is_generated {
                let name = self.store.identities.generated_name(&prefix);
                object::set_metadata(&mut object, "name", json!(name));
            }
            built_in::prepare_new(&mut object, resource);
            let errors = self.mistakes(resource, &object, None, "");
            if !errors.is_empty() {
                return Err(resource.invalid(object::name(&object), &errors));
            }
            let key = key_of(writing.resource, &object);
            let Some(existing) = self.store.get(&key) else { break };
            if is_generated && attempt < NAME_ATTEMPTS {
                continue;
            }
            let is_deleting = !is_generated && object::is_deleting(existing);
            let (prefix, suffix) = match (is_deleting, is_generated) {
                (true, _) => ("object is being deleted: ", ""),
                (_, true) => ("", ", the server was not able to generate a unique name for the object"),
                _ => ("", ""),
            };
            let mut about = resource.about(&key.name);
            about.retry_after_seconds = is_generated.then_some(1);
            let message = format!("{prefix}{} already exists{suffix}", refusal::subject(&about));
            return Err(Refusal::new(StatusCode::CONFLICT, "AlreadyExists", message, about));
        }
        crate::managed::record(self, writing, None, &mut object);
        if writing.dry_run {
            return Ok(Arc::new(object));
        }
        let key = key_of(writing.resource, &object);
        let created = self.store.put(key.clone(), object);
        self.limit_lifetime(resource, &key);
        self.suspect_new(&key, &created);
        self.collect();
        Ok(created)
    }

    /// Every write of an Event restarts its lifetime. Other kinds do not expire.
    fn limit_lifetime(&mut self, resource: &Resource, key: &Key) {
        if resource.behaviour == Behaviour::Event {
            let at = self.now.checked_add(EVENT_LIFETIME).unwrap_or(Timestamp::MAX);
            self.store.expire_at(key, at);
        }
    }

    /// Deletes expired objects regardless of their finalizers, like an expired etcd lease.
    pub(crate) fn expire(&mut self) {
        while let Some(key) = self.store.expired(self.now).cloned() {
            self.take_away(&key, None);
        }
        self.collect();
    }

    fn check_namespace(&self, resource: &Resource, object: &Value, namespace: Option<&str>) -> Result<(), Refusal> {
        let Some(name) = namespace.filter(|_| resource.namespaced) else {
            return Ok(());
        };
        let Some(found) = self.store.get(&Key::of_namespace(name)) else {
            return Err(self.resource(NAMESPACES).not_found(name));
        };
        if object::is_deleting(found) {
            let why = format!("unable to create new content in namespace {name} because it is being terminated");
            let cause = format!("namespace {name} is being terminated");
            let mut about = resource.about(object::name(object));
            about.causes = Some(vec![refusal::cause("NamespaceTerminating", cause, "metadata.namespace")]);
            return Err(Refusal::forbidden(about, &why));
        }
        Ok(())
    }

    /// Replaces `old` by `object`, which must be decoded, pruned and defaulted. An update without a change is not stored.
    pub(crate) fn update(&mut self, writing: &Writing, old: &Arc<Value>, mut object: Value) -> Result<Arc<Value>, Refusal> {
        let resource = self.resource(writing.resource);
        let name = object::name(old).to_owned();
        place(&mut object, writing.namespace.as_deref())?;
        self.check_resource_version(resource, old, &object, &name)?;
        object::copy_metadata(old, &mut object, "resourceVersion");
        object::copy_metadata(old, &mut object, "generation");
        if resource.is_custom() {
            prepare_custom(&mut object, old, &writing.subresource);
        } else {
            built_in::prepare_update(&mut object, old, resource, !writing.subresource.is_empty());
        }
        if object::uid(&object).is_empty() {
            object::copy_metadata(old, &mut object, "uid");
        }
        object::copy_metadata(old, &mut object, "creationTimestamp");
        object::copy_metadata(old, &mut object, "selfLink");
        if object::is_deleting(old) {
            object::copy_metadata(old, &mut object, "deletionTimestamp");
            if object["metadata"]["deletionGracePeriodSeconds"].is_null() {
                object::copy_metadata(old, &mut object, "deletionGracePeriodSeconds");
            }
        }
        object::tidy_metadata(&mut object);
        crate::managed::record(self, writing, Some(old), &mut object);
        let errors = self.mistakes(resource, &object, Some(old), &writing.subresource);
        if !errors.is_empty() {
            return Err(resource.invalid(object::name(&object), &errors));
        }
        if object::is_deleting(old) && object::finalizers(&object).is_empty() {
            if !writing.dry_run {
                let key = key_of(writing.resource, &object);
                // The deletion event contains the changes of the last update.
                self.take_away(&key, Some(object.clone()));
                self.collect();
            }
            return Ok(Arc::new(object));
        }
        if object == **old {
            return Ok(old.clone());
        }
        if writing.dry_run {
            return Ok(Arc::new(object));
        }
        let key = key_of(writing.resource, &object);
        let updated = self.put(&key, old, object);
        self.limit_lifetime(resource, &key);
        self.collect();
        Ok(updated)
    }

    fn check_resource_version(&self, resource: &Resource, old: &Value, object: &Value, name: &str) -> Result<(), Refusal> {
        let given = object::resource_version(object);
        if given.is_empty() {
            if resource.allows_unconditional_update() {
                return Ok(());
            }
            let error = FieldError::invalid("metadata.resourceVersion", 0, "must be specified for an update");
            // The message contains the plural instead of the kind, as the API server's message does.
            return Err(Refusal::invalid(resource.about(name), &[error]));
        }
        if given != object::resource_version(old) {
            return Err(resource.conflict(name, MODIFIED));
        }
        Ok(())
    }

    /// Errors of an object by its schema, the CEL rules and the rules for metadata.
    fn mistakes(&self, resource: &Resource, object: &Value, old: Option<&Value>, subresource: &str) -> Vec<FieldError> {
        let mut errors = match old {
            None => metadata::validate_new(object, resource),
            Some(old) => metadata::validate_update(object, old, resource),
        };
        if !resource.is_custom() {
            errors.extend(built_in::validate(object, old, resource));
            return errors;
        }
        if subresource == "status" {
            // Only the status is validated: all other changes have been reverted.
            if let (Some(status), Some(schema)) = (object.get("status"), resource.schema.properties.get("status")) {
                let before = old.and_then(|old| old.get("status"));
                // The API server validates the status separately: paths in messages begin at the status, `field` begins at the object.
                errors.extend(schema::validate::validate(status, before, schema, "").into_iter().map(|mut error| {
                    error.field = schema::join("status", &error.field);
                    error
                }));
            }
        } else {
            errors.extend(schema::validate::validate(object, old, &resource.schema, ""));
        }
        let mut before = Vec::new();
        if let Some(old) = old {
            schema::validate::duplicates(old, &resource.schema, "", &mut before);
        }
        if before.is_empty() {
            schema::validate::duplicates(object, &resource.schema, "", &mut errors);
        }
        if errors.iter().any(|error| error.mistake.blocks_rules()) {
            let why =
                "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
            errors.push(FieldError::invalid("<nil>", Value::Null, why));
        } else {
            schema::rules::evaluate(object, old, &resource.schema, "", &mut errors);
        }
        errors
    }

    pub(crate) fn delete(&mut self, key: &Key, deletion: &Deletion) -> Result<Deleted, Refusal> {
        let deleted = self.delete_uncollected(key, deletion)?;
        self.collect();
        Ok(deleted)
    }

    /// Deletes an object as [`Transaction::delete`] does, but without garbage collection.
    pub(crate) fn delete_uncollected(&mut self, key: &Key, deletion: &Deletion) -> Result<Deleted, Refusal> {
        let resource = self.resource(key.resource);
        let Some(existing) = self.store.get(key).cloned() else {
            return Err(resource.not_found(&key.name));
        };
        self.check_preconditions(resource, &existing, &deletion.preconditions)?;
        if resource.behaviour == Behaviour::Namespace {
            return self.delete_namespace(resource, key, &existing, deletion.dry_run);
        }
        let before = object::finalizers(&existing);
        let own = before
            .iter()
            .filter(|finalizer| !matches!(**finalizer, "orphan" | "foregroundDeletion"));
        let mut finalizers: Vec<String> = own.map(|finalizer| (*finalizer).to_owned()).collect();
        let propagation = deletion.propagation.or_else(|| Propagation::of(&before));
        finalizers.extend(propagation.and_then(Propagation::finalizer).map(str::to_owned));
        if finalizers.is_empty() {
            if deletion.dry_run {
                return Ok(Deleted::Gone(existing));
            }
            let gone = self.take_away(key, None).unwrap_or(existing);
            return Ok(Deleted::Gone(gone));
        }
        let mut marked = Value::clone(&existing);
        object::set_finalizers(&mut marked, &finalizers);
        if !object::is_deleting(&existing) {
            object::set_metadata(&mut marked, "deletionTimestamp", json!(self.seconds()));
            if let Some(generation) = existing["metadata"]["generation"].as_i64().filter(|generation| *generation > 0) {
                object::set_metadata(&mut marked, "generation", json!(generation + 1));
            }
        }
        object::set_metadata(&mut marked, "deletionGracePeriodSeconds", json!(0));
        if marked == *existing {
            return Ok(Deleted::Waiting(existing));
        }
        if deletion.dry_run {
            return Ok(Deleted::Waiting(Arc::new(marked)));
        }
        Ok(Deleted::Waiting(self.put(key, &existing, marked)))
    }

    fn check_preconditions(&self, resource: &Resource, existing: &Value, wanted: &Preconditions) -> Result<(), Refusal> {
        for (what, past, wanted, found) in [
            ("UID", "deleted and then recreated", &wanted.uid, object::uid(existing)),
            (
                "ResourceVersion",
                "modified",
                &wanted.resource_version,
                object::resource_version(existing),
            ),
        ] {
            if let Some(wanted) = wanted.as_deref().filter(|wanted| *wanted != found) {
                let why = format!(
                    "the {what} in the precondition ({wanted}) does not match the {what} in record ({found}). The object might have been \
                     {past}"
                );
                // The API server uses the kind here, and the plural in other conflicts.
                let about = refusal::about(&resource.group, &resource.kind, object::name(existing));
                return Err(Refusal::conflict(about, &why));
            }
        }
        Ok(())
    }

    fn delete_namespace(&mut self, resource: &Resource, key: &Key, existing: &Arc<Value>, dry_run: bool) -> Result<Deleted, Refusal> {
        let name = key.name.as_str();
        if built_in::LASTING_NAMESPACES.contains(&name) || self.lasting_namespace == Some(name) {
            return Err(Refusal::forbidden(resource.about(name), "this namespace may not be deleted"));
        }
        if object::is_deleting(existing) || dry_run {
            return Ok(Deleted::Waiting(existing.clone()));
        }
        let mut marked = Value::clone(existing);
        object::set_metadata(&mut marked, "deletionTimestamp", json!(self.seconds()));
        marked["status"]["phase"] = json!("Terminating");
        let marked = self.store.put(key.clone(), marked);
        self.store.suspects.push_back(key.clone());
        Ok(Deleted::Waiting(marked))
    }

    /// Removes an object from the store and queues related objects for garbage collection. `last` is the final state of the object if it
    /// differs from the stored one.
    pub(crate) fn take_away(&mut self, key: &Key, last: Option<Value>) -> Option<Arc<Value>> {
        let dependents = self.store.dependents(object::uid(self.store.get(key)?));
        let removed = self.store.remove(key, last)?;
        self.store.suspects.extend(dependents.into_iter().map(|(key, _)| key));
        self.suspect_owners(&removed);
        if self.resource(key.resource).namespaced {
            self.store.suspects.push_back(Key::of_namespace(&key.namespace));
        }
        Some(removed)
    }
}

pub(crate) fn key_of(resource: usize, object: &Value) -> Key {
    Key {
        resource,
        namespace: object::namespace(object).to_owned(),
        name: object::name(object).to_owned(),
    }
}

fn place(object: &mut Value, namespace: Option<&str>) -> Result<(), Refusal> {
    let wanted = namespace.unwrap_or_default();
    let given = object::namespace(object);
    if !given.is_empty() && given != wanted && !wanted.is_empty() {
        let why = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(Refusal::bad_request(why));
    }
    object::set_metadata(object, "namespace", if wanted.is_empty() { Value::Null } else { json!(wanted) });
    Ok(())
}

/// Restricts an update to the status, or to everything except the status, and increments the generation if the latter changes.
fn prepare_custom(object: &mut Value, old: &Value, subresource: &str) {
    if subresource == "status" {
        let given = std::mem::replace(object, old.clone());
        // Of the metadata in a status update, the API server accepts only the managed fields.
        object::copy_metadata(&given, object, "managedFields");
        built_in::restore(object, &given, "status");
        return;
    }
    built_in::restore(object, old, "status");
    if without_metadata(object) != without_metadata(old) {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or_default();
        object::set_metadata(object, "generation", json!(generation + 1));
    }
}

fn without_metadata(object: &Value) -> Vec<(&String, &Value)> {
    let fields = object.as_object().into_iter().flatten();
    fields.filter(|(name, _)| *name != "metadata").collect()
}
