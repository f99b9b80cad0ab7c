//! Minima that are raised while a claim holds slices.

use std::{collections::BTreeMap, time::Duration};

use sahasra_names::DeviceId;

use super::{ClaimState, Held, State, slices_of};

impl State {
    /// Changes the minimum, maximum and priority of a claim. A raised minimum waits from `now` on.
    pub(in crate::pool) fn resize(&mut self, uid: &str, min: u32, max: u32, priority: i32, now: Duration) {
        if let Some(claim) = self.claims.get_mut(uid) {
            let held = slices_of(&claim.grants);
            if min > claim.request.min && min > held {
                if claim.kept == 0 && held >= claim.request.min {
                    claim.kept = held;
                }
                claim.since = now;
                claim.unplanned = !claim.is_spent();
            }
            (claim.request.min, claim.request.max, claim.request.priority) = (min, max, priority);
            self.publish(&uid.into());
        }
    }
}

impl ClaimState {
    /// The slices that the claim keeps while a raised minimum waits, by device.
    pub(super) fn kept(&self) -> BTreeMap<DeviceId, u32> {
        let mut left = self.kept;
        let mut oldest: Vec<&Held> = self.grants.iter().collect();
        oldest.sort_by_key(|held| held.known);
        let mut kept = BTreeMap::new();
        for held in oldest {
            let slices = held.slices.min(left);
            if slices > 0 {
                *kept.entry(held.device.clone()).or_default() += slices;
            }
            left -= slices;
        }
        kept
    }
}
