//! Chunks that wait for a retry, ordered by the time at which it is due.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use sahasra_ranges::AttemptRange;

/// Consecutive chunks that wait for the same retry.
#[derive(Clone, Copy, Debug)]
struct Retry {
    ready_at: u64,
    count: u64,
    attempt: u32,
}

/// All chunks of a burst that wait for a retry, in ranges that do not overlap.
#[derive(Clone, Debug, Default)]
pub(super) struct Retries {
    by_first: BTreeMap<u64, Retry>,
    /// Time at which each range is due, with its first index: ranges that were not due at the last check.
    later: BTreeSet<(u64, u64)>,
    /// Time at which each range is due, with its first index: ranges that were due at the last check.
    due: BTreeSet<(u64, u64)>,
    chunks: u64,
    due_chunks: u64,
}

impl Retries {
    /// Makes the chunks of `batch` wait until `ready_at`, in milliseconds.
    pub(super) fn insert(&mut self, ready_at: u64, batch: AttemptRange) {
        let AttemptRange { first, count, attempt } = batch;
        let retry = Retry { ready_at, count, attempt };
        self.by_first.insert(first, retry);
        self.later.insert((ready_at, first));
        self.chunks += count;
    }

    /// Removes up to `at_most` consecutive chunks that are due at `now`, and returns them.
    pub(super) fn take_front(&mut self, at_most: u64, now: u64) -> Option<AttemptRange> {
        self.promote(now);
        let (_, first) = *self.due.first()?;
        let retry = self.remove(first)?;
        let count = retry.count.min(at_most);
        self.keep(first + count, retry.count - count, retry);
        let attempt = retry.attempt;
        Some(AttemptRange { first, count, attempt })
    }

    /// Removes the waiting chunks of `range`, and returns them.
    pub(super) fn cut(&mut self, range: Range<u64>) -> Vec<AttemptRange> {
        if self.chunks == 0 {
            return Vec::new();
        }
        let Range { start: first, end } = range;
        let before = self.by_first.range(..first).next_back();
        let before = before.filter(|(from, retry)| *from + retry.count > first).map(|(from, _)| *from);
        let hit: Vec<u64> = (before.into_iter())
            .chain(self.by_first.range(first..end.max(first)).map(|(from, _)| *from))
            .collect();
        let mut taken = Vec::with_capacity(hit.len());
        for from in hit {
            let Some(retry) = self.remove(from) else { continue };
            let (start, stop) = (from.max(first), (from + retry.count).min(end));
            self.keep(from, start - from, retry);
            self.keep(stop, from + retry.count - stop, retry);
            taken.push(AttemptRange {
                first: start,
                count: stop - start,
                attempt: retry.attempt,
            });
        }
        taken
    }

    /// Number of chunks that wait.
    pub(super) fn chunks(&self) -> u64 {
        self.chunks
    }

    /// Number of chunks that are due at `now`.
    pub(super) fn ready(&mut self, now: u64) -> u64 {
        self.promote(now);
        self.due_chunks
    }

    /// Time at which the first retry is due.
    pub(super) fn next_at(&self) -> Option<u64> {
        self.due.first().or(self.later.first()).map(|(ready_at, _)| *ready_at)
    }

    fn promote(&mut self, now: u64) {
        while let Some((ready_at, first)) = self.later.first().copied().filter(|(ready_at, _)| *ready_at <= now) {
            self.later.remove(&(ready_at, first));
            self.due.insert((ready_at, first));
            self.due_chunks += self.by_first.get(&first).map_or(0, |retry| retry.count);
        }
    }

    fn remove(&mut self, first: u64) -> Option<Retry> {
        let retry = self.by_first.remove(&first)?;
        self.chunks -= retry.count;
        if self.due.remove(&(retry.ready_at, first)) {
            self.due_chunks -= retry.count;
        } else {
            self.later.remove(&(retry.ready_at, first));
        }
        Some(retry)
    }

    /// Makes the remaining part of a range wait for the same retry.
    fn keep(&mut self, first: u64, count: u64, of: Retry) {
        if count > 0 {
            let attempt = of.attempt;
            self.insert(of.ready_at, AttemptRange { first, count, attempt });
        }
    }
}
