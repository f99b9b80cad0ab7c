//! Who the workers are and which of them live: from watches on `GpuWorker` and on the heartbeat `Lease`s.
//!
//! A worker is live as long as its heartbeat moves: as long as its Lease's resource version or renew time becomes another
//! one within the timeout of the operator's own monotonic clock. What the renew time says is never compared with a clock. Time in which
//! the API server did not answer the operator does not count: no heartbeat could have arrived in it.

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

#[derive(Debug)]
struct State {
    workers: BTreeMap<String, Worker>,
    heartbeats: BTreeMap<String, Heartbeat>,
    /// Since when heartbeats are watched.
    begun: Instant,
    /// When the API server last answered.
    answered: Instant,
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

    fn begin(&self, now: Instant) {
        let mut state = self.state();
        (state.begun, state.answered) = (now, now);
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
        let last_seen = state.heartbeats.get(&name).map(|heartbeat| heartbeat.seen);
        let stale = self.is_stale(&state, &name, Instant::now());
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

    /// Marks the workers that have been silent for too long; gives back when to look again.
    fn mark_silent(&self, now: Instant) -> Instant {
        let mut state = self.state();
        if self.is_api_server_away(&state, now) {
            return now + self.api_timeout;
        }
        let State {
            workers,
            heartbeats,
            begun,
            ..
        } = &mut *state;
        let mut next = now + self.timeout;
        let mut silent = Vec::new();
        for worker in workers.values_mut().filter(|worker| !worker.stale) {
            let deadline = heartbeats.get(&worker.name).map_or(*begun, |heartbeat| heartbeat.moved) + self.timeout;
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

    /// A worker without any heartbeat is given one timeout from when heartbeats are watched.
    fn is_stale(&self, state: &State, name: &str, now: Instant) -> bool {
        if self.is_api_server_away(state, now) {
            return state.workers.get(name).is_some_and(|worker| worker.stale);
        }
        let moved = state.heartbeats.get(name).map_or(state.begun, |heartbeat| heartbeat.moved);
        now.duration_since(moved) >= self.timeout
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
mod tests {
    use super::*;
    use sahasra_crds::{GpuWorkerSpec, GpuWorkerStatus};

    const TIMEOUT: Duration = Duration::from_secs(15);
    const API_TIMEOUT: Duration = Duration::from_secs(5);

    fn directory() -> Directory {
        Directory::new(TIMEOUT, API_TIMEOUT)
    }

    fn begun(directory: &Directory) -> Instant {
        directory.state().begun
    }

    fn worker(name: &str) -> GpuWorker {
        let spec = GpuWorkerSpec { node_name: "node".into() };
        let mut worker = GpuWorker::new(name, spec);
        worker.status = Some(GpuWorkerStatus::default());
        worker
    }

    /// The API server answers each second.
    fn answer_until(directory: &Directory, mut now: Instant, end: Instant) {
        while now < end {
            now = (now + Duration::from_secs(1)).min(end);
            directory.answered(now);
        }
    }

    #[test]
    fn a_worker_is_stale_when_its_heartbeat_stands_still_and_live_again_when_it_moves() {
        let directory = directory();
        let start = begun(&directory);
        directory.observe_heartbeat("a", Some("1".into()), start);
        directory.observe_worker(&worker("a"));
        assert!(!directory.worker("a").unwrap().stale);
        // The same version again is no movement.
        directory.observe_heartbeat("a", Some("1".into()), start + TIMEOUT / 2);
        answer_until(&directory, start, start + TIMEOUT / 2);
        let next = directory.mark_silent(start + TIMEOUT / 2);
        assert_eq!(next, start + TIMEOUT);
        answer_until(&directory, start + TIMEOUT / 2, next);
        directory.mark_silent(next);
        assert!(directory.worker("a").unwrap().stale);
        let mut changed = directory.subscribe();
        changed.mark_unchanged();
        directory.observe_heartbeat("a", Some("2".into()), start + 2 * TIMEOUT);
        assert!(!directory.worker("a").unwrap().stale && changed.has_changed().unwrap());
    }

    #[test]
    fn a_worker_that_never_sent_a_heartbeat_is_given_one_timeout() {
        let directory = directory();
        directory.observe_worker(&worker("a"));
        assert!(!directory.worker("a").unwrap().stale);
        let start = begun(&directory);
        answer_until(&directory, start, start + TIMEOUT);
        directory.mark_silent(start + TIMEOUT);
        assert!(directory.worker("a").unwrap().stale);
    }

    #[test]
    fn time_without_an_answer_of_the_api_server_does_not_count_against_a_heartbeat() {
        let directory = directory();
        let start = begun(&directory);
        for name in ["live", "dead"] {
            directory.observe_worker(&worker(name));
            directory.observe_heartbeat(name, Some("1".into()), start);
        }
        // The outage begins after 4 s, and lasts for longer than the timeout.
        let (outage, back) = (start + Duration::from_secs(4), start + 3 * TIMEOUT);
        answer_until(&directory, start, outage);
        let mut now = outage;
        while now < back {
            now = directory.mark_silent(now);
        }
        directory.answered(back);
        let left = TIMEOUT - Duration::from_secs(4) - API_TIMEOUT / 2;
        assert_eq!(directory.mark_silent(back), back + left);
        directory.observe_heartbeat("live", Some("2".into()), back + Duration::from_secs(5));
        let late = back + TIMEOUT;
        answer_until(&directory, back, late);
        directory.mark_silent(late);
        let stale = |name| directory.worker(name).unwrap().stale;
        assert!(!stale("live") && stale("dead"));
        // Another outage makes a dead worker no live one.
        let later = late + 2 * TIMEOUT;
        directory.answered(later);
        assert!(directory.is_stale(&directory.state(), "dead", later));
    }

    #[test]
    fn an_unchanged_report_wakes_nobody() {
        let directory = directory();
        directory.observe_worker(&worker("a"));
        let changed = directory.subscribe();
        directory.observe_worker(&worker("a"));
        assert!(!changed.has_changed().unwrap());
    }
}
