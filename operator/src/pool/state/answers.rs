//! Updates the pool state with the agents' answers.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use sahasra_names::{BootId, DeviceId, OwnerUid, WorkerName};
use sahasra_scheduler::{ClaimKind, Load};
use sahasra_wire::{
    grants::{AcquireRequest, Grant, GrantId, Refusal, RejectionCode, RenewOutcome, RenewRequest},
    inventory::Inventory,
};

use super::{Action, Held, Loss, REFRESH_EVERY, REFUSED_FOR, RENEW_AT, RETURNED_WITHIN, SILENT, State, UNREACHABLE, Unconfirmed, sooner};

/// Maximum length of a misconfiguration's description. One condition contains the descriptions of several devices.
const TROUBLE_BYTES: usize = 400;

impl State {
    /// Records the answer to an acquire that was sent at `sent_at`. Returns a release that undoes the grant if the grant is no longer wanted.
    pub(in crate::pool) fn acquired(
        &mut self,
        worker: &WorkerName,
        request: &AcquireRequest,
        outcome: Result<Grant, Refusal>,
        sent_at: Duration,
        now: Duration,
    ) -> Option<Action> {
        let device = DeviceId::new(worker.clone(), request.device.as_str());
        let (boot_id, endpoint) = match self.workers.get(worker) {
            Some(view) => (view.boot_id.clone(), view.endpoint.clone()),
            None => (BootId::default(), String::new()),
        };
        let id = OwnerUid::from(&request.owner.uid);
        let claim = (self.claims.get_mut(&id)).filter(|claim| claim.request.owner == request.owner);
        let undo = |grant: &Grant| Action::release(worker, &endpoint, &request.owner, vec![grant.id.clone()], 0, true);
        let Some(claim) = claim else {
            let grant = outcome.ok()?;
            let release = Unconfirmed::new(worker.clone(), request.owner.clone(), 0, true, now, sent_at + request.ttl());
            self.unconfirmed.insert(grant.id.clone(), release);
            return Some(undo(&grant));
        };
        claim.acquiring.remove(&device);
        let mut followup = None;
        match outcome {
            Ok(grant) if boot_id == grant.id.boot_id => {
                self.metrics.granted(u64::from(grant.slices), request.slice_bytes);
                if claim.request.kind == ClaimKind::Session
                    && let Some(view) = self.workers.get_mut(worker)
                {
                    // The session's owner waits until the agent reports that clients can connect.
                    view.ask_at = Some(now);
                }
                claim.grants.push(Held {
                    id: grant.id,
                    device: device.clone(),
                    slices: grant.slices,
                    known: now,
                    expires: sent_at + request.ttl(),
                    renew_at: sent_at + request.ttl() / RENEW_AT,
                    renewing: false,
                });
                if grant.slices < request.slices {
                    claim
                        .refused
                        .insert(device, (now + REFUSED_FOR, "granted only the free slices".to_owned()));
                }
            }
            // The agent restarted after it had answered.
            Ok(grant) => followup = Some(undo(&grant)),
            Err(refusal) => self.refused(&id, device, &refusal, now),
        }
        self.publish(&id);
        followup
    }

    pub(super) fn refused(&mut self, id: &OwnerUid, device: DeviceId, refusal: &Refusal, now: Duration) {
        let code = refusal.code();
        let Some(claim) = self.claims.get_mut(id) else { return };
        tracing::debug!(owner = claim.request.owner.name, %device, %code, message = refusal.message, "acquire rejected");
        claim.fenced |= code == RejectionCode::StaleTerm;
        let mut message = format!("{code}: {}", refusal.message);
        message.truncate(message.floor_char_boundary(200));
        claim.refused.insert(device.clone(), (now + REFUSED_FOR, message));
        let ours = self.held_bytes(&device);
        if code == RejectionCode::InsufficientVram
            && let Some(known) = self.device_mut(&device)
        {
            known.foreign_bytes = known.allocatable_bytes.saturating_sub(refusal.free_bytes).saturating_sub(ours);
        }
        if let Some(worker) = self.workers.get_mut(&device.worker) {
            sooner(&mut worker.ask_at, now + REFRESH_EVERY);
        }
    }

