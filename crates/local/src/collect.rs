//! Garbage collection: deletes the dependents of deleted owners, and the content of deleted namespaces.
//!
//! The garbage collector of Kubernetes works asynchronously on watched changes. Here, every write is followed by all the garbage collection
//! that becomes necessary, in a fixed order.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::object;
use crate::resource::NAMESPACES;
use crate::store::Key;
use crate::write::{Deletion, Propagation, Transaction};

#[derive(PartialEq)]
enum Owner {
    Solid,
    /// The owner does not exist, or another object has its name.
    Dangling,
    /// The owner waits until its dependents have been deleted.
    Waiting,
}

impl Transaction<'_> {
    /// Queues a new object for garbage collection, because its owners may already be deleted.
    pub(crate) fn suspect_new(&mut self, key: &Key, object: &Value) {
        if !object::owners(object).is_empty() {
            self.store.suspects.push_back(key.clone());
        }
    }

    /// Stores a changed object, and queues it and its former owners for garbage collection if that became necessary.
    pub(crate) fn put(&mut self, key: &Key, old: &Value, object: Value) -> Arc<Value> {
        let object = self.store.put(key.clone(), object);
        let owners_changed = object::owners(old) != object::owners(&object);
        if owners_changed || (object::is_deleting(&object) && Propagation::of(&object::finalizers(&object)).is_some()) {
            self.store.suspects.push_back(key.clone());
        }
        if owners_changed {
            // An owner that waits for its dependents may have lost one.
            self.suspect_owners(old);
        }
        object
    }

    pub(crate) fn suspect_owners(&mut self, object: &Value) {
        for owner in object::owners(object) {
            let owner = owner["uid"].as_str().and_then(|uid| self.store.key_of(uid)).cloned();
            self.store.suspects.extend(owner);
        }
    }

    pub(crate) fn collect(&mut self) {
        while let Some(key) = self.store.suspects.pop_front() {
            let Some(object) = self.store.get(&key).cloned() else { continue };
            if key.resource == NAMESPACES {
                self.finish_namespace(&key, &object);
            } else {
                self.check(&key, &object);
            }
        }
    }

    fn check(&mut self, key: &Key, object: &Arc<Value>) {
        if object::is_deleting(object) {
            match Propagation::of(&object::finalizers(object)) {
                Some(Propagation::Orphan) => self.orphan_dependents(key, object),
                Some(_) => self.delete_dependents_first(key, object),
                None => {}
            }
            return;
        }
        let owners = object::owners(object);
        if owners.is_empty() {
            return;
        }
        let Some(worth) = owners.iter().map(|owner| self.worth(owner, key)).collect::<Option<Vec<Owner>>>() else {
            // The control plane does not serve the owner's kind, so it is unknown whether the owner exists.
            return;
        };
        let solid = owners.iter().zip(&worth).filter(|(_, worth)| **worth == Owner::Solid);
        let kept: Vec<&Value> = solid.map(|(owner, _)| owner).collect();
        if !kept.is_empty() {
            if kept.len() < owners.len() {
                let mut changed = Value::clone(object);
                object::set_metadata(&mut changed, "ownerReferences", json!(kept));
                self.put(key, object, changed);
            }
            return;
        }
        let waits = worth.contains(&Owner::Waiting);
        let comes_after = waits && !self.store.dependents(object::uid(object)).is_empty();
        self.delete_quietly(key, comes_after.then_some(Propagation::Foreground));
    }

    /// State of the owner that a reference names; `None` if its kind is not served.
    fn worth(&self, owner: &Value, dependent: &Key) -> Option<Owner> {
        let text = |field: &str| owner[field].as_str().unwrap_or_default();
        let resource = self.catalogue.find_kind(text("apiVersion"), text("kind"))?;
        let mut key = Key {
            resource: self.catalogue.kept_at(resource),
            namespace: String::new(),
            name: text("name").to_owned(),
        };
        if self.catalogue.resources[resource].namespaced {
            if dependent.namespace.is_empty() {
                return None;
            }
            key.namespace.clone_from(&dependent.namespace);
        }
        Some(match self.store.get(&key) {
            Some(found) if object::uid(found) == text("uid") => {
                let waits = object::is_deleting(found) && object::finalizers(found).contains(&"foregroundDeletion");
                if waits && owner["blockOwnerDeletion"] == true {
                    Owner::Waiting
                } else {
                    Owner::Solid
                }
            }
            _ => Owner::Dangling,
        })
    }

    fn delete_quietly(&mut self, key: &Key, propagation: Option<Propagation>) {
        let deletion = Deletion {
            propagation,
            ..Deletion::default()
        };
        // The object existed a moment ago and there are no preconditions, so the deletion cannot fail.
        let _ = self.delete_uncollected(key, &deletion);
    }

    fn orphan_dependents(&mut self, key: &Key, owner: &Arc<Value>) {
        let uid = object::uid(owner);
        for (dependent_key, dependent) in self.store.dependents(uid) {
            let mut freed = Value::clone(&dependent);
            if let Some(owners) = freed["metadata"]["ownerReferences"].as_array_mut() {
                owners.retain(|owner| owner["uid"] != uid);
            }
            object::tidy_metadata(&mut freed);
            self.store.put(dependent_key, freed);
        }
        self.drop_finalizer(key, owner, "orphan");
    }

    fn delete_dependents_first(&mut self, key: &Key, owner: &Arc<Value>) {
        let uid = object::uid(owner);
        let mut is_blocked = false;
        for (dependent_key, dependent) in self.store.dependents(uid) {
            let blocks = object::owners(&dependent)
                .iter()
                .any(|owner| owner["uid"] == uid && owner["blockOwnerDeletion"] == true);
            is_blocked |= blocks;
            if !object::is_deleting(&dependent) {
                self.store.suspects.push_back(dependent_key);
            }
        }
        if !is_blocked {
            self.drop_finalizer(key, owner, "foregroundDeletion");
        }
    }

    fn drop_finalizer(&mut self, key: &Key, object: &Arc<Value>, finalizer: &str) {
        let kept: Vec<String> = object::finalizers(object)
            .into_iter()
            .filter(|name| *name != finalizer)
            .map(str::to_owned)
            .collect();
        let mut changed = Value::clone(object);
        object::set_finalizers(&mut changed, &kept);
        if kept.is_empty() {
            self.take_away(key, Some(changed));
        } else {
            self.put(key, object, changed);
        }
    }

    /// Deletes the content of a namespace that is being deleted. Removes the namespace once it is empty.
    fn finish_namespace(&mut self, key: &Key, namespace: &Value) {
        if !object::is_deleting(namespace) {
            return;
        }
        for inside in self.store.content(&key.name) {
            if self.store.get(&inside).is_some_and(|object| !object::is_deleting(object)) {
                self.delete_quietly(&inside, Some(Propagation::Background));
            }
        }
        if self.store.content(&key.name).is_empty() {
            let mut last = namespace.clone();
            last["spec"] = json!({});
            self.take_away(key, Some(last));
        }
    }
}
