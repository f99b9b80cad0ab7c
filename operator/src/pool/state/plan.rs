//! Decides which requests to send to which agents.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use sahasra_names::{DeviceId, OwnerUid, WorkerName};
use sahasra_scheduler::{Assignment, Load, Problem, Unusable, solve};
use sahasra_wire::{
    grants::{AcquireRequest, GrantId, RenewOwner, RenewRequest},
    milliseconds,
};

use super::{
    Action, ClaimState, GIVE_UP_AFTER, Loss, REFRESH_EVERY, RENEW_AT, Request, SESSIONS_EVERY, SILENT, State, Unconfirmed, sooner,
};

impl State {
    /// Decides on the requests to send now, and marks them as sent. Also returns the time at which the plan changes without another event.
    pub(in crate::pool) fn plan(&mut self, now: Duration) -> (Vec<Action>, Option<Duration>) {
        let mut actions = Vec::new();
        self.give_up(now);
        self.expire(now);
        // Renewals come before acquires.
        let mut wake = None;
        self.renew(now, &mut actions, &mut wake);
        if let Some(at) = self.place(now, &mut actions) {
            sooner(&mut wake, at);
        }
        self.repeat_releases(now, &mut actions, &mut wake);
        self.ask(now, &mut actions, &mut wake);
        (actions, wake)
    }

    pub(super) fn problem(&self, now: Duration) -> (Problem, Vec<Assignment>) {
        let assumed = self.assumed(now);
        let mut devices = Vec::new();
        for (worker, view) in &self.workers {
            for (device, known) in &view.devices {
                let usable = if !view.live {
                    Err(Unusable::NotReady)
                } else if !known.healthy {
                    Err(Unusable::Unhealthy)
                } else if view.known && view.failing.is_none() {
                    Ok(())
                } else {
                    Err(Unusable::Cordoned)
                };
                let id = DeviceId {
                    worker: worker.clone(),
                    device: device.clone(),
                };
                let unreported = assumed.get(&id).copied().unwrap_or_default();
                devices.push(sahasra_scheduler::Device {
                    id,
                    class: known.class.clone(),
                    engines: known.engines.clone(),
                    allocatable_bytes: known.allocatable_bytes,
                    foreign_bytes: known.foreign_bytes,
                    returning_bytes: known.returning_bytes.min(known.foreign_bytes),
                    usable,
                    load: Load {
                        active_executions: known.load.active_executions.saturating_add(unreported),
                        ..known.load
                    },
                });
            }
        }
        let mut claims = Vec::new();
        let mut previous = Vec::new();
        for (id, claim) in &self.claims {
            let held = claim.slices_by_device();
            if claim.ending || claim.is_spent() {
                // A claim that ends or is spent acquires nothing. It releases its slices itself, or lets them expire.
                for (device, slices) in held {
                    let bytes = u64::from(slices) * claim.request.slice_bytes;
                    if let Some(device) = devices.iter_mut().find(|other| other.id == device) {
                        device.foreign_bytes += bytes;
                        device.returning_bytes += if claim.ending { bytes } else { 0 };
                    }
                }
                continue;
            }
            previous.extend(held.iter().map(|(device, slices)| Assignment {
                claim: id.clone(),
                device: device.clone(),
                slices: *slices,
            }));
            // A claim with limits keeps what it holds, and needs its minimum no more.
            let (mut min, mut max) = (claim.request.min, claim.request.max);
            if claim.limits.is_some() {
                let all: u32 = held.values().sum();
                if all == 0 {
                    continue;
                }
                max = max.min(all);
                min = min.min(max);
            }
            claims.push(sahasra_scheduler::Claim {
                id: id.clone(),
                kind: claim.request.kind,
                slice_bytes: claim.request.slice_bytes,
                min,
                kept: claim.kept(),
                max,
                class: claim.request.class.clone(),
                engine: claim.request.engine,
                priority: claim.request.priority,
                since: claim.since,
                refused: (claim.refused.iter())
                    .map(|(device, (until, _))| (device.clone(), *until))
                    .collect(),
            });
        }
        (Problem { devices, claims }, previous)
    }

