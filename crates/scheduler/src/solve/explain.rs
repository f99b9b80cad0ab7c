//! Builds the solution from the final pool state: assignments, reasons and their summary.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use sahasra_names::{Bytes, DeviceId};

use crate::{
    Assignment, Device, Refusal, Solution, WhyNot,
    pool::{DeviceIndex, Pool, Rank},
};

use super::{RESERVE_AFTER, Reservations};

/// Builds the assignments, and for each claim without its minimum the reason for every device.
pub(crate) fn explain(pool: &Pool, reservations: &Reservations, now: Duration) -> Solution {
    let mut solution = Solution {
        revisit_at: revisit_at(pool, now),
        ..Solution::default()
    };
    let mut known: HashMap<(usize, u32, u32, usize), Refusal> = HashMap::new();
    let mut by_id: Vec<Rank> = pool.ranks().collect();
    by_id.sort_unstable_by_key(|&claim| &pool.demand(claim).claim.id);
    for claim in by_id {
        let demand = pool.demand(claim);
        if pool.missing(claim) > 0 {
            // The reasons depend on these values of a claim only.
            let terms = (demand.group, demand.min, pool.held(claim), reservations.before(claim));
            let same = known.entry(terms).or_insert_with(|| refusal(pool, reservations, claim, now));
            solution.refusals.push(Refusal {
                claim: demand.claim.id.clone(),
                ..same.clone()
            });
        }
        // Devices are numbered in the order of ids, so the assignments are pushed in sorted order.
        for (&device, &slices) in pool.holdings(claim) {
            solution.assignments.push(Assignment {
                claim: demand.claim.id.clone(),
                device: pool.devices[device as usize].id.clone(),
                slices,
            });
        }
    }
    debug_assert!(solution.assignments.is_sorted() && solution.refusals.is_sorted_by_key(|refusal| &refusal.claim));
    solution
}

/// Time at which the next rejection by an agent expires or the next waiting claim reaches [`RESERVE_AFTER`], whichever comes first.
fn revisit_at(pool: &Pool, now: Duration) -> Option<Duration> {
    pool.ranks()
        .filter(|&claim| pool.held(claim) < pool.demand(claim).max)
        .flat_map(|claim| {
            let waiting = pool.missing(claim) > 0;
            let claim = pool.demand(claim).claim;
            let reserve_at = waiting.then(|| claim.since.saturating_add(RESERVE_AFTER));
            claim.refused.values().copied().chain(reserve_at)
        })
        .filter(|&at| at > now)
        .min()
}

/// The reason for every device, and their summary.
fn refusal(pool: &Pool, reservations: &Reservations, claim: Rank, now: Duration) -> Refusal {
    let why_not: Vec<(DeviceId, WhyNot)> = (0..pool.devices.len() as DeviceIndex)
        .map(|device| {
            (
                pool.devices[device as usize].id.clone(),
                why_not(pool, reservations, claim, device, now),
            )
        })
        .collect();
    let nearest = (0..why_not.len()).min_by_key(|&place| (why_not[place].1.rank(), shortfall(&why_not[place].1)));
    Refusal {
        claim: pool.demand(claim).claim.id.clone(),
        summary: summary(pool, claim, &why_not, nearest).into(),
        why_not: why_not.into(),
        nearest,
    }
}

fn why_not(pool: &Pool, reservations: &Reservations, claim: Rank, index: DeviceIndex, now: Duration) -> WhyNot {
    let (demand, device): (_, &Device) = (pool.demand(claim), pool.devices[index as usize]);
    let wish = demand.claim;
    if let Some(wanted) = wish.class.as_ref().filter(|wanted| **wanted != device.class) {
        return WhyNot::ClassMismatch {
            wanted: wanted.clone(),
            has: device.class.clone(),
        };
    }
    if let Some(wanted) = wish.engine.filter(|wanted| !device.engines.contains(wanted)) {
        return WhyNot::EngineUnsupported { wanted };
    }
    if let Err(unusable) = device.usable {
        return WhyNot::Unusable(unusable);
    }
    if demand.unit() > device.allocatable_bytes {
        return WhyNot::TooSmall {
            slice: demand.unit(),
            allocatable: device.allocatable_bytes,
        };
    }
    if let Some(&until) = wish.refused.get(&device.id).filter(|until| **until > now) {
        return WhyNot::RejectedRecently { until };
    }
    if let Some(holder) = reservations.of(index).filter(|&holder| holder < claim) {
        return WhyNot::ReservedFor {
            claim: pool.demand(holder).claim.id.clone(),
        };
    }
    if pool.free(index) >= demand.unit() && !demand.is_session() {
        return WhyNot::TooFewSlices {
            fit: pool.fit(claim, index),
            needed: pool.missing(claim),
        };
    }
    WhyNot::InsufficientVram {
        free: pool.free(index),
        needed: demand.unit(),
    }
}

/// Summary such as "needs 1 slice of 8Gi on class g5; none of 3 devices serves: 2 full, 1 not ready; nearest worker-a/gpu0: 3Gi free,
/// slice needs 8Gi".
fn summary(pool: &Pool, claim: Rank, why_not: &[(DeviceId, WhyNot)], nearest: Option<usize>) -> String {
    let demand = pool.demand(claim);
    let missing = pool.missing(claim);
    let more = if pool.held(claim) > 0 { " more" } else { "" };
    let plural = if missing == 1 { "" } else { "s" };
    let mut text = format!("needs {missing}{more} slice{plural} of {}", Bytes(demand.slice));
    if demand.is_session() && demand.min > 1 {
        text += " on one device";
    }
    if let Some(class) = &demand.claim.class {
        text += &format!(" on class {class}");
    }
    let mut counts: BTreeMap<(u8, &str), usize> = BTreeMap::new();
    for (_, why_not) in why_not {
        *counts.entry(why_not.rank()).or_default() += 1;
    }
    let counts: Vec<String> = counts
        .iter()
        .map(|((_, adjective), count)| format!("{count} {adjective}"))
        .collect();
    let Some((device, reason)) = nearest.map(|place| &why_not[place]) else {
        return text + "; the pool has no devices";
    };
    if why_not.len() == 1 {
        return format!("{text}; {device}: {reason}");
    }
    text += &format!("; none of {} devices serves: {}", why_not.len(), counts.join(", "));
    format!("{text}; nearest {device}: {reason}")
}

/// Missing amount, to find the nearest among devices with the same reason.
fn shortfall(why_not: &WhyNot) -> u64 {
    match why_not {
        WhyNot::InsufficientVram { free, needed } => needed.saturating_sub(*free),
        WhyNot::TooSmall { slice, allocatable } => slice.saturating_sub(*allocatable),
        WhyNot::TooFewSlices { fit, needed } => u64::from(needed.saturating_sub(*fit)),
        _ => 0,
    }
}
