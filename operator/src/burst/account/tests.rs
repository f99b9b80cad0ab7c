use std::collections::BTreeMap;

use proptest::prelude::*;
use sahasra_ranges::looks;

use super::*;

const POLICY: RetryPolicy = RetryPolicy {
    max_retries: 2,
    initial_backoff: 1_000,
    max_backoff: 3_000,
};

fn device(number: u8) -> DeviceKey {
    DeviceKey {
        worker: format!("worker-{number}"),
        device: "cpu0".into(),
    }
}

#[test]
fn a_permanent_failure_is_never_retried() {
    let mut account = Account::new(10, POLICY, 0);
    let batch = account.take(&device(0), 10, 0)[0];
    let outcome = account.failed(
        &device(0),
        AttemptRange {
            first: 3,
            count: 1,
            ..batch
        },
        FailureCode::Trap,
        "trap at line 7",
        0,
    );
    assert_eq!(outcome, FailureOutcome { retried: 0, failed: 1 });
    assert_eq!(
        account.failures(),
        [FailedChunk {
            index: 3,
            attempts: 1,
            code: "Trap".into(),
            message: "trap at line 7".into()
        }]
    );
    assert_eq!(account.next_retry_at(), None);
}

#[test]
fn a_lost_attempt_waits_longer_each_time_and_is_given_up_in_the_end() {
    let mut account = Account::new(1, POLICY, 7);
    let mut now = 0;
    for (attempt, longest) in [(1, 1_000), (2, 2_000)] {
        assert_eq!(
            account.take(&device(0), 1, now),
            [AttemptRange {
                first: 0,
                count: 1,
                attempt
            }]
        );
        let devices = [device(0), DeviceKey::unknown("worker-0")];
        assert_eq!(account.lost(&devices, FailureCode::Disconnected, "gone", now).retried, 1);
        let ready_at = account.next_retry_at().unwrap();
        assert!((now + longest / 2..=now + longest).contains(&ready_at));
        assert_eq!(account.take(&device(0), 1, ready_at - 1), []);
        now = ready_at;
    }
    assert_eq!(
        account.take(&device(1), 1, now),
        [AttemptRange {
            first: 0,
            count: 1,
            attempt: 3
        }]
    );
    assert_eq!(account.lost([&device(1)], FailureCode::Disconnected, "gone", now).failed, 1);
    assert!(account.is_finished());
    assert_eq!(account.failures()[0].message, "gave up after 3 attempts: gone");
    assert_eq!(
        account.counts(),
        Counts {
            total: 1,
            failed: 1,
            retried: 2,
            ..Counts::default()
        }
    );
}

#[test]
fn a_failure_of_an_older_attempt_is_no_news() {
    let mut account = Account::new(1, POLICY, 0);
    let first = account.take(&device(0), 1, 0)[0];
    account.lost([&device(0)], FailureCode::Disconnected, "gone", 0);
    account.take(&device(1), 1, 5_000);
    assert_eq!(
        account.failed(&device(0), first, FailureCode::Trap, "late", 5_000),
        FailureOutcome::default()
    );
    assert_eq!(account.counts().running, 1);
}

#[test]
fn a_late_result_of_a_given_up_attempt_counts_once() {
    let mut account = Account::new(4, POLICY, 0);
    account.take(&device(0), 4, 0);
    account.lost([&device(0)], FailureCode::Disconnected, "gone", 0);
    account.take(&device(1), 2, 5_000);
    assert_eq!(account.succeeded(0, 4), [(0, 4)]);
    assert_eq!(account.succeeded(0, 2), []);
    assert!(account.is_finished());
    assert_eq!(account.take(&device(1), 4, 60_000), []);
}

#[test]
fn returned_chunks_cost_no_retry() {
    let mut account = Account::new(4, POLICY, 0);
    account.take(&device(0), 4, 0);
    let returned = AttemptRange {
        first: 1,
        count: 2,
        attempt: 1,
    };
    account.returned(&device(0), returned);
    assert_eq!(
        account.counts(),
        Counts {
            total: 4,
            pending: 2,
            running: 2,
            ..Counts::default()
        }
    );
    assert_eq!(
        account.take(&device(1), 9, 0),
        [AttemptRange {
            first: 1,
            count: 2,
            attempt: 1
        }]
    );
}

