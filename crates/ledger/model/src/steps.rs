//! Actions that each state of the model allows, and the states to which they lead.

use std::sync::Arc;

use stateright::{Model, Property};

use super::{
    AGENTS, Bounds, DEVICE, GRACE, LEASES, ROOM, TTL,
    agent::Agent,
    messages::{Action, Call, Message, Name},
    see,
    state::{Coordinator, State},
};

impl Bounds {
    /// Returns the last tick at which messages reach an agent: grants of that tick end within the remaining ticks.
    fn last_delivery(&self) -> u8 {
        self.ticks.saturating_sub(TTL + GRACE)
    }

    fn sends(&self, state: &State, actions: &mut Vec<Action>) {
        if state.under_way.len() >= self.under_way {
            return;
        }
        // Leases are interchangeable: a lease is used only after those with lower numbers, which avoids equivalent states.
        let used = |lease: usize| {
            let by_message = state.under_way.iter().any(|message| message.lease == lease);
            by_message
                || state
                    .agents
                    .iter()
                    .any(|agent| agent.ledger.term(&lease.to_string().into()).is_some())
        };
        let fresh = (0..LEASES).find(|lease| !used(*lease)).unwrap_or(LEASES);
        for (from, coordinator) in state.coordinators.iter().enumerate() {
            if coordinator.sent >= self.messages {
                continue;
            }
            let mut send = |to: usize, lease, call| {
                let message = Message { from, to, lease, call };
                if state.agents[to].now <= self.last_delivery() && !state.under_way.contains(&message) {
                    actions.push(Action::Send(message));
                }
            };
            // Agents are interchangeable, so the first message of all goes to the first agent.
            for to in 0..if fresh == 0 { 1 } else { AGENTS } {
                for lease in 0..LEASES.min(fresh + 1) {
                    // The second lease requests more than the first one leaves.
                    let (boot, slices) = (coordinator.boots[to], if lease == 1 { 2 } else { 1 });
                    send(to, lease, Call::Acquire { boot, slices });
                }
            }
            for ((to, name), lease) in &coordinator.grants {
                send(*to, *lease, Call::Renew(*name));
                send(*to, *lease, Call::Release(*name));
            }
        }
    }
}

impl Model for Bounds {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            agents: [0, 1].map(|index| Arc::new(Agent::new(index, 0, 0))),
            coordinators: Default::default(),
            under_way: Vec::new(),
            repeats: 0,
            kernels: 0,
            restarts: 0,
            broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.sends(state, actions);
        for message in &state.under_way {
            actions.push(Action::Lose(*message));
            if state.agents[message.to].now > self.last_delivery() {
                continue;
            }
            let repeats: &[bool] = if state.repeats < self.repeats { &[false, true] } else { &[false] };
            for again in repeats {
                for answered in [false, true] {
                    actions.push(Action::Deliver {
                        message: *message,
                        again: *again,
                        answered,
                    });
                }
            }
        }
        if state.agents[0].now < self.ticks {
            actions.push(Action::Tick);
        }
        for (index, agent) in state.agents.iter().enumerate() {
            if state.restarts < self.restarts && agent.now <= self.last_delivery() && !agent.ends.is_empty() {
                actions.push(Action::Restart(index));
            }
            let unknown = |(_, coordinator): &(usize, &Coordinator)| {
                coordinator.sent < self.messages
                    && (coordinator.boots[index] != agent.boot
                        || agent.grants().any(|(counter, _, _, draining)| {
                            let name = Name { boot: agent.boot, counter };
                            !draining && !coordinator.grants.contains_key(&(index, name))
                        }))
            };
            // The first coordinator is skipped: when it starts, there are no grants to adopt.
            for (coordinator, _) in state.coordinators.iter().enumerate().skip(1).filter(unknown) {
                actions.push(Action::Adopt { coordinator, agent: index });
            }
            for lease in 0..LEASES {
                let active = agent.ledger.active_slices(&lease.to_string().into(), &DEVICE.into());
                if state.kernels < self.kernels && active > u32::from(agent.runs(lease)) {
                    for hangs in [false, true] {
                        actions.push(Action::Start {
                            agent: index,
                            lease,
                            hangs,
                        });
                    }
                }
                if agent.running[lease].0 > 0 {
                    actions.push(Action::End { agent: index, lease });
                }
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Send(message) => {
                state.coordinators[message.from].sent += 1;
                state.under_way.push(message);
                // Messages overtake each other, so their order makes no difference.
                state.under_way.sort_unstable();
            }
            Action::Lose(message) => state.under_way.retain(|other| *other != message),
            Action::Deliver { message, again, answered } => {
                if again {
                    state.repeats += 1;
                } else {
                    state.under_way.retain(|other| *other != message);
                }
                state.deliver(message, answered, &self.seen);
            }
            Action::Adopt { coordinator, agent } => {
                let adopted: Vec<_> = state.agents[agent].grants().filter(|(_, _, _, draining)| !draining).collect();
                let boot = state.agents[agent].boot;
                let coordinator = &mut state.coordinators[coordinator];
                coordinator.boots[agent] = boot;
                for (counter, _, lease, _) in adopted {
                    coordinator.grants.insert((agent, Name { boot, counter }), lease);
                }
            }
            Action::Start { agent, lease, hangs } => {
                state.kernels += 1;
                let time = state.agents[agent].time();
                let agent = state.agent(agent);
                if agent.ledger.occupy(time, &lease.to_string().into(), &DEVICE.into(), 1) == 0 {
                    return None;
                }
                let running = &mut agent.running[lease];
                if hangs {
                    running.1 += 1;
                } else {
                    running.0 += 1;
                }
            }
            Action::End { agent: index, lease } => {
                let time = state.agents[index].time();
                let agent = state.agent(index);
                agent.running[lease].0 -= 1;
                agent.ledger.vacate(time, &lease.to_string().into(), &DEVICE.into(), 1);
                state.settle(index, &self.seen);
            }
            Action::Tick => {
                for index in 0..AGENTS {
                    let agent = state.agent(index);
                    agent.now += 1;
                    let time = agent.time();
                    // Called only when the ledger's deadline has passed, as the agent does.
                    if agent.ledger.next_deadline().is_some_and(|deadline| deadline <= time) {
                        agent.ledger.expire(time);
                    }
                    if agent.ends.values().any(|(_, end)| *end == agent.now) {
                        see(&self.seen.expired);
                    }
                    state.settle(index, &self.seen);
                }
            }
            Action::Restart(index) => {
                state.restarts += 1;
                let agent = &state.agents[index];
                let restarted = Agent::new(index, agent.boot + 1, agent.now);
                state.agents[index] = Arc::new(restarted);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("what is lent or runs fits the device", |_, state: &State| {
                state.agents.iter().all(|agent| agent.taken() <= ROOM)
            }),
            Property::always("no call does what it must not", |_, state: &State| state.broken.is_none()),
            Property::always("everything is free in the end", |bounds: &Self, state: &State| {
                let mut actions = Vec::new();
                if state.agents.iter().all(|agent| agent.now == bounds.ticks) {
                    bounds.actions(state, &mut actions);
                    return !actions.is_empty() || state.agents.iter().all(|agent| agent.is_free());
                }
                true
            }),
        ]
    }
}
