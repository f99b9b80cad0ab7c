//! Limits how often a burst may write to the API server: 20 writes and one more every five seconds, including Events. Also limits the bytes
//! of its checkpoints.
//!
//! Necessary writes are never delayed; progress that is only for observers waits until it is within the budget. Pure.

/// Number of writes that do not depend on the duration of the burst.
const CONSTANT: f64 = 20.0;
/// Milliseconds for one more write.
const EVERY: f64 = 5_000.0;
/// Writes reserved for the end: checkpoint, status, Event, lease, finalizer, and one retry.
const RESERVED: f64 = 6.0;

/// Average bytes per second that one kind of progress may write. etcd keeps every version of an object until its next compaction, usually
/// for five minutes, within a quota of 2 GiB. A hundred bursts with 512 KiB of results take 240 MB of it.
const BYTES_PER_SECOND: u64 = 8 << 10;

/// The write budget of a burst.
#[derive(Clone, Debug)]
pub struct Budget {
    began: u64,
    spent: f64,
}

/// Times at which one kind of progress is written. The interval doubles with each write.
#[derive(Clone, Debug)]
pub struct Pace {
    due: u64,
    interval: u64,
    longest: u64,
}

impl Budget {
    /// Creates the budget of a burst that begins at `now`, in milliseconds.
    pub fn new(now: u64) -> Self {
        Self { began: now, spent: 0.0 }
    }

    /// Counts a necessary write.
    pub fn spend(&mut self) {
        self.spent += 1.0;
    }

    /// Whether a write of progress is within the budget at `now`.
    pub fn allows(&self, now: u64) -> bool {
        self.spent + 1.0 + RESERVED <= CONSTANT + now.saturating_sub(self.began) as f64 / EVERY
    }

    /// Earliest time at which a write of progress is within the budget.
    pub fn allows_at(&self) -> u64 {
        let missing = (self.spent + 1.0 + RESERVED - CONSTANT).max(0.0);
        self.began + (missing * EVERY).ceil() as u64
    }
}

impl Pace {
    /// The first write is due `first` milliseconds after `now`. The interval grows up to `longest` milliseconds.
    pub fn new(now: u64, first: u64, longest: u64) -> Self {
        Self {
            due: now + first,
            interval: first,
            longest,
        }
    }

    /// Time at which the next write is due.
    pub fn due(&self) -> u64 {
        self.due
    }

    /// Delays the next write so that the average rate allows the `bytes` of the write that began at `now`.
    pub fn carried(&mut self, bytes: usize, now: u64) {
        self.due = self.due.max(now + bytes as u64 * 1_000 / BYTES_PER_SECOND);
    }

    /// Records that a write was made or tried at `now`.
    pub fn written(&mut self, now: u64) {
        self.interval = (self.interval * 2).min(self.longest);
        self.due = now + self.interval;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_of_any_duration_stays_within_its_budget() {
        let mut budget = Budget::new(1_000);
        let mut paces = [
            Pace::new(1_000, 500, 20_000),
            Pace::new(1_000, 1_000, 40_000),
            Pace::new(1_000, 5_000, 10_000),
        ];
        let mut written = 5;
        (0..written).for_each(|_| budget.spend());
        for now in (1_000..601_000).step_by(10) {
            for pace in &mut paces {
                if pace.due() <= now && budget.allows(now) {
                    budget.spend();
                    pace.written(now);
                    written += 1;
                }
            }
            let limit = 20 + (now - 1_000) / 5_000;
            assert!(written + 6 <= limit, "{written} writes by {now}");
        }
        // The budget is also used: progress is written.
        assert!(written > 80, "{written}");
    }

    #[test]
    fn large_checkpoints_are_written_less_often() {
        let mut pace = Pace::new(0, 5_000, 10_000);
        let (mut written, mut bytes) = (0, 0);
        for now in 0..600_000 {
            if pace.due() <= now {
                pace.written(now);
                pace.carried(600 << 10, now);
                (written, bytes) = (written + 1, bytes + (600 << 10));
            }
        }
        assert!((7..=9).contains(&written), "{written}");
        assert!(bytes <= 600 * BYTES_PER_SECOND + (600 << 10));
        let mut pace = Pace::new(0, 5_000, 10_000);
        pace.written(5_000);
        pace.carried(2_000, 5_000);
        assert_eq!(pace.due(), 15_000);
    }

    #[test]
    fn the_time_at_which_it_allows_is_the_first() {
        let mut budget = Budget::new(0);
        (0..17).for_each(|_| budget.spend());
        let at = budget.allows_at();
        assert!(budget.allows(at) && !budget.allows(at - 1));
    }
}
