//! Entry point of the crate: options of a control plane, its handle, and the creation of clients.

use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use serde_json::json;
use tokio::sync::Notify;

use crate::resource::{NAMESPACES, catalogue};
use crate::service::ApiService;
use crate::store::{Store, WatchEnd};
use crate::write::{Transaction, Writing};

pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Default of [`Options::watch_history`]: enough for about a hundred bursts.
const WATCH_HISTORY: usize = 10_000;

#[derive(Clone)]
pub struct Options {
    /// Source of `creationTimestamp` and other timestamps. The default always returns the Unix epoch.
    pub clock: Clock,
    /// Seed of uids and generated names.
    pub seed: u64,
    /// Number of changes kept for watches and lists. Requests for older revisions fail with status 410.
    pub watch_history: usize,
    /// A namespace that cannot be deleted, in addition to `default`, `kube-public` and `kube-system`.
    pub lasting_namespace: Option<&'static str>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            clock: Arc::new(|| Timestamp::UNIX_EPOCH),
            seed: 0,
            watch_history: WATCH_HISTORY,
            lasting_namespace: None,
        }
    }
}

pub(crate) struct Shared {
    store: Mutex<Store>,
    options: Options,
    /// Notified when there is something new for watches.
    pub changed: Notify,
    /// Has a clone in every open watch.
    pub open_watches: Arc<()>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock()
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.options.clock)()
    }

    pub(crate) fn expire_events(&self) {
        let now = self.now();
        if self.store().expired(now).is_some() {
            self.transact(|transaction| transaction.expire());
        }
    }

    /// Runs one transaction. Wakes the watches of the objects that it changed after the store is unlocked.
    pub(crate) fn transact<T>(&self, work: impl FnOnce(&mut Transaction<'_>) -> T) -> T {
        let now = self.now();
        let mut store = self.store();
        let result = work(&mut Transaction {
            catalogue: catalogue(),
            store: &mut store,
            now,
            lasting_namespace: self.options.lasting_namespace,
        });
        let has_changed = std::mem::take(&mut store.has_changed);
        drop(store);
        if has_changed {
            self.changed.notify_waiters();
        }
        result
    }
}

/// An in-memory Kubernetes API. Cheap to clone: clones are handles of the same control plane.
///
/// The responses are a function of the options and the sequence of requests. The control plane has no clock, randomness or thread of its
/// own, and works within a paused single-threaded Tokio runtime.
#[derive(Clone, Debug)]
pub struct ControlPlane {
    shared: Arc<Shared>,
}

impl ControlPlane {
    /// Creates a control plane with the empty namespaces that every new cluster has.
    pub fn new(options: Options) -> Self {
        let shared = Arc::new(Shared {
            store: Mutex::new(Store::new(options.seed, options.watch_history)),
            options,
            changed: Notify::new(),
            open_watches: Arc::default(),
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

    /// Creates a client whose default namespace is `namespace`. Must be called within a Tokio runtime.
    pub fn client(&self, namespace: &str) -> kube::Client {
        kube::Client::new(self.service(), namespace)
    }

    pub fn service(&self) -> ApiService {
        ApiService::new(self.shared.clone())
    }

    /// Revision of the last write, which is the resource version of the most recently written object.
    pub fn revision(&self) -> u64 {
        self.shared.store().revision
    }

    /// Drops the history of changes, like a compaction of etcd. A watch from an earlier revision then fails with status 410, and its client
    /// must list again.
    pub fn compact(&self) {
        self.shared.transact(|transaction| transaction.store.compact());
    }

    /// Ends every open watch without an error, as if its timeout had expired.
    pub fn close_watches(&self) {
        self.shared.transact(|transaction| transaction.store.end_watches(WatchEnd::Closed));
    }

    /// Ends every open watch with status 410.
    pub fn expire_watches(&self) {
        self.shared.transact(|transaction| transaction.store.end_watches(WatchEnd::Expired));
    }

    pub fn open_watches(&self) -> usize {
        Arc::strong_count(&self.shared.open_watches) - 1
    }
}
