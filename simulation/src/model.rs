//! Every state that terms, grants, renewals and expiry can reach with two coordinators, two agents and three leases.
//!
//! The agents' state is the real [`Ledger`](sahasra_worker::ledger::Ledger): a guard that is taken out there is found here. Around it stands what the ledger
//! is to withstand: two coordinators of different terms that know nothing of each other, messages that are delayed,
//! reordered, repeated and lost, answers that are lost, agents that start anew, and kernels that end when they like or
//! hang. Each of these is bounded ([`Bounds`]), so that every path ends; that all is free at its end
//! is what makes freeing a matter of time alone.
//!
//! What holds is judged by what the model itself remembers of answers, never by the ledger's own sums.

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

fn boot_id(agent: usize, boot: u8) -> String {
    format!("{agent}-{boot}")
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
}
