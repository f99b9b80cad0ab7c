//! Assigns slices of device memory (VRAM) to claims.
//!
//! [`solve`] is a pure function. Its input is a [`Problem`] (the devices with their load, and the claims of bursts, sessions and leases),
//! the previous [`Assignment`]s and the current time. Its output, a [`Solution`], contains the target assignments, and for every claim
//! without its minimum the reason for each device. The crate does no input or output and knows neither Kubernetes nor a clock. A solution is a
//! proposal: only agents grant slices, and an agent's rejection is an input of the next call, in [`Claim::refused`].
//!
//! # Rules
//!
//! - **Capacity.** Slices on a device, times their size, plus [`Device::foreign_bytes`], never exceed the device's allocatable bytes.
//! - **Minimum or nothing.** A claim holds 0 slices or at least [`Claim::min`]. The slices above the minimum are the claim's *surplus*. A
//!   session has none. A claim whose minimum was raised keeps the slices in [`Claim::kept`] until all that are missing fit.
//! - **Importance.** Claims are ordered by priority (higher first), then by waiting time (longer first), then by id (smaller first). Minima
//!   are served in this order.
//! - **A minimum outranks every surplus** of the same or a lower priority. The minimum of a session outranks the surplus of every burst.
//!   Only a *burst* can be preempted (lose its minimum, and with it all of its slices), and only for the minimum of a claim of strictly
//!   higher priority: chunks can be run again, but the state of a session or a lease cannot be restored.
//! - **Surplus** goes to the highest priority that can use it. Claims of equal priority share by max–min fairness: the claim with the
//!   fewest slices is served first, and slices are transferred until no single transfer from a claim with at least two more slices would
//!   help. Of two claims with equally many slices the older is served first.
//! - **Sticky.** Slices stay where they are held unless a rule above takes them. Solving again with the solution as the previous state
//!   gives the same solution, because every step depends on the present state only, not on the path to that state.
//! - **A session is never moved.** All slices of a session are on one device. They stay there even if the device fails:
//!   the caller of `solve` decides when a session is lost.
//! - **Backfill without starvation.** A claim that waits because no device has enough free memory does not hold back other claims that fit.
//!   But a claim that has waited for [`RESERVE_AFTER`] reserves enough devices for its minimum, and until it has started, no less important
//!   claim starts on them and only claims of higher priority grow on them. A claim reserves devices only if they have enough memory once
//!   all bursts have ended and all surplus that yields to the claim is taken: sessions, the minima of leases and the foreign bytes of a
//!   device may stay for days.
//! - **Placement.** Idle devices come first, compared by active executions, then bytes of stored tensors, then number of tensors. A session
//!   goes to a device where no other claim loses slices, if one exists, and counts there as one execution when later sessions are placed.
//!   The slices of a burst are spread round-robin over the devices. The minimum of a lease is spread round-robin over the workers, those
//!   with the smallest allocated share first, and on each worker over as few devices as possible. So the loss of a worker affects few
//!   leases, and most devices keep enough free memory for large slices.
//!
//! # Algorithm
//!
//! The phase `keep` adopts the previous assignments that are still valid. Then `admit` (minima) and `grow` (surplus) alternate until
//! neither changes anything. Finally `explain` derives the reasons for the waiting claims. The loop terminates: each admission raises the
//! number of served claims of its priority, each transfer raises the smallest share of its priority, and neither lowers these values for a
//! higher priority.

mod pool;
mod problem;
mod solution;
mod solve;
mod why_not;

pub use problem::{Assignment, Claim, ClaimKind, Device, Load, Problem, Unusable};
pub use solution::{Refusal, Solution};
pub use solve::{RESERVE_AFTER, solve};
pub use why_not::WhyNot;
