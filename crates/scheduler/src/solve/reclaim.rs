//! Takes slices from holders on one device.

use std::cmp::Reverse;

use crate::pool::{DeviceIndex, Pool, Rank};

/// Takes slices of other claims on `device` until `needed` bytes are free. Returns `false` and takes nothing if that many bytes cannot be
/// freed.
///
/// Only holders of rank `from` or later lose slices. `yields` returns how many slices a holder may lose, capped at what it holds on the
/// device. The claim with the lowest priority loses first, then the one with the most slices, then the younger.
pub(crate) fn make_room(pool: &mut Pool, device: DeviceIndex, needed: u64, from: Rank, yields: impl Fn(&Pool, Rank) -> u32) -> bool {
    let mut missing = needed.saturating_sub(pool.free(device));
    if missing == 0 {
        return true;
    }
    let mut victims: Vec<(Rank, u32)> = Vec::new();
    let mut reachable = 0_u64;
    for (&holder, &slices) in pool.holders(device).range(from..) {
        let slices = yields(pool, holder).min(slices);
        if slices > 0 {
            victims.push((holder, slices));
            reachable = reachable.saturating_add(u64::from(slices) * pool.demand(holder).slice);
        }
    }
    if reachable < missing {
        return false;
    }
    victims.sort_by_key(|&(holder, _)| (pool.priority(holder), Reverse(pool.held(holder)), Reverse(holder)));
    for (holder, slices) in victims {
        if missing == 0 {
            break;
        }
        let slice = pool.demand(holder).slice;
        let slices = u64::from(slices).min(missing.div_ceil(slice)) as u32;
        pool.take(holder, device, slices);
        missing = missing.saturating_sub(u64::from(slices) * slice);
    }
    debug_assert!(pool.free(device) >= needed, "room was made");
    true
}
