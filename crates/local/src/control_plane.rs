//! The handle: what a control plane is made of, and the clients of it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;

use crate::resource::{NAMESPACES, catalogue};
use crate::service::ApiService;
use crate::store::{Store, WatchEnd};
use crate::write::{Transaction, Writing};

/// Where timestamps come from.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Changes that are remembered unless said otherwise: some hundred bursts' worth.
const WATCH_HISTORY: usize = 10_000;

/// How long an Event is kept after it was last written: what kube-apiserver's `--event-ttl` is unless set.
const EVENT_LIFETIME: Duration = Duration::from_secs(60 * 60);

/// What a control plane is made from.
#[derive(Clone)]
pub struct Options {
    /// Gives `creationTimestamp` and the like. The default stands still at the Unix epoch.
    pub clock: Clock,
    /// Seed of uids and generated names.
    pub seed: u64,
    /// Changes remembered for watches and lists; what is older is answered with 410.
    pub watch_history: usize,
    /// Whether each write is followed by garbage collection; else [`ControlPlane::collect_garbage`] does it.
    pub collect_at_once: bool,
    /// An Event is deleted by the first request that comes when it was last written so long ago, by `clock`.
    pub event_lifetime: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            clock: Arc::new(|| Timestamp::UNIX_EPOCH),
            seed: 0,
            watch_history: WATCH_HISTORY,
            collect_at_once: true,
            event_lifetime: EVENT_LIFETIME,
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Options")
            .field("seed", &self.seed)
            .field("watch_history", &self.watch_history)
            .field("collect_at_once", &self.collect_at_once)
            .field("event_lifetime", &self.event_lifetime)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// With timestamps from `clock`.
    #[must_use]
    pub fn clock(mut self, clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// With uids and generated names from `seed`.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Remembers so many changes.
    #[must_use]
    pub fn watch_history(mut self, changes: usize) -> Self {
        self.watch_history = changes;
        self
    }

    /// Keeps Events for so long.
    #[must_use]
    pub fn event_lifetime(mut self, lifetime: Duration) -> Self {
        self.event_lifetime = lifetime;
        self
    }

    /// Collects garbage only when [`ControlPlane::collect_garbage`] says so.
    #[must_use]
    pub fn collect_on_demand(mut self) -> Self {
        self.collect_at_once = false;
        self
    }
}

/// What all handles, clients and watches of one control plane share.
pub(crate) struct Shared {
    store: Mutex<Store>,
    options: Options,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Shared")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// The store, for reading. A panic while it was held has changed nothing half: writes are single calls.
    pub fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn now(&self) -> Timestamp {
        (self.options.clock)()
    }

    /// Deletes the Events whose time is over.
    pub fn expire_events(&self) {
        let now = self.now();
        if self.store().expired(now).is_some() {
            self.transact(|transaction| transaction.expire());
        }
    }

    /// Runs one transaction. Wakes the watches of the objects that it changed after the store is unlocked.
    pub fn transact<T>(&self, work: impl FnOnce(&mut Transaction<'_>) -> T) -> T {
        let now = self.now();
        let mut store = self.store();
        let result = work(&mut Transaction {
            catalogue: catalogue(),
            store: &mut store,
            now,
            collects_at_once: self.options.collect_at_once,
            event_lifetime: self.options.event_lifetime,
        });
        let wakers = store.take_wakers();
        drop(store);
        for waker in wakers {
            waker.wake();
        }
        result
    }
}

/// An in-memory Kubernetes API. Cheap to clone: clones are handles of the same.
///
/// It is a function of its options and of what is asked of it, in that order: no clock, randomness or thread of its own. It
/// works inside a paused single-threaded tokio runtime.
#[derive(Clone, Debug)]
pub struct ControlPlane {
    shared: Arc<Shared>,
}

impl ControlPlane {
    /// A control plane with the namespaces that every cluster has, and nothing in them.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let shared = Arc::new(Shared {
            store: Mutex::new(Store::new(options.seed, options.watch_history)),
            options,
        });
        shared.transact(|transaction| {
            for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
                let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
                let writing = Writing {
                    resource: NAMESPACES,
                    manager: "kube-apiserver".to_owned(),
                    ..Writing::default()
                };
                transaction
                    .create(&writing, namespace)
                    .expect("these names are right and taken by nothing");
            }
        });
        Self { shared }
    }

    /// A client whose default namespace is `namespace`. It has to be called inside a tokio runtime.
    #[must_use]
    pub fn client(&self, namespace: &str) -> kube::Client {
        kube::Client::new(self.service(), namespace)
    }

    /// The API as a tower service: to be wrapped, or served over HTTP.
    #[must_use]
    pub fn service(&self) -> ApiService {
        ApiService::new(self.shared.clone())
    }

    /// Revision of the last write: the resource version of whatever was written last.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.shared.store().revision()
    }

    /// Drops the history of changes, like a compaction of etcd: a watch from an earlier revision gets 410, and its client has to list again.
    pub fn compact(&self) {
        self.shared.transact(|transaction| transaction.store.compact());
    }

    /// Ends every open watch as a time-out would.
    pub fn close_watches(&self) {
        self.shared.transact(|transaction| transaction.store.end_watches(WatchEnd::Closed));
    }

    /// Ends every open watch with 410.
    pub fn expire_watches(&self) {
        self.shared.transact(|transaction| transaction.store.end_watches(WatchEnd::Expired));
    }

    /// Number of open watches.
    #[must_use]
    pub fn open_watches(&self) -> usize {
        self.shared.store().open_watches()
    }

    /// Does what garbage collection is due; see [`Options::collect_on_demand`].
    pub fn collect_garbage(&self) {
        self.shared.transact(|transaction| transaction.collect_all());
    }
}
