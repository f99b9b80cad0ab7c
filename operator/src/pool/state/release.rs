//! Releases: the end of claims, and releases that no agent has confirmed. A call that is lost or times out is repeated until the agent
//! confirms it or has restarted, or until the grant has expired.

use std::{collections::BTreeMap, time::Duration};

use sahasra_names::WorkerName;
use sahasra_service::backoff::Backoff;
use sahasra_wire::{
    grants::{GrantId, Owner, ReleaseRequest},
    inventory::Inventory,
};
use tokio::sync::watch;

use super::{Action, ClaimState, State, WorkerView, sooner};
use crate::pool::claim::ClaimView;

/// Waits before an unanswered release is repeated. By the first, an owner that repeats it itself has begun to.
const REPEAT: Backoff = Backoff::milliseconds(2_000, 10_000);

/// Properties that the releases in one call share: worker, the owner's UID and term, the slices to keep, and whether the release is
/// immediate.
type Call<'a> = (WorkerName, &'a str, u64, u32, bool);

/// A release of a grant that its agent has not confirmed.
#[derive(Debug)]
pub(super) struct Unconfirmed {
    worker: WorkerName,
    owner: Owner,
    keep_slices: u32,
    immediately: bool,
    since: Duration,
    /// Time at which the grant expires. `None` if it is renewed because a part of it stays granted.
    until: Option<Duration>,
    /// Time at which the release is repeated; `None` while a call is on its way.
    next: Option<Duration>,
    failures: u32,
}

impl Unconfirmed {
    pub(super) fn new(worker: WorkerName, owner: Owner, keep_slices: u32, immediately: bool, since: Duration, until: Duration) -> Self {
        Self {
            worker,
            owner,
            keep_slices,
            immediately,
            since,
            until: (keep_slices == 0).then_some(until),
            next: None,
            failures: 0,
        }
    }

    fn is_covered(&self, id: &GrantId, worker: &WorkerName, request: &ReleaseRequest) -> bool {
        self.worker == *worker
            && self.owner.uid == request.owner.uid
            && request.keep_slices <= self.keep_slices
            && (request.immediately || !self.immediately)
            && (request.grants.is_empty() || request.grants.contains(id))
    }
}

impl State {
    /// Stops acquiring slices for a claim. Returns its view, or `None` if the claim does not exist.
    pub(in crate::pool) fn end(&mut self, uid: &str) -> Option<watch::Receiver<ClaimView>> {
        let claim = self.claims.get_mut(uid)?;
        claim.ending = true;
        Some(claim.view.subscribe())
    }

    /// Whether an acquire of the claim is waiting for an answer.
    pub(in crate::pool) fn is_acquiring(&self, uid: &str) -> bool {
        self.claims.get(uid).is_some_and(|claim| !claim.acquiring.is_empty())
    }

    /// Removes the claim. Returns the releases of its grants, one for each worker.
    pub(in crate::pool) fn take_out(&mut self, uid: &str, immediately: bool, now: Duration) -> Vec<Action> {
        let Some(claim) = self.claims.remove(uid) else { return Vec::new() };
        let mut by_worker: BTreeMap<WorkerName, Vec<GrantId>> = BTreeMap::new();
        if immediately {
            // Chunks on slices that made room for other claims may still be draining. These slices are not among the claim's grants any
            // more.
            let drains = |view: &WorkerView| self.returning.keys().any(|id| view.boot_id == id.boot_id);
            let draining = self.workers.iter().filter(|(_, view)| drains(view));
            by_worker.extend(draining.map(|(worker, _)| (worker.clone(), Vec::new())));
        }
        let (owner, ttl) = (&claim.request.owner, claim.request.ttl);
        for held in &claim.grants {
            let worker = &held.device.worker;
            by_worker.entry(worker.clone()).or_default().push(held.id.clone());
            self.returning.insert(held.id.clone(), now);
            let release = Unconfirmed::new(worker.clone(), owner.clone(), 0, immediately, now, held.until(now, ttl));
            self.unconfirmed.insert(held.id.clone(), release);
            self.metrics.released(u64::from(held.slices), claim.request.slice_bytes);
            // Until the agent confirms the release, the bytes count as in use.
            self.returns(&held.device, u64::from(held.slices) * claim.request.slice_bytes);
        }
        if claim.unanswered && claim.request.session.is_none() {
            self.ended.insert(uid.into(), (owner.clone(), now + ttl));
        }
        let releases = by_worker.into_iter().filter_map(|(worker, grants)| {
            let endpoint = &self.workers.get(&worker)?.endpoint;
            // An immediate release covers all grants of the owner, so it lists none.
            let grants = if immediately { Vec::new() } else { grants };
            Some(Action::release(&worker, endpoint, owner, grants, 0, immediately))
        });
        let releases = releases.collect();
        self.forget_load(&claim);
        releases
    }

