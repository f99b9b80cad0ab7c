//! The directory of workers and their liveness, from watches on `GpuWorker`s and on the heartbeat `Lease`s.
//!
//! A worker is live while its heartbeat moves: while the resource version or renew time of its Lease changes within the timeout, measured
//! by the operator's own monotonic clock. The renew time itself is never compared with a clock. Time in which the API server did not answer
//! the operator does not count, because no heartbeat could have arrived in that time. A watch may hang, or wait for half a minute until it
//! is reopened, so the heartbeats are read from the API server before a worker becomes stale.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use backon::ExponentialBuilder;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::{api::coordination::v1::Lease, jiff::Timestamp};
use kube::{
    Api, Client, ResourceExt,
    api::ListParams,
    runtime::{WatchStreamExt, watcher},
};
use parking_lot::Mutex;
use sahasra_crds::{
    GpuWorker,
    gpu_worker::{DeviceHealth, DeviceStatus},
};
use sahasra_names::{BootId, WorkerName, WorkerUid};
use tokio::{
    sync::{SetOnce, watch},
    time::Instant,
};

/// Reason of `Ready=False` of a worker whose heartbeat is lost, set by the operator.
pub const HEARTBEAT_LOST: &str = "HeartbeatLost";
/// Prefix of the name of a heartbeat Lease; the worker's name follows.
const HEARTBEAT: &str = "sahasra-worker-";
/// Wait after a failed read of the heartbeats.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// The last known state of a worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Worker {
    pub name: WorkerName,
    pub uid: WorkerUid,
    pub endpoint: String,
    pub boot_id: BootId,
    /// Devices as last reported in the `GpuWorker`'s status: at most a few seconds old.
    pub devices: Vec<DeviceStatus>,
    /// Whether the agent reports that it accepts work; the error is the reason why it does not.
    pub ready: Result<(), String>,
    pub marked_lost: bool,
    /// Whether the heartbeat has not moved within the timeout.
    pub stale: bool,
    /// Wall-clock time at which the heartbeat last moved, for humans.
    pub last_seen: Option<Timestamp>,
}

/// All statuses that a worker can have in `/workers` and metrics.
pub const STATUSES: [&str; 4] = ["healthy", "stale", "not_ready", "unhealthy"];

impl Worker {
    /// Status of the worker: one of [`STATUSES`].
    pub fn status(&self) -> &'static str {
        let is_unhealthy = |device: &DeviceStatus| device.health == DeviceHealth::Unhealthy;
        if self.stale {
            "stale"
        } else if self.ready.is_err() {
            "not_ready"
        } else if !self.devices.is_empty() && self.devices.iter().all(is_unhealthy) {
            "unhealthy"
        } else {
            "healthy"
        }
    }
}

#[derive(Debug)]
struct Heartbeat {
    version: Option<String>,
    moved: Instant,
    seen: Timestamp,
}

#[derive(Debug)]
struct State {
    workers: BTreeMap<WorkerName, Worker>,
    heartbeats: BTreeMap<WorkerName, Heartbeat>,
    /// Start of the heartbeat watch.
    begun: Instant,
    answered: Instant,
}

impl State {
    /// Time of the last heartbeat of a worker. A worker without any heartbeat gets one timeout from the start of the watch.
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
    /// Creates an empty directory. A worker is stale when its heartbeat has not moved for `timeout`. The API server counts as unavailable
    /// after `api_timeout` without a call of [`Directory::api_server_answered`].
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

    /// Reports that the API server has just answered. After an outage, the deadlines of live workers' heartbeats are extended by the length
    /// of the outage: the time beyond the usual interval between two answers, so that a slow API server delays the detection of a dead
    /// worker but does not prevent it.
    pub fn api_server_answered(&self) {
        self.answered(Instant::now());
    }

