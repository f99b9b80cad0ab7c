//! Who the workers are and which of them live: from watches on `GpuWorker` and on the heartbeat `Lease`s.
//!
//! A worker is live as long as its heartbeat moves: as long as its Lease's resource version or renew time becomes another
//! one within the timeout of the operator's own monotonic clock. What the renew time says is never compared with a clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::{api::coordination::v1::Lease, jiff::Timestamp};
use kube::{
    Api, Client, ResourceExt,
    runtime::{WatchStreamExt, watcher},
};
use sahasra_crds::{GpuWorker, gpu_worker::DeviceStatus};
use tokio::{sync::watch, time::Instant};

/// What the name of a heartbeat Lease has before the worker's name.
const HEARTBEAT: &str = "sahasra-worker-";

/// A worker as it is known now.
#[derive(Clone, Debug, PartialEq)]
pub struct Worker {
    /// Name of the `GpuWorker`.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// URL of the agent.
    pub endpoint: String,
    /// Start of the agent.
    pub boot_id: String,
    /// Devices as last reported through the API server: at most some seconds old.
    pub devices: Vec<DeviceStatus>,
    /// Whether the agent itself says that it takes work, and why not.
    pub ready: Result<(), String>,
    /// Its `GpuWorker` says that its heartbeat is lost.
    pub marked_lost: bool,
    /// Its heartbeat stands still.
    pub stale: bool,
    /// When the heartbeat was last seen to move, by the wall clock, for people.
    pub last_seen: Option<Timestamp>,
}

#[derive(Debug)]
struct Heartbeat {
    version: Option<String>,
    moved: Instant,
    seen: Timestamp,
}

#[derive(Debug, Default)]
struct State {
    workers: BTreeMap<String, Worker>,
    heartbeats: BTreeMap<String, Heartbeat>,
}

/// All workers. Shared behind an `Arc`.
#[derive(Debug)]
pub struct Directory {
    timeout: Duration,
    state: Mutex<State>,
    changed: watch::Sender<u64>,
    started: Instant,
}

