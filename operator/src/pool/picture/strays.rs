//! Slices of sessions that nobody here knows: given up while their agent could not be asked, or whose objects somebody took away by force.
//! Their agents keep them for as long as a client is connected.

use sahasra_scheduler::Name;
use sahasra_wire::{grants::Owner, inventory::Inventory};

use super::Picture;

/// What nobody claims for so long, in milliseconds, is nobody's: an operator that has just begun to lead takes up what it finds.
const STRAY_AFTER: u64 = 10_000;

#[derive(Debug)]
pub(super) struct Stray {
    pub(super) worker: Name,
    owner: Owner,
    since: u64,
}

impl Picture {
    /// Owners of what nobody here has claimed for long enough. Whether they still stand the API server has to say.
    pub(in crate::pool) fn strays(&self, now: u64) -> Vec<Owner> {
        let old = self.strays.values().filter(|stray| stray.since + STRAY_AFTER <= now);
        old.map(|stray| stray.owner.clone()).collect()
    }

    /// Takes up which sessions an agent has that nobody here has claimed.
    pub(super) fn hear_of_strays(&mut self, worker: &Name, inventory: &Inventory, now: u64) {
        let mut strays = std::mem::take(&mut self.strays);
        let mut found = Vec::new();
        for load in inventory.sessions.iter().filter(|load| load.ended.is_empty()) {
            let held = |grant: &&sahasra_wire::grants::Grant| {
                grant.owner_uid == load.owner_uid && !grant.draining && !self.returning.contains_key(&grant.id)
            };
            let grant = inventory.grants.iter().find(held);
            let Some(grant) = grant.filter(|_| !self.claims.contains_key(load.owner_uid.as_str())) else {
                continue;
            };
            let since = strays.get(load.owner_uid.as_str()).map_or(now, |stray| stray.since);
            let owner = Owner {
                uid: load.owner_uid.clone(),
                namespace: load.namespace.clone(),
                name: format!("GpuSession/{}", load.name),
                // Nobody else acts for it any more.
                term: grant.term + 1,
            };
            let stray = Stray {
                worker: worker.clone(),
                owner,
                since,
            };
            found.push((Name::from(load.owner_uid.as_str()), stray));
        }
        strays.retain(|_, stray| stray.worker != *worker);
        strays.extend(found);
        self.strays = strays;
    }
}
