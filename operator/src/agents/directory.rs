//! Who the workers are and which of them live: from watches on `GpuWorker` and on the heartbeat `Lease`s.
//!
//! A worker is live as long as its heartbeat moves: as long as its Lease's resource version or renew time becomes another
//! one within the timeout of the operator's own monotonic clock. What the renew time says is never compared with a clock. Time in which
//! the API server did not answer the operator does not count: no heartbeat could have arrived in it. A watch may hang, or wait for half a
//! minute to be opened again: before a worker is stale, its heartbeat is read.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::{api::coordination::v1::Lease, jiff::Timestamp};
use kube::{
    Api, Client, ResourceExt,
    api::ListParams,
    runtime::{WatchStreamExt, watcher},
};
use sahasra_crds::{GpuWorker, gpu_worker::DeviceStatus};
use tokio::{sync::watch, time::Instant};

use super::watch_backoff::WatchBackoff;

/// What the name of a heartbeat Lease has before the worker's name.
const HEARTBEAT: &str = "sahasra-worker-";
/// Wait before heartbeats that could not be read are read again.
const READ_AGAIN: Duration = Duration::from_secs(1);

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

#[derive(Debug)]
struct State {
    workers: BTreeMap<String, Worker>,
    heartbeats: BTreeMap<String, Heartbeat>,
    /// Since when heartbeats are watched.
    begun: Instant,
    /// When the API server last answered.
    answered: Instant,
}

impl State {
    /// When a worker's heartbeat last moved. A worker without any is given one timeout from when heartbeats are watched.
    fn moved(&self, worker: &str) -> Instant {
        self.heartbeats.get(worker).map_or(self.begun, |heartbeat| heartbeat.moved)
    }
}

/// All workers. Shared behind an `Arc`.
#[derive(Debug)]
pub struct Directory {
    timeout: Duration,
    api_timeout: Duration,
    state: Mutex<State>,
    changed: watch::Sender<u64>,
}

impl Directory {
    /// An empty directory in which a worker is stale after `timeout` without a movement of its heartbeat. The API server is taken to be
    /// away after `api_timeout` without a call of [`Directory::api_server_answered`].
    pub fn new(timeout: Duration, api_timeout: Duration) -> Self {
        let now = Instant::now();
        Self {
            timeout,
            api_timeout,
            state: Mutex::new(State {
                workers: BTreeMap::new(),
                heartbeats: BTreeMap::new(),
                begun: now,
                answered: now,
            }),
            changed: watch::Sender::new(0),
        }
    }

    /// The API server has answered now. If it had been away, the heartbeats of live workers get the time of its absence in addition: what
    /// goes beyond the time between two answers, so that a slow API server delays the verdict and does not prevent it.
    pub fn api_server_answered(&self) {
        self.answered(Instant::now());
    }

    fn answered(&self, now: Instant) {
        let mut state = self.state();
        let silence = now.duration_since(std::mem::replace(&mut state.answered, now));
        if silence < self.api_timeout {
            return;
        }
        let absence = silence - self.api_timeout / 2;
        let State {
            workers,
            heartbeats,
            begun,
            ..
        } = &mut *state;
        *begun = (*begun + absence).min(now);
        for (name, heartbeat) in heartbeats {
            if workers.get(name).is_none_or(|worker| !worker.stale) {
                heartbeat.moved = (heartbeat.moved + absence).min(now);
            }
        }
        tracing::info!(
            ?absence,
            "the API server answers again: heartbeats get the time of its absence in addition"
        );
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
        self.begin(Instant::now());
        let (workers_listed, mut workers_synced) = watch::channel(false);
        let (leases_listed, mut leases_synced) = watch::channel(false);
        let workers = self.watch_workers(Api::all(client.clone()), workers_listed);
        let leases: Api<Lease> = Api::namespaced(client, namespace);
        let silence = self.watch_silence(leases.clone());
        let leases = self.watch_leases(leases, leases_listed);
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
        tokio::join!(workers, leases, silence, announce);
    }

    fn begin(&self, now: Instant) {
        let mut state = self.state();
        (state.begun, state.answered) = (now, now);
    }

