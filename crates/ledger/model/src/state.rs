//! State of the model, and its change by the delivery of a message.

use std::{collections::BTreeMap, sync::Arc};

use sahasra_wire::grants::{AcquireRequest, GrantId, Owner, RejectionCode, ReleaseRequest, RenewOwner};

use super::{
    AGENTS, COORDINATORS, DEVICE, GRACE, SLICE_BYTES, Seen, TICK, TTL,
    agent::Agent,
    boot_id,
    messages::{Call, Message, Name},
    see,
};

/// State of a coordinator, which it derives from the responses it has received.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Coordinator {
    pub(super) sent: u8,
    /// Boots of the agents, as last reported to the coordinator.
    pub(super) boots: [u8; AGENTS],
    /// Leases of the grants that the coordinator knows, by agent and grant.
    pub(super) grants: BTreeMap<(usize, Name), usize>,
}

/// State of the whole model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(super) agents: [Arc<Agent>; AGENTS],
    pub(super) coordinators: [Coordinator; COORDINATORS],
    pub(super) under_way: Vec<Message>,
    pub(super) repeats: u8,
    pub(super) kernels: u8,
    pub(super) restarts: u8,
    /// First violation of a property.
    pub(super) broken: Option<&'static str>,
}

fn owner(lease: usize, coordinator: usize) -> Owner {
    Owner {
        uid: lease.to_string(),
        namespace: "default".to_owned(),
        name: String::new(),
        term: coordinator as u64 + 1,
    }
}

fn milliseconds(ticks: u8) -> u64 {
    u64::from(ticks) * TICK.as_millis() as u64
}

impl State {
    pub(super) fn agent(&mut self, index: usize) -> &mut Agent {
        Arc::make_mut(&mut self.agents[index])
    }

    pub(super) fn fail(&mut self, why: &'static str) {
        self.broken.get_or_insert(why);
    }

    /// Applies the effects of a call or of time, and checks that ended grants are free.
    pub(super) fn settle(&mut self, index: usize, seen: &Seen) {
        if self.agent(index).obey_effects() {
            see(&seen.killed);
        }
        if self.agents[index].overstays() {
            self.fail("a grant that has ended and does not run is not free");
        }
    }

    /// Records an accepted request, and checks the coordinator's term.
    pub(super) fn obeyed(&mut self, index: usize, lease: usize, coordinator: usize) {
        let term = coordinator as u8 + 1;
        let known = self.agents[index].terms[lease];
        if term < known {
            self.fail("a coordinator of a lower term was obeyed");
        }
        self.agent(index).terms[lease] = known.max(term);
    }

    pub(super) fn deliver(&mut self, message: Message, answered: bool, seen: &Seen) {
        let Message { from, to, lease, call } = message;
        let time = self.agents[to].time();
        let owner = owner(lease, from);
        match call {
            Call::Acquire { boot, slices } => {
                let request = AcquireRequest {
                    owner,
                    boot_id: boot_id(to, boot),
                    device: DEVICE.to_owned(),
                    slice_bytes: SLICE_BYTES,
                    slices: u32::from(slices),
                    at_least: 1,
                    ttl_milliseconds: milliseconds(TTL),
                    grace_milliseconds: milliseconds(GRACE),
                    session: None,
                };
                let outcome = self.agent(to).ledger.acquire(time, &request);
                let current = self.agents[to].boot;
                match outcome {
                    Ok(grant) => {
                        if boot != current {
                            self.fail("an acquire for another boot was obeyed");
                        }
                        self.obeyed(to, lease, from);
                        let counter = grant.id.counter as u8;
                        let end = self.agents[to].now + TTL;
                        if self.agent(to).ends.insert(counter, (lease, end)).is_some() {
                            self.fail("the name of a grant was used twice");
                        }
                        if answered {
                            let name = Name { boot: current, counter };
                            self.coordinators[from].grants.insert((to, name), lease);
                        }
                    }
                    Err(refusal) => self.refused(refusal.code(), to, answered.then_some(from), seen),
                }
            }
            Call::Renew(name) => {
                let request = RenewOwner {
                    owner,
                    grants: vec![id(to, name)],
                    ttl_milliseconds: milliseconds(TTL),
                    session: None,
                };
                let outcomes = self.agent(to).ledger.renew(time, &request);
                for outcome in outcomes {
                    if outcome.renewed {
                        if name.boot != self.agents[to].boot {
                            self.fail("a grant of another boot was renewed");
                        }
                        self.obeyed(to, lease, from);
                        let now = self.agents[to].now;
                        match self.agent(to).ends.get_mut(&name.counter) {
                            Some((_, end)) if *end > now => *end = now + TTL,
                            _ => self.fail("a grant that had ended was renewed"),
                        }
                    } else {
                        if answered {
                            self.coordinators[from].grants.remove(&(to, name));
                        }
                        self.refused(outcome.refusal(), to, answered.then_some(from), seen);
                    }
                }
            }
            Call::Release(name) => {
                let request = ReleaseRequest {
                    owner,
                    grants: vec![id(to, name)],
                    keep_slices: 0,
                    immediately: false,
                };
                let before: Vec<_> = self.agents[to].grants().collect();
                let response = self.agent(to).ledger.release(time, &request);
                match response.refusal {
                    Some(refusal) => self.refused(refusal.code(), to, answered.then_some(from), seen),
                    None => {
                        self.obeyed(to, lease, from);
                        if name.boot == self.agents[to].boot {
                            self.agent(to).ends.remove(&name.counter);
                        } else if before != self.agents[to].grants().collect::<Vec<_>>() {
                            self.fail("a release of another boot's grant was obeyed");
                        }
                    }
                }
                if answered {
                    self.coordinators[from].grants.remove(&(to, name));
                }
            }
        }
        self.settle(to, seen);
    }

    /// Handles a rejection. `heard_by` is the coordinator that receives it, if the response is not lost.
    pub(super) fn refused(&mut self, code: RejectionCode, agent: usize, heard_by: Option<usize>, seen: &Seen) {
        match code {
            RejectionCode::StaleTerm => see(&seen.stale_term),
            RejectionCode::BootMismatch => {
                see(&seen.other_boot);
                if let Some(coordinator) = heard_by {
                    self.coordinators[coordinator].boots[agent] = self.agents[agent].boot;
                }
            }
            _ => {}
        }
    }
}

fn id(agent: usize, name: Name) -> GrantId {
    GrantId {
        boot_id: boot_id(agent, name.boot),
        counter: u64::from(name.counter),
    }
}
