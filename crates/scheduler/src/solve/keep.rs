//! Adopts the previous assignments that are still valid.

use std::collections::BTreeMap;

use crate::{
    Assignment, Claim, ClaimKind, Unusable,
    pool::{DeviceIndex, Pool, Rank},
};

/// Former devices of the claims that lost their minimum. These devices are preferred when such a claim is admitted again.
pub(crate) type Lost = BTreeMap<Rank, BTreeMap<DeviceIndex, u32>>;

/// Assigns to each claim the slices that it held before, unless the claim, the device or the free bytes do not exist any more. If a device
/// has fewer allocatable bytes than are held there, surplus is dropped before minima, bursts before leases before sessions, and less
/// important claims before more important ones.
pub(crate) fn keep(pool: &mut Pool, previous: &[Assignment]) -> Lost {
    let mut wanted = standing(pool, previous);
    let mut lost = Lost::new();
    for kind in [ClaimKind::Session, ClaimKind::Lease, ClaimKind::Burst] {
        let claims: Vec<Rank> = wanted
            .keys()
            .copied()
            .filter(|&claim| pool.demand(claim).claim.kind == kind)
            .collect();
        for claim in claims {
            let min = pool.demand(claim).min;
            let kept = kept(pool, claim, &wanted[&claim]);
            if kind == ClaimKind::Session {
                keep_on_one_device(pool, claim, &wanted[&claim]);
            } else {
                keep_up_to(pool, claim, &kept, min);
                keep_up_to(pool, claim, &wanted[&claim], min);
            }
            if pool.held(claim) < min {
                pool.evict(claim);
                keep_up_to(pool, claim, &kept, min);
                lost.insert(claim, wanted.remove(&claim).unwrap_or_default());
            }
        }
    }
    for (claim, devices) in wanted {
        keep_up_to(pool, claim, &devices, pool.demand(claim).max);
    }
    lost
}

/// Previous slices of known claims on known devices, without those that count as lost.
fn standing(pool: &Pool, previous: &[Assignment]) -> BTreeMap<Rank, BTreeMap<DeviceIndex, u32>> {
    let ranks: std::collections::HashMap<&str, Rank> = pool.ranks().map(|rank| (&*pool.demand(rank).claim.id, rank)).collect();
    let mut standing: BTreeMap<Rank, BTreeMap<DeviceIndex, u32>> = BTreeMap::new();
    for assignment in previous {
        let (Some(&claim), Some(device)) = (ranks.get(&*assignment.claim), pool.device_index(&assignment.device)) else {
            continue;
        };
        let demand = pool.demand(claim);
        let stands = match pool.devices[device as usize].usable {
            Ok(()) | Err(Unusable::Cordoned) => true,
            // The client's connection may keep a session alive even while the operator cannot see its worker.
            Err(Unusable::NotReady | Unusable::Unhealthy) => demand.is_session(),
        };
        if stands && assignment.slices > 0 {
            let slices = standing.entry(claim).or_default().entry(device).or_insert(0);
            *slices = slices.saturating_add(assignment.slices);
        }
    }
    standing
}

/// The part of `held` that the claim keeps while a raised minimum waits.
fn kept(pool: &Pool, claim: Rank, held: &BTreeMap<DeviceIndex, u32>) -> BTreeMap<DeviceIndex, u32> {
    let Claim { kind, kept, .. } = pool.demand(claim).claim;
    match kind {
        ClaimKind::Session => return BTreeMap::new(),
        ClaimKind::Burst if !kept.is_empty() => return held.clone(),
        ClaimKind::Burst | ClaimKind::Lease => {}
    }
    let kept = kept.iter();
    kept.filter_map(|(device, &slices)| {
        let device = pool.device_index(device)?;
        Some((device, slices.min(*held.get(&device)?)))
    })
    .collect()
}

/// Keeps all slices of a session on the first device that holds enough of them.
fn keep_on_one_device(pool: &mut Pool, claim: Rank, devices: &BTreeMap<DeviceIndex, u32>) {
    let min = pool.demand(claim).min;
    let home = devices
        .iter()
        .find(|&(&device, &slices)| slices >= min && pool.fit(claim, device) >= min);
    if let Some((&device, _)) = home {
        pool.give(claim, device, min);
    }
}

/// Restores previous slices, device by device, until the claim has `limit` slices.
fn keep_up_to(pool: &mut Pool, claim: Rank, devices: &BTreeMap<DeviceIndex, u32>, limit: u32) {
    for (&device, &slices) in devices {
        let already = pool.holdings(claim).get(&device).copied().unwrap_or(0);
        let wanted = slices.saturating_sub(already).min(limit.saturating_sub(pool.held(claim)));
        pool.give(claim, device, wanted.min(pool.fit(claim, device)));
    }
}
