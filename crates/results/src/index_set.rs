//! Sets of chunk indices as a bitmap. Ten million indices take 1.25 MB regardless of their distribution, and the cost of changing a range
//! is proportional to its length.

use std::fmt::Write;

mod encoding;

pub use encoding::DecodeError;

/// Indices in a word of the bitmap.
const WORD: u64 = u64::BITS as u64;

/// A set of chunk indices, as a bitmap: one bit for each index up to the largest it ever held. Callers bound the indices by the burst's total.
#[derive(Clone, Debug, Default)]
pub struct IndexSet {
    words: Vec<u64>,
    len: u64,
    floor: u64,
}

impl IndexSet {
    /// Creates the set of all indices below `total`.
    pub fn full(total: u64) -> Self {
        let mut set = Self::default();
        set.insert(0, total);
        set
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn contains(&self, index: u64) -> bool {
        self.word(index / WORD) >> (index % WORD) & 1 == 1
    }

    /// The maximal runs of consecutive indices as (first, count), ascending.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.within(self.floor, u64::MAX)
    }

    /// The runs (first, count) of indices in [first, first + count) that are in the set.
    pub fn within(&self, first: u64, count: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let end = first.saturating_add(count).min(self.words.len() as u64 * WORD);
        self.runs(first, end, true)
    }

    /// The runs (first, count) of indices in [first, first + count) that are not in the set.
    pub fn missing(&self, first: u64, count: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.runs(first, first.saturating_add(count), false)
    }

    fn runs(&self, first: u64, end: u64, held: bool) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut cursor = first;
        std::iter::from_fn(move || {
            let start = self.find(cursor, end, held)?;
            cursor = self.find(start, end, !held).unwrap_or(end);
            Some((start, cursor - start))
        })
    }

    /// Adds `count` indices from `first`. Returns the runs (first, count) that were not yet in the set.
    pub fn insert(&mut self, first: u64, count: u64) -> Vec<(u64, u64)> {
        if count == 0 {
            return Vec::new();
        }
        let end = first + count;
        let words = usize::try_from(end.div_ceil(WORD)).expect("indices are below a burst's total");
        if self.words.len() < words {
            self.words.resize(words, 0);
        }
        let added: Vec<(u64, u64)> = self.missing(first, count).collect();
        self.change(first, end, |word, mask| *word |= mask);
        self.floor = if self.len == 0 { first } else { self.floor.min(first) };
        self.len += added.iter().map(|(_, count)| count).sum::<u64>();
        added
    }

    /// Removes `count` indices from `first`. Returns the runs (first, count) that were in the set.
    pub fn remove(&mut self, first: u64, count: u64) -> Vec<(u64, u64)> {
        let removed: Vec<(u64, u64)> = self.within(first, count).collect();
        if let (Some((first, _)), Some((last, count))) = (removed.first(), removed.last()) {
            self.change(*first, last + count, |word, mask| *word &= !mask);
        }
        self.len -= removed.iter().map(|(_, count)| count).sum::<u64>();
        removed
    }

    /// Removes up to `at_most` of the lowest indices and returns them as one run (first, count).
    pub fn take_front(&mut self, at_most: u64) -> Option<(u64, u64)> {
        if at_most == 0 || self.len == 0 {
            return None;
        }
        let first = self.find(self.floor, self.words.len() as u64 * WORD, true)?;
        self.floor = first;
        let (first, count) = self.within(first, at_most).next()?;
        self.remove(first, count);
        self.floor = first + count;
        Some((first, count))
    }

    pub fn unite(&mut self, other: &Self) {
        if other.len == 0 {
            return;
        }
        if self.words.len() < other.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        for (word, others) in self.words.iter_mut().zip(&other.words) {
            *word |= others;
        }
        self.floor = if self.len == 0 { other.floor } else { self.floor.min(other.floor) };
        self.recount();
    }

    pub fn subtract(&mut self, other: &Self) {
        for (word, others) in self.words.iter_mut().zip(&other.words) {
            *word &= !others;
        }
        self.recount();
    }

    /// `0-41,43`, cut at a whole range so as to stay within `limit` bytes; a cut ends in `,...`.
    pub fn text(&self, limit: usize) -> String {
        ranges_text(self.ranges(), limit)
    }

    fn recount(&mut self) {
        self.len = self.words.iter().map(|word| u64::from(word.count_ones())).sum();
    }

    fn word(&self, place: u64) -> u64 {
        usize::try_from(place)
            .ok()
            .and_then(|place| self.words.get(place))
            .copied()
            .unwrap_or_default()
    }

    /// The first index in [from, end) that is in the set (`held`), or that is not in the set (not `held`).
    fn find(&self, from: u64, end: u64, held: bool) -> Option<u64> {
        let flip = if held { 0 } else { u64::MAX };
        let mut place = from / WORD;
        // Bits below `from` in its word are masked out.
        let mut word = (self.word(place) ^ flip) & (u64::MAX << (from % WORD));
        if from >= end {
            return None;
        }
        loop {
            if word != 0 {
                let found = place * WORD + u64::from(word.trailing_zeros());
                return (found < end).then_some(found);
            }
            place += 1;
            if place * WORD >= end {
                return None;
            }
            word = self.word(place) ^ flip;
        }
    }

    /// Applies `change` to each word that overlaps [first, end), with a mask of the affected bits. The words must exist.
    fn change(&mut self, first: u64, end: u64, change: impl Fn(&mut u64, u64)) {
        let (start, stop) = (first / WORD, (end - 1) / WORD);
        for place in start..=stop {
            let mut mask = u64::MAX;
            if place == start {
                mask &= u64::MAX << (first % WORD);
            }
            if place == stop {
                mask &= u64::MAX >> (WORD - 1 - (end - 1) % WORD);
            }
            change(&mut self.words[place as usize], mask);
        }
    }
}

impl PartialEq for IndexSet {
    fn eq(&self, other: &Self) -> bool {
        let words = self.words.len().max(other.words.len()) as u64;
        self.len == other.len && (0..words).all(|place| self.word(place) == other.word(place))
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
