use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn indices(ranges: &[(u64, u64)]) -> BTreeSet<u64> {
    ranges.iter().flat_map(|(first, count)| *first..first + count).collect()
}

proptest! {
    #[test]
    fn behaves_like_a_set(steps in prop::collection::vec((0_u8..4, 0_u64..300, 0_u64..90), 0..40)) {
        let mut set = IndexSet::default();
        let mut model = BTreeSet::new();
        for (step, first, count) in steps {
            let range: BTreeSet<u64> = (first..first + count).collect();
            match step {
                0 | 1 => {
                    let missing: Vec<_> = set.missing(first, count).collect();
                    let added = set.insert(first, count);
                    prop_assert_eq!(&missing, &added);
                    prop_assert_eq!(indices(&added), range.difference(&model).copied().collect());
                    model.extend(range);
                }
                2 => {
                    let within: Vec<_> = set.within(first, count).collect();
                    let removed = set.remove(first, count);
                    prop_assert_eq!(&within, &removed);
                    prop_assert_eq!(indices(&removed), range.intersection(&model).copied().collect());
                    model.retain(|index| !range.contains(index));
                }
                _ => {
                    let taken = set.take_front(count);
                    let lowest = model.first().copied().filter(|_| count > 0);
                    prop_assert_eq!(taken.map(|(first, _)| first), lowest);
                    if let Some((first, taken)) = taken {
                        prop_assert!(taken >= 1 && taken <= count);
                        prop_assert!((first..first + taken).all(|index| model.remove(&index)));
                        prop_assert!(taken == count || !model.contains(&(first + taken)));
                    }
                }
            }
            prop_assert_eq!(set.len(), model.len() as u64);
            let ranges: Vec<_> = set.ranges().collect();
            prop_assert_eq!(indices(&ranges), model.clone());
            prop_assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 < pair[1].0), "ranges touch: {:?}", ranges);
            prop_assert!((first..first + count + 2).all(|index| set.contains(index) == model.contains(&index)));
            prop_assert_eq!(IndexSet::decode(&set.encode(), 390).unwrap(), set.clone());
            prop_assert_eq!(ranges.into_iter().collect::<IndexSet>(), set.clone());
        }
    }

    #[test]
    fn sets_combine_as_sets_do(one in prop::collection::btree_set(0_u64..300, 0..60), other in prop::collection::btree_set(0_u64..300, 0..60)) {
        let set = |indices: &BTreeSet<u64>| indices.iter().map(|index| (*index, 1)).collect::<IndexSet>();
        let mut union = set(&one);
        union.unite(&set(&other));
        prop_assert_eq!(&union, &set(&(&one | &other)));
        prop_assert_eq!(union.ranges().next().map(|(first, _)| first), one.iter().chain(&other).min().copied());
        let mut rest = set(&one);
        rest.subtract(&set(&other));
        prop_assert_eq!(rest, set(&(&one - &other)));
    }

    #[test]
    fn decoding_never_panics_and_keeps_to_the_total(bytes in prop::collection::vec(any::<u8>(), 0..40), format in 0_u8..3, total in 0_u64..5_000) {
        let bytes: Vec<u8> = std::iter::once(format).chain(bytes).collect();
        if let Ok(set) = IndexSet::decode(&bytes, total) {
            prop_assert!(set.ranges().all(|(first, count)| count > 0 && first + count <= total));
            prop_assert_eq!(set.ranges().map(|(_, count)| count).sum::<u64>(), set.len());
        }
    }
}

#[test]
fn scattered_indices_are_read_back_and_stay_small() {
    const TOTAL: u64 = 1_000_000;
    let alternating: IndexSet = (0..TOTAL / 2).map(|index| (index * 2, 1)).collect();
    let bytes = alternating.encode();
    assert!(bytes.len() < 1_000, "{} bytes", bytes.len());
    assert_eq!(IndexSet::decode(&bytes, TOTAL).unwrap(), alternating);
    // Indices without a pattern need one bit each.
    let mut state = 1_u64;
    let mut coin = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state >> 63 == 1
    };
    let scattered: IndexSet = (0..TOTAL).filter(|_| coin()).map(|index| (index, 1)).collect();
    let bytes = scattered.encode();
    assert!(bytes.len() < TOTAL as usize / 8 * 101 / 100, "{} bytes", bytes.len());
    assert_eq!(IndexSet::decode(&bytes, TOTAL).unwrap(), scattered);
    assert_eq!(IndexSet::decode(&bytes, TOTAL / 2), Err(DecodeError { total: TOTAL / 2 }));
}

