//! How often a burst may write to the API server: 20 writes and one more every five seconds, Events included; and how many
//! bytes its checkpoints may take.
//!
//! What must be written is written; what is only for onlookers (progress) waits until it fits. Pure.

/// Writes of a burst that do not depend on how long it runs.
const CONSTANT: f64 = 20.0;
/// Milliseconds for one more.
const EVERY: f64 = 5_000.0;
/// Kept back for the end: checkpoint, status, Event, lease, finalizer, and one repetition.
const RESERVED: f64 = 6.0;

/// Bytes a second that one kind of progress may carry on average. etcd keeps every version of an object until its next
/// compaction, five minutes as a rule, within 2 GiB: a hundred bursts of 512 KiB of results take 240 MB of them.
const BYTES_PER_SECOND: u64 = 8 << 10;

/// Counts a burst's writes.
#[derive(Clone, Debug)]
pub struct Budget {
    began: u64,
    spent: f64,
}

/// When one kind of progress was last written, and how long to wait at least until the next: twice as long each time.
#[derive(Clone, Debug)]
pub struct Pace {
    due: u64,
    interval: u64,
    longest: u64,
}

impl Budget {
    /// A burst that begins at `now`.
    pub fn new(now: u64) -> Self {
        Self { began: now, spent: 0.0 }
    }

    /// A write that had to be.
    pub fn spend(&mut self) {
        self.spent += 1.0;
    }

    /// Whether a write for onlookers fits.
    pub fn allows(&self, now: u64) -> bool {
        self.spent + 1.0 + RESERVED <= CONSTANT + now.saturating_sub(self.began) as f64 / EVERY
    }

    /// When it will.
    pub fn allows_at(&self) -> u64 {
        let missing = (self.spent + 1.0 + RESERVED - CONSTANT).max(0.0);
        self.began + (missing * EVERY).ceil() as u64
    }
}

impl Pace {
    /// First due `first` milliseconds after `now`, at last every `longest`.
    pub fn new(now: u64, first: u64, longest: u64) -> Self {
        Self {
            due: now + first,
            interval: first,
            longest,
        }
    }

    /// When the next is due.
    pub fn due(&self) -> u64 {
        self.due
    }

    /// The one begun at `now` carries so many bytes: the next waits until its rate allows as many.
    pub fn carried(&mut self, bytes: usize, now: u64) {
        self.due = self.due.max(now + bytes as u64 * 1_000 / BYTES_PER_SECOND);
    }

    /// One was written, or tried, at `now`.
    pub fn written(&mut self, now: u64) {
        self.interval = (self.interval * 2).min(self.longest);
        self.due = now + self.interval;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_long_a_burst_runs_it_stays_within_its_budget() {
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
        // And it is used: progress is seen.
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