    fn answered(&self, now: Instant) {
        let mut state = self.state.lock();
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
            "API server is responding again: extending the heartbeat timeouts by the outage"
        );
    }

    /// All workers, ordered by name.
    pub fn workers(&self) -> Vec<Worker> {
        self.state.lock().workers.values().cloned().collect()
    }

    /// The worker with this name, if it is known.
    pub fn worker(&self, name: &str) -> Option<Worker> {
        self.state.lock().workers.get(name).cloned()
    }

    /// Subscribes to changes: the receiver is notified when a worker is added, removed or changed, becomes stale, or recovers.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Watches until dropped. `namespace` is the namespace of the heartbeat Leases. Calls `synced` once all `GpuWorker`s and heartbeats
    /// have been listed.
    pub async fn run(self: Arc<Self>, client: Client, namespace: &str, synced: impl FnOnce() + Send) {
        self.begin(Instant::now());
        let (workers_listed, leases_listed) = (SetOnce::new(), SetOnce::new());
        let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
        let announce = async {
            workers_listed.wait().await;
            leases_listed.wait().await;
            synced();
        };
        tokio::join!(
            self.watch_workers(Api::all(client), &workers_listed),
            self.watch_leases(leases.clone(), &leases_listed),
            self.watch_silence(leases),
            announce
        );
    }

    fn begin(&self, now: Instant) {
        let mut state = self.state.lock();
        (state.begun, state.answered) = (now, now);
    }

    async fn watch_workers(&self, api: Api<GpuWorker>, listed: &SetOnce<()>) {
        let backoff = watch_backoff(self.api_timeout / 2);
        let mut events = watcher(api, watcher::Config::default()).backoff(backoff).boxed();
        let mut initial: Option<BTreeSet<WorkerName>> = None;
        loop {
            match events.try_next().await {
                Ok(Some(watcher::Event::Apply(worker))) => self.observe_worker(&worker),
                Ok(Some(watcher::Event::Delete(worker))) => self.forget_worker(&worker.name_any()),
                Ok(Some(watcher::Event::Init)) => initial = Some(BTreeSet::new()),
                Ok(Some(watcher::Event::InitApply(worker))) => {
                    initial.get_or_insert_default().insert(worker.name_any().into());
                    self.observe_worker(&worker);
                }
                Ok(Some(watcher::Event::InitDone)) => {
                    let present = initial.take().unwrap_or_default();
                    let names: BTreeSet<WorkerName> = self.state.lock().workers.keys().cloned().collect();
                    for name in names.difference(&present) {
                        self.forget_worker(name);
                    }
                    // Set once only: the watch lists again when it is reopened.
                    let _ = listed.set(());
                }
                Ok(None) => return,
                Err(error) => tracing::warn!(%error, "failed to watch GpuWorkers"),
            }
        }
    }

    async fn watch_leases(&self, api: Api<Lease>, listed: &SetOnce<()>) {
        let backoff = watch_backoff(self.api_timeout / 2);
        let mut events = watcher(api, watcher::Config::default()).backoff(backoff).boxed();
        loop {
            match events.try_next().await {
                Ok(Some(watcher::Event::Apply(lease) | watcher::Event::InitApply(lease))) => {
                    self.observe_lease(&lease);
                }
                // A worker whose heartbeat Lease was deleted becomes stale by the timeout, as one whose heartbeat does not move.
                Ok(Some(watcher::Event::Delete(_) | watcher::Event::Init)) => {}
                Ok(Some(watcher::Event::InitDone)) => {
                    let _ = listed.set(());
                }
                Ok(None) => return,
                Err(error) => tracing::warn!(%error, "failed to watch heartbeats"),
            }
        }
    }

    /// Marks workers as stale when their heartbeats time out.
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

    /// Reads the heartbeats from the API server instead of the watch, which may hang or wait to be reopened. Returns whether the read
    /// succeeded.
    async fn read_heartbeats(&self, api: &Api<Lease>) -> bool {
        let parameters = ListParams::default();
        match tokio::time::timeout(self.api_timeout, api.list(&parameters)).await {
            Ok(Ok(leases)) => {
                let behind = leases.iter().filter(|lease| self.observe_lease(lease)).count();
                if behind > 0 {
                    tracing::warn!(heartbeats = behind, "watch of heartbeats is behind");
                }
                return true;
            }
            Ok(Err(error)) => tracing::warn!(%error, "failed to read heartbeats: no worker is marked as stale"),
            Err(_) => tracing::warn!(timeout = ?self.api_timeout, "timed out reading heartbeats: no worker is marked as stale"),
        }
        false
    }

    /// Records the Lease if it is a heartbeat. Returns whether the heartbeat has moved.
    fn observe_lease(&self, lease: &Lease) -> bool {
        let name = lease.name_any();
        name.strip_prefix(HEARTBEAT)
            .is_some_and(|worker| self.observe_heartbeat(worker, version(lease), Instant::now()))
    }

    pub(crate) fn observe_worker(&self, object: &GpuWorker) {
        let name = WorkerName::from(object.name_any());
        let status = object.status.clone().unwrap_or_default();
        let condition = sahasra_crds::conditions::get(&status.conditions, sahasra_crds::conditions::READY);
        let marked_lost = condition.is_some_and(|condition| condition.reason == HEARTBEAT_LOST);
        let ready = match condition {
            // A condition that the operator itself wrote is no report of the agent.
            Some(condition) if condition.status != "True" && !marked_lost => Err(condition.reason.clone()),
            Some(_) => Ok(()),
            None => Err("StatusUnknown".to_owned()),
        };
        let mut state = self.state.lock();
        let last_seen = state.heartbeats.get(&name).map(|heartbeat| heartbeat.seen);
        let stale = state.workers.get(&name).is_some_and(|worker| worker.stale);
        let worker = Worker {
            uid: object.uid().unwrap_or_default().into(),
            endpoint: status.endpoint.unwrap_or_default(),
            boot_id: status.boot_id.unwrap_or_default().into(),
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
        let gone = self.state.lock().workers.remove(name).is_some();
        if gone {
            self.announce();
        }
    }

    /// Records a heartbeat. Returns whether it has moved.
    fn observe_heartbeat(&self, name: &str, version: Option<String>, now: Instant) -> bool {
        let mut state = self.state.lock();
        let known = state.heartbeats.get(name);
        if known.is_some_and(|heartbeat| heartbeat.version == version) {
            return false;
        }
        let seen = crate::clock::timestamp();
        let heartbeat = Heartbeat { version, moved: now, seen };
        state.heartbeats.insert(name.into(), heartbeat);
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

    /// Time at which the next heartbeat of a live worker times out, if no heartbeat moves until then.
    fn next_verdict(&self, now: Instant) -> Instant {
        let state = self.state.lock();
        if self.is_api_server_away(&state, now) {
            return now + self.api_timeout;
        }
        let live = state.workers.values().filter(|worker| !worker.stale);
        let deadlines = live.map(|worker| state.moved(&worker.name) + self.timeout);
        deadlines.min().unwrap_or(now + self.timeout)
    }

    /// Marks the workers whose heartbeats have timed out. Returns the time of the next check.
    fn mark_silent(&self, now: Instant) -> Instant {
        let mut state = self.state.lock();
        if self.is_api_server_away(&state, now) {
            return now + self.api_timeout;
        }
        let late = |worker: &&Worker| !worker.stale && now.duration_since(state.moved(&worker.name)) >= self.timeout;
        let silent: Vec<WorkerName> = state.workers.values().filter(late).map(|worker| worker.name.clone()).collect();
        for name in &silent {
            if let Some(worker) = state.workers.get_mut(name) {
                worker.stale = true;
            }
        }
        // Old heartbeats of removed workers are forgotten.
        let State { workers, heartbeats, .. } = &mut *state;
        heartbeats.retain(|name, heartbeat| workers.contains_key(name) || now.duration_since(heartbeat.moved) < self.timeout);
        drop(state);
        for worker in &silent {
            tracing::warn!(%worker, timeout = ?self.timeout, "heartbeat timed out");
        }
        if !silent.is_empty() {
            self.announce();
        }
        self.next_verdict(now)
    }

    fn is_api_server_away(&self, state: &State, now: Instant) -> bool {
        now.duration_since(state.answered) >= self.api_timeout
    }

    fn announce(&self) {
        self.changed.send_modify(|version| *version += 1);
    }
}

/// The value that changes with each heartbeat: the renew time, or the resource version of a Lease without one.
fn version(lease: &Lease) -> Option<String> {
    let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref());
    renewed.map(|time| time.0.to_string()).or_else(|| lease.resource_version())
}

/// Backoff of a watch whose waits are at most `longest`. The default backoff of kube grows to 30 s: after an outage of the API server, the
/// operator would miss heartbeats for that long and would consider live workers stale.
fn watch_backoff(longest: Duration) -> watcher::ExponentialBackoff {
    let first = Duration::from_millis(100).min(longest);
    let builder = ExponentialBuilder::new().with_min_delay(first).with_max_delay(longest);
    builder.without_max_times().into()
}

#[cfg(test)]
mod tests;
