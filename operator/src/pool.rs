//! The pool: every device, and every grant that this operator holds.
//!
//! Owners register a claim and watch its [`ClaimView`]. The pool computes a placement (`sahasra_scheduler`), requests slices from the
//! agents, and feeds their rejections into the next placement. It renews all grants on an agent in one call, after a third of their TTL,
//! and shrinks claims when others need room. Its knowledge of an agent comes from the agent's own answers: inventories, grants and
//! rejections. The `GpuWorker`s only show which agents exist, and when to request an inventory.
//!
//! `state` makes the decisions and is pure; this module carries them out.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{StreamExt, stream::FuturesUnordered};
use parking_lot::Mutex;
use sahasra_names::{DeviceId, WorkerName};
use sahasra_scheduler::ClaimKind;
use sahasra_service::{causes, tasks};
use sahasra_wire::{
    grants::{Grant, Owner, ReleaseRequest},
    inventory::Inventory,
};
use tokio::sync::{Notify, Semaphore, watch};

use crate::{
    agents::{AgentClient, AgentError, Directory},
    clock::Clock,
    fault::{Faults, Step},
    metrics::Metrics,
};

mod claim;
mod state;

pub(crate) use claim::SILENT;
pub use claim::{ClaimRequest, ClaimView, HeldGrant, Loss, Lost, SeenSession};
pub use state::Unclaimed;
use state::{Action, Request, State};

/// Maximum number of concurrent calls to agents. Renewals have a limit of their own, so that many acquires cannot let grants expire.
const CONCURRENT_CALLS: usize = 64;
/// Timeout for the inventories that an adoption waits for. Agents that do not answer are called again until then.
const ADOPTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Minimum time between two plans that no event causes, so that the loop does not spin.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// The pool. Shared behind an `Arc`.
#[derive(Debug)]
pub struct Pool {
    agents: AgentClient,
    directory: Arc<Directory>,
    clock: Clock,
    faults: Faults,
    state: Mutex<State>,
    changed: Notify,
    sessions_changed: Notify,
    orphans_found: Notify,
    inventory_received: Notify,
    calls: Semaphore,
    renewals: Semaphore,
}

/// Error of a release that some agents did not answer. The pool repeats it until they answer, or until the grants have expired.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no response from {}", workers.join(", "))]
pub struct Unreleased {
    pub workers: Vec<WorkerName>,
}

