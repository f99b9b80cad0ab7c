//! Chunks that wait for a retry, ordered by the time at which it is due.

use std::{
    collections::BTreeSet,
    ops::{Bound, Range},
    time::Duration,
};

use sahasra_ranges::{AttemptRange, RangeMap, length};

#[derive(Clone, Copy, Debug)]
struct Retry {
    ready_at: Duration,
    attempt: u32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Retries {
    waiting: RangeMap<Retry>,
    /// Time at which each range is due, with its first index.
    queue: BTreeSet<(Duration, u64)>,
    /// Time of the last check: ranges that were due at it are counted in `due`.
    checked: Duration,
    /// Number of chunks that were due at the last check.
    due: u64,
}

impl Retries {
    /// Makes the chunks wait until `ready_at`. None of them may wait already.
    pub(super) fn insert(&mut self, ready_at: Duration, chunks: AttemptRange) {
        let attempt = chunks.attempt;
        let is_free = self.waiting.insert(chunks.indices(), Retry { ready_at, attempt });
        debug_assert!(is_free, "a chunk waits once");
        self.queue.insert((ready_at, chunks.first));
        self.due += if ready_at <= self.checked { chunks.count } else { 0 };
    }

    /// Removes up to `at_most` consecutive chunks that are due at `now`, and returns them.
    pub(super) fn take_front(&mut self, at_most: u64, now: Duration) -> Option<AttemptRange> {
        self.check(now);
        let (ready_at, first) = *self.queue.first()?;
        if ready_at > self.checked {
            return None;
        }
        let (range, _) = self.waiting.get(first)?;
        self.cut(first..range.end.min(first.saturating_add(at_most))).pop()
    }

    /// Removes the waiting chunks of `range`, and returns them.
    pub(super) fn cut(&mut self, range: Range<u64>) -> Vec<AttemptRange> {
        if self.waiting.is_empty() {
            return Vec::new();
        }
        let end = range.end;
        let parts = self.waiting.cut(range);
        for (part, retry) in &parts {
            self.queue.remove(&(retry.ready_at, part.start));
            self.due -= if retry.ready_at <= self.checked { length(part) } else { 0 };
        }
        // The rest of the last range begins at the end of the cut.
        if !parts.is_empty()
            && let Some((rest, retry)) = self.waiting.get(end)
        {
            self.queue.insert((retry.ready_at, rest.start));
        }
        parts
            .into_iter()
            .map(|(part, retry)| AttemptRange::new(part, retry.attempt))
            .collect()
    }

    pub(super) fn chunks(&self) -> u64 {
        self.waiting.len()
    }

    pub(super) fn ready(&mut self, now: Duration) -> u64 {
        self.check(now);
        self.due
    }

    pub(super) fn next_at(&self) -> Option<Duration> {
        self.queue.first().map(|(ready_at, _)| *ready_at)
    }

    /// Counts the chunks that have become due since the last check.
    fn check(&mut self, now: Duration) {
        if now <= self.checked {
            return;
        }
        let since = (Bound::Excluded((self.checked, u64::MAX)), Bound::Included((now, u64::MAX)));
        for (_, first) in self.queue.range(since) {
            self.due += self.waiting.get(*first).map_or(0, |(range, _)| length(&range));
        }
        self.checked = now;
    }
}
