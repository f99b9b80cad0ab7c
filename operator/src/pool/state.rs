//! The state of the pool, and the decisions that follow from it. Pure: callers pass the time since the origin of a monotonic clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use sahasra_names::{BootId, ClassName, DeviceId, DeviceName, Engine, OwnerUid, WorkerName, WorkerUid};
use sahasra_scheduler::{ClaimKind, Load};
use sahasra_service::backoff::Backoff;
use sahasra_wire::grants::{Grant, GrantId, Owner};
use tokio::sync::watch;

use super::claim::{ClaimRequest, ClaimView, HeldGrant, Loss, Lost, SILENT};
use crate::{agents::Worker, metrics::Metrics};
pub(super) use action::{Action, Request};
pub use adoption::Unclaimed;
use orphans::Orphan;
use release::Unconfirmed;
use sessions::Seen;

mod action;
mod adoption;
mod answers;
mod assumed;
mod orphans;
mod plan;
mod raised;
mod release;
mod sessions;
#[cfg(test)]
mod tests;

/// Time for which a device that rejected an acquire receives no further acquire. Chunks of other owners end within this time.
const REFUSED_FOR: Duration = Duration::from_millis(500);
/// Waits before an agent that did not answer is called again.
const UNREACHABLE: Backoff = Backoff::milliseconds(250, 5_000);
/// Grants on an agent that has not answered for this long count as lost, so that their chunks run elsewhere.
const GIVE_UP_AFTER: Duration = Duration::from_secs(3);
/// Interval of inventories of agents with grants of other operators, while a claim waits or a grant drains.
const REFRESH_EVERY: Duration = Duration::from_millis(500);
/// Interval of inventories of agents with sessions: half of the time by which a session's status may lag.
const SESSIONS_EVERY: Duration = Duration::from_secs(5);
/// Time after which a released grant that inventories still list counts as not released: the call was lost.
const RETURNED_WITHIN: Duration = Duration::from_secs(5);
/// A grant is renewed after its TTL divided by `RENEW_AT`. While its agent does not answer, the renewal waits until only this much time is
/// left.
const RENEW_AT: u32 = 3;

#[derive(Debug, Default)]
struct WorkerView {
    uid: WorkerUid,
    endpoint: String,
    boot_id: BootId,
    /// Whether the agent is live and accepts work, according to the API server.
    live: bool,
    devices: BTreeMap<DeviceName, DeviceView>,
    /// Whether an inventory of this boot is known.
    known: bool,
    /// Whether an inventory was received or has failed since this operator began to lead.
    answered: bool,
    /// Grants to owners without a claim, each with the time at which it expires.
    unclaimed: BTreeMap<OwnerUid, Vec<(Grant, Duration)>>,
    asking: bool,
    /// Time at which the last received inventory was requested; `None` before the first inventory of this boot.
    inventory_at: Option<Duration>,
    renewing: bool,
    ask_at: Option<Duration>,
    /// Time at which calls began to fail, and their number.
    failing: Option<(Duration, u32)>,
    /// Misconfiguration that prevents calls to the agent.
    trouble: Option<String>,
    /// Sum of the leased MiB in the `GpuWorker`'s status. A change of it reveals grants of other operators.
    reported_mib: i64,
}

#[derive(Clone, Debug, Default)]
struct DeviceView {
    class: ClassName,
    engines: Vec<Engine>,
    allocatable_bytes: u64,
    foreign_bytes: u64,
    /// The part of `foreign_bytes` that drains or was released.
    returning_bytes: u64,
    healthy: bool,
    load: Load,
}

#[derive(Debug)]
struct ClaimState {
    request: ClaimRequest,
    since: Duration,
    grants: Vec<Held>,
    /// Slices requested from agents that have not answered yet, by device.
    acquiring: BTreeMap<DeviceId, u32>,
    refused: BTreeMap<DeviceId, (Duration, String)>,
    why_not: Option<String>,
    fenced: bool,
    /// Whether the claim is being released, so that it acquires no more slices.
    ending: bool,
    /// Whether the answer to an acquire was lost: an agent may have granted slices that are not known.
    unanswered: bool,
    /// Maximum number of slices on each device while the owner needs no more than these. The claim then acquires nothing.
    limits: Option<BTreeMap<DeviceId, u32>>,
    /// Whether the claim has ever held its minimum.
    served: bool,
    /// Number of slices that the claim held when its minimum was raised. It keeps them, its oldest ones, while the others are missing. 0 if
    /// nothing is missing.
    kept: u32,
    /// Whether the claim waits for the first plan since its minimum was raised.
    unplanned: bool,
    /// The last loss. `losses` counts the lost grants.
    lost: Option<Lost>,
    losses: u64,
    view: watch::Sender<ClaimView>,
}

