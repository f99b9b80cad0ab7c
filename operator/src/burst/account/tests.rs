use std::{collections::BTreeMap, time::Duration};

use proptest::prelude::*;

use super::*;

mod adoption;
mod cost;

const POLICY: RetryPolicy = RetryPolicy {
    max_retries: 2,
    backoff: Backoff::milliseconds(1_000, 3_000),
};

fn device(number: u8) -> DeviceId {
    DeviceId::new(format!("worker-{number}"), "cpu0")
}

fn range(first: u64, count: u64, attempt: u32) -> AttemptRange {
    AttemptRange { first, count, attempt }
}

/// Number of chunks in flight on the device.
fn running(account: &mut Account, device: &DeviceId) -> u64 {
    let number = account.register(device);
    account.running_on(number)
}

#[test]
fn a_permanent_failure_is_never_retried() {
    let mut account = Account::new(10, POLICY, 0);
    let batch = account.take(&device(0), 10, Duration::ZERO)[0];
    assert_eq!(batch.attempt, 1);
    let outcome = account.failed(&device(0), range(3, 1, 1), FailureCode::Trap, "trap at line 7", Duration::ZERO);
    assert_eq!(outcome, FailureOutcome { retried: 0, failed: 1 });
    assert_eq!(
        account.failures(),
        [ChunkFailure {
            index: 3,
            attempts: 1,
            code: "Trap".into(),
            message: "trap at line 7".into()
        }]
    );
    assert_eq!(account.next_retry_at(), None);
}

#[test]
fn a_lost_attempt_waits_longer_each_time_and_fails_at_the_retry_limit() {
    let mut account = Account::new(1, POLICY, 7);
    let mut now = Duration::ZERO;
    for (attempt, longest) in [(1, Duration::from_secs(1)), (2, Duration::from_secs(2))] {
        assert_eq!(account.take(&device(0), 1, now), [range(0, 1, attempt)]);
        assert_eq!(account.lost([&device(0)], FailureCode::Disconnected, "gone", now).retried, 1);
        let ready_at = account.next_retry_at().unwrap();
        assert!((now + longest / 2..=now + longest).contains(&ready_at));
        assert_eq!(account.take(&device(0), 1, ready_at - Duration::from_nanos(1)), []);
        now = ready_at;
    }
    assert_eq!(account.take(&device(1), 1, now), [range(0, 1, 3)]);
    assert_eq!(account.lost([&device(1)], FailureCode::Disconnected, "gone", now).failed, 1);
    assert!(account.is_finished());
    assert_eq!(account.failures()[0].message, "failed after 3 attempts: gone");
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
fn a_failure_of_an_older_attempt_is_ignored() {
    let mut account = Account::new(1, POLICY, 0);
    let first = account.take(&device(0), 1, Duration::ZERO)[0];
    account.lost([&device(0)], FailureCode::Disconnected, "gone", Duration::ZERO);
    account.take(&device(1), 1, Duration::from_secs(5));
    assert_eq!(
        account.failed(&device(0), first, FailureCode::Trap, "late", Duration::from_secs(5)),
        FailureOutcome::default()
    );
    assert_eq!(account.counts().running, 1);
}

#[test]
fn a_late_result_of_a_lost_attempt_counts_once() {
    let mut account = Account::new(4, POLICY, 0);
    account.take(&device(0), 4, Duration::ZERO);
    account.lost([&device(0)], FailureCode::Disconnected, "gone", Duration::ZERO);
    account.take(&device(1), 2, Duration::from_secs(5));
    assert_eq!(account.succeeded(0, 4), [(0, 4)]);
    assert_eq!(account.succeeded(0, 2), []);
    assert!(account.is_finished());
    assert_eq!(account.take(&device(1), 4, Duration::from_secs(60)), []);
}

#[test]
fn returned_chunks_cost_no_retry() {
    let mut account = Account::new(4, POLICY, 0);
    account.take(&device(0), 4, Duration::ZERO);
    account.returned(&device(0), range(1, 2, 1));
    assert_eq!(
        account.counts(),
        Counts {
            total: 4,
            pending: 2,
            running: 2,
            ..Counts::default()
        }
    );
    assert_eq!(account.take(&device(1), 9, Duration::ZERO), [range(1, 2, 1)]);
}

#[test]
fn a_checkpoint_restores_what_was_counted() {
    let mut account = Account::new(6, POLICY, 0);
    account.take(&device(0), 6, Duration::ZERO);
    account.succeeded(0, 2);
    account.failed(&device(0), range(4, 1, 1), FailureCode::Trap, "trap", Duration::ZERO);
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
    restored.adopt(&"worker-2".into(), [("cpu0", range(2, 4, 1))]);
    assert_eq!(restored.counts().running, 3);
    // Chunk 4 has ended, and takes room at the agent all the same.
    assert_eq!((running(&mut restored, &device(2)), restored.beside(&"worker-2".into())), (3, 1));
    restored.answered(&"worker-2".into(), 4..5);
    assert_eq!((running(&mut restored, &device(2)), restored.beside(&"worker-2".into())), (3, 0));
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
        on: &'static str,
        first: u64,
        count: u64,
        attempt: u32,
    },
    AnswerAdopted {
        device: u8,
        on: &'static str,
        first: u64,
        count: u64,
        attempt: u32,
        fails: bool,
    },
    Wait,
}

