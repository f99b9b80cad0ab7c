//! Chunks that agents have from an earlier coordinator or stream.

use super::*;

/// The ranges of a map, with their attempts.
fn listed(chunks: &RangeMap<u32>) -> Vec<AttemptRange> {
    chunks.iter().map(|(range, attempt)| AttemptRange::new(range, *attempt)).collect()
}

#[test]
fn chunks_that_an_agent_has_are_adopted_whether_new_or_waiting_for_a_retry() {
    let mut account = Account::new(10, POLICY, 0);
    account.take(&device(0), 4, Duration::ZERO);
    account.lost([&device(0)], FailureCode::Disconnected, "gone", Duration::ZERO);
    account.adopt(&"worker-1".into(), [("cpu0", range(2, 4, 2))]);
    assert_eq!(running(&mut account, &device(1)), 4);
    assert_eq!(account.counts().pending, 6);
    let outcome = account.failed(&device(1), range(2, 4, 2), FailureCode::ExecutorLost, "crashed", Duration::ZERO);
    assert_eq!(outcome, FailureOutcome { retried: 4, failed: 0 });
    assert_eq!(running(&mut account, &device(1)), 0);
    assert_eq!((account.beside(&"worker-1".into()), account.counts().pending), (0, 10));
}

#[test]
fn chunks_in_flight_on_an_agent_move_to_the_device_that_it_reports() {
    let mut account = Account::new(10, POLICY, 0);
    account.take(&device(0), 6, Duration::ZERO);
    let other = DeviceId::new("worker-0", "cpu1");
    let missing = account.adopt(&"worker-0".into(), [("cpu0", range(1, 2, 1)), ("cpu1", range(3, 7, 1))]);
    assert_eq!(listed(&missing), [range(0, 1, 1)]);
    assert_eq!((running(&mut account, &device(0)), running(&mut account, &other)), (3, 7));
    assert_eq!(account.beside(&"worker-0".into()), 0);
    // Chunk 3 is not on this device any more, and chunk 9 has been adopted from another agent.
    account.returned(&device(0), range(3, 1, 1));
    account.returned(&DeviceId::new("worker-1", "cpu1"), range(9, 1, 1));
    assert_eq!(account.counts().running, 10);
    account.returned(&other, range(3, 1, 1));
    let failed = account.failed(&other, range(4, 1, 1), FailureCode::Trap, "trap", Duration::ZERO);
    assert_eq!((failed.failed, account.counts().running, account.counts().pending), (1, 8, 1));
    // A chunk that is assigned again is not adopted any more.
    account.take(&device(0), 1, Duration::ZERO);
    account.returned(&other, range(3, 1, 1));
    assert_eq!(account.counts().running, 9);
}

#[test]
fn a_later_attempt_that_the_agent_did_not_take_costs_no_retry() {
    let mut account = Account::new(2, POLICY, 0);
    account.take(&device(0), 2, Duration::ZERO);
    account.lost([&device(0)], FailureCode::Disconnected, "gone", Duration::ZERO);
    account.take(&device(0), 2, Duration::from_secs(1_000));
    assert_eq!(account.counts().retried, 2);
    account.adopt(&"worker-0".into(), [("cpu0", range(0, 1, 1)), ("cpu0", range(1, 1, 2))]);
    assert_eq!((running(&mut account, &device(0)), account.counts().retried), (2, 1));
    account.returned(&device(0), range(0, 1, 2));
    assert_eq!(account.counts().running, 2, "the agent has it in its first attempt");
    account.returned(&device(0), range(0, 1, 1));
    account.returned(&device(0), range(1, 1, 2));
    let mut again = account.take(&device(1), 2, Duration::from_secs(1_000));
    again.sort_by_key(|chunks| chunks.first);
    assert_eq!(again, [range(0, 1, 1), range(1, 1, 2)]);
}

#[test]
fn attempts_of_an_earlier_coordinator_count_towards_the_limit() {
    let mut account = Account::new(1, POLICY, 0);
    let last = POLICY.max_retries + 1;
    account.adopt(&"worker-0".into(), [("cpu0", range(0, 1, last))]);
    let outcome = account.failed(&device(0), range(0, 1, last), FailureCode::ExecutorLost, "crashed", Duration::ZERO);
    assert_eq!(outcome, FailureOutcome { retried: 0, failed: 1 });
}