#[derive(Clone, Debug)]
struct Held {
    id: GrantId,
    device: DeviceId,
    slices: u32,
    /// Time at which the grant became known. An inventory that was requested earlier may not list it.
    known: Duration,
    /// Time at which the grant expires: its TTL, counted from when the last request that extended it was sent. The agent counts from later
    /// on.
    expires: Duration,
    /// Time of the next renewal. It is due at once for a grant that an earlier term acquired.
    renew_at: Duration,
    renewing: bool,
}

impl Held {
    /// Time at which the grant expires if it is not renewed again. A renewal that is on its way may extend it by `ttl`.
    fn until(&self, now: Duration, ttl: Duration) -> Duration {
        if self.renewing { now + ttl } else { self.expires }
    }

    fn lost(&self, why: Loss) -> Lost {
        Lost {
            device: self.device.clone(),
            slices: self.slices,
            why,
        }
    }
}

/// The state of the pool: all devices, grants and claims.
#[derive(Debug)]
pub(super) struct State {
    metrics: Arc<Metrics>,
    workers: BTreeMap<WorkerName, WorkerView>,
    claims: BTreeMap<OwnerUid, ClaimState>,
    /// Released grants that an inventory may still list, with the time of their release.
    returning: BTreeMap<GrantId, Duration>,
    /// Releases that no agent has confirmed.
    unconfirmed: BTreeMap<GrantId, Unconfirmed>,
    /// Owners of ended claims to which agents may have granted slices in answers that were lost, each with the time at which these expire.
    ended: BTreeMap<OwnerUid, (Owner, Duration)>,
    /// States of sessions as agents reported them, by the UID of the grant's owner.
    sessions: BTreeMap<OwnerUid, Seen>,
    /// Sessions without a claim, by the UID of the grant's owner.
    orphans: BTreeMap<OwnerUid, Orphan>,
    /// Namespace and name of sessions whose reported state has changed.
    changed_sessions: BTreeSet<(String, String)>,
}

