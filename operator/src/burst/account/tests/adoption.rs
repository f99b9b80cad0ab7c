//! Chunks that agents have from an earlier coordinator or stream.

use super::*;

#[test]
fn chunks_that_an_agent_has_are_adopted_whether_new_or_waiting_for_a_retry() {
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
fn chunks_in_flight_on_an_agent_are_adopted_there() {
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
fn chunks_that_another_agent_has_continue_there_at_no_cost() {
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
fn a_lost_last_attempt_continues_on_another_agent_that_has_the_chunk() {
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
fn chunks_that_an_agent_still_has_after_a_break_cost_no_attempt() {
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
fn an_attempt_counted_as_lost_that_continues_costs_no_retry() {
    let mut account = Account::new(1, POLICY, 0);
    account.take(&device(0), 1, 0);
    // Repeated more often than the retry limit allows.
    for now in 0..10 {
        let devices = [device(0), DeviceKey::unknown("worker-0")];
        assert_eq!(account.lost(&devices, FailureCode::Disconnected, "gone", now).retried, 1);
        account.adopt("worker-0", [(0, 1)]);
        assert_eq!((account.counts().running, account.counts().retried), (1, 0));
    }
    assert_eq!(account.succeeded(0, 1), [(0, 1)]);
}
