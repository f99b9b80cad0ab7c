//! Model of grants: visits every state that terms, grants, renewals and expiry can reach with two coordinators, two agents and three
//! leases.
//!
//! The agents' state is the real [`Ledger`](sahasra_ledger::Ledger), so the model finds a guard that is missing in the ledger. The
//! model simulates what the ledger must withstand: two coordinators of different terms that know nothing of each other; messages that are
//! delayed, reordered, repeated and lost; lost responses; agents that restart; and kernels that end at any time or hang. Each of these is
//! bounded ([`Bounds`]), so that every path ends. All slices must be free at its end, which proves that slices become free by time alone.
//!
//! Properties are judged by the responses that the model records, independently of the ledger's own sums.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use stateright::{Checker, Model};

mod agent;
mod messages;
mod state;
mod steps;

/// Number of agents, each with one device.
pub const AGENTS: usize = 2;
/// Number of leases, each of its own owner.
pub const LEASES: usize = 3;
/// Number of coordinators. Each acts for every lease, the second one in a higher term.
pub const COORDINATORS: usize = 2;

const DEVICE: &str = "device";
const SLICE_BYTES: u64 = 1 << 20;
/// Number of slices that a device has room for.
const ROOM: u32 = 2;
/// Time to live of a grant, in ticks.
const TTL: u8 = 2;
/// Time after the end of a grant for which its running chunks may continue, in ticks.
const GRACE: u8 = 1;
/// Duration of a tick.
const TICK: Duration = Duration::from_secs(1);

/// Bounds that make the model's states finite, and so a visit of all of them.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Limit of messages per coordinator.
    pub messages: u8,
    /// Limit of messages in transit at a time.
    pub under_way: usize,
    /// Limit of messages that are delivered twice.
    pub repeats: u8,
    /// Limit of kernels that start.
    pub kernels: u8,
    /// Limit of restarts of agents.
    pub restarts: u8,
    /// Limit of ticks of the clock.
    pub ticks: u8,
    /// Records which events occurred on any path.
    pub seen: Arc<Seen>,
}

/// Events that occurred on some path. They prove that the states that matter are reached.
#[derive(Debug, Default)]
pub struct Seen {
    /// Whether a stale term was rejected.
    pub stale_term: AtomicBool,
    /// Whether a request for another boot was rejected.
    pub other_boot: AtomicBool,
    /// Whether a kernel was killed after the grace of its grant.
    pub killed: AtomicBool,
    /// Whether a grant expired.
    pub expired: AtomicBool,
}

fn see(what: &AtomicBool) {
    what.store(true, Ordering::Relaxed);
}

fn boot_id(agent: usize, boot: u8) -> String {
    format!("{agent}-{boot}")
}

/// Result of a visit of all states.
#[derive(Debug)]
pub struct Visited {
    /// Number of distinct states.
    pub states: usize,
    /// Violated properties, each with the path to a state that violates it.
    pub violations: Vec<String>,
    /// Events that never occurred, which means that the bounds are too small.
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
    /// Returns bounds for one message per coordinator, in any order, with all faults. A visit takes seconds without optimisation.
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

    /// Returns bounds for two messages per coordinator, one after the other, none repeated. A visit takes half a minute with optimisation.
    pub fn large() -> Self {
        Self {
            messages: 2,
            under_way: 1,
            repeats: 0,
            ..Self::small()
        }
    }

    /// Visits every state of the model with this number of threads, and returns the violations.
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
}