impl State {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            metrics,
            workers: BTreeMap::new(),
            claims: BTreeMap::new(),
            returning: BTreeMap::new(),
            unconfirmed: BTreeMap::new(),
            ended: BTreeMap::new(),
            sessions: BTreeMap::new(),
            orphans: BTreeMap::new(),
            changed_sessions: BTreeSet::new(),
        }
    }

    pub(super) fn observe(&mut self, workers: &[Worker], now: Duration) {
        let gone: Vec<WorkerName> = (self.workers.keys())
            .filter(|name| !workers.iter().any(|worker| *worker.name == ***name))
            .cloned()
            .collect();
        for name in gone {
            self.workers.remove(&name);
            self.lose_worker(&name, "worker lost");
        }
        for worker in workers {
            let name = worker.name.clone();
            let live = !worker.stale && worker.ready.is_ok() && !worker.endpoint.is_empty();
            let reported_mib = worker.devices.iter().map(|device| device.leased_mib).sum();
            let old = self.workers.get(&name);
            let same_boot = old.is_some_and(|old| old.boot_id == worker.boot_id && old.uid == worker.uid);
            if old.is_some() && !same_boot {
                self.lose_worker(&name, "agent restarted");
            } else if old.is_some_and(|old| old.live) && worker.stale {
                self.lose_worker(&name, "worker heartbeat timed out");
            }
            let old = self.workers.remove(&name).filter(|_| same_boot).unwrap_or_default();
            let devices = worker.devices.iter().map(|device| {
                let key = DeviceName::from(&device.name);
                let view = DeviceView {
                    class: ClassName::from(&device.class),
                    engines: device.engines.clone(),
                    allocatable_bytes: mebibytes(device.allocatable_mib),
                    healthy: device.health == sahasra_crds::gpu_worker::DeviceHealth::Healthy,
                    ..old.devices.get(&key).cloned().unwrap_or_default()
                };
                (key, view)
            });
            let devices = devices.collect();
            let known = old.known && old.live;
            let view = WorkerView {
                uid: worker.uid.clone(),
                endpoint: worker.endpoint.clone(),
                boot_id: worker.boot_id.clone(),
                live,
                devices,
                known,
                answered: old.answered && old.live,
                ask_at: if live && (!known || old.reported_mib != reported_mib) {
                    Some(now)
                } else {
                    old.ask_at
                },
                failing: old.failing.filter(|_| live),
                trouble: old.trouble.filter(|_| live),
                reported_mib,
                ..old
            };
            self.workers.insert(name, view);
        }
    }

    /// Registers a claim, with the grants that it adopts from an earlier term. These are renewed under the new term at once, because this
    /// operator may lose leadership soon.
    pub(super) fn claim(&mut self, request: ClaimRequest, adopted: Vec<(WorkerName, Grant)>, now: Duration) -> watch::Receiver<ClaimView> {
        let id = OwnerUid::from(&request.owner.uid);
        let (view, receiver) = watch::channel(ClaimView::default());
        let grants = adopted.into_iter().map(|(worker, grant)| Held {
            expires: now + grant.expires_in(),
            id: grant.id,
            device: DeviceId::new(worker, grant.device),
            slices: grant.slices,
            known: now,
            renew_at: now,
            renewing: false,
        });
        let grants: Vec<Held> = grants.collect();
        let state = ClaimState {
            kept: if request.keeps { slices_of(&grants) } else { 0 },
            unplanned: false,
            grants,
            since: now,
            acquiring: BTreeMap::new(),
            refused: BTreeMap::new(),
            why_not: None,
            fenced: false,
            ending: false,
            unanswered: false,
            limits: None,
            served: request.served,
            lost: request.lost.clone(),
            losses: u64::from(request.lost.is_some()),
            view,
            request,
        };
        self.ended.remove(&id);
        for held in &state.grants {
            self.unconfirmed.remove(&held.id);
            self.metrics.granted(u64::from(held.slices), state.request.slice_bytes);
        }
        self.claims.insert(id.clone(), state);
        for worker in self.workers.values_mut() {
            worker.unclaimed.remove(&id);
        }
        self.publish(&id);
        receiver
    }

    /// Changes whether the grants of a claim are renewed. Returns whether they were not before, or no longer are.
    pub(super) fn set_renewed(&mut self, uid: &str, renewed: bool) -> bool {
        let claim = self.claims.get_mut(uid);
        claim.is_some_and(|claim| std::mem::replace(&mut claim.request.renewed, renewed) != renewed)
    }

    /// Limits the slices of a claim to those that its owner needs, by device. The claim acquires nothing until the limits are removed.
    pub(super) fn limit(&mut self, uid: &str, limits: Option<BTreeMap<DeviceId, u32>>) {
        if let Some(claim) = self.claims.get_mut(uid) {
            claim.limits = limits;
        }
    }

    /// Kind of each claim that waits for its minimum, and the time since it was registered or its minimum was raised.
    pub(in crate::pool) fn waiting(&self, now: Duration) -> Vec<(ClaimKind, Duration)> {
        let waits = self
            .claims
            .values()
            .filter(|claim| claim.is_open() && claim.limits.is_none() && slices_of(&claim.grants) < claim.request.min);
        waits.map(|claim| (claim.request.kind, now.saturating_sub(claim.since))).collect()
    }

    /// Drops all grants on a worker.
    fn lose_worker(&mut self, worker: &WorkerName, why: &'static str) {
        self.sessions.retain(|_, seen| seen.worker != *worker);
        self.orphans.retain(|_, orphan| orphan.worker != *worker);
        if let Some(view) = self.workers.get_mut(worker) {
            view.unclaimed.clear();
        }
        let lost = self.drop_grants(|_, held| (held.device.worker == *worker).then_some(Loss::Worker(why)));
        if !lost.is_empty() {
            tracing::warn!(%worker, grants = lost.len(), why, "grants lost");
        }
    }

    /// Removes the grants for which `why` returns a loss, and publishes the losses. Returns the removed grants, with their bytes.
    fn drop_grants(&mut self, mut why: impl FnMut(&ClaimRequest, &Held) -> Option<Loss>) -> Vec<(Held, u64)> {
        let mut dropped = Vec::new();
        let mut changed = Vec::new();
        for (id, claim) in &mut self.claims {
            let before = dropped.len();
            claim.grants.retain(|held| {
                let Some(loss) = why(&claim.request, held) else { return true };
                tracing::debug!(owner = claim.request.owner.name, device = %held.device, slices = held.slices, %loss, "grant lost");
                self.metrics.released(u64::from(held.slices), claim.request.slice_bytes);
                claim.losses += 1;
                claim.lost = Some(held.lost(loss));
                dropped.push((held.clone(), u64::from(held.slices) * claim.request.slice_bytes));
                false
            });
            if dropped.len() != before {
                changed.push(id.clone());
            }
        }
        for id in changed {
            self.publish(&id);
        }
        dropped
    }

    /// Whether the last call to the worker had no answer.
    pub(super) fn is_failing(&self, worker: &WorkerName) -> bool {
        self.workers.get(worker).is_some_and(|view| view.failing.is_some())
    }

    fn held_bytes(&self, device: &DeviceId) -> u64 {
        let claims = self.claims.values();
        claims
            .map(|claim| {
                let slices: u32 = claim
                    .grants
                    .iter()
                    .filter(|held| held.device == *device)
                    .map(|held| held.slices)
                    .sum();
                u64::from(slices) * claim.request.slice_bytes
            })
            .sum()
    }

    /// Counts bytes that a claim released on the device as in use until the next inventory of its agent.
    fn returns(&mut self, device: &DeviceId, bytes: u64) {
        if let Some(device) = self.device_mut(device) {
            device.foreign_bytes += bytes;
            device.returning_bytes += bytes;
        }
    }

    fn device_mut(&mut self, device: &DeviceId) -> Option<&mut DeviceView> {
        self.workers.get_mut(&device.worker)?.devices.get_mut(&device.device)
    }

    /// Publishes the claim's view if it has changed.
    fn publish(&mut self, id: &OwnerUid) {
        let Some(claim) = self.claims.get_mut(id) else { return };
        let slices = slices_of(&claim.grants);
        claim.served |= slices >= claim.request.min;
        claim.kept = if slices >= claim.request.min { 0 } else { claim.kept.min(slices) };
        if claim.is_spent() {
            claim.why_not = None;
        }
        let grants = claim.grants.iter().map(|held| {
            let worker = self.workers.get(&held.device.worker);
            HeldGrant {
                id: held.id.clone(),
                device: held.device.clone(),
                endpoint: worker.map(|worker| worker.endpoint.clone()).unwrap_or_default(),
                slices: held.slices,
            }
        });
        let view = ClaimView {
            grants: grants.collect(),
            keeps_fewer: claim.kept > 0 && slices > 0,
            why_not: claim.why_not.clone(),
            fenced: claim.fenced,
            acquiring: !claim.acquiring.is_empty() || claim.unplanned,
            lost: claim.lost.clone(),
            losses: claim.losses,
        };
        claim.view.send_if_modified(|old| {
            let changed = *old != view;
            *old = view;
            changed
        });
    }
}

