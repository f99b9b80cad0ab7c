//! The queue of a reconciler: the objects of one kind as they change, and the objects that are requeued.

use std::{error::Error, fmt::Debug, sync::Arc};

use futures::{Stream, StreamExt};
use kube::{
    Api, Resource, ResourceExt,
    runtime::{
        WatchStreamExt, applier,
        controller::{Action, Config, ReconcileRequest, trigger_self},
        reflector::{self, ObjectRef, Store},
        watcher,
    },
};
use sahasra_service::causes;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

/// Maximum number of objects of a kind that are reconciled at the same time.
const CONCURRENCY: u16 = 16;

/// Requeues an object that has not changed. Unbounded, because the reconciler's scheduler receives objects at once, and keeps each one once.
pub(crate) type Requeue<K> = mpsc::UnboundedSender<ObjectRef<K>>;
type Request<K> = Result<ReconcileRequest<K>, watcher::Error>;

/// Returns a sender that requeues objects, a cache of all objects of the kind, and the queue for [`reconcile_all`].
pub(crate) fn queue<K>(api: Api<K>) -> (Requeue<K>, Store<K>, impl Stream<Item = Request<K>>)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let (sender, mut again) = mpsc::unbounded_channel::<ObjectRef<K>>();
    let (store, writer) = reflector::store();
    let changes = watcher(api, watcher::Config::default())
        .default_backoff()
        // The operator does not read managed fields, which are half of an object's bytes.
        .modify(|object| object.managed_fields_mut().clear())
        .reflect(writer)
        .applied_objects();
    let again = futures::stream::poll_fn(move |task| again.poll_recv(task));
    let queue = futures::stream::select(trigger_self(changes, ()), again.map(|reference| Ok(reference.into())));
    (sender, store, queue)
}

/// Reconciles the objects of a queue until dropped.
pub(crate) async fn reconcile_all<K, R, F, E>(
    store: Store<K>,
    queue: impl Stream<Item = Request<K>>,
    reconciler: Arc<R>,
    reconcile: fn(Arc<K>, Arc<R>) -> F,
    on_error: fn(Arc<K>, &E, Arc<R>) -> Action,
) where
    K: Resource<DynamicType = ()> + Clone + 'static,
    F: Future<Output = Result<Action, E>>,
    E: Error + 'static,
{
    let config = Config::default().concurrency(CONCURRENCY);
    let reconcile = |object, reconciler| Box::pin(reconcile(object, reconciler));
    let outcomes = applier(reconcile, on_error, reconciler, store, queue, config);
    let reported = outcomes.for_each(|outcome| async move {
        if let Err(error) = outcome {
            tracing::debug!(error = %causes(&error), kind = %K::kind(&()), "an object was not reconciled");
        }
    });
    reported.await;
}
