use proptest::prelude::*;
use sahasra_crds::burst_job::{Aggregate, aggregate::OutputSelector};
use sahasra_service::backoff::Backoff;
use serde_json::json;

use super::*;
use crate::burst::{
    account::{Account, RetryPolicy},
    layout::Layout,
};

fn layout() -> Layout {
    let args = json!([{"output": {"type": "f32"}}, {"output": {"type": "u8", "count": 2}}]);
    Layout::of(&serde_json::from_value(json!({"ptx": {}, "entry": "k", "args": args})).unwrap())
}

fn checkpoint() -> Checkpoint {
    let mut completed = IndexSet::full(2);
    completed.insert(3, 1);
    let mut failed = IndexSet::default();
    failed.insert(2, 1);
    let mut records = vec![0; 4 * 6];
    records[..6].copy_from_slice(&[0, 0, 0x80, 0x3f, 7, 8]);
    Checkpoint {
        uid: "uid-1".into(),
        term: 4,
        completed,
        failed: BTreeMap::from([(FailureCode::Trap, failed)]),
        failures: vec![ChunkFailure {
            index: 2,
            attempts: 1,
            code: "Trap".into(),
            message: "trap".into(),
        }],
        retried: 5,
        peak_slices: 12,
        aggregator: Aggregator::new(None, &layout()),
        results: Results::Inline(records),
    }
}

fn decode(contents: &Contents, uid: &str, total: u64) -> Result<Checkpoint, CheckpointError> {
    let results = Results::Inline(vec![0; total as usize * layout().record_bytes()]);
    Checkpoint::decode(contents, uid, total, &Aggregator::new(None, &layout()), &results)
}

#[test]
fn failures_of_every_cause_are_read_back() {
    for code in FailureCode::all() {
        let mut checkpoint = checkpoint();
        checkpoint.failed = checkpoint.failed.into_values().map(|failed| (code, failed)).collect();
        checkpoint.failures[0].code = code.label().to_owned();
        assert_eq!(decode(&checkpoint.encode(), "uid-1", 4).unwrap(), checkpoint, "{code}");
    }
}

#[test]
fn an_encoded_checkpoint_is_decoded_unchanged() {
    let inline = checkpoint();
    assert_eq!(decode(&inline.encode(), "uid-1", 4).unwrap(), inline);
    let mut index = SegmentIndex::default();
    index.add(4, 0);
    for (results, fresh) in [
        (Results::Store(index), Results::Store(SegmentIndex::default())),
        (Results::Nowhere, Results::Nowhere),
    ] {
        let checkpoint = Checkpoint { results, ..inline.clone() };
        let none = Aggregator::new(None, &layout());
        let read = Checkpoint::decode(&checkpoint.encode(), "uid-1", 4, &none, &fresh).unwrap();
        assert_eq!(read, checkpoint);
        // A job with another policy for results must reject it.
        assert!(Checkpoint::decode(&checkpoint.encode(), "uid-1", 4, &none, &inline.results).is_err());
    }
}

/// A random set of indices, which does not compress.
fn scattered(total: u64, seed: u64) -> IndexSet {
    let mut state = seed;
    let mut coin = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state >> 63 == 1
    };
    (0..total).filter(|_| coin()).map(|index| (index, 1)).collect()
}