    pub(super) fn place(&mut self, now: Duration, actions: &mut Vec<Action>) -> Option<Duration> {
        for claim in self.claims.values_mut() {
            claim.refused.retain(|_, (until, _)| *until > now);
        }
        if !self.claims.values().any(ClaimState::is_open) {
            return None;
        }
        self.obey_limits(now, actions);
        let (problem, previous) = self.problem(now);
        let solution = solve(&problem, &previous, now);
        let ids: Vec<OwnerUid> = self.claims.keys().cloned().collect();
        // Releases come before acquires: released slices become free for other claims once their agent has confirmed the release.
        for id in &ids {
            let why_not = solution.refusal_of(id).map(|refusal| self.explain(id, refusal));
            let Some(claim) = self.claims.get_mut(id).filter(|claim| claim.is_open()) else {
                continue;
            };
            claim.why_not = why_not;
            claim.unplanned = false;
            let held = claim
                .slices_by_device()
                .into_iter()
                .filter(|(device, _)| !claim.acquiring.contains_key(device));
            let surplus = held.filter_map(|(device, has)| {
                let keep = (solution.assignments_of(id))
                    .find(|assignment| assignment.device == device)
                    .map_or(0, |assignment| assignment.slices);
                (keep < has).then(|| (device, has - keep))
            });
            let surplus: Vec<(DeviceId, u32)> = surplus.collect();
            for (device, slices) in surplus {
                self.shrink(id, &device, slices, now, actions);
            }
        }
        let mut free = self.free_bytes();
        for id in &ids {
            for assignment in solution.assignments_of(id) {
                let free = free.entry(assignment.device.clone()).or_default();
                self.acquire(id, &assignment.device, assignment.slices, free, actions);
            }
            self.publish(id);
        }
        solution.revisit_at
    }

    /// Releases the slices beyond the limits of their claims.
    fn obey_limits(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let mut surplus: Vec<(OwnerUid, DeviceId, u32)> = Vec::new();
        for (id, claim) in self.claims.iter().filter(|(_, claim)| claim.is_open()) {
            let Some(limits) = &claim.limits else { continue };
            for (device, has) in claim.slices_by_device() {
                let limit = limits.get(&device).copied().unwrap_or_default();
                // Slices that are being acquired are released once they are granted.
                if has > limit && !claim.acquiring.contains_key(&device) {
                    surplus.push((id.clone(), device, has - limit));
                }
            }
        }
        for (id, device, slices) in surplus {
            self.shrink(&id, &device, slices, now, actions);
            self.publish(&id);
        }
    }

    /// Bytes that are neither granted nor requested, by device.
    pub(super) fn free_bytes(&self) -> BTreeMap<DeviceId, u64> {
        let mut free = BTreeMap::new();
        for (worker, view) in &self.workers {
            for (device, known) in &view.devices {
                let id = DeviceId::new(worker.clone(), device.clone());
                free.insert(id, known.allocatable_bytes.saturating_sub(known.foreign_bytes));
            }
        }
        for claim in self.claims.values() {
            for (device, slices) in claim.slices_by_device() {
                if let Some(free) = free.get_mut(&device) {
                    *free = free.saturating_sub(u64::from(slices) * claim.request.slice_bytes);
                }
            }
        }
        free
    }

    /// Requests the slices that a claim lacks of its `target` on a device, as far as they are free now.
    pub(super) fn acquire(&mut self, id: &OwnerUid, device: &DeviceId, target: u32, free: &mut u64, actions: &mut Vec<Action>) {
        let Some(worker) = self.workers.get(&device.worker) else { return };
        let Some(claim) = self.claims.get_mut(id).filter(|claim| claim.is_open()) else {
            return;
        };
        if claim.acquiring.contains_key(device) {
            return;
        }
        let held = claim.slices_by_device().get(device).copied().unwrap_or_default();
        let fits = u32::try_from(*free / claim.request.slice_bytes.max(1)).unwrap_or(u32::MAX);
        let lacking = target.saturating_sub(held).min(claim.lacking());
        let wanted = lacking.min(fits);
        // A minimum that fits on one device is requested all or nothing. For a minimum that spans devices, this is not possible.
        let min = claim.request.min.max(1);
        let at_least = if claim.grants.is_empty() && lacking >= min { min } else { 1 };
        if wanted < at_least {
            return;
        }
        *free -= u64::from(wanted) * claim.request.slice_bytes;
        claim.acquiring.insert(device.clone(), wanted);
        let request = AcquireRequest {
            owner: claim.request.owner.clone(),
            boot_id: worker.boot_id.to_string(),
            device: device.device.to_string(),
            slice_bytes: claim.request.slice_bytes,
            slices: wanted,
            at_least,
            ttl_milliseconds: milliseconds(claim.request.ttl),
            grace_milliseconds: milliseconds(claim.request.grace),
            session: claim.request.session.clone(),
        };
        actions.push(Action::new(&device.worker, &worker.endpoint, Request::Acquire(request)));
    }

