//! Agent of the model: the ledger under test, and the responses that the model records.

use std::{
    collections::BTreeMap,
    hash::{Hash, Hasher},
    time::Duration,
};

use sahasra_ledger::{Device, Effect, Ledger};

use super::{DEVICE, LEASES, ROOM, SLICE_BYTES, TICK, boot_id};

/// State of an agent: the ledger under test, and the model's own records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Agent {
    pub(super) ledger: Ledger,
    pub(super) boot: u8,
    pub(super) now: u8,
    /// Running kernels of each lease: number of those that end on their own, and number of those that hang.
    pub(super) running: [(u8, u8); LEASES],
    /// Highest term of an accepted request, for each lease.
    pub(super) terms: [u8; LEASES],
    /// Lease and end of each grant of this boot, according to the responses.
    pub(super) ends: BTreeMap<u8, (usize, u8)>,
}

/// Hashes only what can be observed: the number of slices granted so far, and the time of a coordinator's last request, make no difference.
impl Hash for Agent {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.boot, self.now, self.running, self.terms, &self.ends).hash(state);
        for grant in self.ledger.grants(self.time()) {
            (
                grant.id.counter,
                grant.slices,
                grant.draining,
                grant.expires_in_milliseconds,
                grant.owner_uid,
            )
                .hash(state);
        }
        for (_, load) in self.ledger.loads() {
            load.hash(state);
        }
        for lease in 0..LEASES {
            self.ledger.term(&lease.to_string().into()).hash(state);
        }
        self.ledger.next_deadline().hash(state);
    }
}

impl Agent {
    pub(super) fn new(index: usize, boot: u8, now: u8) -> Self {
        let device = Device {
            name: DEVICE.into(),
            allocatable_bytes: u64::from(ROOM) * SLICE_BYTES,
            session_bytes: 0,
        };
        Self {
            ledger: Ledger::new(boot_id(index, boot).into(), vec![device]),
            boot,
            now,
            running: [(0, 0); LEASES],
            terms: [0; LEASES],
            ends: BTreeMap::new(),
        }
    }

    pub(super) fn time(&self) -> Duration {
        TICK * u32::from(self.now)
    }

    pub(super) fn runs(&self, lease: usize) -> u8 {
        self.running[lease].0 + self.running[lease].1
    }

    /// Applies the effects that the ledger requests. Returns whether one was a kill.
    pub(super) fn obey_effects(&mut self) -> bool {
        let mut killed = false;
        for effect in self.ledger.take_effects() {
            let Effect::Kill { owner_uid, .. } = effect else { continue };
            let Some(lease) = (0..LEASES).find(|lease| owner_uid == lease.to_string()) else {
                continue;
            };
            killed = true;
            let runs = self.runs(lease);
            self.running[lease] = (0, 0);
            self.ledger.vacate(self.time(), &owner_uid, &DEVICE.into(), u32::from(runs));
        }
        self.ledger.take_effects();
        killed
    }

    /// Returns all grants, draining ones included, as counter, slices, lease and whether the grant drains.
    pub(super) fn grants(&self) -> impl Iterator<Item = (u8, u32, usize, bool)> {
        let grants = self.ledger.grants(self.time()).into_iter();
        grants.map(|grant| {
            let lease = grant.owner_uid.parse().unwrap_or_default();
            (grant.id.counter as u8, grant.slices, lease, grant.draining)
        })
    }

    /// Returns the number of slices that are granted, or that kernels still use after the end of their grant.
    pub(super) fn taken(&self) -> u32 {
        let mut active = [0; LEASES];
        for (_, slices, lease, draining) in self.grants() {
            if !draining {
                active[lease] += slices;
            }
        }
        (0..LEASES).map(|lease| active[lease].max(u32::from(self.runs(lease)))).sum()
    }

    /// Returns whether a grant has ended and is not in use, but is not free.
    pub(super) fn overstays(&self) -> bool {
        self.grants().any(|(counter, _, lease, _)| {
            let ended = self.ends.get(&counter).is_none_or(|(_, end)| *end <= self.now);
            ended && self.runs(lease) == 0
        })
    }

    pub(super) fn is_free(&self) -> bool {
        self.ledger.loads().all(|(_, load)| load.leased_bytes == 0) && self.grants().next().is_none()
    }
}
