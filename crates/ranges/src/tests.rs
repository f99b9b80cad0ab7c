use proptest::prelude::*;

use super::*;

fn contents(map: &RangeMap<u32>) -> Vec<(Range<u64>, u32)> {
    map.iter().map(|(range, value)| (range, *value)).collect()
}

#[test]
fn parts_may_be_cut_in_any_order() {
    let mut map = RangeMap::default();
    assert!(map.insert(10..20, 1));
    assert!(map.insert(20..25, 1));
    assert!(map.insert(25..30, 2));
    assert_eq!(map.len(), 20);
    assert!(map.covers(15..23, |value| *value == 1), "across two ranges");
    assert_eq!(map.cut(15..23), [(15..20, 1), (20..23, 1)]);
    assert!(!map.covers(14..16, |_| true), "15 is gone");
    assert!(!map.covers(24..26, |value| *value == 1), "25 has another value");
    assert_eq!(map.take(12), Some(1));
    assert_eq!(map.take(12), None);
    assert_eq!(map.len(), 11);
    assert_eq!(contents(&map), [(10..12, 1), (13..15, 1), (23..25, 1), (25..30, 2)]);
    assert_eq!(map.gaps(0..40).collect::<Vec<_>>(), [0..10, 12..13, 15..23, 30..40]);
    assert_eq!(map.get(14), Some((13..15, &1)));
    assert_eq!(map.get(15), None);
}

#[test]
fn an_index_is_there_once() {
    let mut map = RangeMap::default();
    assert!(map.insert(5..10, 1));
    for range in [9..10, 0..6, 0..100, 3..3, 6..7] {
        assert!(!map.insert(range, 2));
    }
    assert!(map.insert(10..11, 1));
    assert!(map.insert(0..5, 1));
    assert_eq!(map.len(), 11);
    assert_eq!(map.take(u64::MAX), None);
}

#[test]
fn a_range_beyond_the_largest_index_is_empty() {
    let range = AttemptRange {
        first: u64::MAX - 1,
        count: 3,
        attempt: 1,
    };
    assert!(range.indices().is_empty());
    assert_eq!(AttemptRange { count: 1, ..range }.indices(), u64::MAX - 1..u64::MAX);
    assert_eq!(AttemptRange::new(3..7, 2).indices(), 3..7);
}

proptest! {
    #[test]
    fn it_equals_a_map_of_single_indices(steps in prop::collection::vec((0u8..3, 0u64..60, 0u64..20, 1u32..3), 1..60)) {
        let mut map = RangeMap::default();
        let mut model = BTreeMap::<u64, u32>::new();
        for (step, first, count, value) in steps {
            let range = first..first + count;
            let singles = |parts: Vec<(Range<u64>, u32)>| -> BTreeMap<u64, u32> {
                parts.into_iter().flat_map(|(part, value)| part.map(move |index| (index, value))).collect()
            };
            let inside: BTreeMap<u64, u32> = model.range(range.clone()).map(|(index, value)| (*index, *value)).collect();
            let parts: Vec<_> = map.within(range.clone()).map(|(part, value)| (part, *value)).collect();
            prop_assert!(parts.iter().all(|(part, _)| !part.is_empty()));
            prop_assert_eq!(singles(parts), inside.clone());
            let gaps: Vec<u64> = map.gaps(range.clone()).flatten().collect();
            let missing: Vec<u64> = range.clone().filter(|index| !model.contains_key(index)).collect();
            prop_assert_eq!(gaps, missing);
            let covered = range.clone().all(|index| model.get(&index) == Some(&value));
            prop_assert_eq!(map.covers(range.clone(), |held| *held == value), covered);
            prop_assert_eq!(map.get(first).map(|(_, value)| *value), model.get(&first).copied());
            match step {
                0 => {
                    let free = count > 0 && inside.is_empty();
                    prop_assert_eq!(map.insert(range.clone(), value), free);
                    if free {
                        model.extend(range.map(|index| (index, value)));
                    }
                }
                1 => {
                    prop_assert_eq!(singles(map.cut(range.clone())), inside);
                    model.retain(|index, _| !range.contains(index));
                }
                _ => prop_assert_eq!(map.take(first), model.remove(&first)),
            }
            prop_assert_eq!((map.len(), map.is_empty()), (model.len() as u64, model.is_empty()));
            prop_assert_eq!(singles(contents(&map)), model.clone());
        }
    }
}
