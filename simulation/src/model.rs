//! Every state that terms, grants, renewals and expiry can reach with two coordinators, two agents and three leases.
//!
//! The agents' state is the real [`Ledger`]: a guard that is taken out there is found here. Around it stands what the ledger
//! is to withstand: two coordinators of different terms that know nothing of each other, messages that are delayed,
//! reordered, repeated and lost, answers that are lost, agents that start anew, and kernels that end when they like or
//! hang. Each of these is bounded ([`Bounds`]), so that every path ends; that all is free at its end
//! is what makes freeing a matter of time alone.
//!
//! What holds is judged by what the model itself remembers of answers, never by the ledger's own sums.

use std::{
    collections::BTreeMap,
    hash::{Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use sahasra_wire::grants::{AcquireRequest, GrantId, Owner, RefusalCode, ReleaseRequest, RenewOwner};
use sahasra_worker::ledger::{Device, Effect, Ledger};
use stateright::{Checker, Model, Property};

/// Agents, each with one device.
pub const AGENTS: usize = 2;
/// Leases, each an owner.
pub const LEASES: usize = 3;
/// Coordinators: each acts for every lease, the second in a higher term.
pub const COORDINATORS: usize = 2;

const DEVICE: &str = "device";
const SLICE_BYTES: u64 = 1 << 20;
/// Slices that a device has room for.
const ROOM: u32 = 2;
/// Time to live of a grant, and grace of what then still runs, in ticks.
const TTL: u8 = 2;
const GRACE: u8 = 1;
/// A tick.
const TICK: Duration = Duration::from_secs(1);

/// How much there is of what may happen.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Messages that each coordinator sends.
    pub messages: u8,
    /// Messages under way at a time.
    pub under_way: usize,
    /// Messages that may be delivered twice.
    pub repeats: u8,
    /// Kernels that start.
    pub kernels: u8,
    /// Agents that start anew.
    pub restarts: u8,
    /// Ticks of the clock.
    pub ticks: u8,
    /// What was seen to happen at all.
    pub seen: Arc<Seen>,
}

/// What was seen on some path: it shows that the states that matter are reached.
#[derive(Debug, Default)]
pub struct Seen {
    /// A stale term was refused.
    pub stale_term: AtomicBool,
    /// Another boot was refused.
    pub other_boot: AtomicBool,
    /// A kernel was killed after the grace of its grant.
    pub killed: AtomicBool,
    /// A grant ended by time.
    pub expired: AtomicBool,
}

fn see(what: &AtomicBool) {
    what.store(true, Ordering::Relaxed);
}

/// What a coordinator asks of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Call {
    /// Up to two slices, from the boot that the coordinator knows.
    Acquire {
        /// That boot.
        boot: u8,
        /// How many slices.
        slices: u8,
    },
    /// Another time to live.
    Renew(Name),
    /// The grant back.
    Release(Name),
}

/// Name of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    boot: u8,
    counter: u8,
}

/// A message under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Message {
    from: usize,
    to: usize,
    lease: usize,
    call: Call,
}

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A coordinator sends a message.
    Send(Message),
    /// It arrives; whether it will arrive again, and whether its answer arrives.
    Deliver {
        /// Which.
        message: Message,
        /// It stays under way.
        again: bool,
        /// The coordinator hears the answer.
        answered: bool,
    },
    /// It is lost.
    Lose(Message),
    /// A coordinator learns what an agent has lent.
    Adopt {
        /// Who.
        coordinator: usize,
        /// From whom.
        agent: usize,
    },
    /// A kernel starts on a lease's slice.
    Start {
        /// Where.
        agent: usize,
        /// For whom.
        lease: usize,
        /// It never ends by itself.
        hangs: bool,
    },
    /// A kernel ends.
    End {
        /// Where.
        agent: usize,
        /// For whom.
        lease: usize,
    },
    /// Time goes on. Agents know nothing of each other, so that their clocks may as well go together.
    Tick,
    /// An agent dies and starts anew.
    Restart(usize),
}

/// An agent: the ledger under test, and what the model remembers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    ledger: Ledger,
    boot: u8,
    now: u8,
    /// Kernels that run for each lease: those that end by themselves, and those that hang.
    running: [(u8, u8); LEASES],
    /// Highest term in which a call for each lease was obeyed.
    terms: [u8; LEASES],
    /// When each grant of this boot ends, by the answers.
    ends: BTreeMap<u8, (usize, u8)>,
}

/// By what can be told from outside: how much was granted since the start, and when somebody last spoke, changes nothing.
impl Hash for Agent {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.boot, self.now, self.running, self.terms, &self.ends).hash(state);
        for grant in self.ledger.grants(self.time()) {
            (
                grant.id.counter,
                grant.slices,
                grant.draining,
                grant.expires_in_milliseconds,
                grant.owner_uid,
            )
                .hash(state);
        }
        for (_, load) in self.ledger.loads() {
            load.hash(state);
        }
        for lease in 0..LEASES {
            self.ledger.term(&lease.to_string()).hash(state);
        }
        self.ledger.next_deadline().hash(state);
    }
}