impl Directory {
    /// An empty directory in which a worker is stale after `timeout` without a movement of its heartbeat.
    pub fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            state: Mutex::default(),
            changed: watch::Sender::new(0),
            started: Instant::now(),
        }
    }

    /// Every worker, by name.
    pub fn workers(&self) -> Vec<Worker> {
        self.state().workers.values().cloned().collect()
    }

    /// The worker of that name.
    pub fn worker(&self, name: &str) -> Option<Worker> {
        self.state().workers.get(name).cloned()
    }

    /// Wakes whenever a worker came, went, changed, fell silent or spoke again.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Watches until cancelled by being dropped. `namespace` is that of the heartbeat Leases. `synced` is called once both
    /// kinds have been listed.
    pub async fn run(self: Arc<Self>, client: Client, namespace: &str, synced: impl FnOnce() + Send) {
        let (workers_listed, mut workers_synced) = watch::channel(false);
        let (leases_listed, mut leases_synced) = watch::channel(false);
        let workers = self.watch_workers(Api::all(client.clone()), workers_listed);
        let leases = self.watch_leases(Api::namespaced(client, namespace), leases_listed);
        let announce = async {
            let both = async {
                workers_synced.wait_for(|listed| *listed).await?;
                leases_synced.wait_for(|listed| *listed).await
            };
            if both.await.is_ok() {
                synced();
            }
            std::future::pending::<()>().await
        };
        tokio::join!(workers, leases, self.watch_silence(), announce);
    }

    async fn watch_workers(&self, api: Api<GpuWorker>, listed: watch::Sender<bool>) {
        let mut events = watcher(api, watcher::Config::default()).default_backoff().boxed();
        let mut initial: Option<BTreeSet<String>> = None;
        loop {
            match events.try_next().await {
                Ok(Some(watcher::Event::Apply(worker))) => self.observe_worker(&worker),
                Ok(Some(watcher::Event::Delete(worker))) => self.forget_worker(&worker.name_any()),
                Ok(Some(watcher::Event::Init)) => initial = Some(BTreeSet::new()),
                Ok(Some(watcher::Event::InitApply(worker))) => {
                    initial.get_or_insert_default().insert(worker.name_any());
                    self.observe_worker(&worker);
                }
                Ok(Some(watcher::Event::InitDone)) => {
                    let present = initial.take().unwrap_or_default();
                    for name in self.names().difference(&present) {
                        self.forget_worker(name);
                    }
                    listed.send_replace(true);
                }
                Ok(None) => return,
                Err(error) => tracing::warn!(%error, "watching GpuWorkers failed"),
            }
        }
    }

    async fn watch_leases(&self, api: Api<Lease>, listed: watch::Sender<bool>) {
        let mut events = watcher(api, watcher::Config::default()).default_backoff().boxed();
        loop {
            match events.try_next().await {
                Ok(Some(watcher::Event::Apply(lease) | watcher::Event::InitApply(lease))) => {
                    if let Some(worker) = lease.name_any().strip_prefix(HEARTBEAT) {
                        self.observe_heartbeat(worker, version(&lease), Instant::now());
                    }
                }
                // A heartbeat that was deleted stands still: the timeout decides, as for any other silence.
                Ok(Some(watcher::Event::Delete(_) | watcher::Event::Init)) => {}
                Ok(Some(watcher::Event::InitDone)) => {
                    listed.send_replace(true);
                }
                Ok(None) => return,
                Err(error) => tracing::warn!(%error, "watching heartbeats failed"),
            }
        }
    }

    /// Wakes when the next heartbeat would have stood still for too long.
    async fn watch_silence(&self) {
        let mut changed = self.subscribe();
        loop {
            let next = self.mark_silent(Instant::now());
            tokio::select! {
                () = tokio::time::sleep_until(next) => {}
                outcome = changed.changed() => if outcome.is_err() { return },
            }
        }
    }

    fn observe_worker(&self, object: &GpuWorker) {
        let name = object.name_any();
        let status = object.status.clone().unwrap_or_default();
        let condition = sahasra_crds::conditions::get(&status.conditions, sahasra_crds::conditions::READY);
        let marked_lost = condition.is_some_and(|condition| condition.reason == crate::gpu_worker::HEARTBEAT_LOST);
        let ready = match condition {
            // What the operator itself wrote says nothing about the agent.
            Some(condition) if condition.status != "True" && !marked_lost => Err(condition.reason.clone()),
            Some(_) => Ok(()),
            None => Err("NotReported".to_owned()),
        };
        let mut state = self.state();
        let heartbeat = state.heartbeats.get(&name);
        let (stale, last_seen) = self.liveness(heartbeat, Instant::now());
        let worker = Worker {
            uid: object.uid().unwrap_or_default(),
            endpoint: status.endpoint.unwrap_or_default(),
            boot_id: status.boot_id.unwrap_or_default(),
            devices: status.devices,
            ready,
            marked_lost,
            stale,
            last_seen,
            name: name.clone(),
        };
        let old = state.workers.insert(name, worker.clone());
        drop(state);
        if old.as_ref() != Some(&worker) {
            self.announce();
        }
    }

    fn forget_worker(&self, name: &str) {
        let gone = self.state().workers.remove(name).is_some();
        if gone {
            self.announce();
        }
    }

    fn observe_heartbeat(&self, name: &str, version: Option<String>, now: Instant) {
        let mut state = self.state();
        let known = state.heartbeats.get(name);
        if known.is_some_and(|heartbeat| heartbeat.version == version) {
            return;
        }
        let seen = crate::clock::timestamp();
        let heartbeat = Heartbeat { version, moved: now, seen };
        state.heartbeats.insert(name.to_owned(), heartbeat);
        let Some(worker) = state.workers.get_mut(name) else { return };
        worker.last_seen = Some(seen);
        let recovered = std::mem::replace(&mut worker.stale, false);
        drop(state);
        if recovered {
            tracing::info!(worker = name, "heartbeat resumed");
            self.announce();
        }
    }

    /// Marks who has been silent for too long; gives back when to look again.
    fn mark_silent(&self, now: Instant) -> Instant {
        let mut state = self.state();
        let State { workers, heartbeats } = &mut *state;
        let mut next = now + self.timeout;
        let mut silent = Vec::new();
        for worker in workers.values_mut().filter(|worker| !worker.stale) {
            let deadline = heartbeats.get(&worker.name).map_or(self.started, |heartbeat| heartbeat.moved) + self.timeout;
            if deadline <= now {
                worker.stale = true;
                silent.push(worker.name.clone());
            } else {
                next = next.min(deadline);
            }
        }
        // Heartbeats of workers that are gone need not be remembered once they are old.
        heartbeats.retain(|name, heartbeat| workers.contains_key(name) || now.duration_since(heartbeat.moved) < self.timeout);
        drop(state);
        for worker in &silent {
            tracing::warn!(worker, timeout = ?self.timeout, "heartbeat stands still");
        }
        if !silent.is_empty() {
            self.announce();
        }
        next
    }

    /// A worker without any heartbeat is given one timeout from the operator's start.
    fn liveness(&self, heartbeat: Option<&Heartbeat>, now: Instant) -> (bool, Option<Timestamp>) {
        match heartbeat {
            Some(heartbeat) => (now.duration_since(heartbeat.moved) >= self.timeout, Some(heartbeat.seen)),
            None => (now.duration_since(self.started) >= self.timeout, None),
        }
    }

    fn names(&self) -> BTreeSet<String> {
        self.state().workers.keys().cloned().collect()
    }

    fn announce(&self) {
        self.changed.send_modify(|version| *version += 1);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What moves when the agent lives.
fn version(lease: &Lease) -> Option<String> {
    let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref());
    renewed.map(|time| time.0.to_string()).or_else(|| lease.resource_version())
}

