//! Waits between attempts.

use std::time::Duration;

/// Exponential backoff: waits double with each consecutive failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    /// Wait after the first failure.
    pub first: Duration,
    pub longest: Duration,
}

impl Backoff {
    pub const fn milliseconds(first: u64, longest: u64) -> Self {
        Self {
            first: Duration::from_millis(first),
            longest: Duration::from_millis(longest),
        }
    }

    pub fn after(self, failures: u32) -> Duration {
        self.first.saturating_mul(1 << failures.saturating_sub(1).min(31)).min(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest() {
        let backoff = Backoff::milliseconds(100, 350);
        let waits: Vec<u128> = (1..6).map(|failures| backoff.after(failures).as_millis()).collect();
        assert_eq!(waits, [100, 200, 350, 350, 350]);
        assert_eq!(backoff.after(0), backoff.first);
        assert_eq!(backoff.after(u32::MAX), backoff.longest);
        let narrow = Backoff::milliseconds(100, 50);
        assert_eq!(narrow.after(1), narrow.longest);
    }
}
