//! Sets of chunk indices, kept as disjoint ranges: a million consecutive indices cost as much as one.

use std::{collections::BTreeMap, fmt::Write};

/// A set of `u64` as disjoint, non-adjacent ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexSet {
    /// First index → one past the last.
    ranges: BTreeMap<u64, u64>,
    len: u64,
}

/// Bytes that are no encoded [`IndexSet`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the bytes are no set of indices")]
pub struct DecodeError;

impl IndexSet {
    /// All indices below `total`.
    pub fn full(total: u64) -> Self {
        let mut set = Self::default();
        set.insert(0, total);
        set
    }

    /// How many indices.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether `index` is in the set.
    pub fn contains(&self, index: u64) -> bool {
        self.ranges.range(..=index).next_back().is_some_and(|(_, end)| index < *end)
    }

    /// The ranges as (first, count), ascending.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|(first, end)| (*first, end - first))
    }

    /// Adds `count` indices from `first`; gives back the ranges (first, count) that were not yet there.
    pub fn insert(&mut self, first: u64, count: u64) -> Vec<(u64, u64)> {
        if count == 0 {
            return Vec::new();
        }
        let end = first + count;
        let (mut low, mut high) = (first, end);
        let mut added = Vec::new();
        let mut cursor = first;
        // Ranges that overlap or touch [first, end).
        let start = self
            .ranges
            .range(..first)
            .next_back()
            .filter(|(_, range_end)| **range_end >= first)
            .map_or(first, |(start, _)| *start);
        let touching: Vec<(u64, u64)> = self
            .ranges
            .range(start..=end)
            .map(|(range_first, range_end)| (*range_first, *range_end))
            .collect();
        for (range_first, range_end) in touching {
            if range_first > cursor {
                added.push((cursor, range_first.min(end) - cursor));
            }
            cursor = cursor.max(range_end);
            low = low.min(range_first);
            high = high.max(range_end);
            self.ranges.remove(&range_first);
        }
        if cursor < end {
            added.push((cursor, end - cursor));
        }
        self.ranges.insert(low, high);
        self.len += added.iter().map(|(_, count)| count).sum::<u64>();
        added
    }

    /// Removes `count` indices from `first`; gives back the ranges (first, count) that were there.
    pub fn remove(&mut self, first: u64, count: u64) -> Vec<(u64, u64)> {
        if count == 0 {
            return Vec::new();
        }
        let end = first + count;
        let start = self
            .ranges
            .range(..first)
            .next_back()
            .filter(|(_, range_end)| **range_end > first)
            .map_or(first, |(start, _)| *start);
        let overlapping: Vec<(u64, u64)> = self
            .ranges
            .range(start..end)
            .map(|(range_first, range_end)| (*range_first, *range_end))
            .collect();
        let mut removed = Vec::new();
        for (range_first, range_end) in overlapping {
            self.ranges.remove(&range_first);
            if range_first < first {
                self.ranges.insert(range_first, first);
            }
            if range_end > end {
                self.ranges.insert(end, range_end);
            }
            let (from, to) = (range_first.max(first), range_end.min(end));
            removed.push((from, to - from));
        }
        self.len -= removed.iter().map(|(_, count)| count).sum::<u64>();
        removed
    }

    /// Takes up to `at_most` of the lowest indices out, as one run (first, count).
    pub fn take_front(&mut self, at_most: u64) -> Option<(u64, u64)> {
        let (first, end) = self.ranges.iter().next().map(|(first, end)| (*first, *end))?;
        let count = (end - first).min(at_most);
        if count == 0 {
            return None;
        }
        self.remove(first, count);
        Some((first, count))
    }

    /// `0-41,43`, cut at a whole range so as to stay within `limit` bytes; a cut ends in `,...`.
    pub fn text(&self, limit: usize) -> String {
        let mut text = String::new();
        for (first, end) in &self.ranges {
            let mut item = String::new();
            let comma = if text.is_empty() { "" } else { "," };
            let written = if end - first == 1 {
                write!(item, "{comma}{first}")
            } else {
                write!(item, "{comma}{first}-{}", end - 1)
            };
            written.expect("a String takes all");
            // 4 bytes are kept for the mark of a cut.
            if text.len() + item.len() + 4 > limit {
                text.push_str(if text.is_empty() { "..." } else { ",..." });
                break;
            }
            text.push_str(&item);
        }
        text
    }

    /// Compact bytes: the gaps and lengths of the ranges as variable-length integers (LEB128).
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut cursor = 0;
        for (first, end) in &self.ranges {
            push_varint(&mut bytes, first - cursor);
            push_varint(&mut bytes, end - first);
            cursor = *end;
        }
        bytes
    }

    /// Reads what [`IndexSet::encode`] wrote.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut set = Self::default();
        let mut cursor = 0_u64;
        while !bytes.is_empty() {
            let gap = take_varint(&mut bytes)?;
            let count = take_varint(&mut bytes)?;
            let first = cursor.checked_add(gap).ok_or(DecodeError)?;
            cursor = first.checked_add(count).filter(|_| count > 0).ok_or(DecodeError)?;
            set.insert(first, count);
        }
        Ok(set)
    }
}

