//! Orphaned slices of sessions: agents hold them, but no claim exists. They were released while their agent could not be reached, or their
//! objects were deleted without waiting for the finalizer. The agent keeps such a slice for as long as a client is connected.

use std::time::Duration;

use sahasra_names::{OwnerUid, WorkerName};
use sahasra_wire::{grants::Owner, inventory::Inventory};

use super::State;

/// Time after which a session without a claim counts as an orphan. An operator that has just begun to lead needs time to
/// adopt sessions.
const ORPHAN_AFTER: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Orphan {
    pub(super) worker: WorkerName,
    owner: Owner,
    since: Duration,
}

impl State {
    /// Owners of the slices that have been without a claim for long enough. The caller must check with the API server whether their objects
    /// still exist.
    pub(in crate::pool) fn orphans(&self, now: Duration) -> Vec<Owner> {
        let old = self.orphans.values().filter(|orphan| orphan.since + ORPHAN_AFTER <= now);
        old.map(|orphan| orphan.owner.clone()).collect()
    }

    /// Records the sessions of an agent that have no claim.
    pub(super) fn record_orphans(&mut self, worker: &WorkerName, inventory: &Inventory, now: Duration) {
        let mut orphans = std::mem::take(&mut self.orphans);
        let mut found = Vec::new();
        for load in inventory.sessions.iter().filter(|load| load.ended.is_empty()) {
            let held = |grant: &&sahasra_wire::grants::Grant| {
                grant.owner_uid == load.owner_uid && !grant.draining && !self.returning.contains_key(&grant.id)
            };
            let grant = inventory.grants.iter().find(held);
            let Some(grant) = grant.filter(|_| !self.claims.contains_key(load.owner_uid.as_str())) else {
                continue;
            };
            let since = orphans.get(load.owner_uid.as_str()).map_or(now, |orphan| orphan.since);
            let owner = Owner {
                uid: load.owner_uid.clone(),
                namespace: load.namespace.clone(),
                name: format!("GpuSession/{}", load.name),
                // The owner's object does not exist, so no other coordinator can have this term.
                term: grant.term + 1,
            };
            let orphan = Orphan {
                worker: worker.clone(),
                owner,
                since,
            };
            found.push((OwnerUid::from(&load.owner_uid), orphan));
        }
        orphans.retain(|_, orphan| orphan.worker != *worker);
        orphans.extend(found);
        self.orphans = orphans;
    }
}
