//! Adoption of grants from an earlier term: grants that agents hold for owners that have not registered a claim with this operator yet.
//!
//! The pool requests one inventory from each agent when this operator begins to lead. It serves all owners, so the number of calls is the
//! number of agents, not the number of objects.

use std::time::Duration;

use sahasra_names::{OwnerUid, WorkerName};
use sahasra_wire::{grants::Grant, inventory::Inventory, milliseconds};

use super::State;

/// The grants that agents hold for one owner without a claim.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Unclaimed {
    /// Pairs of worker and grant. The remaining lifetime in the grant counts from now on.
    pub grants: Vec<(WorkerName, Grant)>,
    /// Live workers whose inventory is not known.
    pub silent: Vec<WorkerName>,
}

impl State {
    /// Grants that agents hold for an owner without a claim. Returns `None` while inventories of live workers are missing, unless `late` is
    /// set.
    pub(in crate::pool) fn unclaimed(&self, owner_uid: &str, late: bool, now: Duration) -> Option<Unclaimed> {
        let mut found = Unclaimed::default();
        for (name, worker) in self.workers.iter().filter(|(_, worker)| worker.live) {
            if !worker.answered && !late {
                return None;
            }
            if !worker.answered || worker.failing.is_some() {
                found.silent.push(name.clone());
            }
            for (grant, expires) in worker.unclaimed.get(owner_uid).into_iter().flatten() {
                let left = milliseconds(expires.saturating_sub(now));
                if left > 0 {
                    let grant = Grant {
                        expires_in_milliseconds: left,
                        ..grant.clone()
                    };
                    found.grants.push((name.clone(), grant));
                }
            }
        }
        Some(found)
    }

    /// Records the grants of an agent to owners without a claim, from an inventory that was requested at `sent_at`.
    pub(super) fn record_unclaimed(&mut self, worker: &WorkerName, inventory: &Inventory, sent_at: Duration) {
        let mut unclaimed = std::collections::BTreeMap::<OwnerUid, Vec<(Grant, Duration)>>::new();
        for grant in inventory.grants.iter().filter(|grant| !grant.draining) {
            if !self.claims.contains_key(grant.owner_uid.as_str()) && !self.returning.contains_key(&grant.id) {
                let expires = sent_at + grant.expires_in();
                unclaimed
                    .entry(OwnerUid::from(&grant.owner_uid))
                    .or_default()
                    .push((grant.clone(), expires));
            }
        }
        if let Some(view) = self.workers.get_mut(worker) {
            view.unclaimed = unclaimed;
            view.answered = true;
        }
    }

    /// Requests an inventory from each agent that may hold slices of the claim. Without a claim, the pool's state of these slices is no
    /// longer updated.
    pub(in crate::pool) fn request_inventories(&mut self, owner_uid: &str, now: Duration) {
        let Some(claim) = self.claims.get(owner_uid) else { return };
        let devices: Vec<WorkerName> = (claim.slices_by_device().into_keys()).map(|device| device.worker).collect();
        for worker in devices {
            if let Some(view) = self.workers.get_mut(&worker) {
                view.answered = false;
                view.ask_at = Some(now);
            }
        }
    }
}
