//! The queue of a reconciler: the objects of one kind as they change, and the objects that are requeued.

use std::{fmt::Debug, hash::Hash};

use futures::{Stream, StreamExt};
use kube::{
    Api, Resource, ResourceExt,
    runtime::{
        WatchStreamExt,
        controller::{ReconcileRequest, trigger_self},
        reflector::{self, ObjectRef, Store},
        watcher,
    },
};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

/// Returns a cache of all objects of a kind, and the queue for `kube::runtime::applier`. `again` requeues objects that have not changed.
pub fn queue<K>(
    api: Api<K>,
    mut again: mpsc::Receiver<ObjectRef<K>>,
) -> (Store<K>, impl Stream<Item = Result<ReconcileRequest<K>, watcher::Error>>)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Eq + Hash,
{
    let (store, writer) = reflector::store();
    let changes = watcher(api, watcher::Config::default())
        .default_backoff()
        // The operator does not read managed fields, which are half of an object's bytes.
        .modify(|object| object.managed_fields_mut().clear())
        .reflect(writer)
        .applied_objects();
    let again = futures::stream::poll_fn(move |task| again.poll_recv(task));
    let queue = futures::stream::select(trigger_self(changes, ()), again.map(|reference| Ok(reference.into())));
    (store, queue)
}
