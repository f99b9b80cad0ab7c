//! The ledger is the allocation authority: it decides which owner holds how many slices of which device, and until when.
//!
//! It is a pure state machine: every call takes `now`, a monotonic time since a fixed start, and changes nothing but the ledger. Actions
//! for the caller (kill an executor, notify the dispatcher) are returned by [`Ledger::take_effects`] as [`Effect`]s. The caller arms a
//! timer for [`Ledger::next_deadline`] and then calls [`Ledger::tick`].
//!
//! A grant is **active**, then possibly **draining**, then gone. A slice is **in use** from before the first chunk may start on it until
//! the device holds nothing for it any more. Slices of one owner on one device are interchangeable, so their use is counted together (a
//! **holding**): when slices end while more are in use than remain, the excess counts as draining until its use ends, and is killed after
//! its grace.
//!
//! Guarantees: active and draining bytes on a device never exceed its allocatable bytes; the id of a grant is never used twice; an ended
//! grant that is not in use is free at the first call with a `now` past its end.

use std::{collections::BTreeMap, time::Duration};

use sahasra_names::{BootId, DeviceName, OwnerUid};
use sahasra_wire::{
    grants::{Grant, GrantId},
    milliseconds,
};

mod holding;
#[cfg(test)]
mod properties;
mod records;
mod requests;
#[cfg(test)]
mod tests;

use holding::Holding;
pub use records::{Device, Effect, Load, Totals};

/// Retention time of the term of an owner that holds nothing.
///
/// A coordinator of a lower term does harm only while it believes that it leads: it renews its leadership every few seconds and stops when
/// it cannot. An hour outlasts that, its request timeouts and any plausible pause of its machine. A coordinator that wakes later still gets
/// only slices that expire unrenewed: the term in the owner's status, not this record, keeps it from counting a result.
pub const TERM_MEMORY: Duration = Duration::from_secs(3600);

/// Limit of remembered owners that hold nothing. Beyond it the owners that were silent longest are forgotten first. Bounds memory to about
/// 4 MiB.
pub const MAX_SILENT_OWNERS: usize = 16_384;

/// Limit of concurrent grants, draining ones included. Bounds memory to about 10 MiB.
pub const MAX_GRANTS: usize = 65_536;

/// Limit of the time to live and of the grace of a grant: 30 days.
pub const MAX_DURATION: Duration = Duration::from_secs(30 * 24 * 3600);

/// Message of rejections during shutdown.
pub const SHUTDOWN_MESSAGE: &str = "the agent is shutting down";

/// Interval at which a kill is requested again while the executor has not ended.
const KILL_AGAIN: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct DeviceState {
    name: DeviceName,
    /// Limit of allocatable memory in bytes. `load.allocatable_bytes` exceeds it while more is leased, which happens when the limit was
    /// lowered.
    limit_bytes: u64,
    session_bytes: u64,
    load: Load,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct OwnerState {
    term: u64,
    namespace: String,
    /// Holdings by index of the device.
    holdings: BTreeMap<usize, Holding>,
    /// When a coordinator last sent a request for the owner, or the owner last held something.
    last_seen: Duration,
}

impl OwnerState {
    /// Returns the next deadline of the holdings, or when the owner without any is forgotten.
    fn deadline(&self) -> Option<Duration> {
        if self.holdings.is_empty() {
            return Some(self.last_seen + TERM_MEMORY);
        }
        self.holdings.values().filter_map(Holding::deadline).min()
    }
}

/// State of all grants of an agent, see the [crate](self).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ledger {
    boot_id: BootId,
    devices: Vec<DeviceState>,
    owners: BTreeMap<OwnerUid, OwnerState>,
    /// Counter of the last grant.
    counter: u64,
    grants: usize,
    silent_owners: usize,
    shutting_down: bool,
    /// Lower bound of the next deadline: may be earlier than the next event that is due, never later.
    wake: Option<Duration>,
    effects: Vec<Effect>,
    /// Slices granted since the agent started.
    granted_slices: u64,
    /// Grants expired since the agent started.
    expired_grants: u64,
}

