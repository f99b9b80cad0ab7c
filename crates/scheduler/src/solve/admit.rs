//! Serves minima in the order of importance.

use std::{
    cmp::Reverse,
    collections::{HashMap, VecDeque},
    time::Duration,
};

use crate::{
    ClaimKind,
    pool::{DeviceIndex, Pool, Rank},
};

use super::{Reservations, keep::Lost, reclaim::make_room};

/// Tries to serve the minimum of every claim that does not hold it. A claim that is not served and has waited too long reserves devices.
/// Returns whether any claim was served.
pub(crate) fn admit(pool: &mut Pool, reservations: &mut Reservations, lost: &mut Lost, now: Duration) -> bool {
    let mut served = false;
    // Per group: the smallest number of slices that found no room. Claims of the group that miss as many or more are skipped.
    let mut hopeless: Vec<u32> = vec![u32::MAX; pool.groups.len()];
    for claim in pool.ranks() {
        let (group, missing, held) = (pool.demand(claim).group, pool.missing(claim), pool.held(claim));
        if missing == 0 {
            continue;
        }
        if missing < hopeless[group] {
            let before = lost.get(&claim).unwrap_or(pool.holdings(claim));
            let before: Vec<DeviceIndex> = before.keys().copied().collect();
            let admitted = match pool.demand(claim).claim.kind {
                ClaimKind::Session => admit_session(pool, reservations, lost, claim, &before),
                // The order of devices can decide whether the slices fit. A claim is not refused for its former devices' sake.
                ClaimKind::Burst | ClaimKind::Lease => {
                    admit_gang(pool, reservations, lost, claim, &before)
                        || !before.is_empty() && admit_gang(pool, reservations, lost, claim, &[])
                }
            };
            if admitted {
                debug_assert_eq!(pool.missing(claim), 0, "all of the minimum");
                served = true;
                continue;
            }
            hopeless[group] = missing;
        }
        debug_assert_eq!(pool.held(claim), held, "or nothing more");
        reservations.reserve(pool, claim, now);
    }
    served
}

/// Number of slices that `holder` may lose to the minimum of `claim` without falling below its own minimum.
fn surplus_for(pool: &Pool, claim: Rank, holder: Rank) -> u32 {
    let (asking, losing) = (pool.demand(claim), pool.demand(holder));
    let session_over_burst = asking.is_session() && losing.claim.kind == ClaimKind::Burst;
    if session_over_burst || losing.claim.priority <= asking.claim.priority {
        pool.surplus(holder)
    } else {
        0
    }
}

/// Rank of the most important claim that may have to yield to `claim`.
fn yields_from(pool: &Pool, claim: Rank) -> Rank {
    if pool.demand(claim).is_session() {
        0
    } else {
        pool.level_start(claim)
    }
}

/// Takes surplus on `device` until `needed` bytes are free for `claim`. Returns whether that succeeded.
fn reclaim(pool: &mut Pool, claim: Rank, device: DeviceIndex, needed: u64) -> bool {
    let from = yields_from(pool, claim);
    make_room(pool, device, needed, from, |pool, holder| {
        if holder == claim { 0 } else { surplus_for(pool, claim, holder) }
    })
}

/// Whether `holder` may be preempted for the minimum of `claim`.
fn can_push_out(pool: &Pool, claim: Rank, holder: Rank) -> bool {
    pool.demand(holder).claim.kind == ClaimKind::Burst && pool.priority(holder) < pool.priority(claim)
}

/// Devices that can serve `claim`: those it held before first, then idlest first.
fn candidates(pool: &Pool, reservations: &Reservations, claim: Rank, before: &[DeviceIndex]) -> Vec<DeviceIndex> {
    let mut devices: Vec<DeviceIndex> = pool
        .eligible(claim)
        .iter()
        .copied()
        .filter(|&device| reservations.may_start(claim, device))
        .collect();
    if !before.is_empty() {
        devices.sort_by_key(|device| !before.contains(device));
    }
    devices
}

