//! Claims that wait for the slices they need to start.

use std::time::Duration;

use sahasra_scheduler::ClaimKind;

use super::{State, slices_of};

impl State {
    /// Kind of each claim that waits for its minimum, and the time since it was registered or its minimum was raised.
    pub(in crate::pool) fn waiting(&self, now: Duration) -> Vec<(ClaimKind, Duration)> {
        let waits = self
            .claims
            .values()
            .filter(|claim| claim.is_open() && claim.limits.is_none() && slices_of(&claim.grants) < claim.request.min);
        waits.map(|claim| (claim.request.kind, now.saturating_sub(claim.since))).collect()
    }
}