impl Ledger {
    /// Creates a ledger without grants. `boot_id` identifies this start of the agent and must never have been used before.
    pub fn new(boot_id: BootId, devices: Vec<Device>) -> Self {
        let devices = devices
            .into_iter()
            .map(|device| DeviceState {
                name: device.name,
                limit_bytes: device.allocatable_bytes,
                session_bytes: device.session_bytes,
                load: Load {
                    allocatable_bytes: device.allocatable_bytes,
                    healthy: true,
                    ..Load::default()
                },
            })
            .collect();
        Self {
            boot_id,
            devices,
            owners: BTreeMap::new(),
            counter: 0,
            grants: 0,
            silent_owners: 0,
            shutting_down: false,
            wake: None,
            effects: Vec::new(),
            granted_slices: 0,
            expired_grants: 0,
        }
    }

    /// Takes up to `wanted` of the owner's active slices on the device into use, and returns how many: an executor may run that many more
    /// chunks at a time.
    pub fn occupy(&mut self, now: Duration, owner_uid: &OwnerUid, device: &DeviceName, wanted: u32) -> u32 {
        self.expire(now);
        let Some(place) = self.place(device) else { return 0 };
        let Some(holding) = self.owners.get_mut(owner_uid).and_then(|owner| owner.holdings.get_mut(&place)) else {
            return 0;
        };
        let occupied = holding.occupy(wanted);
        self.devices[place].load.slices_in_use += u64::from(occupied);
        occupied
    }

    /// Ends the use of `slices` slices of the owner on the device, which holds nothing for them any more.
    pub fn vacate(&mut self, now: Duration, owner_uid: &OwnerUid, device: &DeviceName, slices: u32) {
        self.expire(now);
        let Some(place) = self.place(device) else { return };
        let has_holding = self.owners.get(owner_uid).is_some_and(|owner| owner.holdings.contains_key(&place));
        if has_holding {
            let in_use = &mut self.devices[place].load.slices_in_use;
            *in_use = in_use.saturating_sub(u64::from(slices));
            self.change(now, owner_uid, place, false, |holding| holding.vacate(slices));
        }
    }

    /// Sets whether the device accepts new grants.
    pub fn set_healthy(&mut self, device: &DeviceName, healthy: bool) {
        if let Some(place) = self.place(device) {
            self.devices[place].load.healthy = healthy;
        }
    }

    /// Sets the allocatable memory of the device in bytes. Leases that exceed it stay.
    pub fn set_limit(&mut self, device: &DeviceName, limit_bytes: u64) {
        if let Some(place) = self.place(device) {
            let device = &mut self.devices[place];
            device.limit_bytes = limit_bytes;
            device.load.allocatable_bytes = limit_bytes.max(device.load.leased_bytes);
        }
    }

    /// Rejects all new grants from now on.
    pub fn begin_shutdown(&mut self) {
        self.shutting_down = true;
    }

    pub fn is_shutting_down(&self) -> bool {
        self.shutting_down
    }