#[test]
fn large_sets_are_moved_to_the_store_and_read_back() {
    const TOTAL: u64 = 2_000_000;
    let failed = scattered(TOTAL, 1);
    let mut completed = IndexSet::full(TOTAL);
    completed.subtract(&failed);
    let checkpoint = Checkpoint {
        completed,
        failed: BTreeMap::from([(FailureCode::Trap, failed)]),
        results: Results::Nowhere,
        ..checkpoint()
    };
    let mut contents = checkpoint.encode();
    // The failed indices are stored once. The set of counted indices is one range, so it takes almost no space.
    assert!(contents.bytes() < TOTAL as usize / 8 + 10_000, "{}", contents.bytes());
    let (sets, objects) = contents.move_sets("checkpoints/term-4/00000000".into()).unwrap();
    assert!(contents.bytes() < 2_000);
    assert_eq!(contents.stored_sets().unwrap(), Some(sets));
    for keys in [
        r#"["counted","failed.Trap","counted"]"#,
        r#"["counted","failed.Nothing"]"#,
        r#"["../secret"]"#,
    ] {
        let mut changed = contents.clone();
        let text = changed.data.get_mut(STATE).unwrap();
        *text = text.replace(r#"["counted","failed.Trap"]"#, keys);
        assert!(matches!(changed.stored_sets(), Err(CheckpointError::Contradiction(_))), "{keys}");
    }
    for (name, bytes) in objects {
        let key = name.strip_prefix("checkpoints/term-4/00000000/").unwrap();
        contents.binary_data.insert(key.to_owned(), bytes);
    }
    let none = Aggregator::new(None, &layout());
    let read = Checkpoint::decode(&contents, "uid-1", TOTAL, &none, &Results::Nowhere).unwrap();
    assert_eq!(read, checkpoint);
    assert_eq!(self::checkpoint().encode().move_sets(String::new()), None);
}

proptest! {
    /// A user with the right to write ConfigMaps can change the checkpoint. It must be rejected, or the burst must be able to continue
    /// with it.
    #[test]
    fn a_tampered_checkpoint_is_rejected_or_the_burst_can_continue(
        places in prop::collection::vec((0_usize..3, any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in 0_usize..4,
    ) {
        let sum = Aggregate { sum: Some(OutputSelector { output: 0 }), ..Aggregate::default() };
        let fresh = Aggregator::new(Some(sum.choice().unwrap()), &layout());
        let mut original = Checkpoint { aggregator: fresh.clone(), ..checkpoint() };
        original.aggregator.add(0, &[0, 0, 0x80, 0x3f, 7, 8], &layout());
        let mut contents = original.encode();
        for (place, at, byte) in places {
            match place {
                0 => {
                    let text = contents.data.get_mut(STATE).unwrap();
                    let at = at.index(text.len());
                    let mut bytes = std::mem::take(text).into_bytes();
                    bytes[at] = b"0123456789\"{}[],:xn"[usize::from(byte) % 19];
                    *text = String::from_utf8(bytes).unwrap_or_default();
                }
                1 => {
                    let bytes = contents.binary_data.get_mut(COUNTED).unwrap();
                    let at = at.index(bytes.len());
                    bytes[at] = byte;
                    bytes.truncate(bytes.len().saturating_sub(cut).max(1));
                }
                _ => {
                    let bytes = contents.binary_data.get_mut("failed.Trap").unwrap();
                    let at = at.index(bytes.len());
                    bytes[at] = byte;
                }
            }
        }
        let zeros = Results::Inline(vec![0; 4 * 6]);
        let Ok(read) = Checkpoint::decode(&contents, "uid-1", 4, &fresh, &zeros) else { return Ok(()) };
        let Results::Inline(records) = &read.results else { panic!("inline") };
        prop_assert!(read.completed.ranges().all(|(first, count)| first + count <= 4));
        let policy = RetryPolicy { max_retries: 1, backoff: Backoff::default() };
        let mut account = Account::new(4, policy, 0);
        account.restore(read.completed, read.failed, read.failures, read.retried);
        let counts = account.counts();
        prop_assert_eq!(counts.pending + counts.succeeded + counts.failed, 4);
        account.succeeded(0, 4);
        prop_assert!(account.is_finished());
        let mut aggregator = read.aggregator;
        aggregator.add(3, &records[..6], &layout());
        aggregator.status(|_| BTreeMap::new());
    }
}

#[test]
fn foreign_and_damaged_checkpoints_are_rejected() {
    let contents = checkpoint().encode();
    assert!(matches!(decode(&contents, "uid-2", 4), Err(CheckpointError::OtherJob(_))));
    assert!(matches!(
        decode(&contents, "uid-1", 5),
        Err(CheckpointError::Size { found: 24, expected: 30 })
    ));
    let mut cut = contents.clone();
    cut.binary_data.remove(COUNTED);
    assert!(matches!(decode(&cut, "uid-1", 4), Err(CheckpointError::Missing(COUNTED))));
    let mut cut = contents;
    cut.data.insert(STATE.into(), "{}".into());
    assert!(matches!(decode(&cut, "uid-1", 4), Err(CheckpointError::State(_))));
}