#[test]
fn a_checkpoint_restores_what_was_counted() {
    let mut account = Account::new(6, POLICY, 0);
    account.take(&device(0), 6, 0);
    account.succeeded(0, 2);
    account.failed(
        &device(0),
        AttemptRange {
            first: 4,
            count: 1,
            attempt: 1,
        },
        FailureCode::Trap,
        "trap",
        0,
    );
    let mut restored = Account::new(6, POLICY, 0);
    restored.restore(
        account.completed().clone(),
        account.causes().clone(),
        account.failures().to_vec(),
        0,
    );
    assert_eq!(
        restored.counts(),
        Counts {
            total: 6,
            pending: 3,
            succeeded: 2,
            failed: 1,
            ..Counts::default()
        }
    );
    restored.adopt("worker-2", [(2, 4)]);
    assert_eq!(restored.counts().running, 3);
    // Chunk 4 has ended, and takes room at the agent all the same.
    assert_eq!(restored.beside("worker-2"), 4);
    restored.answered("worker-2", 4, 1);
    assert_eq!(restored.beside("worker-2"), 3);
}

/// Events that can happen to a burst.
#[derive(Clone, Debug)]
enum Step {
    Take {
        device: u8,
        at_most: u64,
    },
    Succeed {
        first: u64,
        count: u64,
    },
    Fail {
        device: u8,
        first: u64,
        count: u64,
        attempt: u32,
        permanent: bool,
    },
    Return {
        device: u8,
        first: u64,
        count: u64,
        attempt: u32,
    },
    Lose {
        device: u8,
    },
    Adopt {
        device: u8,
        first: u64,
        count: u64,
    },
    AnswerAdopted {
        device: u8,
        first: u64,
        count: u64,
        fails: bool,
    },
    Wait,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0_u8..3, 1_u64..12).prop_map(|(device, at_most)| Step::Take { device, at_most }),
        (0_u64..40, 1_u64..8).prop_map(|(first, count)| Step::Succeed { first, count }),
        (0_u8..3, 0_u64..40, 1_u64..8, 1_u32..4, any::<bool>()).prop_map(|(device, first, count, attempt, permanent)| Step::Fail {
            device,
            first,
            count,
            attempt,
            permanent
        }),
        (0_u8..3, 0_u64..40, 1_u64..8, 1_u32..4).prop_map(|(device, first, count, attempt)| Step::Return {
            device,
            first,
            count,
            attempt
        }),
        (0_u8..3).prop_map(|device| Step::Lose { device }),
        (0_u8..3, 0_u64..40, 1_u64..8).prop_map(|(device, first, count)| Step::Adopt { device, first, count }),
        (0_u8..3, 0_u64..40, 1_u64..8, any::<bool>()).prop_map(|(device, first, count, fails)| Step::AnswerAdopted {
            device,
            first,
            count,
            fails
        }),
        Just(Step::Wait),
    ]
}

proptest! {
    /// Invariant 4: whatever arrives, each index is in exactly one state and counted at most once, and the burst can always finish.
    #[test]
    fn every_index_is_counted_exactly_once(steps in prop::collection::vec(step(), 0..120)) {
        const TOTAL: u64 = 40;
        let mut account = Account::new(TOTAL, POLICY, 3);
        let mut counted = BTreeMap::<u64, u32>::new();
        let mut now = 0;
        let mut count = |ranges: Vec<(u64, u64)>| ranges.into_iter().for_each(|(first, length)| {
            (first..first + length).for_each(|index| *counted.entry(index).or_default() += 1);
        });
        for step in steps {
            match step {
                Step::Take { device: number, at_most } => {
                    let taken: u64 = account.take(&device(number), at_most, now).iter().map(|batch| batch.count).sum();
                    prop_assert!(taken <= at_most);
                }
                Step::Succeed { first, count: length } => count(account.succeeded(first, length)),
                Step::Fail { device: number, first, count, attempt, permanent } => {
                    let code = if permanent { FailureCode::Trap } else { FailureCode::ExecutorLost };
                    account.failed(&device(number), AttemptRange { first, count, attempt }, code, "", now);
                }
                Step::Return { device: number, first, count, attempt } => account.returned(&device(number), AttemptRange { first, count, attempt }),
                Step::Lose { device: number } => { account.lost([&device(number)], FailureCode::Disconnected, "", now); }
                Step::Adopt { device: number, first, count } => account.adopt(&device(number).worker, [(first, count)]),
                Step::AnswerAdopted { device: number, first, count, fails } => {
                    let worker = device(number).worker;
                    account.answered(&worker, first, count);
                    if fails {
                        account.adopted_failed(&worker, first, count, FailureCode::ExecutorLost, "", now);
                    } else {
                        account.adopted_returned(&worker, first, count);
                    }
                }
                Step::Wait => now += 1_500,
            }
            let counts = account.counts();
            prop_assert_eq!(counts.pending + counts.running + counts.succeeded + counts.failed, TOTAL);
            let devices = (0..3).flat_map(|number| [device(number), DeviceKey::unknown(&device(number).worker)]);
            let on_devices: u64 = devices.map(|device| account.running_on(&device)).sum();
            prop_assert_eq!(on_devices, counts.running);
            prop_assert!((0..TOTAL).all(|index| !(account.completed().contains(index) && account.failed_set().contains(index))));
        }
        for number in 0..3 {
            account.forget(&device(number).worker);
        }
        for number in 0..3 {
            let unknown = DeviceKey::unknown(&device(number).worker);
            account.lost([&device(number), &unknown], FailureCode::Disconnected, "", now);
        }
        while !account.is_finished() {
            now += 10_000;
            let batches = account.take(&device(0), TOTAL, now);
            prop_assert!(!batches.is_empty(), "nothing to do yet not finished: {:?}", account.counts());
            for batch in batches {
                count(account.succeeded(batch.first, batch.count));
            }
        }
        prop_assert!(counted.values().all(|times| *times == 1));
        prop_assert_eq!(counted.len() as u64, account.counts().succeeded);
    }
}