    /// Records an acquire without an answer. Whether slices were granted is unknown, so an inventory is requested.
    pub(in crate::pool) fn acquire_failed(&mut self, worker: &WorkerName, request: &AcquireRequest, now: Duration) {
        let device = DeviceId::new(worker.clone(), request.device.as_str());
        if let Some(claim) = self.claims.get_mut(request.owner.uid.as_str()) {
            claim.acquiring.remove(&device);
            claim.unanswered = true;
            claim.refused.insert(device, (now + REFUSED_FOR, SILENT.to_owned()));
        }
        self.call_failed(worker, now);
        self.publish(&OwnerUid::from(&request.owner.uid));
    }

    /// Records the answer to a release. Requests an inventory, because released grants may still be draining.
    pub(in crate::pool) fn released(&mut self, worker: &WorkerName, now: Duration) {
        if let Some(view) = self.workers.get_mut(worker) {
            sooner(&mut view.ask_at, now);
        }
    }

    /// Records a call without an answer, and schedules the next inventory by the backoff.
    pub(in crate::pool) fn call_failed(&mut self, worker: &WorkerName, now: Duration) {
        let Some(view) = self.workers.get_mut(worker) else { return };
        let (since, failures) = view.failing.map_or((now, 1), |(since, failures)| (since, failures + 1));
        view.failing = Some((since, failures));
        view.known = false;
        view.ask_at = Some(now + UNREACHABLE.after(failures));
    }

    /// Records a misconfiguration because of which an agent cannot be called. Returns whether it is a new one. It holds until the next
    /// inventory.
    pub(in crate::pool) fn troubled(&mut self, worker: &WorkerName, trouble: Option<String>) -> bool {
        let (Some(view), Some(mut trouble)) = (self.workers.get_mut(worker), trouble) else {
            return false;
        };
        trouble.truncate(trouble.floor_char_boundary(TROUBLE_BYTES));
        let is_new = view.trouble.as_ref() != Some(&trouble);
        view.trouble = Some(trouble);
        is_new
    }

    /// Records an inventory request without an answer.
    pub(in crate::pool) fn inventory_failed(&mut self, worker: &WorkerName, now: Duration) {
        if let Some(view) = self.workers.get_mut(worker) {
            view.asking = false;
            view.answered = true;
        }
        self.call_failed(worker, now);
    }

    /// Requests an inventory because a stream to the worker broke.
    pub(in crate::pool) fn suspect(&mut self, worker: &WorkerName, now: Duration) {
        if let Some(view) = self.workers.get_mut(worker) {
            view.ask_at = Some(now);
        }
    }

