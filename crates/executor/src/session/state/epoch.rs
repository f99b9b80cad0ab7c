//! Failures, and whether the client knows of them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use sahasra_wire::session::{Failed, server_frame::Kind};

use crate::session::engine::Fault;

/// Number of failures that an epoch keeps before it prunes them.
const FEW: usize = 16;

/// A failure and the operation that caused it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    sequence: u64,
    operation: String,
    fault: Fault,
    /// Whether the client knows of the failure.
    is_reported: Cell<bool>,
}

impl Failure {
    pub(super) fn new(sequence: u64, operation: String, fault: Fault) -> Rc<Self> {
        Rc::new(Self {
            sequence,
            operation,
            fault,
            is_reported: Cell::default(),
        })
    }

    pub(super) fn is_reported(&self) -> bool {
        self.is_reported.get()
    }

    pub(super) fn fault(&self) -> &Fault {
        &self.fault
    }

    pub(super) fn report(&self, request: u64) -> Kind {
        self.is_reported.set(true);
        Kind::Failed(Failed {
            request,
            code: self.fault.code.into(),
            sequence: self.sequence,
            operation: self.operation.clone(),
            message: self.fault.message.clone(),
        })
    }
}

/// Failures between one `Synchronise` and the next.
#[derive(Debug, Default)]
pub(super) struct Epoch(RefCell<Failures>);

#[derive(Debug, Default)]
struct Failures {
    first: Option<Rc<Failure>>,
    /// Failures of which the client did not know at the last pruning, and all later ones.
    unreported: Vec<Rc<Failure>>,
    /// Number of failures in `unreported` above which it is pruned.
    most: usize,
}

impl Epoch {
    pub(super) fn record(&self, failure: &Rc<Failure>) {
        let failures = &mut *self.0.borrow_mut();
        if failures.first.as_ref().is_none_or(|first| failure.sequence < first.sequence) {
            failures.first = Some(Rc::clone(failure));
        }
        failures.unreported.push(Rc::clone(failure));
        if failures.unreported.len() > failures.most {
            failures.prune();
            failures.most = FEW.max(2 * failures.unreported.len());
        }
    }

    /// The first failure, whether the client knows of it or not.
    pub(super) fn first(&self) -> Option<Rc<Failure>> {
        self.0.borrow().first.clone()
    }

    /// The first failure of which the client does not know.
    pub(super) fn first_unreported(&self) -> Option<Rc<Failure>> {
        let failures = self.0.borrow();
        let unreported = failures.unreported.iter().filter(|failure| !failure.is_reported.get());
        unreported.min_by_key(|failure| failure.sequence).cloned()
    }
}

impl Failures {
    /// Drops failures that the client knows. Of those that no name refers to any more, keeps only the first. So at most one more failure is
    /// kept than the client has names.
    fn prune(&mut self) {
        // Taken out because it is a reference of the epoch that must not count.
        let first = self.first.take();
        let is_only_here = |failure: &Rc<Failure>| Rc::strong_count(failure) == 1;
        let unreported = self.unreported.iter().filter(|failure| !failure.is_reported.get());
        let forgotten = unreported
            .filter(|failure| is_only_here(failure))
            .map(|failure| failure.sequence)
            .min();
        self.unreported.retain(|failure| {
            let is_kept = !is_only_here(failure) || forgotten == Some(failure.sequence);
            !failure.is_reported.get() && is_kept
        });
        self.first = first;
    }
}

#[cfg(test)]
mod tests {
    use sahasra_wire::session::FailureCode;

    use super::*;

    fn failure(sequence: u64) -> Rc<Failure> {
        Failure::new(
            sequence,
            "execute p".to_owned(),
            Fault::new(FailureCode::ExecutionFailed, "it broke"),
        )
    }

    #[test]
    fn the_first_failure_that_no_answer_has_told_is_found_whatever_was_told_in_between() {
        let epoch = Epoch::default();
        let failures: Vec<_> = (1..=100).rev().map(failure).collect();
        for failure in &failures {
            epoch.record(failure);
        }
        for reported in 1..100 {
            failures[100 - reported].report(1);
            assert_eq!(epoch.first_unreported().unwrap().sequence, reported as u64 + 1);
            assert_eq!(epoch.first().unwrap().sequence, 1);
        }
        failures[0].report(1);
        assert_eq!(epoch.first_unreported(), None);
    }

    #[test]
    fn of_failures_that_nothing_can_tell_any_more_the_first_is_kept() {
        let epoch = Epoch::default();
        let asked = failure(3);
        epoch.record(&asked);
        for sequence in 4..100_000 {
            epoch.record(&failure(sequence));
        }
        assert!(epoch.0.borrow().unreported.len() <= FEW);
        asked.report(1);
        assert_eq!(epoch.first_unreported().unwrap().sequence, 4);
    }
}
