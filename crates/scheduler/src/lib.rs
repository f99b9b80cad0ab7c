//! Assigns slices of VRAM of devices to claims.
//!
//! [`solve`] is a pure function: it is given what is known (a [`Problem`]: devices with their load, and the claims of
//! bursts, sessions and leases), what is held (the previous [`Assignment`]s) and the time, and answers with the target
//! (which assignments to hold) and with the reasons for every claim that gets nothing. It knows no Kubernetes, no clock,
//! no environment and does no input or output. Its answer is a proposal: the agents alone grant, and one that says no
//! comes back in [`Claim::refused`].
//!
//! # Rules
//!
//! - **Capacity.** Slices on a device, times their size, plus [`Device::foreign_bytes`], never exceed its allocatable bytes.
//! - **Minimum or nothing.** A claim holds 0 slices or at least [`Claim::min`]. What a claim holds above its minimum is its
//!   *surplus*; a session has none.
//! - **Importance.** Higher priority first, then the longer waiting, then the smaller id. Minima are served in this order.
//! - **A minimum outranks every surplus** of the same or a lower priority; a session's outranks that of every burst. Below
//!   its minimum only a *burst* can be pushed, all the way to nothing, and only for the minimum of a claim of strictly higher
//!   priority: chunks can be run again, what lives in a session or a lease cannot.
//! - **Surplus** goes to the highest priority that can use it; between equals to the one with fewest slices, until no single
//!   hand-over from a claim with at least two more would help (max–min fairness). Of two equals the older is served first.
//! - **Sticky.** What is held stays where it is unless a rule above takes it. Solving again with the answer as the previous
//!   state gives the same answer: every step is taken only if the present state, not the way to it, asks for it.
//! - **A session is pinned.** All its slices lie on one device, which it never leaves, even if the device fails:
//!   the caller of `solve` decides when a session is lost.
//! - **Backfill, without starving.** A claim that waits because no free room is large enough does not hold back others that fit. But a
//!   claim that has waited for [`PATIENCE_MS`] reserves devices enough for its minimum: no less important claim starts or grows
//!   there until it has started. A claim reserves nothing that could not be served if all bursts and all surplus were gone: sessions,
//!   the minima of leases and what is no claim's may stay for days.
//! - **Placement.** Idle devices first: by active executions, then stored tensor bytes, then tensors. A session goes where it
//!   need not disturb anyone, if there is such a device, and counts there as an execution for the next one. The slices of a burst
//!   spread over the devices in turn. The minimum of a lease spreads over the workers in turn, those first of which the smallest share
//!   is lent, and on a worker over as few devices as it can: a worker that is lost takes few leases with it, and most devices stay
//!   whole for large slices.
//!
//! # How it is solved
//!
//! `keep` takes over what is held and still stands; then `admit` (minima) and `grow` (surplus) alternate until neither
//! changes anything; `explain` states why the rest waits. Each admission raises the number of served claims at its priority,
//! and each hand-over the smallest share at its priority, without lowering any above: so it ends.

mod pool;
mod problem;
mod solution;
mod solve;
mod why_not;

pub use problem::{Assignment, Claim, ClaimKind, Device, DeviceId, Load, Name, Problem, Refused, Unusable};
pub use solution::{Refusal, Solution};
pub use solve::{PATIENCE_MS, solve};
pub use why_not::{Bytes, WhyNot};