    /// Records an inventory that was requested at `sent_at`. Returns the releases of unknown grants to owners with a claim.
    pub(in crate::pool) fn inventoried(
        &mut self,
        worker: &WorkerName,
        inventory: &Inventory,
        sent_at: Duration,
        now: Duration,
    ) -> Vec<Action> {
        let Some(view) = self.workers.get_mut(worker) else {
            return Vec::new();
        };
        // A later inventory was received before this one, which may be from before a restart of the agent.
        if view.inventory_at.is_some_and(|inventory_at| sent_at < inventory_at) {
            return Vec::new();
        }
        view.asking = false;
        if view.boot_id != inventory.boot_id {
            // The API server does not show the new boot yet. All grants of the old boot are void already.
            view.known = false;
            view.answered = true;
            view.ask_at = Some(now + REFRESH_EVERY);
            self.lose_worker(worker, "agent restarted");
            return Vec::new();
        }
        if let Some((since, _)) = view.failing.take() {
            tracing::info!(worker = %worker, silent = ?now.saturating_sub(since), "agent is responding again");
        }
        view.inventory_at = Some(sent_at);
        view.trouble = None;
        view.known = !inventory.shutting_down;
        let endpoint = view.endpoint.clone();
        let draining = inventory.grants.iter().any(|grant| grant.draining);
        if draining || inventory.shutting_down {
            sooner(&mut view.ask_at, now + REFRESH_EVERY);
        }
        let there: BTreeSet<&GrantId> = (inventory.grants.iter().filter(|grant| !grant.draining))
            .map(|grant| &grant.id)
            .collect();
        let why = if inventory.shutting_down {
            Loss::Worker("agent is shutting down")
        } else {
            Loss::Expired
        };
        let gone = self.drop_grants(|_, held| {
            let is_gone = *held.device.worker == **worker && held.known < sent_at && !there.contains(&held.id);
            is_gone.then_some(why)
        });
        if !gone.is_empty() {
            tracing::warn!(worker = %worker, grants = gone.len(), %why, "grants no longer exist");
        }
        // A grant to an owner with a claim belongs to this operator even while the answer to its acquire is still on its way.
        let mut ours: BTreeMap<&str, u64> = BTreeMap::new();
        let stays = |grant: &&Grant| {
            !grant.draining && !self.returning.contains_key(&grant.id) && self.claims.contains_key(grant.owner_uid.as_str())
        };
        for grant in inventory.grants.iter().filter(stays) {
            *ours.entry(&grant.device).or_default() += u64::from(grant.slices) * grant.slice_bytes;
        }
        let listed = |id: &GrantId| inventory.grants.iter().any(|grant| grant.id == *id);
        self.returning
            .retain(|id, since| id.boot_id != inventory.boot_id || *since >= sent_at || (listed(id) && *since + RETURNED_WITHIN > sent_at));
        self.confirm_releases(inventory, sent_at);
        let actions = self.release_unknown(worker, &endpoint, inventory, sent_at, now);
        let mut returning: BTreeMap<&str, u64> = BTreeMap::new();
        for grant in (inventory.grants.iter()).filter(|grant| grant.draining || self.returning.contains_key(&grant.id)) {
            *returning.entry(&grant.device).or_default() += u64::from(grant.slices) * grant.slice_bytes;
        }
        for device in &inventory.devices {
            let ours = ours.get(device.name.as_str()).copied().unwrap_or_default();
            if let Some(known) = self.device_mut(&DeviceId::new(worker.clone(), device.name.as_str())) {
                known.allocatable_bytes = device.allocatable_bytes;
                known.healthy = device.healthy;
                known.foreign_bytes = device.leased_bytes.saturating_sub(ours);
                known.returning_bytes = returning.get(device.name.as_str()).copied().unwrap_or_default();
                known.load = Load {
                    active_executions: device.active_executions,
                    stored_tensor_bytes: device.stored_tensor_bytes,
                    tensor_count: device.tensor_count,
                };
            }
        }
        self.record_sessions(worker, inventory, now);
        self.record_orphans(worker, inventory, now);
        self.record_unclaimed(worker, inventory, sent_at);
        actions
    }

    /// Records the answer to a renewal that was sent at `sent_at`. `outcomes` is `None` if the agent did not answer.
    pub(in crate::pool) fn renewed(
        &mut self,
        worker: &WorkerName,
        request: &RenewRequest,
        outcomes: Option<&[RenewOutcome]>,
        sent_at: Duration,
        now: Duration,
    ) {
        if let Some(view) = self.workers.get_mut(worker) {
            view.renewing = false;
        }
        if outcomes.is_none() {
            self.call_failed(worker, now);
        }
        let mut refused = 0;
        for owner in &request.owners {
            let id = OwnerUid::from(&owner.owner.uid);
            let Some(claim) = self.claims.get_mut(&id) else { continue };
            claim.grants.retain_mut(|held| {
                if !owner.grants.contains(&held.id) {
                    return true;
                }
                held.renewing = false;
                let Some(outcome) = outcomes.and_then(|outcomes| outcomes.iter().find(|outcome| outcome.id == held.id)) else {
                    return true;
                };
                if outcome.renewed {
                    held.expires = sent_at + owner.ttl();
                    held.renew_at = sent_at + owner.ttl() / RENEW_AT;
                    return true;
                }
                let code = outcome.refusal();
                claim.fenced |= code == RejectionCode::StaleTerm;
                let why = match code {
                    RejectionCode::BootMismatch => Loss::Worker("agent restarted"),
                    RejectionCode::StaleTerm => Loss::Worker("superseded by another operator"),
                    _ => Loss::Expired,
                };
                tracing::debug!(owner = owner.owner.name, device = %held.device, %code, "failed to renew a grant");
                refused += 1;
                self.metrics.released(u64::from(held.slices), claim.request.slice_bytes);
                claim.losses += 1;
                claim.lost = Some(held.lost(why));
                false
            });
            self.publish(&id);
        }
        if refused > 0 {
            tracing::warn!(worker = %worker, grants = refused, "failed to renew grants: they no longer exist on the agent");
        }
    }
}
