//! Keeps devices for claims that have waited too long, so that backfill does not starve them.

use crate::pool::{DeviceIndex, Pool, Rank};

/// After so many milliseconds without its minimum a claim reserves devices. One minute: most bursts come and go in less, so
/// that room mostly appears by itself; and an endless stream of small work delays a claim for no longer than that plus
/// the time until the work that runs there has ended.
pub const PATIENCE_MS: u64 = 60_000;

/// The claim for which each device is reserved. Computed in every round, in the order of importance.
#[derive(Debug)]
pub(crate) struct Reservations {
    holder: Vec<Option<Rank>>,
    unreserved: usize,
    /// As the round began: a round that changes any of it is followed by another.
    stuck: Vec<u64>,
    surplus_of_leases: Vec<(Rank, DeviceIndex, u64)>,
}

impl Reservations {
    pub fn new(pool: &Pool) -> Self {
        Self {
            holder: vec![None; pool.devices.len()],
            unreserved: pool.devices.len(),
            stuck: pool.stuck(),
            surplus_of_leases: pool.surplus_of_leases(),
        }
    }

    /// The claim for which the device is reserved.
    pub fn of(&self, device: DeviceIndex) -> Option<Rank> {
        self.holder[device as usize]
    }

    /// How many devices are reserved for more important claims: as many means the same ones.
    pub fn before(&self, claim: Rank) -> usize {
        self.holder.iter().flatten().filter(|&&holder| holder < claim).count()
    }

    /// Whether the claim may start on the device: no more important claim has reserved it.
    pub fn may_start(&self, claim: Rank, device: DeviceIndex) -> bool {
        self.of(device).is_none_or(|holder| claim <= holder)
    }

    /// Whether the claim may grow on the device: only with a higher priority than the claim that has reserved it.
    pub fn may_grow(&self, pool: &Pool, claim: Rank, device: DeviceIndex) -> bool {
        self.of(device).is_none_or(|holder| pool.priority(claim) > pool.priority(holder))
    }

    /// Reserves devices that, once empty of what can end, serve the claim's minimum. Reserves none while something without a known
    /// end stands in the way: others would wait without any use for the claim. It reserves once that has gone.
    pub fn reserve(&mut self, pool: &Pool, claim: Rank, now: u64) {
        let demand = pool.demand(claim);
        if self.unreserved == 0 || now < demand.claim.since.saturating_add(PATIENCE_MS) {
            return;
        }
        let mut candidates: Vec<DeviceIndex> = pool
            .eligible(claim)
            .iter()
            .copied()
            .filter(|&device| self.of(device).is_none())
            .collect();
        let mut stuck = self.stuck.clone();
        for &(lease, device, bytes) in &self.surplus_of_leases {
            if pool.priority(lease) > pool.priority(claim) {
                stuck[device as usize] = stuck[device as usize].saturating_add(bytes);
            }
        }
        candidates.sort_by_key(|&device| stuck[device as usize]);
        let room = |device: DeviceIndex| {
            pool.devices[device as usize]
                .allocatable_bytes
                .saturating_sub(stuck[device as usize])
        };
        let chosen = enough(&candidates, demand.unit(), demand.min, demand.is_session(), room);
        for device in chosen.unwrap_or_default() {
            self.holder[device as usize] = Some(claim);
            self.unreserved -= 1;
        }
    }
}

/// The first of the candidates whose room adds up to `min` units (to one, for a session), or none.
fn enough(candidates: &[DeviceIndex], unit: u64, min: u32, session: bool, room: impl Fn(DeviceIndex) -> u64) -> Option<Vec<DeviceIndex>> {
    let needed = if session { 1 } else { u64::from(min) };
    let (mut sum, mut chosen) = (0_u64, Vec::new());
    for &device in candidates {
        let fits = room(device) / unit;
        if fits > 0 {
            sum = sum.saturating_add(fits);
            chosen.push(device);
        }
        if sum >= needed {
            return Some(chosen);
        }
    }
    None
}
