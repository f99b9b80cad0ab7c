//! Times of marks: which were recorded, and which are on their way.

use std::collections::HashMap;
use std::time::Duration;

use sahasra_cuda_device::Ticket;

/// Marks of a context.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    times: HashMap<u64, Duration>,
    /// Marks whose time has not arrived, with the ticket of their last recording.
    outstanding: HashMap<u64, Ticket>,
}

impl Marks {
    /// A mark was submitted, perhaps again.
    pub(crate) fn submit(&mut self, mark: u64, ticket: Ticket) {
        self.times.remove(&mark);
        self.outstanding.insert(mark, ticket);
    }

    /// The time of a mark arrived, when the operations up to `executed` had been executed. A time that is not of the last recording is
    /// dropped, as is that of a forgotten mark.
    pub(crate) fn arrive(&mut self, mark: u64, time: Duration, executed: Ticket) {
        if self.outstanding.get(&mark).is_some_and(|ticket| *ticket <= executed) {
            self.outstanding.remove(&mark);
            self.times.insert(mark, time);
        }
    }

    pub(crate) fn time(&self, mark: u64) -> Option<Duration> {
        self.times.get(&mark).copied()
    }

    pub(crate) fn forget(&mut self, mark: u64) {
        self.times.remove(&mark);
        self.outstanding.remove(&mark);
    }

    /// Last ticket before all marks whose time has not arrived, but at most `ticket`.
    pub(crate) fn before_outstanding(&self, ticket: Ticket) -> Ticket {
        let first = self.outstanding.values().min();
        first.map_or(ticket, |first| ticket.min(Ticket(first.0 - 1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_the_last_recording_counts() {
        let mut marks = Marks::default();
        let time = Duration::from_nanos;
        marks.submit(1, Ticket(5));
        assert_eq!(marks.before_outstanding(Ticket(9)), Ticket(4));
        assert_eq!(marks.before_outstanding(Ticket(3)), Ticket(3));
        marks.arrive(1, time(10), Ticket(5));
        assert_eq!((marks.time(1), marks.before_outstanding(Ticket(9))), (Some(time(10)), Ticket(9)));
        marks.submit(1, Ticket(7));
        assert_eq!(marks.time(1), None);
        // Of the recording before, which had not been reported.
        marks.arrive(1, time(20), Ticket(6));
        assert_eq!(marks.time(1), None);
        marks.arrive(1, time(30), Ticket(8));
        assert_eq!(marks.time(1), Some(time(30)));
        marks.submit(2, Ticket(9));
        marks.forget(2);
        marks.arrive(2, time(40), Ticket(9));
        assert_eq!(marks.time(2), None);
    }
}
