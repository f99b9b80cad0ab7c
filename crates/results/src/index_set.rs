//! Sets of chunk indices as compressed bitmaps. Ten million indices take at most 1.25 MB, regardless of their distribution.

use std::fmt::Write;

use roaring::{RoaringBitmap, bitmap::Iter};

mod encoding;

pub use encoding::DecodeError;

/// Number of changes after which the form of the storage is chosen again. A bitmap of runs does not become one of bits by itself, and each
/// change adds a run of 4 bytes at most: 16 bits for each index at worst, instead of one.
const CHANGES: u32 = 4096;

/// A set of chunk indices. Callers bound the indices by the burst's total, which is far below 2^32.
#[derive(Clone, Debug, Default)]
pub struct IndexSet {
    bitmap: RoaringBitmap,
    /// Changes since the form of the storage was chosen.
    changes: u32,
}

/// The index as an element of a bitmap, at most the largest, which no set contains.
fn element(index: u64) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

/// The maximal runs (first, count) of consecutive indices.
fn runs(mut indices: Iter<'_>) -> impl Iterator<Item = (u64, u64)> {
    std::iter::from_fn(move || {
        let run = indices.next_range()?;
        let (first, last) = (u64::from(*run.start()), u64::from(*run.end()));
        Some((first, last - first + 1))
    })
}

impl IndexSet {
    /// Creates the set of all indices below `total`.
    pub fn full(total: u64) -> Self {
        Self::from_iter([(0, total)])
    }

    pub fn len(&self) -> u64 {
        self.bitmap.len()
    }

    pub fn is_empty(&self) -> bool {
        self.bitmap.is_empty()
    }

    pub fn contains(&self, index: u64) -> bool {
        self.bitmap.contains(element(index))
    }

    /// The maximal runs of consecutive indices as (first, count), ascending.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        runs(self.bitmap.iter())
    }

    /// The runs (first, count) of indices in [first, first + count) that are in the set.
    pub fn within(&self, first: u64, count: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        runs(self.bitmap.range(element(first)..element(first.saturating_add(count))))
    }

    /// The runs (first, count) of indices in [first, first + count) that are not in the set.
    pub fn missing(&self, first: u64, count: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut from = first;
        let end = (first.saturating_add(count), 0);
        self.within(first, count).chain([end]).filter_map(move |(start, held)| {
            let gap = (from, start - from);
            from = start + held;
            (gap.1 > 0).then_some(gap)
        })
    }

    /// Adds `count` indices from `first`. Returns the runs (first, count) that were not yet in the set.
    pub fn insert(&mut self, first: u64, count: u64) -> Vec<(u64, u64)> {
        let added = self.missing(first, count).collect();
        self.bitmap.insert_range(element(first)..element(first + count));
        self.changed(1);
        added
    }

    /// Removes `count` indices from `first`. Returns the runs (first, count) that were in the set.
    pub fn remove(&mut self, first: u64, count: u64) -> Vec<(u64, u64)> {
        let removed = self.within(first, count).collect();
        self.bitmap.remove_range(element(first)..element(first.saturating_add(count)));
        self.changed(1);
        removed
    }

    /// Removes up to `at_most` of the lowest indices and returns them as one run (first, count).
    pub fn take_front(&mut self, at_most: u64) -> Option<(u64, u64)> {
        let (first, count) = self.within(self.bitmap.min()?.into(), at_most).next()?;
        self.remove(first, count);
        Some((first, count))
    }

    pub fn unite(&mut self, other: &Self) {
        self.bitmap |= &other.bitmap;
        self.changed(CHANGES);
    }

    pub fn subtract(&mut self, other: &Self) {
        self.bitmap -= &other.bitmap;
        self.changed(CHANGES);
    }

    fn changed(&mut self, changes: u32) {
        self.changes += changes;
        if self.changes >= CHANGES {
            self.bitmap.optimize();
            self.changes = 0;
        }
    }

    /// `0-41,43`, cut at a whole range so as to stay within `limit` bytes; a cut ends in `,...`.
    pub fn text(&self, limit: usize) -> String {
        ranges_text(self.ranges(), limit)
    }
}

impl PartialEq for IndexSet {
    fn eq(&self, other: &Self) -> bool {
        self.bitmap == other.bitmap
    }
}

impl Eq for IndexSet {}

impl FromIterator<(u64, u64)> for IndexSet {
    fn from_iter<I: IntoIterator<Item = (u64, u64)>>(ranges: I) -> Self {
        let mut set = Self::default();
        for (first, count) in ranges {
            set.insert(first, count);
        }
        set
    }
}

/// Ranges (first, count) as `0-41,43`, cut at a whole range so as to stay within `limit` bytes; a cut ends in `,...`.
pub fn ranges_text(ranges: impl IntoIterator<Item = (u64, u64)>, limit: usize) -> String {
    let mut text = String::new();
    for (first, count) in ranges {
        let start = text.len();
        let comma = if text.is_empty() { "" } else { "," };
        let written = if count == 1 {
            write!(text, "{comma}{first}")
        } else {
            write!(text, "{comma}{first}-{}", first + count - 1)
        };
        written.expect("a String takes all");
        // Reserve 4 bytes for the mark of a cut.
        if text.len().saturating_add(4) > limit {
            text.truncate(start);
            text.push_str(if text.is_empty() { "..." } else { ",..." });
            break;
        }
    }
    text
}

#[cfg(test)]
mod tests;