    /// Repeats no release of the owner, because another operator acts for it, or the caller releases everything of it.
    pub(in crate::pool) fn leave_to_others(&mut self, uid: &str) {
        self.unconfirmed.retain(|_, release| release.owner.uid != uid);
        self.ended.remove(uid);
    }

    /// Records that a worker's agent has answered a release.
    pub(in crate::pool) fn confirmed(&mut self, worker: &WorkerName, request: &ReleaseRequest) {
        self.unconfirmed.retain(|id, release| !release.is_covered(id, worker, request));
    }

    /// Records that a worker's agent has not answered a release, which is repeated after a wait.
    pub(in crate::pool) fn release_failed(&mut self, worker: &WorkerName, request: &ReleaseRequest, now: Duration) {
        for (id, release) in &mut self.unconfirmed {
            if release.is_covered(id, worker, request) {
                release.failures += 1;
                release.next = Some(now + REPEAT.after(release.failures));
            }
        }
        self.call_failed(worker, now);
    }

    /// Drops the releases that an inventory, which was requested at `sent_at`, shows to have arrived.
    pub(super) fn confirm_releases(&mut self, inventory: &Inventory, sent_at: Duration) {
        let granted = |id: &GrantId| {
            let active = inventory.grants.iter().filter(|grant| grant.id == *id && !grant.draining);
            active.map(|grant| grant.slices).sum::<u32>()
        };
        self.unconfirmed
            .retain(|id, release| id.boot_id != inventory.boot_id || release.since >= sent_at || granted(id) > release.keep_slices);
    }

    /// Releases the grants in an inventory, requested at `sent_at`, that no claim knows although they are for a claim, or for one that has
    /// ended: the answers to their acquires were lost.
    pub(super) fn release_unknown(
        &mut self,
        worker: &WorkerName,
        endpoint: &str,
        inventory: &Inventory,
        sent_at: Duration,
        now: Duration,
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        for grant in inventory.grants.iter().filter(|grant| !grant.draining) {
            let owner = match self.claims.get(grant.owner_uid.as_str()) {
                Some(claim) if !claim.acquiring.is_empty() || claim.grants.iter().any(|held| held.id == grant.id) => continue,
                Some(claim) => &claim.request.owner,
                None => match self.ended.get(grant.owner_uid.as_str()) {
                    Some((owner, _)) => owner,
                    None => continue,
                },
            };
            if self.returning.contains_key(&grant.id) || grant.term > owner.term {
                continue;
            }
            tracing::info!(owner = owner.name, worker = %worker, device = grant.device, "releasing an unknown grant");
            let owner = owner.clone();
            self.returning.insert(grant.id.clone(), now);
            let until = sent_at + grant.expires_in();
            let release = Unconfirmed::new(worker.clone(), owner.clone(), 0, false, now, until);
            self.unconfirmed.insert(grant.id.clone(), release);
            actions.push(Action::release(worker, endpoint, &owner, vec![grant.id.clone()], 0, false));
        }
        actions
    }

    /// Repeats the releases that are due, and drops those whose grants have ended.
    pub(super) fn repeat_releases(&mut self, now: Duration, actions: &mut Vec<Action>, wake: &mut Option<Duration>) {
        self.ended.retain(|_, (_, until)| *until > now);
        let (workers, claims) = (&self.workers, &self.claims);
        self.unconfirmed.retain(|id, release| {
            let same_boot = workers.get(&release.worker).is_some_and(|view| view.boot_id == id.boot_id);
            let holds = |claim: &ClaimState| claim.grants.iter().any(|held| held.id == *id);
            let exists = match release.until {
                Some(until) => until > now,
                None => claims.get(release.owner.uid.as_str()).is_some_and(holds),
            };
            same_boot && exists
        });
        let mut due: BTreeMap<Call<'_>, (&Owner, Vec<GrantId>)> = BTreeMap::new();
        for (id, release) in &mut self.unconfirmed {
            let Some(at) = release.next else { continue };
            if at > now {
                sooner(wake, at);
                continue;
            }
            release.next = None;
            let owner = &release.owner;
            let key = (
                release.worker.clone(),
                owner.uid.as_str(),
                owner.term,
                release.keep_slices,
                release.immediately,
            );
            due.entry(key).or_insert((owner, Vec::new())).1.push(id.clone());
        }
        for ((worker, _, _, keep_slices, immediately), (owner, grants)) in due {
            let Some(view) = self.workers.get(&worker) else { continue };
            actions.push(Action::release(&worker, &view.endpoint, owner, grants, keep_slices, immediately));
        }
    }
}