#[test]
fn what_an_agent_has_already_is_adopted_whether_fresh_or_waiting_for_a_retry() {
    let mut account = Account::new(10, POLICY, 0);
    account.take(&device(0), 4, 0);
    account.lost([&device(0)], FailureCode::Disconnected, "gone", 0);
    account.adopt("worker-1", [(2, 4)]);
    assert_eq!(account.running_on(&DeviceKey::unknown("worker-1")), 4);
    assert_eq!(account.counts().pending, 6);
    // The agent counts the attempts differently from this account.
    let outcome = account.adopted_failed("worker-1", 2, 4, FailureCode::ExecutorLost, "crashed", 0);
    assert_eq!(outcome, FailureOutcome { retried: 4, failed: 0 });
    assert_eq!((account.beside("worker-1"), account.counts().pending), (0, 10));
}

#[test]
fn what_an_agent_was_handed_is_adopted_where_it_is() {
    let mut account = Account::new(10, POLICY, 0);
    account.take(&device(0), 6, 0);
    account.adopt("worker-0", [(1, 9)]);
    assert_eq!((account.running_on(&device(0)), account.beside("worker-0")), (6, 4));
    // Chunk 0 was not adopted, and chunk 9 has been adopted from another agent.
    account.adopted_returned("worker-0", 0, 1);
    account.adopted_returned("worker-1", 9, 1);
    assert_eq!(account.counts().running, 10);
    account.adopted_returned("worker-0", 1, 1);
    let failed = account.adopted_failed("worker-0", 2, 1, FailureCode::Trap, "trap", 0);
    assert_eq!((failed.failed, account.counts().running, account.counts().pending), (1, 8, 1));
    // A chunk that is assigned again is not adopted any more.
    account.take(&device(0), 1, 0);
    account.adopted_returned("worker-0", 1, 1);
    assert_eq!(account.counts().running, 9);
}

#[test]
fn what_another_agent_has_goes_on_there_at_no_cost_when_it_would_wait_again() {
    let mut account = Account::new(4, POLICY, 0);
    account.take(&device(0), 4, 0);
    account.lost([&device(0)], FailureCode::Disconnected, "gone", 0);
    account.take(&device(1), 4, 1_000_000);
    assert_eq!(account.counts().retried, 4);
    account.adopt("worker-0", [(0, 3)]);
    assert_eq!((account.beside("worker-0"), account.running_on(&device(1))), (3, 4));
    // The agent has since reported the failure of one of them.
    account.answered("worker-0", 2, 1);
    let batch = |first, attempt| AttemptRange { first, count: 1, attempt };
    account.returned(&device(1), batch(0, 2));
    account.failed(&device(1), batch(1, 2), FailureCode::ExecutorLost, "crashed", 1_000_000);
    account.returned(&device(1), batch(2, 2));
    let on = [DeviceKey::unknown("worker-0"), device(1)].map(|device| account.running_on(&device));
    assert_eq!((on, account.counts().pending, account.counts().retried), ([2, 1], 1, 3));
    // The agent counts this as the first attempt, or as the second after the failure.
    account.adopted_failed("worker-0", 0, 2, FailureCode::ExecutorLost, "crashed", 1_000_000);
    let attempts: Vec<u32> = account.take(&device(1), 4, 2_000_000).iter().map(|batch| batch.attempt).collect();
    assert_eq!(account.counts().pending, 0);
    assert!(
        [2, 2, 3].iter().all(|attempt| attempts.contains(attempt)) && attempts.len() == 3,
        "{attempts:?}"
    );
    account.adopt("worker-0", [(0, 4)]);
    account.forget("worker-0");
    account.lost([&device(1)], FailureCode::Disconnected, "gone", 2_000_000);
    assert_eq!(account.counts().running, 0);
}

