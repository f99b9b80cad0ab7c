//! In-memory storage: objects by kind, namespace and name, and the history of changes.
//!
//! Every write increments the revision, which becomes the object's resource version. The store keeps a bounded number of changes, so that a
//! watch can resume and a paged list can continue at its revision. Older changes are dropped.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::identity::Identities;
use crate::object;
use crate::resource::NAMESPACES;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    /// Index in the catalogue.
    pub resource: usize,
    /// Namespace; empty for cluster-scoped kinds.
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub(crate) fn of_namespace(name: &str) -> Self {
        Self {
            resource: NAMESPACES,
            namespace: String::new(),
            name: name.to_owned(),
        }
    }

    /// Whether the object is of a kind, and in a namespace if one is given.
    pub(crate) fn is_in(&self, resource: usize, namespace: Option<&str>) -> bool {
        self.resource == resource && namespace.is_none_or(|namespace| namespace == self.namespace)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub revision: u64,
    pub key: Key,
    pub before: Option<Arc<Value>>,
    /// The object after the write; for a deletion, the deleted object with the revision of the deletion.
    pub after: Arc<Value>,
    pub is_deletion: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum WatchEnd {
    /// The stream ends without an error.
    #[default]
    Closed,
    /// The stream ends with status 410, so the client must list again.
    Expired,
}

#[derive(Debug, Default)]
pub(crate) struct Store {
    pub revision: u64,
    objects: BTreeMap<Key, Arc<Value>>,
    by_uid: BTreeMap<String, Key>,
    /// Objects with an owner reference to a uid.
    dependents: BTreeMap<String, BTreeSet<Key>>,
    /// Expiry times of objects, sorted by time, and per object.
    expiries: BTreeSet<(Timestamp, Key)>,
    expires_at: BTreeMap<Key, Timestamp>,
    changes: VecDeque<Change>,
    /// Revision up to which changes have been dropped.
    pub forgotten: u64,
    history: usize,
    pub identities: Identities,
    /// Number of times that all open watches were ended, and how they were the last time.
    pub watch_ends: u64,
    pub watch_end: WatchEnd,
    /// Objects that garbage collection must check.
    pub suspects: VecDeque<Key>,
    /// Whether there is something new for watches.
    pub has_changed: bool,
}

impl Store {
    pub(crate) fn new(seed: u64, history: usize) -> Self {
        Self {
            revision: 1,
            forgotten: 1,
            history: history.max(1),
            identities: Identities::new(seed),
            ..Self::default()
        }
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Arc<Value>> {
        self.objects.get(key)
    }

    /// Objects of a kind in the order of their keys, in one namespace or in all.
    pub(crate) fn objects(&self, resource: usize, namespace: Option<&str>) -> impl Iterator<Item = (&Key, &Arc<Value>)> {
        let first = Key {
            resource,
            namespace: namespace.unwrap_or_default().to_owned(),
            name: String::new(),
        };
        let wanted = namespace.map(str::to_owned);
        let objects = self.objects.range(first..);
        objects.take_while(move |(key, _)| key.is_in(resource, wanted.as_deref()))
    }

    pub(crate) fn content(&self, namespace: &str) -> Vec<Key> {
        let inside = self.objects.keys().filter(|key| key.namespace == namespace);
        inside.cloned().collect()
    }

    /// Objects of a kind as of a revision; `None` if later changes have been dropped.
    pub(crate) fn objects_at(&self, resource: usize, namespace: Option<&str>, revision: u64) -> Option<BTreeMap<Key, Arc<Value>>> {
        if revision < self.forgotten {
            return None;
        }
        let now = self.objects(resource, namespace);
        let mut objects: BTreeMap<Key, Arc<Value>> = now.map(|(key, object)| (key.clone(), object.clone())).collect();
        for change in self.changes.iter().rev().take_while(|change| change.revision > revision) {
            if change.key.is_in(resource, namespace) {
                match &change.before {
                    Some(before) => objects.insert(change.key.clone(), before.clone()),
                    None => objects.remove(&change.key),
                };
            }
        }
        Some(objects)
    }

    pub(crate) fn key_of(&self, uid: &str) -> Option<&Key> {
        self.by_uid.get(uid)
    }

    pub(crate) fn dependents(&self, uid: &str) -> Vec<(Key, Arc<Value>)> {
        let keys = self.dependents.get(uid).into_iter().flatten();
        keys.filter_map(|key| Some((key.clone(), self.get(key)?.clone()))).collect()
    }

    /// Stores an object under the next resource version.
    pub(crate) fn put(&mut self, key: Key, mut object: Value) -> Arc<Value> {
        self.revision += 1;
        object::set_metadata(&mut object, "resourceVersion", json!(self.revision.to_string()));
        let object = Arc::new(object);
        let before = self.objects.insert(key.clone(), object.clone());
        if let Some(before) = &before {
            self.forget_links(&key, before);
        }
        self.by_uid.insert(object::uid(&object).to_owned(), key.clone());
        for owner in object::owners(&object) {
            let uid = owner["uid"].as_str().unwrap_or_default().to_owned();
            self.dependents.entry(uid).or_default().insert(key.clone());
        }
        self.remember(key, before, object.clone(), false);
        object
    }

    /// Removes an object. Returns `last`, or the stored object if `last` is `None`, with the revision of the deletion.
    pub(crate) fn remove(&mut self, key: &Key, last: Option<Value>) -> Option<Arc<Value>> {
        let before = self.objects.remove(key)?;
        self.revision += 1;
        self.forget_links(key, &before);
        self.forget_expiry(key);
        self.by_uid.remove(object::uid(&before));
        let mut last = last.unwrap_or_else(|| Value::clone(&before));
        object::set_metadata(&mut last, "resourceVersion", json!(self.revision.to_string()));
        let last = Arc::new(last);
        self.remember(key.clone(), Some(before), last.clone(), true);
        Some(last)
    }

    pub(crate) fn expire_at(&mut self, key: &Key, at: Timestamp) {
        self.forget_expiry(key);
        self.expiries.insert((at, key.clone()));
        self.expires_at.insert(key.clone(), at);
    }

    fn forget_expiry(&mut self, key: &Key) {
        if let Some(at) = self.expires_at.remove(key) {
            self.expiries.remove(&(at, key.clone()));
        }
    }

    /// The first object, by expiry time, that has expired at `now`.
    pub(crate) fn expired(&self, now: Timestamp) -> Option<&Key> {
        self.expiries.first().filter(|(at, _)| *at <= now).map(|(_, key)| key)
    }

    fn forget_links(&mut self, key: &Key, object: &Value) {
        for owner in object::owners(object) {
            let uid = owner["uid"].as_str().unwrap_or_default();
            if let Some(keys) = self.dependents.get_mut(uid) {
                keys.remove(key);
                if keys.is_empty() {
                    self.dependents.remove(uid);
                }
            }
        }
    }

    fn remember(&mut self, key: Key, before: Option<Arc<Value>>, after: Arc<Value>, is_deletion: bool) {
        self.changes.push_back(Change {
            revision: self.revision,
            key,
            before,
            after,
            is_deletion,
        });
        if self.changes.len() > self.history
            && let Some(oldest) = self.changes.pop_front()
        {
            self.forgotten = oldest.revision;
        }
        self.has_changed = true;
    }

    /// Changes after `revision`, oldest first.
    pub(crate) fn changes_since(&self, revision: u64) -> impl Iterator<Item = &Change> {
        let first = self.changes.partition_point(|change| change.revision <= revision);
        self.changes.range(first..)
    }

    pub(crate) fn compact(&mut self) {
        self.changes.clear();
        self.forgotten = self.revision;
        self.has_changed = true;
    }

    pub(crate) fn end_watches(&mut self, end: WatchEnd) {
        self.watch_ends += 1;
        self.watch_end = end;
        self.has_changed = true;
    }
}