    /// Releases slices of a claim on a device, the newest first: whole grants, then a part of one.
    pub(super) fn shrink(&mut self, id: &OwnerUid, device: &DeviceId, mut surplus: u32, now: Duration, actions: &mut Vec<Action>) {
        let Some(claim) = self.claims.get_mut(id) else { return };
        let Some(endpoint) = self.workers.get(&device.worker).map(|worker| worker.endpoint.clone()) else {
            return;
        };
        let slice_bytes = claim.request.slice_bytes;
        let mut requests: BTreeMap<u32, Vec<GrantId>> = BTreeMap::new();
        let mut freed = 0;
        for held in claim.grants.iter_mut().rev().filter(|held| held.device == *device) {
            let part = surplus.min(held.slices);
            if part == 0 {
                break;
            }
            held.slices -= part;
            surplus -= part;
            freed += part;
            requests.entry(held.slices).or_default().push(held.id.clone());
            let until = held.until(now, claim.request.ttl);
            let (worker, owner) = (device.worker.clone(), claim.request.owner.clone());
            let release = Unconfirmed::new(worker, owner, held.slices, false, now, until);
            self.unconfirmed.insert(held.id.clone(), release);
            if held.slices == 0 {
                self.returning.insert(held.id.clone(), now);
            }
        }
        claim.grants.retain(|held| held.slices > 0);
        let owner = claim.request.owner.clone();
        self.metrics.released(u64::from(freed), slice_bytes);
        self.returns(device, u64::from(freed) * slice_bytes);
        let requests = requests.into_iter();
        actions.extend(requests.map(|(keep, grants)| Action::release(&device.worker, &endpoint, &owner, grants, keep, false)));
    }

    pub(super) fn renew(&mut self, now: Duration, actions: &mut Vec<Action>, wake: &mut Option<Duration>) {
        let mut due: BTreeMap<WorkerName, Vec<RenewOwner>> = BTreeMap::new();
        for (worker, view) in self.workers.iter().filter(|(_, view)| !view.renewing && view.live) {
            let failing = view.failing.map(|_| view.ask_at.unwrap_or_default());
            for claim in self.claims.values_mut().filter(|claim| claim.request.renewed && !claim.fenced) {
                let ttl = claim.request.ttl;
                let mut grants = Vec::new();
                for held in claim
                    .grants
                    .iter_mut()
                    .filter(|held| held.device.worker == *worker && !held.renewing)
                {
                    // An agent that does not answer is not called before its next inventory is due.
                    let at = failing.map_or(held.renew_at, |again| {
                        let late = held.expires.saturating_sub(ttl / RENEW_AT);
                        held.renew_at.max(late).max(again)
                    });
                    // A grant that would be due within a tenth of its TTL is renewed in the same call.
                    if at <= now + ttl / 10 {
                        held.renewing = true;
                        grants.push(held.id.clone());
                    } else {
                        sooner(wake, at);
                    }
                }
                if !grants.is_empty() {
                    due.entry(worker.clone()).or_default().push(RenewOwner {
                        owner: claim.request.owner.clone(),
                        grants,
                        ttl_milliseconds: milliseconds(ttl),
                        session: claim.request.session.clone(),
                    });
                }
            }
        }
        for (worker, owners) in due {
            let Some(view) = self.workers.get_mut(&worker) else { continue };
            view.renewing = true;
            actions.push(Action::new(&worker, &view.endpoint, Request::Renew(RenewRequest { owners })));
        }
        for claim in self.claims.values() {
            for held in &claim.grants {
                sooner(wake, held.expires);
            }
        }
    }

