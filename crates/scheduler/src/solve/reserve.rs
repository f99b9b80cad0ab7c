//! Reserves devices for claims that have waited too long, so that backfill does not starve them.

use std::time::Duration;

use crate::{
    ClaimKind,
    pool::{DeviceIndex, Pool, Rank},
};

/// Time without its minimum after which a claim reserves devices. One minute, because most bursts take less, so that devices
/// usually become free without a reservation. An endless stream of small claims delays a claim by at most this time plus the time
/// until the work that runs on the reserved devices has ended.
pub const RESERVE_AFTER: Duration = Duration::from_secs(60);

/// For each device, the claim that has reserved it. Recomputed in every round, in the order of importance.
#[derive(Debug)]
pub(crate) struct Reservations {
    holder: Vec<Option<Rank>>,
    unreserved: usize,
    /// Pool state at the start of the round. A round that changes this state is followed by another one.
    stuck: Vec<u64>,
    surplus_of_leases: Vec<(Rank, DeviceIndex, u64)>,
}

impl Reservations {
    pub(super) fn new(pool: &Pool) -> Self {
        Self {
            holder: vec![None; pool.devices.len()],
            unreserved: pool.devices.len(),
            stuck: pool.stuck(),
            surplus_of_leases: pool.surplus_of_leases(),
        }
    }

    /// The claim that has reserved `device`.
    pub(super) fn of(&self, device: DeviceIndex) -> Option<Rank> {
        self.holder[device as usize]
    }

    /// Number of devices reserved for claims that are more important than `claim`. Two claims with the same number see the same reserved
    /// devices.
    pub(super) fn before(&self, claim: Rank) -> usize {
        self.holder.iter().flatten().filter(|&&holder| holder < claim).count()
    }

    /// Whether `claim` may start on `device`: no more important claim has reserved the device.
    pub(super) fn may_start(&self, claim: Rank, device: DeviceIndex) -> bool {
        self.of(device).is_none_or(|holder| claim <= holder)
    }

    /// Whether `claim` may grow on `device`: the device is not reserved, or is reserved for a claim of lower priority.
    pub(super) fn may_grow(&self, pool: &Pool, claim: Rank, device: DeviceIndex) -> bool {
        self.of(device).is_none_or(|holder| pool.priority(claim) > pool.priority(holder))
    }

    /// Reserves devices that can serve the claim's minimum once all slices that can be taken or will end are free. Reserves nothing while
    /// bytes without a known release time leave too little room, because other claims would wait without any benefit for this one. A later
    /// call reserves once those bytes are released.
    pub(super) fn reserve(&mut self, pool: &Pool, claim: Rank, now: Duration) {
        let demand = pool.demand(claim);
        if self.unreserved == 0 || now < demand.claim.since.saturating_add(RESERVE_AFTER) {
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
        let needed = match demand.claim.kind {
            ClaimKind::Session => 1,
            ClaimKind::Lease => pool.missing(claim),
            // What a burst holds on a candidate is part of the room.
            ClaimKind::Burst => {
                let elsewhere = pool.holdings(claim).iter().filter(|(device, _)| !candidates.contains(device));
                demand.min.saturating_sub(elsewhere.map(|(_, slices)| slices).sum())
            }
        };
        let chosen = enough(&candidates, demand.unit(), needed, room);
        for device in chosen.unwrap_or_default() {
            self.holder[device as usize] = Some(claim);
            self.unreserved -= 1;
        }
    }
}

/// The first candidates whose room adds up to `needed` units, or `None` if all candidates together have too little.
fn enough(candidates: &[DeviceIndex], unit: u64, needed: u32, room: impl Fn(DeviceIndex) -> u64) -> Option<Vec<DeviceIndex>> {
    let (mut sum, mut chosen) = (0_u64, Vec::new());
    for &device in candidates {
        let fits = room(device) / unit;
        if fits > 0 {
            sum = sum.saturating_add(fits);
            chosen.push(device);
        }
        if sum >= u64::from(needed) {
            return Some(chosen);
        }
    }
    None
}