fn slices_of(grants: &[Held]) -> u32 {
    grants.iter().map(|held| held.slices).sum()
}

impl ClaimState {
    /// Whether the claim can be granted slices, or lose some to other claims.
    fn is_open(&self) -> bool {
        !self.ending && !self.fenced && !self.is_spent()
    }

    /// Whether the claim has had its slices and requests no others. It keeps the slices that are left until it ends.
    fn is_spent(&self) -> bool {
        self.served && self.request.is_served_once()
    }

    /// Number of slices that may still be requested for the claim. The sum of held and requested slices never exceeds its maximum, whatever
    /// the answers are. A request to a device counts until it is answered, even if the pool would prefer another device by now.
    fn lacking(&self) -> u32 {
        if self.limits.is_some() {
            return 0;
        }
        let sum: u32 = self.slices_by_device().values().sum();
        self.request.max.max(self.request.min).saturating_sub(sum)
    }

    /// Held and requested slices, by device.
    fn slices_by_device(&self) -> BTreeMap<DeviceId, u32> {
        let mut slices = self.acquiring.clone();
        for held in &self.grants {
            *slices.entry(held.device.clone()).or_default() += held.slices;
        }
        slices
    }
}

fn sooner(wake: &mut Option<Duration>, at: Duration) {
    *wake = Some(wake.map_or(at, |wake| wake.min(at)));
}

fn mebibytes(mebibytes: i64) -> u64 {
    u64::try_from(mebibytes).unwrap_or_default() << 20
}