    /// Returns the actions for the caller since the last call. Must be called after every change.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Returns the time by which [`Ledger::tick`] must be called.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.wake
    }

    pub fn active_slices(&self, owner_uid: &OwnerUid, device: &DeviceName) -> u32 {
        self.place(device)
            .and_then(|place| self.owners.get(owner_uid)?.holdings.get(&place))
            .map_or(0, Holding::active)
    }

    /// Returns whether the owner holds anything on this agent, draining slices included.
    pub fn holds_anything(&self, owner_uid: &OwnerUid) -> bool {
        self.owners.get(owner_uid).is_some_and(|owner| !owner.holdings.is_empty())
    }

    /// Returns the highest term received for the owner, if it is remembered.
    pub fn term(&self, owner_uid: &OwnerUid) -> Option<u64> {
        self.owners.get(owner_uid).map(|owner| owner.term)
    }

    /// Returns the load of each device, in the order in which [`Ledger::new`] received the devices.
    pub fn loads(&self) -> impl Iterator<Item = (&DeviceName, Load)> {
        self.devices.iter().map(|device| (&device.name, device.load))
    }

    /// Returns the counters since the agent started.
    pub fn totals(&self) -> Totals {
        let leased: u64 = self.devices.iter().map(|device| device.load.slices).sum();
        Totals {
            granted_slices: self.granted_slices,
            freed_slices: self.granted_slices - leased,
            expired_grants: self.expired_grants,
        }
    }

    /// Returns every grant. A grant that was released in part while more slices were in use than it kept appears twice under its id: once
    /// with the slices that it kept, and once with those that drain.
    pub fn grants(&self, now: Duration) -> Vec<Grant> {
        let mut grants = Vec::with_capacity(self.grants);
        for (uid, owner) in &self.owners {
            for (place, holding) in &owner.holdings {
                for part in holding.parts() {
                    grants.push(Grant {
                        id: self.id(part.counter),
                        owner_uid: uid.to_string(),
                        device: self.devices[*place].name.to_string(),
                        slice_bytes: holding.slice_bytes(),
                        slices: part.slices,
                        expires_in_milliseconds: milliseconds(part.expires.saturating_sub(now)),
                        draining: part.draining,
                        term: owner.term,
                    });
                }
            }
        }
        grants.sort_by_key(|grant| (grant.id.counter, grant.draining));
        grants
    }

    fn id(&self, counter: u64) -> GrantId {
        GrantId {
            boot_id: self.boot_id.to_string(),
            counter,
        }
    }

    fn place(&self, device: &str) -> Option<usize> {
        self.devices.iter().position(|candidate| candidate.name == *device)
    }

    fn wake_by(&mut self, time: Duration) {
        self.wake = Some(self.wake.map_or(time, |wake| wake.min(time)));
    }

    /// Applies `act` to a holding, then updates every sum that depends on the holding. If `act` may bring deadlines forward, the caller
    /// must call [`Ledger::sweep_kills`] afterwards.
    fn change(&mut self, now: Duration, uid: &OwnerUid, place: usize, expired: bool, act: impl FnOnce(&mut Holding)) {
        let owner = self.owners.get_mut(uid).expect("the caller found the owner");
        let holding = owner.holdings.get_mut(&place).expect("the caller found the holding");
        let sums = |holding: &Holding| (holding.slices(), holding.bytes(), holding.grants(), holding.active());
        let (slices_before, bytes_before, grants_before, active_before) = sums(holding);
        act(holding);
        holding.settle();
        let (slices, bytes, grants, active) = sums(holding);
        let device = &mut self.devices[place];
        device.load.slices = device.load.slices + slices - slices_before;
        device.load.leased_bytes = device.load.leased_bytes + bytes - bytes_before;
        device.load.allocatable_bytes = device.limit_bytes.max(device.load.leased_bytes);
        self.grants = self.grants + grants - grants_before;
        if active < active_before {
            self.effects.push(Effect::Shrunk {
                device: device.name.clone(),
                owner_uid: uid.clone(),
                active,
                expired,
            });
        }
        if holding.is_empty() {
            owner.holdings.remove(&place);
            if owner.holdings.is_empty() {
                owner.last_seen = now;
                self.silent_owners += 1;
                self.effects.push(Effect::Gone { owner_uid: uid.clone() });
                self.wake_by(now + TERM_MEMORY);
            }
        }
    }

    /// Expires everything that is due at `now`: grants, graces of draining slices, and remembered terms. [`Ledger::take_effects`] returns
    /// the actions for the caller.
    pub fn expire(&mut self, now: Duration) {
        if self.wake.is_none_or(|wake| now < wake) {
            return;
        }
        let mut due = Vec::new();
        for (uid, owner) in &self.owners {
            for (place, holding) in &owner.holdings {
                if holding.expired(now) > 0 {
                    due.push((uid.clone(), *place, holding.expired(now)));
                }
            }
        }
        for (uid, place, expired) in due {
            self.expired_grants += expired;
            self.change(now, &uid, place, true, |holding| holding.expire(now));
        }
        let silent_before = self.owners.len();
        self.owners
            .retain(|_, owner| !owner.holdings.is_empty() || now.saturating_sub(owner.last_seen) < TERM_MEMORY);
        self.silent_owners -= silent_before - self.owners.len();
        self.sweep_kills(now);
    }

    /// Requests the kills that are due, and computes the next deadline.
    fn sweep_kills(&mut self, now: Duration) {
        for (uid, owner) in &mut self.owners {
            for (place, holding) in &mut owner.holdings {
                if holding.kill_due(now, now + KILL_AGAIN) {
                    self.effects.push(Effect::Kill {
                        device: self.devices[*place].name.clone(),
                        namespace: owner.namespace.clone(),
                        owner_uid: uid.clone(),
                    });
                }
            }
        }
        self.wake = self.owners.values().filter_map(OwnerState::deadline).min();
    }
}
