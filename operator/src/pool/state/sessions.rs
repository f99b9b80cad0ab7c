//! States of sessions, as reported by the agents that hold their slices.

use std::{collections::BTreeSet, time::Duration};

use sahasra_names::{OwnerUid, WorkerName};
use sahasra_scheduler::ClaimKind;
use sahasra_wire::{
    inventory::{Inventory, SessionLoad},
    milliseconds,
};

use super::State;
use crate::pool::claim::SeenSession;

#[derive(Debug)]
pub(super) struct Seen {
    pub(super) worker: WorkerName,
    pub(super) load: SessionLoad,
    at: Duration,
}

impl State {
    /// The last reported state of the owner's session.
    pub(in crate::pool) fn session(&self, owner_uid: &str, now: Duration) -> Option<SeenSession> {
        self.sessions.get(owner_uid).map(|seen| SeenSession {
            load: seen.load.clone(),
            age: now.saturating_sub(seen.at),
        })
    }

    /// Changes the maximum time for which clients can keep the claim's slice. The next renewal sends it to the agent.
    pub(in crate::pool) fn keep(&mut self, uid: &str, keep: Duration) {
        if let Some(terms) = self.claims.get_mut(uid).and_then(|claim| claim.request.session.as_mut()) {
            terms.keep_milliseconds = milliseconds(keep);
        }
    }

    /// Returns and clears the namespace and name of the sessions whose reported state has changed since the last call.
    pub(in crate::pool) fn take_changed_sessions(&mut self) -> Vec<(String, String)> {
        std::mem::take(&mut self.changed_sessions).into_iter().collect()
    }

    pub(super) fn record_sessions(&mut self, worker: &WorkerName, inventory: &Inventory, now: Duration) {
        // An agent whose answer to an acquire was lost may report a session that is placed on another worker.
        let is_elsewhere = |load: &SessionLoad| {
            let claim = self.claims.get(load.owner_uid.as_str());
            claim.is_some_and(|claim| !claim.grants.is_empty() && claim.grants.iter().all(|held| held.device.worker != *worker))
        };
        let loads: Vec<&SessionLoad> = inventory.sessions.iter().filter(|load| !is_elsewhere(load)).collect();
        let listed: BTreeSet<&str> = loads.iter().map(|load| load.owner_uid.as_str()).collect();
        self.sessions
            .retain(|owner, seen| seen.worker != *worker || listed.contains(&**owner));
        for load in loads {
            let seen = Seen {
                worker: worker.clone(),
                load: load.clone(),
                at: now,
            };
            let old = self.sessions.insert(OwnerUid::from(&load.owner_uid), seen);
            // The idle and held times change with every inventory, so they do not count as a difference.
            let differs = old.is_none_or(|old| {
                SessionLoad {
                    idle_milliseconds: load.idle_milliseconds,
                    held_milliseconds: load.held_milliseconds,
                    ..old.load
                } != *load
            });
            if differs {
                self.changed_sessions.insert((load.namespace.clone(), load.name.clone()));
            }
        }
    }

    /// The workers that hold a slice of a session, with or without a claim.
    pub(super) fn workers_with_sessions(&self) -> BTreeSet<WorkerName> {
        let claims = self.claims.values().filter(|claim| claim.request.kind == ClaimKind::Session);
        let held = claims.flat_map(|claim| &claim.grants);
        let held = held.map(|held| &held.device.worker);
        held.chain(self.orphans.values().map(|orphan| &orphan.worker)).cloned().collect()
    }
}
