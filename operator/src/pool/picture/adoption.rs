//! What agents hold for owners that are no claims here yet: granted in an earlier term, for the next one to adopt.
//!
//! Each agent is asked once when this operator begins to lead, for all owners together: as many calls as there are agents, however
//! many objects there are.

use sahasra_scheduler::Name;
use sahasra_wire::{grants::Grant, inventory::Inventory};

use super::Picture;

/// What agents hold for one owner.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Unclaimed {
    /// Worker and grant; how long it lasts is counted from now on.
    pub grants: Vec<(String, Grant)>,
    /// Live workers that have not said what they hold.
    pub silent: Vec<String>,
}

impl Picture {
    /// What agents hold for an owner that is no claim here; `None` while some have yet to answer, unless it is `late`.
    pub(in crate::pool) fn unclaimed(&self, owner_uid: &str, late: bool, now: u64) -> Option<Unclaimed> {
        let mut found = Unclaimed::default();
        for (name, worker) in self.workers.iter().filter(|(_, worker)| worker.live) {
            if !worker.answered && !late {
                return None;
            }
            if !worker.answered || worker.failing.is_some() {
                found.silent.push(name.to_string());
            }
            for (grant, expires) in worker.unclaimed.get(owner_uid).into_iter().flatten() {
                if let Some(left) = expires.checked_sub(now).filter(|left| *left > 0) {
                    let grant = Grant {
                        expires_in_milliseconds: left,
                        ..grant.clone()
                    };
                    found.grants.push((name.to_string(), grant));
                }
            }
        }
        Some(found)
    }

    /// Registers what an agent holds for owners that are no claims here, as of a request sent at `asked`.
    pub(super) fn hear_of_unclaimed(&mut self, worker: &Name, inventory: &Inventory, asked: u64) {
        let mut unclaimed = std::collections::BTreeMap::<Name, Vec<(Grant, u64)>>::new();
        for grant in inventory.grants.iter().filter(|grant| !grant.draining) {
            if !self.claims.contains_key(grant.owner_uid.as_str()) && !self.returning.contains_key(&grant.id) {
                let expires = asked + grant.expires_in_milliseconds;
                unclaimed
                    .entry(grant.owner_uid.as_str().into())
                    .or_default()
                    .push((grant.clone(), expires));
            }
        }
        if let Some(view) = self.workers.get_mut(worker) {
            view.unclaimed = unclaimed;
            view.answered = true;
        }
    }

    /// Requests an inventory from each agent that may hold something for a claim: without one, what is known of the claim is not updated.
    pub(in crate::pool) fn request_inventories(&mut self, owner_uid: &str, now: u64) {
        let Some(claim) = self.claims.get(owner_uid) else { return };
        let devices: Vec<Name> = (claim.slices_by_device().into_keys()).map(|device| device.worker).collect();
        for worker in devices {
            if let Some(view) = self.workers.get_mut(&worker) {
                view.answered = false;
                view.ask_at = Some(now);
            }
        }
    }
}
