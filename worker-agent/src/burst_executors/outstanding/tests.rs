//! The index against a map of single chunks.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const LIMIT: u64 = 50;
const DEVICES: usize = 2;

fn range(first: u64, count: u64, attempt: u32) -> AttemptRange {
    AttemptRange { first, count, attempt }
}

#[test]
fn parts_may_end_in_any_order() {
    let chunks = OutstandingChunks::new(LIMIT);
    chunks
        .submit(&[(0, range(10, 10, 1)), (0, range(20, 5, 1)), (0, range(25, 5, 2))])
        .unwrap();
    for submitted in [range(10, 15, 1), range(25, 5, 2)] {
        chunks.advance(0, submitted, &[Stage::Queued], Stage::Running).unwrap();
    }
    let end = |device, range| chunks.advance(device, range, Stage::HANDED_OVER, Stage::Ended).is_some();
    assert!(end(0, range(15, 8, 1)), "across two submissions");
    assert!(!end(0, range(14, 2, 1)), "15 has ended");
    assert!(!end(0, range(24, 2, 1)), "25 is in another attempt");
    assert!(!end(1, range(24, 1, 1)), "24 is on another device");
    assert!(!chunks.remove(range(14, 2, 1)), "14 runs");
    let running = [range(10, 5, 1), range(23, 2, 1), range(25, 5, 2)].map(|range| (range, Stage::Running));
    assert_eq!(chunks.handed_over(0), running);
    assert_eq!(chunks.count(0, Stage::UNENDED), 12);
    assert_eq!(chunks.chunks(), [(0, range(10, 15, 1)), (0, range(25, 5, 2))]);
    assert!(chunks.remove(range(15, 8, 1)));
    let left = [range(10, 5, 1), range(23, 2, 1), range(25, 5, 2)].map(|range| (0, range));
    assert_eq!(chunks.chunks(), left);
}

#[test]
fn a_submission_is_added_whole_or_not_at_all() {
    let chunks = OutstandingChunks::new(LIMIT);
    chunks.submit(&[(0, range(5, 5, 1))]).unwrap();
    for wrong in [
        range(9, 1, 2),
        range(0, 6, 1),
        range(20, 5, 1),
        range(3, 0, 1),
        range(u64::MAX, 2, 1),
    ] {
        assert!(chunks.submit(&[(1, range(20, 10, 1)), (0, wrong)]).is_err());
        let left = vec![(0, range(5, 5, 1))];
        assert_eq!((chunks.chunks(), chunks.count(1, Stage::UNENDED)), (left, 0));
    }
    let too_many = SubmitError::TooMany { limit: LIMIT };
    assert_eq!(chunks.submit(&[(0, range(100, LIMIT - 4, 1))]), Err(too_many));
    assert_eq!(chunks.submit(&[(0, range(100, u64::MAX, 1)), (0, range(0, 1, 1))]), Err(too_many));
    chunks.submit(&[(0, range(100, LIMIT - 5, 1))]).unwrap();
}

/// Device, attempt and stage of single chunks.
type Model = BTreeMap<u64, (usize, u32, Stage)>;

fn singles(parts: Vec<(AttemptRange, Stage)>) -> Vec<(u64, u32, Stage)> {
    let single = |(range, stage): (AttemptRange, Stage)| range.indices().map(move |index| (index, range.attempt, stage));
    parts.into_iter().flat_map(single).collect()
}

/// Chunks of the device at these stages.
fn chosen(model: &Model, device: usize, stages: &[Stage]) -> Vec<(u64, u32, Stage)> {
    let chosen = model.iter().filter(|(_, (on, _, stage))| *on == device && stages.contains(stage));
    chosen.map(|(index, (_, attempt, stage))| (*index, *attempt, *stage)).collect()
}

/// Chunks of the range, or `None` unless all are there in its attempt, and `accepts` returns true for them.
fn whole(model: &Model, range: AttemptRange, accepts: impl Fn(usize, Stage) -> bool) -> Option<Vec<(u64, u32, Stage)>> {
    let chunk = |index| {
        let (device, attempt, stage) = *model.get(&index)?;
        (attempt == range.attempt && accepts(device, stage)).then_some((index, attempt, stage))
    };
    if range.count == 0 {
        None
    } else {
        range.indices().map(chunk).collect()
    }
}

fn submit(model: &mut Model, chunks: &[(usize, AttemptRange)]) -> bool {
    let mut added = Model::new();
    for (device, range) in chunks {
        for index in range.indices() {
            if model.contains_key(&index) || added.insert(index, (*device, range.attempt, Stage::Queued)).is_some() {
                return false;
            }
        }
    }
    let fits = (model.len() + added.len()) as u64 <= LIMIT && chunks.iter().all(|(_, range)| range.count > 0);
    if fits {
        model.append(&mut added);
    }
    fits
}

const STAGES: [Stage; 4] = [Stage::Queued, Stage::Running, Stage::Alone, Stage::Ended];

proptest! {
    #[test]
    fn it_equals_a_map_of_single_chunks(
        steps in prop::collection::vec((0u8..4, 0..DEVICES, 0u64..60, 0u64..20, 1u32..3, 1usize..5, 0usize..4), 1..80)
    ) {
        let chunks = OutstandingChunks::new(LIMIT);
        let mut model = Model::new();
        for (step, device, first, count, attempt, stages, to) in steps {
            let range = range(first, count, attempt);
            match step {
                0 => {
                    let submitted = [(device, range), (1 - device, AttemptRange { first: first + 15, ..range })];
                    let submitted = &submitted[..1 + to % 2];
                    prop_assert_eq!(chunks.submit(submitted).is_ok(), submit(&mut model, submitted));
                }
                1 | 2 => {
                    let (from, to) = (&STAGES[..stages], STAGES[to]);
                    let expected = whole(&model, range, |on, stage| on == device && from.contains(&stage));
                    prop_assert_eq!(chunks.advance(device, range, from, to).map(singles), expected.clone());
                    if expected.is_some() {
                        model.range_mut(range.indices()).for_each(|(_, chunk)| chunk.2 = to);
                    }
                }
                _ => {
                    let expected = whole(&model, range, |_, stage| matches!(stage, Stage::Queued | Stage::Ended)).is_some();
                    prop_assert_eq!(chunks.remove(range), expected);
                    if expected {
                        model.retain(|index, _| !range.indices().contains(index));
                    }
                }
            }
            let found = chunks.get(device, first).map(|(range, stage)| (device, range.attempt, stage));
            prop_assert_eq!(found, model.get(&first).copied().filter(|(on, ..)| *on == device));
            for device in 0..DEVICES {
                for stage in STAGES {
                    prop_assert_eq!(chunks.count(device, &[stage]), chosen(&model, device, &[stage]).len() as u64);
                }
                let handed_over = chosen(&model, device, Stage::HANDED_OVER);
                prop_assert_eq!(singles(chunks.handed_over(device)), handed_over);
            }
            let all = chunks.chunks();
            let is_apart = |one: &(usize, AttemptRange), next: &(usize, AttemptRange)| {
                let (end, start) = (one.1.indices().end, next.1.first);
                end < start || end == start && (one.0, one.1.attempt) != (next.0, next.1.attempt)
            };
            prop_assert!(all.is_sorted_by(is_apart));
            let all = all.into_iter().flat_map(|(device, range)| range.indices().map(move |index| (index, device, range.attempt)));
            prop_assert!(all.eq(model.iter().map(|(index, (device, attempt, _))| (*index, *device, *attempt))));
            prop_assert_eq!(chunks.is_empty(), model.is_empty());
        }
    }
}