impl Pool {
    pub fn new(agents: AgentClient, directory: Arc<Directory>, clock: Clock, faults: Faults, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            agents,
            directory,
            clock,
            faults,
            state: Mutex::new(State::new(metrics)),
            changed: Notify::new(),
            sessions_changed: Notify::new(),
            orphans_found: Notify::new(),
            inventory_received: Notify::new(),
            calls: Semaphore::new(CONCURRENT_CALLS),
            renewals: Semaphore::new(CONCURRENT_CALLS),
        })
    }

    /// Makes decisions and carries them out, until dropped.
    pub async fn run(self: Arc<Self>) {
        let mut workers = self.directory.subscribe();
        workers.mark_changed();
        loop {
            if workers.has_changed().unwrap_or(false) {
                workers.mark_unchanged();
                self.observe();
            }
            let (actions, wake) = self.state.lock().plan(self.clock.now());
            for action in actions {
                let pool = self.clone();
                tasks::spawn(async move { pool.perform(action).await });
            }
            let at = wake.unwrap_or_default().max(self.clock.now() + SHORTEST_WAIT);
            tokio::select! {
                () = self.changed.notified() => {}
                outcome = workers.changed() => {
                    if outcome.is_err() {
                        return;
                    }
                    workers.mark_changed();
                }
                () = tokio::time::sleep_until(self.clock.instant(at)), if wake.is_some() => {}
            }
        }
    }

    /// Reads the workers from the directory. Must be called once the directory knows all workers, before grants are adopted.
    pub fn observe(&self) {
        self.state.lock().observe(&self.directory.workers(), self.clock.now());
        self.inventory_received.notify_waiters();
        self.changed.notify_one();
    }

    /// Registers a claim. `adopted` are its grants from an earlier term, with their workers; the pool renews them under the new term.
    pub fn claim(&self, request: ClaimRequest, adopted: Vec<(WorkerName, Grant)>) -> watch::Receiver<ClaimView> {
        let view = self.state.lock().claim(request, adopted, self.clock.now());
        self.changed.notify_one();
        view
    }

    /// Changes whether the grants of a claim are renewed.
    pub fn set_renewed(&self, uid: &str, renewed: bool) {
        if self.state.lock().set_renewed(uid, renewed) {
            self.changed.notify_one();
        }
    }

    /// Changes the minimum, maximum and priority of a claim.
    pub fn resize(&self, uid: &str, min: u32, max: u32, priority: i32) {
        self.state.lock().resize(uid, min, max, priority, self.clock.now());
        self.changed.notify_one();
    }

    /// Limits the slices of a claim to those that its owner needs, by device: the others are released, and nothing is acquired until the
    /// limits are removed with `None`.
    pub fn limit(&self, uid: &str, limits: Option<BTreeMap<DeviceId, u32>>) {
        self.state.lock().limit(uid, limits);
        self.changed.notify_one();
    }

    /// Changes the maximum time for which a client can keep a session's slice.
    pub fn keep(&self, uid: &str, keep: Duration) {
        self.state.lock().keep(uid, keep);
    }

    /// The state of a session as its agent last reported it, by the UID of the session's lease.
    pub fn session(&self, lease_uid: &str) -> Option<SeenSession> {
        self.state.lock().session(lease_uid, self.clock.now())
    }

    /// Waits until agents report changes of sessions. Returns the namespace and name of each. Must have only one caller.
    pub async fn changed_sessions(&self) -> Vec<(String, String)> {
        loop {
            let changed = self.state.lock().take_changed_sessions();
            if !changed.is_empty() {
                return changed;
            }
            self.sessions_changed.notified().await;
        }
    }

    /// Waits until agents hold slices of sessions that have been without a claim for a while. Returns the owners of the slices. Must have
    /// only one caller, which receives the same owners again every few seconds while the slices are still held.
    pub async fn orphans(&self) -> Vec<Owner> {
        loop {
            self.orphans_found.notified().await;
            let orphans = self.state.lock().orphans(self.clock.now());
            if !orphans.is_empty() {
                return orphans;
            }
        }
    }

    /// Kind of each claim that waits for its minimum, and the time for which it has waited.
    pub fn waiting(&self) -> Vec<(ClaimKind, Duration)> {
        self.state.lock().waiting(self.clock.now())
    }

    /// Requests an inventory of a worker, because a stream to it broke.
    pub fn suspect(&self, worker: &WorkerName) {
        self.state.lock().suspect(worker, self.clock.now());
        self.changed.notify_one();
    }

    /// Ends a claim and releases its slices. With `immediately`, running work is killed. Nothing is acquired for the claim afterwards.
    /// Fails if agents do not answer.
    pub async fn release(&self, uid: &str, immediately: bool) -> Result<(), Unreleased> {
        let Some(mut view) = self.state.lock().end(uid) else {
            return Ok(());
        };
        // A pending acquire may still be granted, so wait for its answer. Each call has a timeout.
        while self.state.lock().is_acquiring(uid) {
            if view.changed().await.is_err() {
                break;
            }
        }
        let actions = self.state.lock().take_out(uid, immediately, self.clock.now());
        self.released(actions.into_iter().map(|action| self.perform(action))).await
    }

    /// Removes a claim without releasing its grants, because another operator acts for the owner, or soon will.
    pub fn forget(&self, uid: &str) {
        {
            let (mut state, now) = (self.state.lock(), self.clock.now());
            state.request_inventories(uid, now);
            state.take_out(uid, false, now);
            state.leave_to_others(uid);
        }
        self.changed.notify_one();
    }

    /// Releases all grants of the owner on all agents, including those of other operators and earlier terms. Fails if agents do not answer; the
    /// caller then has to repeat it, because the pool no longer does.
    pub async fn release_everywhere(&self, owner: &Owner) -> Result<(), Unreleased> {
        self.state.lock().leave_to_others(&owner.uid);
        let workers = self.directory.workers();
        let calls = workers
            .iter()
            .filter(|worker| !worker.endpoint.is_empty())
            .map(|worker| async move {
                let request = ReleaseRequest {
                    owner: owner.clone(),
                    grants: Vec::new(),
                    keep_slices: 0,
                    immediately: true,
                };
                let outcome = self.agents.release(&worker.endpoint, &request).await;
                outcome.err().map(|error| {
                    tracing::debug!(worker = %worker.name, %error, "release failed");
                    worker.name.clone()
                })
            });
        self.released(calls).await
    }

    /// Waits for releases, each of which returns its worker if the agent did not answer.
    async fn released(&self, calls: impl Iterator<Item = impl Future<Output = Option<WorkerName>>>) -> Result<(), Unreleased> {
        let calls: FuturesUnordered<_> = calls.collect();
        let workers: Vec<WorkerName> = calls.filter_map(std::future::ready).collect().await;
        self.changed.notify_one();
        if workers.is_empty() { Ok(()) } else { Err(Unreleased { workers }) }
    }

    /// Grants that agents hold for an owner without a claim, to be adopted. Waits until each live agent has answered once, which serves all
    /// owners.
    pub async fn unclaimed(&self, owner_uid: &str) -> Unclaimed {
        let deadline = tokio::time::Instant::now() + ADOPTION_TIMEOUT;
        loop {
            let mut inventory_received = std::pin::pin!(self.inventory_received.notified());
            inventory_received.as_mut().enable();
            let late = tokio::time::Instant::now() >= deadline;
            if let Some(found) = self.state.lock().unclaimed(owner_uid, late, self.clock.now()) {
                return found;
            }
            let _ = tokio::time::timeout_at(deadline, inventory_received).await;
        }
    }

    /// Requests the inventories of the named workers, except stale ones.
    pub async fn inventories(&self, names: &[&str]) -> Vec<(WorkerName, Result<Inventory, AgentError>)> {
        let workers = self.directory.workers().into_iter();
        let calls = workers.filter(|worker| !worker.endpoint.is_empty() && !worker.stale && names.contains(&worker.name.as_str()));
        let calls: FuturesUnordered<_> = calls
            .map(|worker| async move {
                let inventory = self.agents.inventory(&worker.endpoint).await;
                (worker.name, inventory)
            })
            .collect();
        calls.collect().await
    }

    /// Sends the request of an action. Returns the worker if it did not answer a release.
    #[tracing::instrument(level = "error", name = "call", skip_all, fields(worker = %action.worker, device = action.device()))]
    async fn perform(&self, action: Action) -> Option<WorkerName> {
        let Action { worker, endpoint, request } = action;
        let calls = match request {
            Request::Renew(_) => &self.renewals,
            _ => &self.calls,
        };
        let _permit = calls.acquire().await;
        let sent_at = self.clock.now();
        let mut undone = None;
        match request {
            Request::Acquire(request) => {
                let answer = self.agents.acquire(&endpoint, &request).await;
                let now = self.clock.now();
                match answer {
                    Ok(answer) => {
                        let outcome = match (answer.grant, answer.refusal) {
                            (Some(grant), _) => Ok(grant),
                            (None, refusal) => Err(refusal.unwrap_or_default()),
                        };
                        let granted = outcome.is_ok();
                        let undo = self.state.lock().acquired(&worker, &request, outcome, sent_at, now);
                        if granted {
                            self.faults.reached(Step::Grant);
                        }
                        if let Some(undo) = undo {
                            undone = self.give_back(undo).await;
                        }
                    }
                    Err(error) => {
                        self.failed(&worker, &error, "acquire failed");
                        self.state.lock().acquire_failed(&worker, &request, now);
                    }
                }
            }
            Request::Release(_) => undone = self.give_back(Action { worker, endpoint, request }).await,
            Request::Renew(request) => {
                let answer = self.agents.renew(&endpoint, &request).await;
                let now = self.clock.now();
                if let Err(error) = &answer {
                    self.failed(&worker, error, "renewal failed");
                }
                let outcomes = answer.as_ref().ok().map(|answer| answer.outcomes.as_slice());
                self.state.lock().renewed(&worker, &request, outcomes, sent_at, now);
            }
            Request::Inventory => {
                let answer = self.agents.inventory(&endpoint).await;
                let now = self.clock.now();
                match answer {
                    Ok(inventory) => {
                        let releases = self.state.lock().inventoried(&worker, &inventory, sent_at, now);
                        self.inventory_received.notify_waiters();
                        self.sessions_changed.notify_one();
                        self.orphans_found.notify_one();
                        for release in releases {
                            self.give_back(release).await;
                        }
                    }
                    Err(error) => {
                        self.failed(&worker, &error, "inventory failed");
                        self.state.lock().inventory_failed(&worker, now);
                        self.inventory_received.notify_waiters();
                    }
                }
            }
        }
        self.changed.notify_one();
        undone
    }

    /// Logs a failed call. Logs a warning for the first failure since the agent's last answer and for each new misconfiguration, and a
    /// debug message otherwise.
    fn failed(&self, worker: &WorkerName, error: &AgentError, what: &'static str) {
        let trouble = error.misconfiguration();
        let is_new = {
            let mut state = self.state.lock();
            let is_first = trouble.is_none() && !state.is_failing(worker);
            state.troubled(worker, trouble) || is_first
        };
        if is_new {
            tracing::warn!(error = %causes(error), "{what}: retrying until the agent responds");
        } else {
            tracing::debug!(error = %causes(error), "{what}");
        }
    }

    /// Sends a release. Returns the worker if it did not answer.
    async fn give_back(&self, release: Action) -> Option<WorkerName> {
        let Action {
            worker,
            endpoint,
            request: Request::Release(request),
        } = release
        else {
            return None;
        };
        // Retried once, because the first call on a connection that an agent's restart broke always fails.
        for attempt in 0..2 {
            match self.agents.release(&endpoint, &request).await {
                Ok(answer) => {
                    if let Some(refusal) = answer.refusal {
                        tracing::debug!(owner = request.owner.name, code = %refusal.code(), refusal.message, "release rejected");
                    }
                    let mut state = self.state.lock();
                    state.confirmed(&worker, &request);
                    state.released(&worker, self.clock.now());
                    return None;
                }
                Err(error) => {
                    self.failed(&worker, &error, "release failed");
                    if attempt > 0 || !matches!(error, AgentError::Unreachable(_)) {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
        self.state.lock().release_failed(&worker, &request, self.clock.now());
        Some(worker)
    }
}