fn push_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push((value as u8 & 0x7f) | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn take_varint(bytes: &mut &[u8]) -> Result<u64, DecodeError> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first().ok_or(DecodeError)?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f)
            .checked_shl(shift)
            .filter(|bits| bits >> shift == u64::from(byte & 0x7f))
            .ok_or(DecodeError)?;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(DecodeError)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn indices(ranges: &[(u64, u64)]) -> BTreeSet<u64> {
        ranges.iter().flat_map(|(first, count)| *first..first + count).collect()
    }

    proptest! {
        #[test]
        fn behaves_like_a_set(steps in prop::collection::vec((any::<bool>(), 0_u64..60, 0_u64..20), 0..60)) {
            let mut set = IndexSet::default();
            let mut model = BTreeSet::new();
            for (insert, first, count) in steps {
                let range: BTreeSet<u64> = (first..first + count).collect();
                if insert {
                    prop_assert_eq!(indices(&set.insert(first, count)), range.difference(&model).copied().collect());
                    model.extend(range);
                } else {
                    prop_assert_eq!(indices(&set.remove(first, count)), range.intersection(&model).copied().collect());
                    model.retain(|index| !range.contains(index));
                }
                prop_assert_eq!(set.len(), model.len() as u64);
                let ranges: Vec<_> = set.ranges().collect();
                prop_assert_eq!(indices(&ranges), model.clone());
                prop_assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 < pair[1].0), "ranges touch: {:?}", ranges);
                prop_assert!((0..90).all(|index| set.contains(index) == model.contains(&index)));
                prop_assert_eq!(IndexSet::decode(&set.encode()).unwrap(), set.clone());
            }
        }

        #[test]
        fn decoding_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = IndexSet::decode(&bytes);
        }
    }

    #[test]
    fn text_is_legible_and_bounded() {
        let mut set = IndexSet::full(42);
        set.insert(43, 1);
        assert_eq!(set.text(4096), "0-41,43");
        assert_eq!(set.text(9), "0-41,...");
        let sparse = (0..10_000).fold(IndexSet::default(), |mut set, index| {
            set.insert(index * 2, 1);
            set
        });
        assert!(sparse.text(4096).len() <= 4096);
    }

    #[test]
    fn removing_nothing_changes_nothing() {
        let mut set = IndexSet::full(10);
        assert_eq!(set.remove(4, 0), []);
        assert_eq!(set, IndexSet::full(10));
    }

    #[test]
    fn the_lowest_indices_are_taken_first() {
        let mut set = IndexSet::full(10);
        set.remove(3, 2);
        assert_eq!(set.take_front(100), Some((0, 3)));
        assert_eq!(set.take_front(2), Some((5, 2)));
        assert_eq!(set.len(), 3);
    }
}
