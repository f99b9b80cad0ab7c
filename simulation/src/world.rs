//! What everything in a run shares: the seeded randomness, the conditions of the network, the trace, and what was found
//! wrong.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    hash::{DefaultHasher, Hasher},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use sahasra_local::ControlPlane;
use tokio::{sync::oneshot, time::Instant};

use crate::{
    book::Live,
    maxima::Maxima,
    session_executor::Exit,
    store::{self, Objects},
    writes::Writes,
};

/// Someone who sends or receives messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Node {
    /// The API server.
    Api,
    /// An operator.
    Operator(usize),
    /// An agent.
    Agent(usize),
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Api => write!(f, "api"),
            Self::Operator(place) => write!(f, "operator-{place}"),
            Self::Agent(place) => write!(f, "worker-{place}"),
        }
    }
}

/// What the network and the API server do to messages now.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// Longest delay of a message, in microseconds.
    pub delay: u64,
    /// Messages lost, of a thousand.
    pub loss: u64,
    /// Calls that arrive twice, of a thousand.
    pub repeats: u64,
    /// Requests that the API server answers with an error, of a thousand.
    pub api_errors: u64,
    /// Requests that the API server carries out and never answers, of a thousand.
    pub api_hangs: u64,
    /// How far watches lag behind, in milliseconds.
    pub watch_lag: u64,
    /// The API server is away, for so many reasons.
    pub api_down: u32,
    /// Who cannot reach whom, for how many reasons.
    pub partitions: BTreeMap<(Node, Node), u32>,
    /// How much slower the devices of an agent are.
    pub slow: BTreeMap<usize, u64>,
    /// What the object store does.
    pub store: store::Conditions,
}

/// Delay while nothing is wrong, in microseconds.
pub const USUAL_DELAY: u64 = 2_000;

impl Default for Conditions {
    fn default() -> Self {
        Self {
            delay: USUAL_DELAY,
            loss: 0,
            repeats: 0,
            api_errors: 0,
            api_hangs: 0,
            watch_lag: 0,
            api_down: 0,
            partitions: BTreeMap::new(),
            slow: BTreeMap::new(),
            store: store::Conditions::default(),
        }
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct World {
    started: Instant,
    random: Mutex<fastrand::Rng>,
    trace: Mutex<Trace>,
    broken: Mutex<BTreeSet<String>>,
    conditions: Mutex<Conditions>,
    /// The API.
    pub control_plane: ControlPlane,
    /// Agents that live, by place.
    pub agents: Mutex<BTreeMap<usize, Arc<Live>>>,
    /// Writes that reached the API server.
    pub writes: Mutex<Writes>,
    /// What is in the object store.
    pub objects: Mutex<Objects>,
    /// Ends executors of sessions, by their agent's place and their number there.
    pub session_executors: Mutex<BTreeMap<(usize, u32), oneshot::Sender<Exit>>>,
    /// Most slices of objects in runs without faults.
    pub maxima: Mutex<Maxima>,
}

#[derive(Debug)]
struct Trace {
    hasher: DefaultHasher,
    events: u64,
    shown: bool,
}

/// Locks, whoever panicked meanwhile: that is reported elsewhere.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    /// A world in which nothing has happened. Its trace is shown on standard error if asked for.
    pub fn new(seed: u64, control_plane: ControlPlane, shown: bool) -> Arc<Self> {
        Arc::new(Self {
            started: Instant::now(),
            random: Mutex::new(fastrand::Rng::with_seed(seed)),
            trace: Mutex::new(Trace {
                hasher: DefaultHasher::new(),
                events: 0,
                shown,
            }),
            broken: Mutex::default(),
            conditions: Mutex::default(),
            control_plane,
            agents: Mutex::default(),
            writes: Mutex::default(),
            objects: Mutex::default(),
            session_executors: Mutex::default(),
            maxima: Mutex::default(),
        })
    }

    /// Virtual time since the beginning.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// The instant of a virtual time, in milliseconds.
    pub fn instant(&self, milliseconds: u64) -> Instant {
        self.started + Duration::from_millis(milliseconds)
    }

    /// Takes an event into the trace.
    pub fn note(&self, what: fmt::Arguments<'_>) {
        let at = self.elapsed();
        let text = what.to_string();
        let mut trace = locked(&self.trace);
        trace.events += 1;
        trace.hasher.write_u128(at.as_nanos());
        trace.hasher.write(text.as_bytes());
        if trace.shown {
            eprintln!("{:>11.6} {text}", at.as_secs_f64());
        }
    }

    /// The trace so far, as one number, and its events.
    pub fn trace(&self) -> (u64, u64) {
        let trace = locked(&self.trace);
        (trace.hasher.finish(), trace.events)
    }

    /// Something that must hold does not. What is said again and again is kept once.
    pub fn broken(&self, what: String) {
        self.note(format_args!("BROKEN {what}"));
        let mut broken = locked(&self.broken);
        if broken.len() < 16 {
            broken.insert(what);
        }
    }

    /// All that was found wrong.
    pub fn found(&self) -> Vec<String> {
        locked(&self.broken).iter().cloned().collect()
    }

    /// The conditions now.
    pub fn conditions(&self) -> MutexGuard<'_, Conditions> {
        locked(&self.conditions)
    }

    /// A number below `limit`.
    pub fn below(&self, limit: u64) -> u64 {
        locked(&self.random).u64(0..limit.max(1))
    }

    /// Whether something that happens so many times in a thousand happens now.
    pub fn happens(&self, of_a_thousand: u64) -> bool {
        of_a_thousand > 0 && self.below(1000) < of_a_thousand
    }

    /// How long a message takes now.
    pub fn delay(&self) -> Duration {
        let longest = self.conditions().delay;
        Duration::from_micros(100 + self.below(longest))
    }

    /// Whether messages between the two get through.
    pub fn connected(&self, one: Node, other: Node) -> bool {
        let conditions = self.conditions();
        let down = conditions.api_down > 0 && (one == Node::Api || other == Node::Api);
        !down && !conditions.partitions.contains_key(&pair(one, other))
    }

    /// The agent in that place, if it lives.
    pub fn agent(&self, place: usize) -> Option<Arc<Live>> {
        locked(&self.agents).get(&place).cloned()
    }
}

/// Two nodes in their order.
pub fn pair(one: Node, other: Node) -> (Node, Node) {
    (one.min(other), one.max(other))
}