#[test]
fn runs_of_every_length_at_every_bit_are_encoded_as_their_indices() {
    let mut cursor = 0;
    let runs = (0..4_000_u64).map(|number| {
        let run = (cursor + 1 + number % 3, 1 + number % if number % 16 == 0 { 131 } else { 5 });
        cursor = run.0 + run.1;
        run
    });
    let set: IndexSet = runs.collect();
    let bytes = set.encode();
    assert_eq!(bytes[0], 1, "as a bitmap");
    assert_eq!(IndexSet::decode(&bytes, cursor).unwrap(), set);
}

#[test]
fn no_set_takes_much_more_than_a_bit_for_each_index_below_its_end() {
    const TOTAL: u64 = 1_000_000;
    let bytes = |set: &IndexSet| {
        let statistics = set.bitmap.statistics();
        let arrays = 2 * u64::from(statistics.n_values_array_containers);
        arrays + u64::from(statistics.n_bitset_containers) * (1 << 16) / 8 + statistics.n_bytes_run_containers
    };
    let most = TOTAL.next_multiple_of(1 << 16) / 8 + 4 * u64::from(CHANGES);
    let is_small = |set: &IndexSet| assert!(bytes(set) <= most, "{} bytes", bytes(set));
    let scattered = |step: u64| (0..TOTAL / step).map(|index| (index * step, 1)).collect::<IndexSet>();
    let mut removed = IndexSet::full(TOTAL);
    (0..TOTAL / 2).for_each(|index| drop(removed.remove(index * 2, 1)));
    is_small(&removed);
    for step in [2, 16, 20] {
        let mut rest = IndexSet::full(TOTAL);
        rest.subtract(&scattered(step));
        is_small(&rest);
        rest.unite(&scattered(2 * step));
        is_small(&rest);
    }
    let mut filled = scattered(2);
    filled.insert(0, TOTAL);
    assert_eq!(filled.take_front(1), Some((0, 1)));
    is_small(&filled);
    // A block that begins with a run is stored as runs at first.
    let begins = (0..TOTAL >> 16).map(|block| (block << 16, 3));
    let others = (0..TOTAL / 2).map(|index| (index * 2, 1));
    is_small(&begins.chain(others).collect());
}

#[test]
fn text_is_legible_and_bounded() {
    let mut set = IndexSet::full(42);
    set.insert(43, 1);
    assert_eq!(set.text(4096), "0-41,43");
    assert_eq!(set.text(9), "0-41,...");
    let sparse: IndexSet = (0..10_000).map(|index| (index * 2, 1)).collect();
    assert!(sparse.text(4096).len() <= 4096);
}

#[test]
fn removing_nothing_changes_nothing() {
    let mut set = IndexSet::full(10);
    assert_eq!(set.remove(4, 0), []);
    assert_eq!(set.remove(u64::MAX - 1, 5), []);
    assert_eq!(set, IndexSet::full(10));
}

#[test]
fn the_lowest_indices_are_taken_first() {
    let mut set = IndexSet::full(10);
    set.remove(3, 2);
    assert_eq!(set.take_front(100), Some((0, 3)));
    assert_eq!(set.take_front(2), Some((5, 2)));
    assert_eq!(set.len(), 3);
    set.insert(1, 1);
    assert_eq!(set.take_front(2), Some((1, 1)));
}

#[test]
fn runs_are_as_long_as_a_burst() {
    let mut set = IndexSet::full(200_000);
    assert_eq!(set.ranges().collect::<Vec<_>>(), [(0, 200_000)]);
    assert_eq!(set.take_front(150_000), Some((0, 150_000)));
    assert_eq!(set.remove(180_000, 10), [(180_000, 10)]);
    assert_eq!(set.ranges().collect::<Vec<_>>(), [(150_000, 30_000), (180_010, 19_990)]);
    assert_eq!(set.missing(140_000, 50_000).collect::<Vec<_>>(), [(140_000, 10_000), (180_000, 10)]);
    assert_eq!(set.insert(100_000, 100_000), [(100_000, 50_000), (180_000, 10)]);
    assert_eq!(IndexSet::decode(&set.encode(), 200_000).unwrap(), set);
}
