//! Maps from ranges of chunk indices to values, and the range of chunks of one attempt.
//!
//! A burst has up to ten million chunks, handed over and answered in ranges. [`RangeMap`] stores what is in flight or waits for a
//! retry, and splits a range where a part of it ends. Ranges stay as they were inserted: neighbours with equal values are not joined.

use std::{collections::BTreeMap, ops::Range};

/// Consecutive chunks, all in the same attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptRange {
    pub first: u64,
    pub count: u64,
    /// Number of the attempt, from 1.
    pub attempt: u32,
}

impl AttemptRange {
    pub fn new(indices: Range<u64>, attempt: u32) -> Self {
        Self {
            first: indices.start,
            count: length(&indices),
            attempt,
        }
    }

    /// The indices of the chunks: none if their end exceeds 2^64.
    pub fn indices(&self) -> Range<u64> {
        self.first..self.first.checked_add(self.count).unwrap_or(self.first)
    }

    /// Appends `next` if it follows in the same attempt. Returns whether it does.
    pub fn extend(&mut self, next: Self) -> bool {
        let follows = self.first.checked_add(self.count) == Some(next.first) && self.attempt == next.attempt;
        if follows {
            self.count += next.count;
        }
        follows
    }
}

pub fn length(range: &Range<u64>) -> u64 {
    range.end.saturating_sub(range.start)
}

/// A map from indices to values, as ranges that do not overlap.
#[derive(Clone, Debug)]
pub struct RangeMap<V> {
    /// End (exclusive) and value of each range, by its first index. No range is empty.
    ranges: BTreeMap<u64, (u64, V)>,
    len: u64,
}

impl<V> Default for RangeMap<V> {
    fn default() -> Self {
        Self {
            ranges: BTreeMap::new(),
            len: 0,
        }
    }
}

impl<V> RangeMap<V> {
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The ranges in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = (Range<u64>, &V)> {
        let ranges = self.ranges.iter().inspect(|_| visits::count());
        ranges.map(|(first, (end, value))| (*first..*end, value))
    }

    /// The range that contains `index`.
    pub fn get(&self, index: u64) -> Option<(Range<u64>, &V)> {
        visits::count();
        let (first, (end, value)) = self.ranges.range(..=index).next_back()?;
        (index < *end).then_some((*first..*end, value))
    }

    /// The ranges that overlap `range`, in ascending order.
    fn overlapping(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, &V)> {
        let Range { start, end } = range;
        let before = self.ranges.range(..=start).next_back().map_or(start, |(first, _)| *first);
        let ranges = self.ranges.range(before..end.max(before)).inspect(|_| visits::count());
        let ranges = ranges.map(|(first, (end, value))| (*first..*end, value));
        ranges.filter(move |(whole, _)| whole.end > start && start < end)
    }

    /// The parts of ranges within `range`, in ascending order.
    pub fn within(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, &V)> {
        let overlapping = self.overlapping(range.clone());
        overlapping.map(move |(whole, value)| (intersection(&whole, &range), value))
    }

    /// The parts of `range` that the map does not contain, in ascending order.
    pub fn gaps(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let mut from = range.start;
        let end = range.end..range.end;
        let parts = self.within(range).map(|(part, _)| part).chain([end]);
        parts.filter_map(move |part| {
            let gap = from..part.start;
            from = part.end;
            (!gap.is_empty()).then_some(gap)
        })
    }

    /// Whether the map contains all of `range`, with values that `accepts` returns true for.
    pub fn covers(&self, range: Range<u64>, accepts: impl Fn(&V) -> bool) -> bool {
        self.gaps(range.clone()).next().is_none() && self.within(range).all(|(_, value)| accepts(value))
    }

    /// Adds a range. Returns `false`, and adds nothing, if the range is empty or overlaps the map.
    pub fn insert(&mut self, range: Range<u64>, value: V) -> bool {
        if range.is_empty() || self.overlapping(range.clone()).next().is_some() {
            return false;
        }
        self.len += length(&range);
        self.ranges.insert(range.start, (range.end, value));
        true
    }
}

impl<V: Clone> RangeMap<V> {
    /// Removes `range`, and returns the removed parts in ascending order. The rest of a range that reaches beyond it stays.
    pub fn cut(&mut self, range: Range<u64>) -> Vec<(Range<u64>, V)> {
        let hit: Vec<u64> = self.overlapping(range.clone()).map(|(whole, _)| whole.start).collect();
        let mut parts = Vec::with_capacity(hit.len());
        for first in hit {
            let Some((end, value)) = self.ranges.remove(&first) else { continue };
            let part = intersection(&(first..end), &range);
            if first < part.start {
                self.ranges.insert(first, (part.start, value.clone()));
            }
            if part.end < end {
                self.ranges.insert(part.end, (end, value.clone()));
            }
            self.len -= length(&part);
            parts.push((part, value));
        }
        parts
    }

    /// Removes one index, and returns its value.
    pub fn take(&mut self, index: u64) -> Option<V> {
        self.cut(index..index.saturating_add(1)).pop().map(|(_, value)| value)
    }
}

fn intersection(one: &Range<u64>, other: &Range<u64>) -> Range<u64> {
    one.start.max(other.start)..one.end.min(other.end)
}

/// Number of ranges that this thread visited in any [`RangeMap`] since the last call, for tests that limit it. Always 0 without
/// debug assertions.
pub fn visited_ranges() -> u64 {
    visits::take()
}

mod visits {
    #[cfg(debug_assertions)]
    thread_local! {
        static VISITS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }

    #[inline]
    pub(crate) fn count() {
        #[cfg(debug_assertions)]
        VISITS.set(VISITS.get() + 1);
    }

    pub(crate) fn take() -> u64 {
        #[cfg(debug_assertions)]
        return VISITS.take();
        #[cfg(not(debug_assertions))]
        0
    }
}

#[cfg(test)]
mod tests;