#[test]
fn chunks_that_another_agent_has_continue_there_at_no_cost() {
    let mut account = Account::new(4, POLICY, 0);
    account.take(&device(0), 4, Duration::ZERO);
    account.lost([&device(0)], FailureCode::Disconnected, "gone", Duration::ZERO);
    account.take(&device(1), 4, Duration::from_secs(1_000));
    assert_eq!(account.counts().retried, 4);
    account.adopt(&"worker-0".into(), [("cpu0", range(0, 3, 1))]);
    assert_eq!((account.beside(&"worker-0".into()), running(&mut account, &device(1))), (3, 4));
    // The agent has since reported the failure of one of them.
    account.answered(&"worker-0".into(), 2..3);
    account.returned(&device(1), range(0, 1, 2));
    account.failed(
        &device(1),
        range(1, 1, 2),
        FailureCode::ExecutorLost,
        "crashed",
        Duration::from_secs(1_000),
    );
    account.returned(&device(1), range(2, 1, 2));
    let on = [device(0), device(1)].map(|device| running(&mut account, &device));
    assert_eq!((on, account.counts().pending, account.counts().retried), ([2, 1], 1, 3));
    account.failed(
        &device(0),
        range(0, 2, 1),
        FailureCode::ExecutorLost,
        "crashed",
        Duration::from_secs(1_000),
    );
    let attempts: Vec<u32> = account
        .take(&device(1), 4, Duration::from_secs(2_000))
        .iter()
        .map(|batch| batch.attempt)
        .collect();
    assert_eq!(account.counts().pending, 0);
    assert!(
        [2, 2, 3].iter().all(|attempt| attempts.contains(attempt)) && attempts.len() == 3,
        "{attempts:?}"
    );
    account.adopt(&"worker-0".into(), [("cpu0", range(0, 4, 2))]);
    account.forget(&"worker-0".into());
    account.lost([&device(1)], FailureCode::Disconnected, "gone", Duration::from_secs(2_000));
    assert_eq!(account.counts().running, 0);
}

#[test]
fn a_lost_last_attempt_continues_on_another_agent_that_has_the_chunk() {
    let policy = RetryPolicy { max_retries: 1, ..POLICY };
    let mut account = Account::new(2, policy, 0);
    account.take(&device(0), 2, Duration::ZERO);
    account.lost([&device(0)], FailureCode::Disconnected, "gone", Duration::ZERO);
    account.take(&device(1), 2, Duration::from_secs(1_000));
    account.adopt(&"worker-0".into(), [("cpu0", range(0, 1, 1))]);
    let outcome = account.lost([&device(1)], FailureCode::ExecutorLost, "crashed", Duration::from_secs(1_000));
    assert_eq!(outcome, FailureOutcome { retried: 0, failed: 1 });
    assert_eq!(
        (
            running(&mut account, &device(0)),
            account.counts().running,
            account.counts().retried
        ),
        (1, 1, 2)
    );
    assert_eq!(account.beside(&"worker-0".into()), 0);
    assert_eq!(account.succeeded(0, 1), [(0, 1)]);
    assert!(account.is_finished());
}

#[test]
fn chunks_that_an_agent_still_has_after_a_break_cost_no_attempt() {
    let mut account = Account::new(10, POLICY, 0);
    account.take(&device(0), 6, Duration::ZERO);
    // The stream broke and was opened again. The agent has chunks 2 and 3, repeats the result of chunk 0, and never received the others.
    let missing = account.adopt(&"worker-0".into(), [("cpu0", range(2, 2, 1))]);
    assert_eq!(listed(&missing), [range(0, 2, 1), range(4, 2, 1)]);
    account.succeeded(0, 1);
    account.undelivered([&device(0)], &missing);
    assert_eq!(
        (
            running(&mut account, &device(0)),
            account.counts().pending,
            account.counts().retried
        ),
        (2, 7, 0)
    );
    assert_eq!(account.take(&device(1), 9, Duration::ZERO), [range(1, 1, 1), range(4, 6, 1)]);
    assert_eq!(account.succeeded(2, 2), [(2, 2)]);
}

#[test]
fn an_attempt_counted_as_lost_that_continues_costs_no_retry() {
    let mut account = Account::new(1, POLICY, 0);
    account.take(&device(0), 1, Duration::ZERO);
    // Repeated more often than the retry limit allows.
    for now in (0..10).map(Duration::from_millis) {
        assert_eq!(account.lost([&device(0)], FailureCode::Disconnected, "gone", now).retried, 1);
        account.adopt(&"worker-0".into(), [("cpu0", range(0, 1, 1))]);
        assert_eq!((account.counts().running, account.counts().retried), (1, 0));
    }
    assert_eq!(account.succeeded(0, 1), [(0, 1)]);
}
