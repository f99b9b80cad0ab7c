//! Load that agents have not reported yet. The reported load of a device is seconds old: it contains neither the work that was placed on
//! the device since the report nor a session that was just created. Placement counts this load too; otherwise, claims that arrive at the
//! same time would all be placed on one device.

use std::{collections::BTreeMap, time::Duration};

use sahasra_names::DeviceId;
use sahasra_scheduler::ClaimKind;

use super::{ClaimState, SESSIONS_EVERY, State};

/// Time for which a new session counts as one execution, unless its agent reports a tensor or an execution earlier. A
/// session that stays unused for longer is idle.
const ASSUMED_FOR: Duration = SESSIONS_EVERY.saturating_mul(2);

impl State {
    /// Executions on each device in addition to those that its agent has reported.
    pub(super) fn assumed(&self, now: Duration) -> BTreeMap<DeviceId, u64> {
        let mut assumed = BTreeMap::new();
        let works = |claim: &&ClaimState| claim.request.kind != ClaimKind::Lease && !claim.ending;
        for claim in self.claims.values().filter(works) {
            let acquiring = claim.acquiring.iter().map(|(device, slices)| (device, *slices));
            let held = (claim.grants.iter())
                .filter(|held| match claim.request.kind {
                    ClaimKind::Session => !self.has_shown(claim) && held.known + ASSUMED_FOR > now,
                    _ => (self.workers.get(&held.device.worker))
                        .is_some_and(|worker| worker.inventory_at.is_none_or(|inventory_at| held.known >= inventory_at)),
                })
                .map(|held| (&held.device, held.slices));
            for (device, slices) in acquiring.chain(held) {
                *assumed.entry(device.clone()).or_default() += u64::from(slices);
            }
        }
        assumed
    }

    /// Whether the agent has reported load of the session. The load of the device then includes it.
    fn has_shown(&self, claim: &ClaimState) -> bool {
        let seen = self.sessions.get(claim.request.owner.uid.as_str());
        seen.is_some_and(|seen| seen.load.tensors > 0 || seen.load.active_executions > 0)
    }

    pub(super) fn forget_load(&mut self, claim: &ClaimState) {
        let Some(seen) = self.sessions.get(claim.request.owner.uid.as_str()) else {
            return;
        };
        let (active, bytes, tensors) = (seen.load.active_executions, seen.load.stored_bytes, seen.load.tensors);
        for held in &claim.grants {
            if let Some(device) = self.device_mut(&held.device) {
                let load = &mut device.load;
                load.active_executions = load.active_executions.saturating_sub(active);
                load.stored_tensor_bytes = load.stored_tensor_bytes.saturating_sub(bytes);
                load.tensor_count = load.tensor_count.saturating_sub(tensors);
            }
        }
    }
}