#[cfg(test)]
mod tests {
    use super::*;
    use sahasra_crds::{GpuWorkerSpec, GpuWorkerStatus};

    const TIMEOUT: Duration = Duration::from_secs(15);

    fn worker(name: &str) -> GpuWorker {
        let spec = GpuWorkerSpec { node_name: "node".into() };
        let mut worker = GpuWorker::new(name, spec);
        worker.status = Some(GpuWorkerStatus::default());
        worker
    }

    #[test]
    fn a_worker_is_stale_when_its_heartbeat_stands_still_and_live_again_when_it_moves() {
        let directory = Directory::new(TIMEOUT);
        directory.observe_heartbeat("a", Some("1".into()), directory.started);
        directory.observe_worker(&worker("a"));
        assert!(!directory.worker("a").unwrap().stale);
        // The same version again is no movement.
        directory.observe_heartbeat("a", Some("1".into()), directory.started + TIMEOUT / 2);
        let next = directory.mark_silent(directory.started + TIMEOUT / 2);
        assert_eq!(next, directory.started + TIMEOUT);
        directory.mark_silent(next);
        assert!(directory.worker("a").unwrap().stale);
        let mut changed = directory.subscribe();
        changed.mark_unchanged();
        directory.observe_heartbeat("a", Some("2".into()), directory.started + 2 * TIMEOUT);
        assert!(!directory.worker("a").unwrap().stale && changed.has_changed().unwrap());
    }

    #[test]
    fn a_worker_that_never_sent_a_heartbeat_is_given_one_timeout() {
        let directory = Directory::new(TIMEOUT);
        directory.observe_worker(&worker("a"));
        assert!(!directory.worker("a").unwrap().stale);
        directory.mark_silent(directory.started + TIMEOUT);
        assert!(directory.worker("a").unwrap().stale);
    }

    #[test]
    fn an_unchanged_report_wakes_nobody() {
        let directory = Directory::new(TIMEOUT);
        directory.observe_worker(&worker("a"));
        let changed = directory.subscribe();
        directory.observe_worker(&worker("a"));
        assert!(!changed.has_changed().unwrap());
    }
}
