//! Check of maxima: in runs without faults, all agents together never grant an object more than its `slices.max`.

use std::collections::{BTreeMap, BTreeSet};

use sahasra_wire::grants::{Grant, Owner, ReleaseRequest};

use crate::world::World;

/// Maxima of objects, and the requests that release their slices.
#[derive(Debug, Default)]
pub struct Maxima {
    /// `slices.max` by namespace, `/` and name.
    most: BTreeMap<String, u32>,
    /// Slices that a grant keeps after a partial release, by agent index and grant counter. Recorded when the request is sent, because an
    /// acquire request may overtake it.
    kept: BTreeMap<(usize, u64), u32>,
    /// UIDs of owners that have released everything.
    ended: BTreeSet<String>,
}

impl Maxima {
    /// Records the maximum of an object before its creation.
    pub fn announce(&mut self, name: String, most: u32) {
        self.most.insert(name, most);
    }

    /// Records a release request to the agent with this index.
    pub fn release(&mut self, index: usize, request: &ReleaseRequest) {
        if request.grants.is_empty() {
            self.ended.insert(request.owner.uid.clone());
        }
        for id in &request.grants {
            self.kept.insert((index, id.counter), request.keep_slices);
        }
    }

    /// Checks the maximum of an owner after an agent has granted slices to it.
    pub fn check(&self, world: &World, owner: &Owner) {
        let name = owner.name.split_once('/').map_or(owner.name.as_str(), |(_, name)| name);
        let name = format!("{}/{name}", owner.namespace);
        let Some(most) = self.most.get(&name).filter(|_| !self.ended.contains(&owner.uid)) else {
            return;
        };
        let mut slices = 0;
        for (index, live) in world.agents.lock().iter() {
            // Draining slices are released already: the owner may hold new ones instead.
            let active = |grant: &&Grant| grant.owner_uid == owner.uid && !grant.draining;
            for grant in live.agent.inventory().grants.iter().filter(active) {
                let kept = self.kept.get(&(*index, grant.id.counter));
                slices += kept.map_or(grant.slices, |kept| grant.slices.min(*kept));
            }
        }
        if slices > *most {
            world.broken(format!("maximum: {slices} slices are lent to {name}, which may have {most}"));
        }
    }
}
