//! Simulation of the whole system in one process and in virtual time, checked from outside.
//!
//! ```text
//!  plan (of a seed) ──► run: users, faults ──► parts: operators, agents ──► network, api ──► embedded control plane
//!                                                 │                            │
//!                                                 └─► executor (modelled)      └─► book, check: what must hold
//! ```
//!
//! Operators and agents are the real ones. Only three things differ from production: the transports of their messages ([`network`],
//! [`api`], [`store`]), the launchers of executors ([`executor`], [`session_executor`]), and the clock, which is that of a paused Tokio
//! runtime. Everything follows from the seed: the same seed gives the same trace.

use std::{cell::Cell, time::Duration};

use tokio::time::Instant;

pub mod api;
pub mod book;
pub mod check;
pub mod executor;
pub mod explained;
pub mod faults;
pub mod kernel;
pub mod maxima;
pub mod network;
pub mod plan;
pub mod processes;
pub mod run;
pub mod session_executor;
pub mod sessions;
pub mod standing;
pub mod store;
pub mod task_group;
pub mod users;
pub mod world;
pub mod writes;

thread_local! {
    static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Returns the virtual time since the run in this thread began, or zero before.
pub fn virtual_time() -> Duration {
    if tokio::runtime::Handle::try_current().is_err() {
        return Duration::ZERO;
    }
    BEGAN.get().map_or(Duration::ZERO, |began| began.elapsed())
}

fn begin() {
    BEGAN.set(Some(Instant::now()));
}
