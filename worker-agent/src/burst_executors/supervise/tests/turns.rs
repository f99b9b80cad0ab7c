//! Tests of namespaces that take turns on a device.

use sahasra_executor_protocol::burst::messages::{Pause, to_executor};
use sahasra_names::Backend;

use super::played::{Played, TURN, Theatre, indices, range, returned, settle, theatre};
use crate::burst_executors::{Events, Run};

#[tokio::test(start_paused = true)]
async fn what_was_withdrawn_before_an_executor_makes_room_comes_back() {
    let theatre = theatre(Backend::Cpu, 1);
    let (run, mut events) = theatre.run("first", &[range(0, 10)]);
    let mut executor = theatre.executor().await;
    let (id, ..) = executor.handed().await;
    executor.begin(0, id, 0);
    let _other = theatre.run("other", &[range(0, 1)]);
    run.withdraw();
    while executor.hear().await != to_executor::Kind::Withdraw(id) {}
    // The executor answers after it was asked to make room.
    executor.recalled(id).await;
    executor.give_back(id, &[range(1, 9)]);
    settle().await;
    assert_eq!(returned(&mut events), indices(&[range(1, 9)]));
    assert_eq!(run.outstanding(), 1, "chunk 0 runs");
}

/// Opens a run of a namespace with 10 chunks, of which chunk 0 runs.
async fn busy(theatre: &Theatre, namespace: &str) -> (Played, u64, Run, Events) {
    let (run, events) = theatre.run(namespace, &[range(0, 10)]);
    let (executor, id) = begun(theatre, namespace).await;
    (executor, id, run, events)
}

/// Waits for the next executor, which must be the namespace's, and starts one chunk on it.
async fn begun(theatre: &Theatre, namespace: &str) -> (Played, u64) {
    let mut executor = theatre.executor().await;
    assert_eq!(executor.namespace, namespace);
    let (id, handed, _) = executor.handed().await;
    executor.begin(0, id, handed[0].first);
    (executor, id)
}

/// Returns whether the messages resume a run and hand its chunks over again, except the running one.
fn goes_on(received: &[to_executor::Kind], run: u64) -> bool {
    match received {
        [to_executor::Kind::Pause(pause), to_executor::Kind::Submit(submit)] => {
            *pause == Pause { run, paused: false } && submit.ranges.iter().map(|range| range.count).sum::<u64>() == 9
        }
        _ => false,
    }
}

#[tokio::test(start_paused = true)]
async fn an_executor_goes_on_where_nobody_waits_any_more() {
    for answers_late in [false, true] {
        let theatre = theatre(Backend::Cpu, 1);
        let (mut executor, id, run, mut events) = busy(&theatre, "first").await;
        let other = theatre.run("other", &[range(0, 1)]);
        executor.recalled(id).await;
        theatre.until_waiting(1).await;
        if !answers_late {
            executor.give_back(id, &[range(1, 9)]);
        }
        drop(other);
        theatre.until_waiting(0).await;
        let mut received = executor.received().await;
        if answers_late {
            executor.give_back(id, &[range(1, 9)]);
            received.extend(executor.received().await);
        }
        assert!(goes_on(&received, id), "{received:?}");
        assert!(!executor.is_killed().await);
        assert!(returned(&mut events).is_empty());
        assert_eq!(run.outstanding(), 10);
        assert!(!theatre.launches().await, "the one that gave up has no use for an executor");
    }
}

#[tokio::test(start_paused = true)]
async fn an_executor_with_nothing_left_to_run_stays_where_nobody_waits_any_more() {
    let theatre = theatre(Backend::Cpu, 1);
    let (mut executor, id, run, _events) = busy(&theatre, "first").await;
    let other = theatre.run("other", &[range(0, 1)]);
    executor.recalled(id).await;
    executor.give_back(id, &[range(1, 9)]);
    settle().await;
    // The chunk ends before the supervisor has checked whether a namespace waits.
    drop(other);
    theatre.until_waiting(0).await;
    executor.succeed(0, id, 0);
    let received = executor.received().await;
    assert!(goes_on(&received, id), "{received:?}");
    assert_eq!(run.outstanding(), 9);
}

#[tokio::test(start_paused = true)]
async fn one_that_has_a_long_chunk_to_end_does_not_keep_the_next_from_making_room() {
    let theatre = theatre(Backend::Cpu, 2);
    let (mut long, of_long, _run, _events) = busy(&theatre, "long").await;
    let (mut short, of_short, _of_short, _its_events) = busy(&theatre, "short").await;
    let _waiting = theatre.run("waiting", &[range(0, 1)]);
    long.recalled(of_long).await;
    long.give_back(of_long, &[range(1, 9)]);
    assert!(short.received().await.is_empty(), "one for one");
    tokio::time::sleep(TURN).await;
    short.recalled(of_short).await;
    short.give_back(of_short, &[range(1, 9)]);
    short.succeed(0, of_short, 0);
    short.end.killed.cancelled().await;
    // The room of `short` becomes free, so the room of `long` is not needed.
    let received = long.received().await;
    assert!(goes_on(&received, of_long), "{received:?}");
    drop(short);
    let waiting = begun(&theatre, "waiting").await;
    // `short` now waits for its next turn, and `long` is the first to make room again.
    theatre.until_waiting(1).await;
    long.recalled(of_long).await;
    long.succeed(0, of_long, 0);
    long.give_back(of_long, &[range(1, 9)]);
    long.end.killed.cancelled().await;
    drop(long);
    begun(&theatre, "short").await;
    drop(waiting);
}

#[tokio::test(start_paused = true)]
async fn no_other_makes_room_while_one_that_has_is_reaped() {
    let theatre = theatre(Backend::Cpu, 2);
    let (mut first, of_first, run, events) = busy(&theatre, "first").await;
    let (mut second, _, _run, _events) = busy(&theatre, "second").await;
    let _waiting = theatre.run("waiting", &[range(0, 1)]);
    first.recalled(of_first).await;
    // The run has no chunks left, so it does not wait for another turn.
    drop((run, events));
    first.status_page.end(0);
    first.end.killed.cancelled().await;
    assert!(second.received().await.is_empty(), "the first is leaving, however long that takes");
    drop(first);
    let _waiting = begun(&theatre, "waiting").await;
    assert!(second.received().await.is_empty());
}
