//! Which operations of a context have been executed, and when its marks were recorded, as far as answers that have arrived say.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sahasra_cuda_device::Ticket;
use sahasra_wire::cuda::{MARKS_AT_ONCE, Waited};

use crate::marks::Marks;

/// Number of marks after which their times are requested without a wait, so that the session does not keep those of ever more events that
/// the program has destroyed. Less than an answer can have, so that answers keep up.
const MARKS_BEFORE_REQUEST: usize = MARKS_AT_ONCE / 4;

/// [Progress](self) of a context.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Number of operations that are known to have been executed. The times of the marks among them have arrived.
    executed: AtomicU64,
    marks: Mutex<Marks>,
    /// Number of marks that were submitted since the last request.
    unrequested: AtomicUsize,
}

impl Progress {
    /// A mark was submitted, perhaps again.
    pub(crate) fn submit(&self, mark: u64, ticket: Ticket) {
        self.marks.lock().submit(mark, ticket);
        self.unrequested.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the times of marks should be requested.
    pub(crate) fn is_request_due(&self) -> bool {
        self.unrequested.load(Ordering::Relaxed) >= MARKS_BEFORE_REQUEST
    }

    /// The times of marks are requested.
    pub(crate) fn request(&self) {
        self.unrequested.store(0, Ordering::Relaxed);
    }

    /// An answer to a wait arrived. Called in the order of the answers, each of which has the marks that none before had, whichever threads
    /// wait for them.
    pub(crate) fn arrive(&self, waited: &Waited) {
        let executed = Ticket(waited.executed);
        let mut marks = self.marks.lock();
        for mark in &waited.marks {
            marks.arrive(mark.mark, Duration::from_nanos(mark.nanoseconds), executed);
        }
        let known = match is_complete(waited) {
            true => executed,
            false => marks.before_outstanding(executed),
        };
        self.raise(known);
    }

    /// An answer without times of marks arrived, for which everything up to a ticket was executed. Returns the last ticket before the marks
    /// whose time has not arrived, but at most that one.
    pub(crate) fn arrive_without_marks(&self, executed: Ticket) -> Ticket {
        let known = self.marks.lock().before_outstanding(executed);
        self.raise(known);
        known
    }

    fn raise(&self, executed: Ticket) {
        self.executed.fetch_max(executed.0, Ordering::Release);
    }

    /// Last ticket that is known to have been executed.
    pub(crate) fn executed(&self) -> Ticket {
        Ticket(self.executed.load(Ordering::Acquire))
    }

    pub(crate) fn time(&self, mark: u64) -> Option<Duration> {
        self.marks.lock().time(mark)
    }

    pub(crate) fn forget(&self, mark: u64) {
        self.marks.lock().forget(mark);
    }
}

/// Whether an answer has left out no mark that was recorded.
pub(crate) fn is_complete(waited: &Waited) -> bool {
    waited.marks.len() < MARKS_AT_ONCE
}

#[cfg(test)]
mod tests {
    use sahasra_wire::cuda::Mark;

    use super::*;

    #[test]
    fn an_operation_counts_as_executed_when_the_times_of_all_marks_before_it_have_arrived() {
        let progress = Progress::default();
        let count = MARKS_AT_ONCE as u64 + 2;
        for mark in 1..=count {
            progress.submit(mark, Ticket(mark));
        }
        let waited = |marks: std::ops::RangeInclusive<u64>| Waited {
            request: 1,
            executed: count,
            marks: marks.map(|mark| Mark { mark, nanoseconds: mark }).collect(),
        };
        // All but the second and the last, which is as many as an answer can have.
        let mut first = waited(3..=count - 1);
        first.marks.push(Mark { mark: 1, nanoseconds: 1 });
        assert!(!is_complete(&first));
        progress.arrive(&first);
        assert_eq!(progress.executed(), Ticket(1));
        assert_eq!(progress.arrive_without_marks(Ticket(count)), Ticket(1));
        let mut second = waited(2..=2);
        second.marks.push(Mark {
            mark: count,
            nanoseconds: count,
        });
        progress.arrive(&second);
        assert_eq!(progress.executed(), Ticket(count));
        assert!((1..=count).all(|mark| progress.time(mark) == Some(Duration::from_nanos(mark))));
    }
}