    pub(super) fn ask(&mut self, now: Duration, actions: &mut Vec<Action>, wake: &mut Option<Duration>) {
        let with_sessions = self.workers_with_sessions();
        let someone_waits = self.claims.values().any(|claim| claim.why_not.is_some());
        for (worker, view) in &mut self.workers {
            if !view.live {
                continue;
            }
            if let Some(at) = view.failing.map(|(since, _)| since + GIVE_UP_AFTER).filter(|at| *at > now) {
                sooner(wake, at);
            }
            if view.asking {
                continue;
            }
            if someone_waits && view.ask_at.is_none() && view.devices.values().any(|device| device.foreign_bytes > 0) {
                view.ask_at = Some(now + REFRESH_EVERY);
            }
            if view.ask_at.is_none() && with_sessions.contains(worker) {
                view.ask_at = Some(now + SESSIONS_EVERY);
            }
            match view.ask_at {
                Some(at) if at <= now => {
                    view.ask_at = None;
                    view.asking = true;
                    actions.push(Action::new(worker, &view.endpoint, Request::Inventory));
                }
                Some(at) => sooner(wake, at),
                None => {}
            }
        }
    }

    pub(super) fn give_up(&mut self, now: Duration) {
        let silent: Vec<WorkerName> = (self.workers.iter())
            .filter(|(_, view)| view.failing.is_some_and(|(since, _)| since + GIVE_UP_AFTER <= now))
            .map(|(name, _)| name.clone())
            .collect();
        for worker in silent {
            self.lose_worker(&worker, SILENT);
        }
    }

    /// Drops the grants that were not renewed in time. The operator's clock started to count earlier than the agent's.
    pub(super) fn expire(&mut self, now: Duration) {
        let silent: BTreeSet<WorkerName> = (self.workers.iter())
            .filter(|(_, view)| view.failing.is_some())
            .map(|(name, _)| name.clone())
            .collect();
        let mut lost = 0;
        let expired = self.drop_grants(|request, held| {
            // A grant without renewal expires as planned, whether or not its agent answers.
            let why = match request.renewed && (held.renewing || silent.contains(&held.device.worker)) {
                true => Loss::Worker(SILENT),
                false => Loss::Expired,
            };
            let due = held.expires <= now;
            lost += usize::from(due && why != Loss::Expired);
            due.then_some(why)
        });
        if lost > 0 {
            tracing::warn!(grants = lost, why = SILENT, "grants lost");
        }
        if expired.len() > lost {
            tracing::info!(grants = expired.len() - lost, "grants expired");
        }
        for (held, bytes) in expired {
            // The agent's own clock decides when the bytes are free.
            self.returning.insert(held.id, now);
            self.returns(&held.device, bytes);
            if let Some(worker) = self.workers.get_mut(&held.device.worker) {
                sooner(&mut worker.ask_at, now + REFRESH_EVERY);
            }
        }
    }

    /// Text for a rejection: the summary, the answer of the nearest device's agent, and up to 16 other devices.
    pub(super) fn explain(&self, id: &OwnerUid, refusal: &sahasra_scheduler::Refusal) -> String {
        let mut text = refusal.summary.to_string();
        let refused = self.claims.get(id).map(|claim| &claim.refused);
        let said = |device: &DeviceId| {
            let refused = refused.and_then(|refused| refused.get(device)).map(|(_, said)| said);
            let trouble = self.workers.get(&device.worker).and_then(|worker| worker.trouble.as_ref());
            trouble.or(refused).map_or_else(String::new, |said| format!(" ({said})"))
        };
        if let Some((device, _)) = refusal.nearest.and_then(|place| refusal.why_not.get(place)) {
            text.push_str(&said(device));
        }
        let others = refusal
            .why_not
            .iter()
            .enumerate()
            .filter(|(place, _)| Some(*place) != refusal.nearest);
        for (_, (device, why_not)) in others.take(16) {
            text.push_str(&format!("; {device}: {why_not}{}", said(device)));
        }
        if refusal.why_not.len() > 17 {
            text.push_str(&format!("; and {} more devices", refusal.why_not.len() - 17));
        }
        text
    }
}