/// What a coordinator knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Coordinator {
    sent: u8,
    /// Boots of the agents as last heard.
    boots: [u8; AGENTS],
    /// Lease by agent and grant.
    grants: BTreeMap<(usize, Name), usize>,
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    agents: [Arc<Agent>; AGENTS],
    coordinators: [Coordinator; COORDINATORS],
    under_way: Vec<Message>,
    repeats: u8,
    kernels: u8,
    restarts: u8,
    /// What was done that must not be.
    broken: Option<&'static str>,
}

fn boot_id(agent: usize, boot: u8) -> String {
    format!("{agent}-{boot}")
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

impl Agent {
    fn new(place: usize, boot: u8, now: u8) -> Self {
        let device = Device {
            name: DEVICE.to_owned(),
            allocatable_bytes: u64::from(ROOM) * SLICE_BYTES,
        };
        Self {
            ledger: Ledger::new(boot_id(place, boot), vec![device]),
            boot,
            now,
            running: [(0, 0); LEASES],
            terms: [0; LEASES],
            ends: BTreeMap::new(),
        }
    }

    fn time(&self) -> Duration {
        TICK * u32::from(self.now)
    }

    fn runs(&self, lease: usize) -> u8 {
        self.running[lease].0 + self.running[lease].1
    }

    /// Does what the ledger asks for; says whether it asked for a kill.
    fn obey_effects(&mut self) -> bool {
        let mut killed = false;
        for effect in self.ledger.take_effects() {
            let Effect::Kill { owner_uid, .. } = effect else { continue };
            let Some(lease) = (0..LEASES).find(|lease| lease.to_string() == owner_uid) else {
                continue;
            };
            killed = true;
            let runs = self.runs(lease);
            self.running[lease] = (0, 0);
            self.ledger.vacate(self.time(), &owner_uid, DEVICE, u32::from(runs));
        }
        self.ledger.take_effects();
        killed
    }

    /// Grants that stand, drained ones too: counter, slices, lease, draining.
    fn grants(&self) -> impl Iterator<Item = (u8, u32, usize, bool)> {
        let grants = self.ledger.grants(self.time()).into_iter();
        grants.map(|grant| {
            let lease = grant.owner_uid.parse().unwrap_or_default();
            (grant.id.counter as u8, grant.slices, lease, grant.draining)
        })
    }

    /// Slices that are lent or still run although their grant has ended.
    fn taken(&self) -> u32 {
        let mut active = [0; LEASES];
        for (_, slices, lease, draining) in self.grants() {
            if !draining {
                active[lease] += slices;
            }
        }
        (0..LEASES).map(|lease| active[lease].max(u32::from(self.runs(lease)))).sum()
    }

    /// A grant that ought to be free and is not.
    fn overstays(&self) -> bool {
        self.grants().any(|(counter, _, lease, _)| {
            let ended = self.ends.get(&counter).is_none_or(|(_, end)| *end <= self.now);
            ended && self.runs(lease) == 0
        })
    }

    fn is_free(&self) -> bool {
        self.ledger.loads().all(|(_, load)| load.leased_bytes == 0) && self.grants().next().is_none()
    }
}

impl State {
    fn agent(&mut self, place: usize) -> &mut Agent {
        Arc::make_mut(&mut self.agents[place])
    }

    fn fail(&mut self, why: &'static str) {
        self.broken.get_or_insert(why);
    }

    /// Settles what followed from a call or from time.
    fn settle(&mut self, place: usize, seen: &Seen) {
        if self.agent(place).obey_effects() {
            see(&seen.killed);
        }
        if self.agents[place].overstays() {
            self.fail("a grant that has ended and does not run is not free");
        }
    }

    /// A call that was obeyed in the coordinator's term.
    fn obeyed(&mut self, place: usize, lease: usize, coordinator: usize) {
        let term = coordinator as u8 + 1;
        let known = self.agents[place].terms[lease];
        if term < known {
            self.fail("a coordinator of a lower term was obeyed");
        }
        self.agent(place).terms[lease] = known.max(term);
    }

    fn deliver(&mut self, message: Message, answered: bool, seen: &Seen) {
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

    /// A refusal, and the coordinator that hears it.
    fn refused(&mut self, code: RefusalCode, agent: usize, heard_by: Option<usize>, seen: &Seen) {
        match code {
            RefusalCode::StaleTerm => see(&seen.stale_term),
            RefusalCode::OtherBoot => {
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

/// What a visit of every state found.
#[derive(Debug)]
pub struct Visited {
    /// Different states.
    pub states: usize,
    /// Properties that do not hold, with the path to a state in which they do not.
    pub violations: Vec<String>,
    /// What was never seen to happen: the bounds are too small then.
    pub unseen: Vec<&'static str>,
}

impl std::fmt::Display for Visited {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} different states of the model", self.states)?;
        for violation in &self.violations {
            write!(f, "\nBROKEN {violation}")?;
        }
        Ok(())
    }
}

impl Bounds {
    /// One message of each coordinator, in any order, and all that may happen to them: seconds without optimisation.
    pub fn small() -> Self {
        Self {
            messages: 1,
            under_way: 2,
            repeats: 1,
            kernels: 1,
            restarts: 1,
            ticks: 4,
            seen: Arc::default(),
        }
    }

    /// Two messages of each, one after the other, none twice: half a minute with optimisation.
    pub fn large() -> Self {
        Self {
            messages: 2,
            under_way: 1,
            repeats: 0,
            ..Self::small()
        }
    }

    /// Visits every state.
    pub fn visit(self, threads: usize) -> Visited {
        let seen = Arc::clone(&self.seen);
        let checker = self.checker().threads(threads).spawn_dfs().join();
        let violations = checker.discoveries().into_iter().map(|(property, path)| {
            let actions: Vec<String> = path.into_actions().iter().map(|action| format!("{action:?}")).collect();
            format!("{property}: {}", actions.join("; "))
        });
        let all = [
            ("a stale term", &seen.stale_term),
            ("another boot", &seen.other_boot),
            ("a kill", &seen.killed),
            ("an expiry", &seen.expired),
        ];
        Visited {
            states: checker.unique_state_count(),
            violations: violations.collect(),
            unseen: all
                .into_iter()
                .filter(|(_, was_seen)| !was_seen.load(Ordering::Relaxed))
                .map(|(what, _)| what)
                .collect(),
        }
    }

    /// After this tick of an agent nothing new reaches it: what it lent then ends within the ticks that are left.
    fn last_delivery(&self) -> u8 {
        self.ticks.saturating_sub(TTL + GRACE)
    }

    fn sends(&self, state: &State, actions: &mut Vec<Action>) {
        if state.under_way.len() >= self.under_way {
            return;
        }
        // Leases are alike: one is used only after those before it.
        let used = |lease: usize| {
            let by_message = state.under_way.iter().any(|message| message.lease == lease);
            by_message || state.agents.iter().any(|agent| agent.ledger.term(&lease.to_string()).is_some())
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
            // Agents are alike too.
            for to in 0..if fresh == 0 { 1 } else { AGENTS } {
                for lease in 0..LEASES.min(fresh + 1) {
                    let (boot, slices) = (coordinator.boots[to], if lease == 0 { 2 } else { 1 });
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
            agents: [0, 1].map(|place| Arc::new(Agent::new(place, 0, 0))),
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
        for (place, agent) in state.agents.iter().enumerate() {
            if state.restarts < self.restarts && agent.now <= self.last_delivery() && !agent.ends.is_empty() {
                actions.push(Action::Restart(place));
            }
            let unknown = |(_, coordinator): &(usize, &Coordinator)| {
                coordinator.sent < self.messages
                    && (coordinator.boots[place] != agent.boot
                        || agent.grants().any(|(counter, _, _, draining)| {
                            let name = Name { boot: agent.boot, counter };
                            !draining && !coordinator.grants.contains_key(&(place, name))
                        }))
            };
            // The first begins with nothing to take over.
            for (coordinator, _) in state.coordinators.iter().enumerate().skip(1).filter(unknown) {
                actions.push(Action::Adopt { coordinator, agent: place });
            }
            for lease in 0..LEASES {
                let active = agent.ledger.active_slices(&lease.to_string(), DEVICE);
                if state.kernels < self.kernels && active > u32::from(agent.runs(lease)) {
                    for hangs in [false, true] {
                        actions.push(Action::Start {
                            agent: place,
                            lease,
                            hangs,
                        });
                    }
                }
                if agent.running[lease].0 > 0 {
                    actions.push(Action::End { agent: place, lease });
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
                // They overtake each other: their order says nothing.
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
                if agent.ledger.occupy(time, &lease.to_string(), DEVICE, 1) == 0 {
                    return None;
                }
                let running = &mut agent.running[lease];
                if hangs {
                    running.1 += 1;
                } else {
                    running.0 += 1;
                }
            }
            Action::End { agent: place, lease } => {
                let time = state.agents[place].time();
                let agent = state.agent(place);
                agent.running[lease].0 -= 1;
                agent.ledger.vacate(time, &lease.to_string(), DEVICE, 1);
                state.settle(place, &self.seen);
            }
            Action::Tick => {
                for place in 0..AGENTS {
                    let agent = state.agent(place);
                    agent.now += 1;
                    let time = agent.time();
                    // Looked at only when it says that something is due, as the agent does.
                    if agent.ledger.next_deadline().is_some_and(|deadline| deadline <= time) {
                        agent.ledger.expire(time);
                    }
                    if agent.ends.values().any(|(_, end)| *end == agent.now) {
                        see(&self.seen.expired);
                    }
                    state.settle(place, &self.seen);
                }
            }
            Action::Restart(place) => {
                state.restarts += 1;
                let agent = &state.agents[place];
                let anew = Agent::new(place, agent.boot + 1, agent.now);
                state.agents[place] = Arc::new(anew);
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