/// A device of a worker: the one that chunks are assigned to, or one that only its agent reports.
fn on() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("cpu0"), Just("cpu1")]
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
        (0_u8..3, on(), 0_u64..40, 1_u64..8, 1_u32..4).prop_map(|(device, on, first, count, attempt)| Step::Adopt {
            device,
            on,
            first,
            count,
            attempt
        }),
        (0_u8..3, on(), 0_u64..40, 1_u64..8, 1_u32..4, any::<bool>()).prop_map(|(device, on, first, count, attempt, fails)| {
            Step::AnswerAdopted {
                device,
                on,
                first,
                count,
                attempt,
                fails,
            }
        }),
        Just(Step::Wait),
    ]
}

fn devices() -> Vec<DeviceId> {
    (0..3)
        .flat_map(|number| [device(number), DeviceId::new(device(number).worker, "cpu1")])
        .collect()
}

proptest! {
    /// Invariant 4: whatever arrives, each index is in exactly one state and counted at most once, and the burst can always finish.
    #[test]
    fn every_index_is_counted_exactly_once(steps in prop::collection::vec(step(), 0..120)) {
        const TOTAL: u64 = 40;
        let mut account = Account::new(TOTAL, POLICY, 3);
        let mut counted = BTreeMap::<u64, u32>::new();
        let mut now = Duration::ZERO;
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
                    account.failed(&device(number), range(first, count, attempt), code, "", now);
                }
                Step::Return { device: number, first, count, attempt } => account.returned(&device(number), range(first, count, attempt)),
                Step::Lose { device: number } => { account.lost([&device(number)], FailureCode::Disconnected, "", now); }
                Step::Adopt { device: number, on, first, count, attempt } => {
                    account.adopt(&device(number).worker, [(on, range(first, count, attempt))]);
                }
                Step::AnswerAdopted { device: number, on, first, count, attempt, fails } => {
                    let (worker, chunks) = (device(number).worker, range(first, count, attempt));
                    account.answered(&worker, chunks.indices());
                    let device = DeviceId::new(worker, on);
                    if fails {
                        account.failed(&device, chunks, FailureCode::ExecutorLost, "", now);
                    } else {
                        account.returned(&device, chunks);
                    }
                }
                Step::Wait => now += Duration::from_millis(1_500),
            }
            let counts = account.counts();
            prop_assert_eq!(counts.pending + counts.running + counts.succeeded + counts.failed, TOTAL);
            let on_devices: u64 = devices().iter().map(|device| running(&mut account, device)).sum();
            prop_assert_eq!(on_devices, counts.running);
            prop_assert!((0..TOTAL).all(|index| !(account.completed().contains(index) && account.failed_set().contains(index))));
        }
        for number in 0..3 {
            account.forget(&device(number).worker);
        }
        account.lost(&devices(), FailureCode::Disconnected, "", now);
        while !account.is_finished() {
            now += Duration::from_secs(10);
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
fn a_late_return_does_not_affect_a_later_attempt() {
    let mut account = Account::new(1, POLICY, 0);
    account.take(&device(0), 1, Duration::ZERO);
    account.lost([&device(0)], FailureCode::GrantExpired, "overdue", Duration::ZERO);
    account.take(&device(0), 1, Duration::from_secs(1_000));
    account.returned(&device(0), range(0, 1, 1));
    assert_eq!(account.counts().running, 1);
    account.returned(&device(0), range(0, 1, 2));
    assert_eq!(account.counts().running, 0);
}