#[test]
fn a_last_attempt_that_is_lost_goes_on_where_another_agent_still_has_the_chunk() {
    let policy = RetryPolicy { max_retries: 1, ..POLICY };
    let mut account = Account::new(2, policy, 0);
    account.take(&device(0), 2, 0);
    account.lost([&device(0)], FailureCode::Disconnected, "gone", 0);
    account.take(&device(1), 2, 1_000_000);
    account.adopt("worker-0", [(0, 1)]);
    let outcome = account.lost([&device(1)], FailureCode::ExecutorLost, "crashed", 1_000_000);
    assert_eq!(outcome, FailureOutcome { retried: 0, failed: 1 });
    assert_eq!(
        (account.beside("worker-0"), account.counts().running, account.counts().retried),
        (1, 1, 2)
    );
    assert_eq!(account.succeeded(0, 1), [(0, 1)]);
    assert!(account.is_finished());
}

#[test]
fn what_comes_back_late_does_not_take_a_later_attempt_back() {
    let mut account = Account::new(1, POLICY, 0);
    account.take(&device(0), 1, 0);
    account.lost([&device(0)], FailureCode::GrantExpired, "overdue", 0);
    account.take(&device(0), 1, 1_000_000);
    let batch = |attempt| AttemptRange {
        first: 0,
        count: 1,
        attempt,
    };
    account.returned(&device(0), batch(1));
    assert_eq!(account.counts().running, 1);
    account.returned(&device(0), batch(2));
    assert_eq!(account.counts().running, 0);
}

/// Maximum number of ranges that an answer may visit, whatever happened before.
const LOOKS_AT_AN_ANSWER: u64 = 8;

/// Every second chunk of a large burst has a different outcome from its neighbour. The cost of an answer must not grow with the number of
/// earlier answers.
fn alternating(total: u64, odd: FailureCode) -> Account {
    let mut account = Account::new(total, POLICY, 0);
    let devices: Vec<DeviceKey> = (0..8).map(device).collect();
    looks();
    while account.ready(0) > 0 {
        for device in &devices {
            for batch in account.take(device, 4_096, 0) {
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
                        account.failed(device, one, odd, "trap", 0);
                    }
                    account.running_on(device);
                    account.counts();
                }
                // Checked after each batch, so that an answer whose cost grows with earlier ones fails soon rather than after hours.
                let looks = looks();
                assert!(looks <= LOOKS_AT_AN_ANSWER * batch.count, "{looks} for {} answers", batch.count);
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
    let later = POLICY.max_backoff;
    assert_eq!(account.ready(later), TOTAL / 2);
    looks();
    let mut taken = 0;
    while let Some(batch) = account.take(&device(0), 1, later).first() {
        taken += batch.count;
        account.succeeded(batch.first, batch.count);
        let looks = looks();
        assert!(looks <= LOOKS_AT_AN_ANSWER, "{looks} for one answer");
    }
    assert_eq!((taken, account.is_finished()), (TOTAL / 2, true));
}

#[test]
fn what_an_agent_still_has_after_a_break_costs_no_attempt() {
    let mut account = Account::new(10, POLICY, 0);
    account.take(&device(0), 6, 0);
    // The stream broke and was opened again. The agent has chunks 2 and 3, repeats the result of chunk 0, and never received the others.
    let unaccounted = account.unaccounted([&device(0)], [(2, 2), (8, 5)]);
    let batch = |first, count| AttemptRange { first, count, attempt: 1 };
    assert_eq!(unaccounted, [batch(0, 2), batch(4, 2)]);
    account.succeeded(0, 1);
    account.undelivered([&device(0)], &unaccounted);
    assert_eq!(
        (account.running_on(&device(0)), account.counts().pending, account.counts().retried),
        (2, 7, 0)
    );
    assert_eq!(account.take(&device(1), 9, 0), [batch(1, 1), batch(4, 6)]);
    assert_eq!(account.succeeded(2, 2), [(2, 2)]);
}

#[test]
fn an_attempt_that_was_taken_for_lost_and_goes_on_costs_none() {
    let mut account = Account::new(1, POLICY, 0);
    account.take(&device(0), 1, 0);
    // More often than the retry limit.
    for now in 0..10 {
        let devices = [device(0), DeviceKey::unknown("worker-0")];
        assert_eq!(account.lost(&devices, FailureCode::Disconnected, "gone", now).retried, 1);
        account.adopt("worker-0", [(0, 1)]);
        assert_eq!((account.counts().running, account.counts().retried), (1, 0));
    }
    assert_eq!(account.succeeded(0, 1), [(0, 1)]);
}