/// Places a session on one device: one with enough free bytes, else one where taking surplus suffices, else one where preempting bursts of
/// lower priority does.
fn admit_session(pool: &mut Pool, reservations: &Reservations, lost: &mut Lost, claim: Rank, before: &[DeviceIndex]) -> bool {
    let needed = pool.demand(claim).unit();
    let devices = candidates(pool, reservations, claim, before);
    let sessions = |device: DeviceIndex| {
        pool.holders(device)
            .keys()
            .filter(|&&holder| pool.demand(holder).is_session())
            .count()
    };
    // The number of sessions and the free bytes break ties between equally idle devices.
    let idlest = devices
        .iter()
        .copied()
        .filter(|&device| pool.free(device) >= needed)
        .min_by_key(|&device| {
            (
                !before.contains(&device),
                pool.load(device),
                sessions(device),
                Reverse(pool.free(device)),
                device,
            )
        });
    if let Some(device) = idlest {
        pool.give_session(claim, device);
        return true;
    }
    for &device in &devices {
        if reclaim(pool, claim, device, needed) {
            pool.give_session(claim, device);
            return true;
        }
    }
    // Choose the device where the most important preempted burst is the least important.
    let cheapest = devices
        .iter()
        .copied()
        .filter_map(|device| Some((price(pool, claim, device, needed)?, device)));
    let Some((_, device)) = cheapest.max_by_key(|&(price, _)| price) else {
        return false;
    };
    push_out(pool, lost, claim, device, needed);
    pool.give_session(claim, device);
    true
}

/// Rank of the most important claim that must be preempted to free `needed` bytes on `device`, or `None` if that is impossible.
fn price(pool: &Pool, claim: Rank, device: DeviceIndex, needed: u64) -> Option<Rank> {
    let mut room = pool.free(device);
    for (&holder, &slices) in pool.holders(device).range(yields_from(pool, claim)..) {
        if !can_push_out(pool, claim, holder) {
            let yielded = surplus_for(pool, claim, holder).min(slices);
            room += u64::from(yielded) * pool.demand(holder).slice;
        }
    }
    for (&holder, &slices) in pool
        .holders(device)
        .iter()
        .rev()
        .filter(|&(&holder, _)| can_push_out(pool, claim, holder))
    {
        room += u64::from(slices) * pool.demand(holder).slice;
        if room >= needed {
            return Some(holder);
        }
    }
    None
}

/// Preempts bursts of lower priority, least important first, until taking surplus frees the rest of `needed` on `device`.
fn push_out(pool: &mut Pool, lost: &mut Lost, claim: Rank, device: DeviceIndex, needed: u64) {
    let victims: Vec<Rank> = pool
        .holders(device)
        .keys()
        .rev()
        .copied()
        .filter(|&holder| can_push_out(pool, claim, holder))
        .collect();
    for victim in victims {
        if reclaim(pool, claim, device, needed) {
            return;
        }
        lost.insert(victim, pool.evict(victim));
    }
    let made = reclaim(pool, claim, device, needed);
    debug_assert!(made, "the price was affordable");
}

