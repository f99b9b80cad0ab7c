//! Distributes the slices that remain after all minima are served.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use crate::{
    ClaimKind,
    pool::{DeviceIndex, Pool, Rank},
};

use super::{Reservations, reclaim::make_room};

/// Assigns free bytes to claims that can use them, then transfers surplus from claims with more than their share. Returns whether anything
/// changed.
pub(crate) fn grow(pool: &mut Pool, reservations: &Reservations) -> bool {
    let mut changed = false;
    loop {
        let grown = share(pool, reservations, |_, _| true, |pool, claim, device| pool.fit(claim, device) > 0);
        // A transfer may leave free bytes that are too few for the receiving claim but enough for another, so the loop repeats.
        let richest = Richest::of(pool);
        let moved = share(pool, reservations, |pool, claim| richest.could_yield_to(pool, claim), hand_over);
        changed |= grown || moved;
        if !moved {
            return changed;
        }
    }
}

/// Frees one slice of `claim` on `device`, from the surplus of lower priorities or of equal claims that still keep more slices than `claim`
/// has.
fn hand_over(pool: &mut Pool, claim: Rank, device: DeviceIndex) -> bool {
    let (slice, priority, held) = (pool.demand(claim).slice, pool.priority(claim), pool.held(claim));
    let from = pool.level_start(claim);
    make_room(pool, device, slice, from, |pool, holder| {
        let surplus = pool.surplus(holder);
        match pool.priority(holder).cmp(&priority) {
            _ if holder == claim => 0,
            std::cmp::Ordering::Less => surplus,
            std::cmp::Ordering::Equal => surplus.min(pool.held(holder).saturating_sub(held + 1)),
            std::cmp::Ordering::Greater => 0,
        }
    })
}

/// Surplus of claims by priority. A quick check whether any claim can yield slices to another, without a pass over the devices.
struct Richest {
    /// Per claim: whether a claim of lower priority has surplus.
    lower_has_surplus: Vec<bool>,
    /// Per claim: the largest number of slices held by a claim with surplus and the same priority.
    equal_holds: Vec<u32>,
}

impl Richest {
    fn of(pool: &Pool) -> Self {
        let claims = pool.demands.len();
        let (mut lower_has_surplus, mut equal_holds) = (vec![false; claims], vec![0; claims]);
        let (mut level_end, mut below) = (claims, false);
        while let Some(last) = level_end.checked_sub(1) {
            let level = pool.level_start(last as Rank)..level_end as Rank;
            let most = level
                .clone()
                .filter(|&claim| pool.surplus(claim) > 0)
                .map(|claim| pool.held(claim))
                .max();
            let range = level.start as usize..level_end;
            lower_has_surplus[range.clone()].fill(below);
            equal_holds[range.clone()].fill(most.unwrap_or(0));
            below |= most.is_some();
            level_end = range.start;
        }
        Self {
            lower_has_surplus,
            equal_holds,
        }
    }

    fn could_yield_to(&self, pool: &Pool, claim: Rank) -> bool {
        self.lower_has_surplus[claim as usize] || self.equal_holds[claim as usize] > pool.held(claim) + 1
    }
}

/// Assigns slices one by one to the claims for which `may_ask` is true: higher priority first, then the claim with the fewest slices, then
/// the older. `has_room` finds or frees one slice. The devices of a group are used round-robin. A device without room is skipped for the
/// rest of this pass, because room only shrinks during a pass. Returns whether any slice was assigned.
fn share(
    pool: &mut Pool,
    reservations: &Reservations,
    may_ask: impl Fn(&Pool, Rank) -> bool,
    has_room: impl Fn(&mut Pool, Rank, DeviceIndex) -> bool,
) -> bool {
    let mut given = false;
    let mut turns: Vec<Option<VecDeque<DeviceIndex>>> = (0..pool.groups.len()).map(|_| None).collect();
    let wants_more = |pool: &Pool, claim: Rank| {
        let demand = pool.demand(claim);
        let is_served = pool.missing(claim) == 0 || demand.claim.kind == ClaimKind::Burst;
        is_served && (1..demand.max).contains(&pool.held(claim))
    };
    let mut hungry: BinaryHeap<Reverse<(Reverse<i32>, u32, Rank)>> = pool
        .ranks()
        .filter(|&claim| wants_more(pool, claim))
        .map(|claim| Reverse((Reverse(pool.priority(claim)), pool.held(claim), claim)))
        .collect();
    while let Some(Reverse((priority, held, claim))) = hungry.pop() {
        if held != pool.held(claim) {
            // The claim has lost slices since it was queued: queue it again under its new number of slices.
            hungry.push(Reverse((priority, pool.held(claim), claim)));
            continue;
        }
        if !may_ask(pool, claim) {
            continue;
        }
        let group = pool.demand(claim).group;
        let turn = turns[group].get_or_insert_with(|| {
            let eligible = pool.groups[group].iter().copied();
            let mut devices: Vec<DeviceIndex> = eligible.filter(|&device| reservations.may_grow(pool, claim, device)).collect();
            if pool.demand(claim).claim.kind == ClaimKind::Lease {
                // No load metric shows the slices of leases, so without this order every lease would begin at the same device.
                let shares = pool.lent_shares();
                devices.sort_by_key(|&device| shares[device as usize]);
            }
            devices.into()
        });
        while let Some(device) = turn.pop_front() {
            if has_room(pool, claim, device) {
                pool.give(claim, device, 1);
                turn.push_back(device);
                given = true;
                if wants_more(pool, claim) {
                    hungry.push(Reverse((priority, pool.held(claim), claim)));
                }
                break;
            }
        }
    }
    given
}
