//! Runs the phases of the solver in order.

use std::time::Duration;

use crate::{Assignment, Problem, Solution, pool::Pool};

mod admit;
mod explain;
mod grow;
mod keep;
mod reclaim;
mod reserve;

pub use reserve::RESERVE_AFTER;
use reserve::Reservations;

/// Computes the slices that each claim should hold, given the slices that it holds now (`previous`). The crate documentation has the rules.
///
/// `now` counts from the origin of [`crate::Claim::since`] and the times in [`crate::Claim::refused`].
pub fn solve(problem: &Problem, previous: &[Assignment], now: Duration) -> Solution {
    let mut pool = Pool::new(problem, now);
    let mut lost = keep::keep(&mut pool, previous);
    debug_assert!(pool.is_consistent(), "after keep");
    let reservations = loop {
        let mut reservations = Reservations::new(&pool);
        let admitted = admit::admit(&mut pool, &mut reservations, &mut lost, now);
        debug_assert!(pool.is_consistent(), "after admit");
        let grown = grow::grow(&mut pool, &reservations);
        debug_assert!(pool.is_consistent(), "after grow");
        if !admitted && !grown {
            break reservations;
        }
    };
    explain::explain(&pool, &reservations, now)
}
