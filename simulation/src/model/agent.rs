//! An agent of the model: the ledger under test, and what the model remembers of its answers.

use std::{
    collections::BTreeMap,
    hash::{Hash, Hasher},
    time::Duration,
};

use sahasra_worker::ledger::{Device, Effect, Ledger};

use super::{DEVICE, LEASES, ROOM, SLICE_BYTES, TICK, boot_id};

/// An agent: the ledger under test, and what the model remembers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    pub(super) ledger: Ledger,
    pub(super) boot: u8,
    pub(super) now: u8,
    /// Kernels that run for each lease: those that end by themselves, and those that hang.
    pub(super) running: [(u8, u8); LEASES],
    /// Highest term in which a call for each lease was obeyed.
    pub(super) terms: [u8; LEASES],
    /// When each grant of this boot ends, by the answers.
    pub(super) ends: BTreeMap<u8, (usize, u8)>,
}

/// By what can be told from outside: how much was granted since the start, and when somebody last spoke, changes nothing.
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
            self.ledger.term(&lease.to_string()).hash(state);
        }
        self.ledger.next_deadline().hash(state);
    }
}

impl Agent {
    pub(super) fn new(place: usize, boot: u8, now: u8) -> Self {
        let device = Device {
            name: DEVICE.to_owned(),
            allocatable_bytes: u64::from(ROOM) * SLICE_BYTES,
            session_bytes: 0,
        };
        Self {
            ledger: Ledger::new(boot_id(place, boot), vec![device]),
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

    /// Does what the ledger asks for; says whether it asked for a kill.
    pub(super) fn obey_effects(&mut self) -> bool {
        let mut killed = false;
        for effect in self.ledger.take_effects() {
            let Effect::Kill { owner_uid, .. } = effect else { continue };
            let Some(lease) = (0..LEASES).find(|lease| lease.to_string() == owner_uid) else {
                continue;
            };
            killed = true;
            let runs = self.runs(lease);
            self.running[lease] = (0, 0);
            self.ledger.vacate(self.time(), &owner_uid, DEVICE, u32::from(runs));
        }
        self.ledger.take_effects();
        killed
    }

    /// Grants that stand, drained ones too: counter, slices, lease, draining.
    pub(super) fn grants(&self) -> impl Iterator<Item = (u8, u32, usize, bool)> {
        let grants = self.ledger.grants(self.time()).into_iter();
        grants.map(|grant| {
            let lease = grant.owner_uid.parse().unwrap_or_default();
            (grant.id.counter as u8, grant.slices, lease, grant.draining)
        })
    }

    /// Slices that are lent or still run although their grant has ended.
    pub(super) fn taken(&self) -> u32 {
        let mut active = [0; LEASES];
        for (_, slices, lease, draining) in self.grants() {
            if !draining {
                active[lease] += slices;
            }
        }
        (0..LEASES).map(|lease| active[lease].max(u32::from(self.runs(lease)))).sum()
    }

    /// A grant that ought to be free and is not.
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
