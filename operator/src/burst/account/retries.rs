//! Chunks that wait for another attempt, the one that may start first at the front.

use std::collections::BTreeSet;

use super::Batch;

/// Consecutive chunks that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Retry {
    ready_at: u64,
    first: u64,
    count: u64,
    attempt: u32,
}

/// All of a burst.
#[derive(Clone, Debug, Default)]
pub(super) struct Retries(BTreeSet<Retry>);

impl Retries {
    /// These wait until `ready_at`, in milliseconds.
    pub(super) fn insert(&mut self, ready_at: u64, batch: Batch) {
        let Batch { first, count, attempt } = batch;
        self.0.insert(Retry {
            ready_at,
            first,
            count,
            attempt,
        });
    }

    /// Takes up to `at_most` chunks that may start now.
    pub(super) fn take_front(&mut self, at_most: u64, now: u64) -> Option<Batch> {
        let retry = self.0.first().copied().filter(|retry| retry.ready_at <= now)?;
        self.0.remove(&retry);
        let count = retry.count.min(at_most);
        if count < retry.count {
            let (first, count) = (retry.first + count, retry.count - count);
            self.0.insert(Retry { first, count, ..retry });
        }
        let Retry { first, attempt, .. } = retry;
        Some(Batch { first, count, attempt })
    }

    /// Takes out what waits of [first, first + count).
    pub(super) fn cut(&mut self, first: u64, count: u64) -> Vec<Batch> {
        let end = first.saturating_add(count);
        let overlaps = |retry: &&Retry| retry.first < end && retry.first + retry.count > first;
        let hit: Vec<Retry> = self.0.iter().filter(overlaps).copied().collect();
        let mut taken = Vec::new();
        for retry in hit {
            self.0.remove(&retry);
            let (start, stop) = (retry.first.max(first), (retry.first + retry.count).min(end));
            if retry.first < start {
                let count = start - retry.first;
                self.0.insert(Retry { count, ..retry });
            }
            if retry.first + retry.count > stop {
                let count = retry.first + retry.count - stop;
                self.0.insert(Retry {
                    first: stop,
                    count,
                    ..retry
                });
            }
            let (count, attempt) = (stop - start, retry.attempt);
            taken.push(Batch {
                first: start,
                count,
                attempt,
            });
        }
        taken
    }

    /// Chunks that wait.
    pub(super) fn chunks(&self) -> u64 {
        self.0.iter().map(|retry| retry.count).sum()
    }

    /// Chunks that may start at `now`.
    pub(super) fn ready(&self, now: u64) -> u64 {
        let ready = self.0.iter().take_while(|retry| retry.ready_at <= now);
        ready.map(|retry| retry.count).sum()
    }

    /// When the first may start.
    pub(super) fn next_at(&self) -> Option<u64> {
        self.0.first().map(|retry| retry.ready_at)
    }
}
