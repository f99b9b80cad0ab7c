//! Output of the solver.

use std::{sync::Arc, time::Duration};

use sahasra_names::{DeviceId, OwnerUid};

use crate::{Assignment, WhyNot};

/// Target assignments, and the reasons why other claims get nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Solution {
    /// Target slices, sorted by claim and device, without duplicate pairs of claim and device.
    pub assignments: Vec<Assignment>,
    /// Claims that do not hold their minimum, sorted by claim.
    pub refusals: Vec<Refusal>,
    /// Next time at which the solution may change by the passage of time alone, on the clock of `now`: a rejection by an agent
    /// expires, or a claim has waited for [`crate::RESERVE_AFTER`].
    pub revisit_at: Option<Duration>,
}

impl Solution {
    /// Number of slices assigned to `claim` on all devices.
    pub fn slices_of(&self, claim: &str) -> u64 {
        self.assignments_of(claim).map(|assignment| u64::from(assignment.slices)).sum()
    }

    /// Assignments of `claim`, sorted by device.
    pub fn assignments_of<'a>(&'a self, claim: &'a str) -> impl Iterator<Item = &'a Assignment> {
        let start = self.assignments.partition_point(|assignment| &*assignment.claim < claim);
        self.assignments[start..]
            .iter()
            .take_while(move |assignment| &*assignment.claim == claim)
    }

    /// Reason why `claim` did not receive its minimum in this solution, or `None` if it received it or is unknown.
    pub fn refusal_of(&self, claim: &str) -> Option<&Refusal> {
        self.refusals
            .binary_search_by(|refusal| (*refusal.claim).cmp(claim))
            .ok()
            .map(|index| &self.refusals[index])
    }
}

/// Reason why a claim did not receive its minimum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub claim: OwnerUid,
    /// For every device the reason why it does not serve the claim, sorted by device. Claims with the same reasons share one list.
    pub why_not: Arc<[(DeviceId, WhyNot)]>,
    /// Index into `why_not` of the device that comes nearest to serving the claim, which `summary` names. `None` if there are no devices.
    pub nearest: Option<usize>,
    /// All reasons in one sentence, for the message of a condition.
    pub summary: Arc<str>,
}
