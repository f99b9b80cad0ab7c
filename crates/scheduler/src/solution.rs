//! The answer.

use std::sync::Arc;

use crate::{Assignment, DeviceId, Name, WhyNot};

/// What to hold, and why the others wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Solution {
    /// What each claim is to hold, sorted by claim and device; a pair stands here once at most.
    pub assignments: Vec<Assignment>,
    /// Claims that get nothing, sorted by claim.
    pub refusals: Vec<Refusal>,
    /// When time alone may change the answer: a refusal by an agent lapses, or someone's patience ends.
    pub revisit_at: Option<u64>,
}

impl Solution {
    /// Slices of that claim on all devices.
    pub fn slices_of(&self, claim: &str) -> u64 {
        self.assignments_of(claim).map(|assignment| u64::from(assignment.slices)).sum()
    }

    /// Where that claim holds slices.
    pub fn assignments_of<'a>(&'a self, claim: &'a str) -> impl Iterator<Item = &'a Assignment> {
        let start = self.assignments.partition_point(|assignment| &*assignment.claim < claim);
        self.assignments[start..]
            .iter()
            .take_while(move |assignment| &*assignment.claim == claim)
    }

    /// Why that claim gets nothing, if so.
    pub fn refusal_of(&self, claim: &str) -> Option<&Refusal> {
        self.refusals
            .binary_search_by(|refusal| (*refusal.claim).cmp(claim))
            .ok()
            .map(|index| &self.refusals[index])
    }
}

/// Why a claim gets nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The claim's id.
    pub claim: Name,
    /// For every device why it does not serve, sorted by device. Claims that wait for the same reasons share one list.
    pub why_not: Arc<[(DeviceId, WhyNot)]>,
    /// The place among those of the device that comes nearest to serving: the summary names it.
    pub nearest: Option<usize>,
    /// All of it in one sentence, for a condition's message.
    pub summary: Arc<str>,
}