/// Assigns all that a burst or lease lacks of its minimum, over any number of devices, or nothing.
fn admit_gang(pool: &mut Pool, reservations: &Reservations, lost: &mut Lost, claim: Rank, before: &[DeviceIndex]) -> bool {
    let min = pool.demand(claim).min;
    let devices = candidates(pool, reservations, claim, before);
    if !within_reach(pool, claim, &devices) {
        return false;
    }
    pool.begin();
    spread(pool, claim, turns(pool, claim, &devices, before), |pool, device| {
        pool.fit(claim, device) > 0
    });
    if pool.held(claim) < min {
        let slice = pool.demand(claim).slice;
        let turns = turns(pool, claim, &devices, before);
        spread(pool, claim, turns, |pool, device| reclaim(pool, claim, device, slice));
    }
    let mut pushed_out = Vec::new();
    if pool.held(claim) < min {
        let mut useful = vec![false; pool.devices.len()];
        devices.iter().for_each(|&device| useful[device as usize] = true);
        let victims: Vec<Rank> = pool.ranks().rev().filter(|&victim| can_push_out(pool, claim, victim)).collect();
        for victim in victims {
            let freed: Vec<DeviceIndex> = pool
                .holdings(victim)
                .keys()
                .copied()
                .filter(|&device| useful[device as usize])
                .collect();
            if !freed.is_empty() {
                pushed_out.push((victim, pool.evict(victim)));
                let turns = turns(pool, claim, &freed, before);
                spread(pool, claim, turns, |pool, device| pool.fit(claim, device) > 0);
            }
            if pool.held(claim) == min {
                break;
            }
        }
    }
    if pool.held(claim) < min {
        pool.roll_back();
        return false;
    }
    pool.commit();
    lost.extend(pushed_out);
    true
}

/// Whether the missing part of the minimum would fit if every claim yielded all slices that it can. A cheap check before the exact one.
fn within_reach(pool: &Pool, claim: Rank, devices: &[DeviceIndex]) -> bool {
    let (slice, missing) = (pool.demand(claim).slice, u64::from(pool.missing(claim)));
    let mut fits = 0_u64;
    for &device in devices {
        fits += pool.free(device) / slice;
        if fits >= missing {
            return true;
        }
    }
    fits = 0;
    for &device in devices {
        let yielding = pool.holders(device).range(yields_from(pool, claim)..).map(|(&holder, &slices)| {
            let slices = if can_push_out(pool, claim, holder) {
                slices
            } else {
                surplus_for(pool, claim, holder).min(slices)
            };
            u64::from(slices) * pool.demand(holder).slice
        });
        fits += (pool.free(device) + yielding.sum::<u64>()) / slice;
        if fits >= missing {
            return true;
        }
    }
    false
}

/// Groups the devices into turns. In each round every turn provides one slice, on the first of its devices that has room. For a burst each
/// device is a turn of its own, because its chunks run at the same time. For a lease each worker is a turn: the worker with the smallest
/// allocated share comes first, and of a worker's devices the fullest.
fn turns(pool: &Pool, claim: Rank, devices: &[DeviceIndex], before: &[DeviceIndex]) -> Vec<VecDeque<DeviceIndex>> {
    if pool.demand(claim).claim.kind != ClaimKind::Lease {
        return devices.iter().map(|&device| VecDeque::from([device])).collect();
    }
    let shares = pool.lent_shares();
    let mut sorted = devices.to_vec();
    sorted.sort_by_cached_key(|&device| {
        let (share, load) = (shares[device as usize], pool.load(device));
        (!before.contains(&device), share, load, pool.free(device), device)
    });
    let mut places: HashMap<&str, usize> = HashMap::new();
    let mut turns: Vec<VecDeque<DeviceIndex>> = Vec::new();
    for device in sorted {
        let place = *places.entry(&pool.devices[device as usize].id.worker).or_insert_with(|| {
            turns.push(VecDeque::new());
            turns.len() - 1
        });
        turns[place].push_back(device);
    }
    turns
}

/// Assigns slices one by one, round-robin over the turns, until the claim holds its minimum or no device has room.
fn spread(pool: &mut Pool, claim: Rank, mut turns: Vec<VecDeque<DeviceIndex>>, mut has_room: impl FnMut(&mut Pool, DeviceIndex) -> bool) {
    let min = pool.demand(claim).min;
    while pool.held(claim) < min && !turns.is_empty() {
        turns.retain_mut(|devices| {
            while let Some(&device) = devices.front().filter(|_| pool.held(claim) < min) {
                if has_room(pool, device) {
                    pool.give(claim, device, 1);
                    return true;
                }
                devices.pop_front();
            }
            false
        });
    }
}