    async fn watch_workers(&self, api: Api<GpuWorker>, listed: watch::Sender<bool>) {
        let backoff = WatchBackoff::up_to(self.api_timeout / 2);
        let mut events = watcher(api, watcher::Config::default()).backoff(backoff).boxed();
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
        let backoff = WatchBackoff::up_to(self.api_timeout / 2);
        let mut events = watcher(api, watcher::Config::default()).backoff(backoff).boxed();
        loop {
            match events.try_next().await {
                Ok(Some(watcher::Event::Apply(lease) | watcher::Event::InitApply(lease))) => {
                    self.observe_lease(&lease);
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
    async fn watch_silence(&self, api: Api<Lease>) {
        let mut changed = self.subscribe();
        loop {
            let mut next = self.next_verdict(Instant::now());
            if next <= Instant::now() {
                next = match self.read_heartbeats(&api).await {
                    true => self.mark_silent(Instant::now()),
                    false => Instant::now() + READ_AGAIN,
                };
            }
            tokio::select! {
                () = tokio::time::sleep_until(next) => {}
                outcome = changed.changed() => if outcome.is_err() { return },
            }
        }
    }

    /// Reads the heartbeats past the watch, which may hang or wait to be opened again: whether they were read.
    async fn read_heartbeats(&self, api: &Api<Lease>) -> bool {
        let parameters = ListParams::default();
        match tokio::time::timeout(self.api_timeout, api.list(&parameters)).await {
            Ok(Ok(leases)) => {
                let behind = leases.iter().filter(|lease| self.observe_lease(lease)).count();
                if behind > 0 {
                    tracing::warn!(heartbeats = behind, "the watch of heartbeats is behind");
                }
                return true;
            }
            Ok(Err(error)) => tracing::warn!(%error, "heartbeats were not read: no worker is marked as lost"),
            Err(_) => tracing::warn!(timeout = ?self.api_timeout, "heartbeats were not read in time: no worker is marked as lost"),
        }
        false
    }

    /// Whether it is a heartbeat that has moved.
    fn observe_lease(&self, lease: &Lease) -> bool {
        let name = lease.name_any();
        name.strip_prefix(HEARTBEAT)
            .is_some_and(|worker| self.observe_heartbeat(worker, version(lease), Instant::now()))
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
        let last_seen = state.heartbeats.get(&name).map(|heartbeat| heartbeat.seen);
        let stale = state.workers.get(&name).is_some_and(|worker| worker.stale);
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

    /// Whether it has moved.
    fn observe_heartbeat(&self, name: &str, version: Option<String>, now: Instant) -> bool {
        let mut state = self.state();
        let known = state.heartbeats.get(name);
        if known.is_some_and(|heartbeat| heartbeat.version == version) {
            return false;
        }
        let seen = crate::clock::timestamp();
        let heartbeat = Heartbeat { version, moved: now, seen };
        state.heartbeats.insert(name.to_owned(), heartbeat);
        let Some(worker) = state.workers.get_mut(name) else { return true };
        worker.last_seen = Some(seen);
        let recovered = std::mem::replace(&mut worker.stale, false);
        drop(state);
        if recovered {
            tracing::info!(worker = name, "heartbeat resumed");
            self.announce();
        }
        true
    }

    /// When the first of the live workers' heartbeats will have stood still for too long, as far as is known now.
    fn next_verdict(&self, now: Instant) -> Instant {
        let state = self.state();
        if self.is_api_server_away(&state, now) {
            return now + self.api_timeout;
        }
        let live = state.workers.values().filter(|worker| !worker.stale);
        let deadlines = live.map(|worker| state.moved(&worker.name) + self.timeout);
        deadlines.min().unwrap_or(now + self.timeout)
    }

    /// Marks the workers that have been silent for too long; gives back when to look again.
    fn mark_silent(&self, now: Instant) -> Instant {
        let mut state = self.state();
        if self.is_api_server_away(&state, now) {
            return now + self.api_timeout;
        }
        let late = |worker: &&Worker| !worker.stale && now.duration_since(state.moved(&worker.name)) >= self.timeout;
        let silent: Vec<String> = state.workers.values().filter(late).map(|worker| worker.name.clone()).collect();
        for name in &silent {
            if let Some(worker) = state.workers.get_mut(name) {
                worker.stale = true;
            }
        }
        // Heartbeats of workers that are gone need not be remembered once they are old.
        let State { workers, heartbeats, .. } = &mut *state;
        heartbeats.retain(|name, heartbeat| workers.contains_key(name) || now.duration_since(heartbeat.moved) < self.timeout);
        drop(state);
        for worker in &silent {
            tracing::warn!(worker, timeout = ?self.timeout, "heartbeat stands still");
        }
        if !silent.is_empty() {
            self.announce();
        }
        self.next_verdict(now)
    }

    fn is_api_server_away(&self, state: &State, now: Instant) -> bool {
        now.duration_since(state.answered) >= self.api_timeout
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
mod tests;
