//! Backoff of the watches on workers and their heartbeats.

use std::time::Duration;

use kube::runtime::utils;
use sahasra_service::backoff::Backoff;

const FIRST: Duration = Duration::from_millis(100);

/// Exponential backoff with a maximum wait. The default backoff of kube grows to 30 s: after an outage of the API server, the operator
/// would miss heartbeats for that long and would consider live workers stale.
#[derive(Clone, Debug)]
pub(super) struct WatchBackoff {
    backoff: Backoff,
    failures: u32,
}

impl WatchBackoff {
    /// Creates a backoff whose waits are at most `longest`.
    pub(super) fn up_to(longest: Duration) -> Self {
        Self {
            backoff: Backoff { first: FIRST, longest },
            failures: 0,
        }
    }
}

impl Iterator for WatchBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.failures = self.failures.saturating_add(1);
        Some(self.backoff.after(self.failures))
    }
}

impl utils::Backoff for WatchBackoff {
    fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::runtime::utils::Backoff as _;

    #[test]
    fn waits_double_up_to_the_longest_and_restart_after_a_success() {
        let mut backoff = WatchBackoff::up_to(Duration::from_millis(350));
        let waits: Vec<u128> = backoff.by_ref().take(5).map(|wait| wait.as_millis()).collect();
        assert_eq!(waits, [100, 200, 350, 350, 350]);
        backoff.reset();
        assert_eq!(backoff.next(), Some(FIRST));
    }
}
