//! The cost of an answer, which must not grow with the number of earlier answers.

use sahasra_ranges::visited_ranges;

use super::*;

/// Maximum number of ranges that an answer may visit, whatever happened before.
const VISITED_BY_AN_ANSWER: u64 = 8;

/// Every second chunk of a large burst has a different outcome from its neighbour. The cost of an answer must not grow with the number of
/// earlier answers.
fn alternating(total: u64, odd: FailureCode) -> Account {
    let mut account = Account::new(total, POLICY, 0);
    let devices: Vec<DeviceId> = (0..8).map(device).collect();
    visited_ranges();
    while account.ready(Duration::ZERO) > 0 {
        for device in &devices {
            for batch in account.take(device, 4_096, Duration::ZERO) {
                // The odd chunks first, so that the chunks in flight are fragmented.
                let chunks = batch.first..batch.first + batch.count;
                for index in chunks
                    .clone()
                    .filter(|index| index % 2 == 1)
                    .chain(chunks.filter(|index| index % 2 == 0))
                {
                    if index % 2 == 0 {
                        account.succeeded(index, 1);
                    } else {
                        let one = AttemptRange {
                            first: index,
                            count: 1,
                            ..batch
                        };
                        account.failed(device, one, odd, "trap", Duration::ZERO);
                    }
                    running(&mut account, device);
                    account.counts();
                }
                // Checked after each batch, so that an answer whose cost grows with earlier ones fails soon rather than after hours.
                let visited = visited_ranges();
                assert!(
                    visited <= VISITED_BY_AN_ANSWER * batch.count,
                    "{visited} for {} answers",
                    batch.count
                );
            }
        }
    }
    account
}

#[test]
fn failures_of_every_second_chunk_are_counted_one_by_one() {
    const TOTAL: u64 = 400_000;
    let account = alternating(TOTAL, FailureCode::Trap);
    let expected = Counts {
        total: TOTAL,
        succeeded: TOTAL / 2,
        failed: TOTAL / 2,
        ..Counts::default()
    };
    assert_eq!(account.counts(), expected);
    assert_eq!(account.causes()[&FailureCode::Trap], *account.failed_set());
    let mut restored = Account::new(TOTAL, POLICY, 0);
    restored.restore(account.completed().clone(), account.causes().clone(), Vec::new(), 0);
    assert_eq!(restored.counts(), expected);
}

/// Prints chunks per second and the size of a checkpoint's sets, for bursts up to the largest. Run with
/// `cargo test --release --package sahasra-operator --lib account -- --ignored --nocapture`.
#[test]
#[ignore = "measures, with optimised code"]
fn the_pace_of_alternating_chunks() {
    for total in [10_000, 100_000, 1_000_000, 10_000_000] {
        let began = std::time::Instant::now();
        let account = alternating(total, FailureCode::Trap);
        let elapsed = began.elapsed();
        let bytes = account.completed().encode().len() + account.failed_set().encode().len();
        let pace = total as f64 / elapsed.as_secs_f64();
        println!("{total} chunks in {elapsed:.2?}: {pace:.0} a second; sets of {bytes} bytes");
    }
}

#[test]
fn every_second_chunk_waits_for_its_retry() {
    const TOTAL: u64 = 200_000;
    let mut account = alternating(TOTAL, FailureCode::ExecutorLost);
    assert_eq!((account.counts().pending, account.counts().retried), (TOTAL / 2, TOTAL / 2));
    let later = POLICY.backoff.longest;
    assert_eq!(account.ready(later), TOTAL / 2);
    visited_ranges();
    let mut taken = 0;
    while let Some(batch) = account.take(&device(0), 1, later).first() {
        taken += batch.count;
        account.succeeded(batch.first, batch.count);
        let visited = visited_ranges();
        assert!(visited <= VISITED_BY_AN_ANSWER, "{visited} for one answer");
    }
    assert_eq!((taken, account.is_finished()), (TOTAL / 2, true));
}
