//! Outstanding chunks of a run: those that were handed over and have not come back.

use sahasra_ranges::{AttemptRange, RangeMap};

/// A set of indices with their attempts.
#[derive(Clone, Debug, Default)]
pub struct Outstanding(RangeMap<u32>);

impl Outstanding {
    /// Returns the number of indices in the set.
    pub fn chunks(&self) -> u64 {
        self.0.len()
    }

    /// Returns the ranges in the order of their indices.
    pub fn ranges(&self) -> impl Iterator<Item = AttemptRange> {
        self.0.iter().map(|(indices, attempt)| AttemptRange::new(indices, *attempt))
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a range. Returns `false`, and adds nothing, if the range is empty, exceeds 2^64 or overlaps the set.
    pub fn insert(&mut self, range: AttemptRange) -> bool {
        self.0.insert(range.indices(), range.attempt)
    }

    /// Removes a range. Returns `false`, and removes nothing, unless the set contains all of it with the same attempt.
    pub fn remove(&mut self, range: AttemptRange) -> bool {
        let indices = range.indices();
        // A report may span adjacent submissions: check that the set contains all of it before removing any.
        let held = !indices.is_empty() && self.0.covers(indices.clone(), |attempt| *attempt == range.attempt);
        if held {
            self.0.cut(indices);
        }
        held
    }

    /// Removes one index, and returns it with its attempt.
    pub fn take(&mut self, index: u64) -> Option<AttemptRange> {
        let attempt = self.0.take(index)?;
        Some(AttemptRange::new(index..index + 1, attempt))
    }

    /// Removes everything, and returns it in the order of the indices.
    pub fn drain(&mut self) -> Vec<AttemptRange> {
        let drained = self.ranges().collect();
        *self = Self::default();
        drained
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn range(first: u64, count: u64, attempt: u32) -> AttemptRange {
        AttemptRange { first, count, attempt }
    }

    #[test]
    fn parts_may_come_back_in_any_order() {
        let mut outstanding = Outstanding::default();
        assert!(outstanding.insert(range(10, 10, 1)));
        assert!(outstanding.insert(range(20, 5, 1)));
        assert!(outstanding.insert(range(25, 5, 2)));
        assert_eq!(outstanding.chunks(), 20);
        assert!(outstanding.remove(range(15, 8, 1)), "across two submissions");
        assert!(!outstanding.remove(range(14, 2, 1)), "15 came back already");
        assert!(!outstanding.remove(range(24, 2, 1)), "25 is another attempt");
        assert_eq!(outstanding.take(12), Some(range(12, 1, 1)));
        assert_eq!(outstanding.take(12), None);
        assert_eq!(outstanding.chunks(), 11);
        assert_eq!(
            outstanding.drain(),
            [range(10, 2, 1), range(13, 2, 1), range(23, 2, 1), range(25, 5, 2)]
        );
        assert!(outstanding.is_empty());
    }

    #[test]
    fn an_index_is_outstanding_once() {
        let mut outstanding = Outstanding::default();
        assert!(outstanding.insert(range(5, 5, 1)));
        assert!(!outstanding.insert(range(9, 1, 2)));
        assert!(!outstanding.insert(range(0, 6, 1)));
        assert!(!outstanding.insert(range(0, 100, 1)));
        assert!(!outstanding.insert(range(3, 0, 1)));
        assert!(!outstanding.insert(range(u64::MAX, 2, 1)));
        assert!(outstanding.insert(range(10, 1, 1)));
        assert!(outstanding.insert(range(0, 5, 1)));
        assert_eq!(outstanding.chunks(), 11);
    }

    proptest::proptest! {
        #[test]
        fn it_holds_what_a_map_of_single_indices_holds(
            steps in proptest::collection::vec((0u8..3, 0u64..60, 0u64..20, 1u32..3), 1..60)
        ) {
            let mut outstanding = Outstanding::default();
            let mut model = BTreeMap::new();
            for (step, first, count, attempt) in steps {
                let indices = first..first + count;
                match step {
                    0 => {
                        let free = count > 0 && indices.clone().all(|index| !model.contains_key(&index));
                        proptest::prop_assert_eq!(outstanding.insert(range(first, count, attempt)), free);
                        if free {
                            model.extend(indices.map(|index| (index, attempt)));
                        }
                    }
                    1 => {
                        let held = count > 0 && indices.clone().all(|index| model.get(&index) == Some(&attempt));
                        proptest::prop_assert_eq!(outstanding.remove(range(first, count, attempt)), held);
                        if held {
                            model.retain(|index, _| !indices.contains(index));
                        }
                    }
                    _ => {
                        let taken = outstanding.take(first).map(|taken| taken.attempt);
                        proptest::prop_assert_eq!(taken, model.remove(&first));
                    }
                }
                proptest::prop_assert_eq!(outstanding.chunks(), model.len() as u64);
            }
            let left: BTreeMap<u64, u32> = outstanding
                .drain()
                .into_iter()
                .flat_map(|left| (left.first..left.first + left.count).map(move |index| (index, left.attempt)))
                .collect();
            proptest::prop_assert_eq!(left, model);
        }
    }
}
