//! Chunks that wait for another attempt, the one that may start first at the front.

use std::collections::{BTreeMap, BTreeSet};

use super::{Batch, looked_at};

/// Consecutive chunks that wait.
#[derive(Clone, Copy, Debug)]
struct Retry {
    ready_at: u64,
    count: u64,
    attempt: u32,
}

/// All of a burst. Ranges do not overlap.
#[derive(Clone, Debug, Default)]
pub(super) struct Retries {
    by_first: BTreeMap<u64, Retry>,
    /// When each may start, with its first index: those that were not due when last asked.
    later: BTreeSet<(u64, u64)>,
    /// Likewise, those that were.
    due: BTreeSet<(u64, u64)>,
    chunks: u64,
    due_chunks: u64,
}

impl Retries {
    /// These wait until `ready_at`, in milliseconds.
    pub(super) fn insert(&mut self, ready_at: u64, batch: Batch) {
        let Batch { first, count, attempt } = batch;
        let retry = Retry { ready_at, count, attempt };
        self.by_first.insert(first, retry);
        self.later.insert((ready_at, first));
        self.chunks += count;
    }

    /// Takes up to `at_most` chunks that may start now.
    pub(super) fn take_front(&mut self, at_most: u64, now: u64) -> Option<Batch> {
        self.promote(now);
        let (_, first) = *self.due.first()?;
        let retry = self.remove(first)?;
        let count = retry.count.min(at_most);
        self.keep(first + count, retry.count - count, retry);
        let attempt = retry.attempt;
        Some(Batch { first, count, attempt })
    }

    /// Takes out what waits of [first, first + count).
    pub(super) fn cut(&mut self, first: u64, count: u64) -> Vec<Batch> {
        if self.chunks == 0 {
            return Vec::new();
        }
        let end = first.saturating_add(count);
        let before = self.by_first.range(..first).next_back();
        let before = before.filter(|(from, retry)| *from + retry.count > first).map(|(from, _)| *from);
        let hit: Vec<u64> = (before.into_iter())
            .chain(self.by_first.range(first..end.max(first)).map(|(from, _)| *from))
            .inspect(|_| looked_at())
            .collect();
        let mut taken = Vec::with_capacity(hit.len());
        for from in hit {
            let Some(retry) = self.remove(from) else { continue };
            let (start, stop) = (from.max(first), (from + retry.count).min(end));
            self.keep(from, start - from, retry);
            self.keep(stop, from + retry.count - stop, retry);
            taken.push(Batch {
                first: start,
                count: stop - start,
                attempt: retry.attempt,
            });
        }
        taken
    }

    /// Chunks that wait.
    pub(super) fn chunks(&self) -> u64 {
        self.chunks
    }

    /// Chunks that may start at `now`.
    pub(super) fn ready(&mut self, now: u64) -> u64 {
        self.promote(now);
        self.due_chunks
    }

    /// When the first may start.
    pub(super) fn next_at(&self) -> Option<u64> {
        self.due.first().or(self.later.first()).map(|(ready_at, _)| *ready_at)
    }

    fn promote(&mut self, now: u64) {
        while let Some((ready_at, first)) = self.later.first().copied().filter(|(ready_at, _)| *ready_at <= now) {
            looked_at();
            self.later.remove(&(ready_at, first));
            self.due.insert((ready_at, first));
            self.due_chunks += self.by_first.get(&first).map_or(0, |retry| retry.count);
        }
    }

    fn remove(&mut self, first: u64) -> Option<Retry> {
        looked_at();
        let retry = self.by_first.remove(&first)?;
        self.chunks -= retry.count;
        if self.due.remove(&(retry.ready_at, first)) {
            self.due_chunks -= retry.count;
        } else {
            self.later.remove(&(retry.ready_at, first));
        }
        Some(retry)
    }

    /// What is left of a range waits on.
    fn keep(&mut self, first: u64, count: u64, of: Retry) {
        if count > 0 {
            let attempt = of.attempt;
            self.insert(of.ready_at, Batch { first, count, attempt });
        }
    }
}
