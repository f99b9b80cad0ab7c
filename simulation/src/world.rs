//! State that all components of a run share: the seeded randomness, the current faults of network and stores, the trace, and the violations
//! found.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    hash::{DefaultHasher, Hasher},
    sync::Arc,
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use sahasra_local::ControlPlane;
use tokio::{sync::oneshot, time::Instant};

use crate::{
    book::Live,
    maxima::Maxima,
    session_executor::Exit,
    store::{self, Objects},
    writes::Writes,
};

/// Sender or receiver of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Node {
    Api,
    Operator(usize),
    Agent(usize),
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Api => write!(f, "api"),
            Self::Operator(index) => write!(f, "operator-{index}"),
            Self::Agent(index) => write!(f, "worker-{index}"),
        }
    }
}

/// Current faults of the network, the API server and the object store.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// Longest delay of a message, in microseconds.
    pub delay: u64,
    /// Lost messages, per thousand.
    pub loss: u64,
    /// Calls that arrive twice, per thousand.
    pub repeats: u64,
    /// Requests that the API server answers with an error, per thousand.
    pub api_errors: u64,
    /// Requests that the API server carries out and never answers, per thousand.
    pub api_hangs: u64,
    /// Lag of watches, in milliseconds.
    pub watch_lag: u64,
    /// Number of active faults for which the API server is down.
    pub api_down: u32,
    /// Pairs of nodes that cannot reach each other, with the number of active faults.
    pub partitions: BTreeMap<(Node, Node), u32>,
    /// Factor by which the devices of an agent are slower, by agent index.
    pub slow: BTreeMap<usize, u64>,
    /// Current faults of the object store.
    pub store: store::Conditions,
}

/// Delay without faults, in microseconds.
const USUAL_DELAY: u64 = 2_000;

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

/// Shared state of a run, see the [module](self).
#[derive(Debug)]
pub struct World {
    started: Instant,
    random: Mutex<fastrand::Rng>,
    trace: Mutex<Trace>,
    broken: Mutex<BTreeSet<String>>,
    conditions: Mutex<Conditions>,
    /// The embedded control plane.
    pub control_plane: ControlPlane,
    /// Running agents by index.
    pub agents: Mutex<BTreeMap<usize, Arc<Live>>>,
    /// Writes that reached the API server.
    pub writes: Mutex<Writes>,
    /// Objects in the object store.
    pub objects: Mutex<Objects>,
    /// Senders that end session executors, by agent index and executor number.
    pub session_executors: Mutex<BTreeMap<(usize, u32), oneshot::Sender<Exit>>>,
    /// Maxima of slices in runs without faults.
    pub maxima: Mutex<Maxima>,
}

#[derive(Debug)]
struct Trace {
    hasher: DefaultHasher,
    events: u64,
    shown: bool,
}

impl World {
    /// Creates the state of a run at its start. With `shown`, the trace is printed on standard error.
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

    /// Returns the virtual time since the start.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns the instant of a virtual time in milliseconds.
    pub fn instant(&self, milliseconds: u64) -> Instant {
        self.started + Duration::from_millis(milliseconds)
    }

    /// Adds an event to the trace.
    pub fn note(&self, what: fmt::Arguments<'_>) {
        let at = self.elapsed();
        let text = what.to_string();
        let mut trace = self.trace.lock();
        trace.events += 1;
        trace.hasher.write_u128(at.as_nanos());
        trace.hasher.write(text.as_bytes());
        if trace.shown {
            eprintln!("{:>11.6} {text}", at.as_secs_f64());
        }
    }

    /// Returns the hash of the trace so far, and the number of its events.
    pub fn trace(&self) -> (u64, u64) {
        let trace = self.trace.lock();
        (trace.hasher.finish(), trace.events)
    }

    /// Records a violation of a property. Repeated violations are recorded once.
    pub fn broken(&self, what: String) {
        self.note(format_args!("BROKEN {what}"));
        let mut broken = self.broken.lock();
        if broken.len() < 16 {
            broken.insert(what);
        }
    }

    /// Returns all recorded violations.
    pub fn found(&self) -> Vec<String> {
        self.broken.lock().iter().cloned().collect()
    }

    /// Returns the current faults.
    pub fn conditions(&self) -> MutexGuard<'_, Conditions> {
        self.conditions.lock()
    }

    /// Returns a random number below `limit`.
    pub fn below(&self, limit: u64) -> u64 {
        self.random.lock().u64(0..limit.max(1))
    }

    /// Returns at random whether an event of the given probability, in a thousandth, occurs now.
    pub fn happens(&self, of_a_thousand: u64) -> bool {
        of_a_thousand > 0 && self.below(1000) < of_a_thousand
    }

    /// Returns a random delay for one message.
    pub fn delay(&self) -> Duration {
        let longest = self.conditions().delay;
        Duration::from_micros(100 + self.below(longest))
    }

    /// Returns whether messages between the two nodes get through.
    pub fn connected(&self, one: Node, other: Node) -> bool {
        let conditions = self.conditions();
        let down = conditions.api_down > 0 && (one == Node::Api || other == Node::Api);
        !down && !conditions.partitions.contains_key(&pair(one, other))
    }

    /// Returns the agent with this index, if it is running.
    pub fn agent(&self, index: usize) -> Option<Arc<Live>> {
        self.agents.lock().get(&index).cloned()
    }
}

/// Returns two nodes in ascending order.
pub fn pair(one: Node, other: Node) -> (Node, Node) {
    (one.min(other), one.max(other))
}
