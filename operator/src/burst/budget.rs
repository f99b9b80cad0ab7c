//! Limits how often a burst may write to the API server: 20 writes and one more every five seconds, including Events. Also limits the bytes
//! of its checkpoints.
//!
//! Necessary writes are never delayed; progress that is only for observers waits until it is within the budget. Pure: points of time are
//! durations since the clock's origin.

use std::time::Duration;

/// Number of writes that do not depend on the duration of the burst.
const CONSTANT: u32 = 20;
/// Time for one more write.
const EVERY: Duration = Duration::from_secs(5);
/// Writes reserved for the end: checkpoint, status, Event, lease, finalizer, and one retry.
const RESERVED: u32 = 6;

/// Average bytes per second that one kind of progress may write. etcd keeps every version of an object until its next compaction, usually
/// for five minutes, within a quota of 2 GiB. A hundred bursts with 512 KiB of results take 240 MB of it.
const BYTES_PER_SECOND: u64 = 8 << 10;

#[derive(Clone, Debug)]
pub(crate) struct Budget {
    began: Duration,
    spent: u32,
}

/// Times at which one kind of progress is written. The interval doubles with each write.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    due: Duration,
    interval: Duration,
    longest: Duration,
}

impl Budget {
    pub(crate) fn new(now: Duration) -> Self {
        Self { began: now, spent: 0 }
    }

    /// Counts a necessary write.
    pub(crate) fn spend(&mut self) {
        self.spent = self.spent.saturating_add(1);
    }

    pub(crate) fn allows(&self, now: Duration) -> bool {
        self.allows_at() <= now
    }

    /// Earliest time at which a write of progress is within the budget.
    pub(crate) fn allows_at(&self) -> Duration {
        let missing = self.spent.saturating_add(1 + RESERVED).saturating_sub(CONSTANT);
        self.began + EVERY * missing
    }
}

impl Pace {
    /// The first write is due `first` after `now`. The interval grows up to `longest`.
    pub(crate) fn new(now: Duration, first: Duration, longest: Duration) -> Self {
        Self {
            due: now + first,
            interval: first,
            longest,
        }
    }

    pub(crate) fn due(&self) -> Duration {
        self.due
    }

    /// Delays the next write so that the average rate allows the `bytes` of the write that began at `now`.
    pub(crate) fn carried(&mut self, bytes: usize, now: Duration) {
        self.due = self.due.max(now + Duration::from_millis(bytes as u64 * 1_000 / BYTES_PER_SECOND));
    }

    /// Records that a write was made or tried at `now`.
    pub(crate) fn written(&mut self, now: Duration) {
        self.interval = (self.interval * 2).min(self.longest);
        self.due = now + self.interval;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(now: Duration, first: u64, longest: u64) -> Pace {
        Pace::new(now, Duration::from_millis(first), Duration::from_millis(longest))
    }

    #[test]
    fn a_burst_of_any_duration_stays_within_its_budget() {
        let began = Duration::from_secs(1);
        let mut budget = Budget::new(began);
        let mut paces = [pace(began, 500, 20_000), pace(began, 1_000, 40_000), pace(began, 5_000, 10_000)];
        let mut written = 5;
        (0..written).for_each(|_| budget.spend());
        for now in (1_000..601_000).step_by(10).map(Duration::from_millis) {
            for pace in &mut paces {
                if pace.due() <= now && budget.allows(now) {
                    budget.spend();
                    pace.written(now);
                    written += 1;
                }
            }
            let limit = 20 + (now - began).as_secs() / 5;
            assert!(written + 6 <= limit, "{written} writes by {now:?}");
        }
        // The budget is also used: progress is written.
        assert!(written > 80, "{written}");
    }

    #[test]
    fn large_checkpoints_are_written_less_often() {
        let mut large = pace(Duration::ZERO, 5_000, 10_000);
        let (mut written, mut bytes) = (0, 0);
        for now in (0..600_000).map(Duration::from_millis) {
            if large.due() <= now {
                large.written(now);
                large.carried(600 << 10, now);
                (written, bytes) = (written + 1, bytes + (600 << 10));
            }
        }
        assert!((7..=9).contains(&written), "{written}");
        assert!(bytes <= 600 * BYTES_PER_SECOND + (600 << 10));
        let mut small = pace(Duration::ZERO, 5_000, 10_000);
        small.written(Duration::from_secs(5));
        small.carried(2_000, Duration::from_secs(5));
        assert_eq!(small.due(), Duration::from_secs(15));
    }

    #[test]
    fn the_time_at_which_it_allows_is_the_first() {
        let mut budget = Budget::new(Duration::ZERO);
        (0..17).for_each(|_| budget.spend());
        let at = budget.allows_at();
        assert!(budget.allows(at) && !budget.allows(at - Duration::from_nanos(1)));
    }
}
