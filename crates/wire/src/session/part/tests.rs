use proptest::prelude::*;

use super::*;

fn decoded(part: Part, payload: &[u8]) -> Result<Vec<u8>, PartError> {
    let mut into = vec![7; part.bytes(payload.len())?];
    part.decode(payload, &mut into)?;
    Ok(into)
}

/// Returns small numbers as elements of `width` bytes: their high bytes are equal, their low bytes differ.
fn small_numbers(width: usize, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|place| {
            let number = (place / width).wrapping_mul(2_654_435_761) >> 7;
            if place % width == 0 { number as u8 } else { 0 }
        })
        .collect()
}

#[test]
fn elements_of_small_numbers_become_little_more_than_their_low_bytes() {
    for width in [2, 4, 8] {
        let numbers = small_numbers(width, PART_BYTES);
        let (part, payload) = Encoder::default().encode(&numbers, width as u32, usize::MAX).unwrap();
        assert_eq!(part.encoding(), Encoding::ShuffledLz4);
        assert!(payload.len() < PART_BYTES / width * 11 / 10, "{width}: {}", payload.len());
        assert!(decoded(part, &payload).unwrap() == numbers);
    }
}

#[test]
fn incompressible_data_is_not_encoded_and_is_recognised_by_a_sample() {
    let mut state = 1_u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    })
    .take(PART_BYTES)
    .collect();
    let mut encoder = Encoder::default();
    assert_eq!(encoder.encode(&noise, 4, usize::MAX), None);
    assert_eq!(encoder.encode(&[0; 4000], 1, 10), None, "it may be no longer than that");
    let (before, after) = encoder.sample(&noise, 4);
    assert_eq!(before, PART_BYTES / 16);
    assert!(after >= before, "{after} of {before}");
    let (before, after) = encoder.sample(&small_numbers(4, PART_BYTES), 4);
    assert!(after < before / 3, "{after} of {before}");
    for little in 0..200 {
        encoder.sample(&noise[..little], 8);
    }
}

#[test]
fn invalid_parts_are_rejected_before_memory_is_allocated() {
    let part = |encoding, decoded_bytes, width| Part {
        encoding,
        decoded_bytes,
        width,
    };
    let most = PART_BYTES as u64;
    for (part, payload, error) in [
        (part(3, 10, 4), 5, PartError::Encoding),
        (part(-1, 10, 4), 5, PartError::Encoding),
        (part(1, 10, 0), 11, PartError::Length),
        (part(1, 0, 0), 0, PartError::Length),
        (part(1, 10, 0), 0, PartError::Length),
        (part(1, most + 1, 0), 100, PartError::Length),
        (part(1, u64::MAX, 0), 100, PartError::Length),
        (part(2, 10, 0), 5, PartError::Width),
        (part(2, 10, 3), 5, PartError::Width),
        (part(2, 10, u32::MAX), 5, PartError::Width),
    ] {
        assert_eq!(part.bytes(payload), Err(error), "{part:?}");
    }
    assert_eq!(part(1, most, 0).bytes(100), Ok(PART_BYTES));
    assert_eq!(part(0, 7, 9).bytes(100), Ok(100), "raw is as long as it is");
    let (good, payload) = Encoder::default().encode(&[5; 1000], 4, usize::MAX).unwrap();
    for wrong in [999, 1001] {
        let part = Part {
            decoded_bytes: wrong,
            ..good
        };
        assert_eq!(decoded(part, &payload), Err(PartError::Broken));
    }
    assert_eq!(decoded(good, &payload[..payload.len() - 1]), Err(PartError::Broken));
    assert_eq!(good.decode(&payload, &mut [0; 10]), Err(PartError::Broken));
}

fn content() -> impl Strategy<Value = Vec<u8>> {
    let runs = prop::collection::vec((prop::collection::vec(any::<u8>(), 1..20), 1_usize..200), 0..40);
    runs.prop_map(|runs| {
        runs.into_iter()
            .flat_map(|(bytes, times)| bytes.repeat(times))
            .take(PART_BYTES)
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn encoded_parts_decode_to_the_same_bytes(raw in content(), width in prop::sample::select(vec![0_u32, 1, 2, 4, 8, 9])) {
        if let Some((part, payload)) = Encoder::default().encode(&raw, width, usize::MAX) {
            prop_assert!(payload.len() < raw.len());
            prop_assert!(decoded(part, &payload).unwrap() == raw);
        }
    }

    #[test]
    fn shuffling_is_undone(raw in prop::collection::vec(any::<u8>(), 0..100), width in prop::sample::select(vec![2_usize, 4, 8])) {
        let (mut shuffled, mut back) = (vec![0; raw.len()], vec![0; raw.len()]);
        shuffle(&raw, &mut shuffled, width);
        unshuffle(&shuffled, &mut back, width);
        prop_assert_eq!(raw, back);
    }

    #[test]
    fn any_bytes_decode_to_the_announced_size_or_are_rejected(
        payload in prop::collection::vec(any::<u8>(), 0..300),
        encoding in -1_i32..4,
        decoded_bytes in prop_oneof![0_u64..2000, Just(PART_BYTES as u64), any::<u64>()],
        width in 0_u32..10,
    ) {
        let part = Part { encoding, decoded_bytes, width };
        if let Ok(bytes) = decoded(part, &payload) {
            prop_assert!(bytes.len() == payload.len() || bytes.len() as u64 == decoded_bytes);
        }
    }

    #[test]
    fn damaged_parts_decode_to_the_announced_size_or_are_rejected(
        raw in content(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        width in prop::sample::select(vec![1_u32, 2, 4, 8]),
    ) {
        if let Some((part, payload)) = Encoder::default().encode(&raw, width, usize::MAX) {
            let mut payload = payload.to_vec();
            for (place, byte) in damage {
                let place = place.index(payload.len());
                payload[place] = byte;
            }
            if let Ok(bytes) = decoded(part, &payload) {
                prop_assert_eq!(bytes.len(), raw.len());
            }
        }
    }
}
