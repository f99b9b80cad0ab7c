//! Tests against executors that send false messages, as a compromised executor may: executors run tenants' code.

use sahasra_executor_protocol::burst::messages::{Ended, from_executor};
use sahasra_names::Backend;
use sahasra_ranges::AttemptRange;
use sahasra_wire::burst::ResultRun;

use super::played::{DEVICE, Played, Theatre, indices, range, returned, settle, theatre};
use crate::burst_executors::{Events, Run};

/// An executor that makes room while chunk 0 of 10 runs and chunks 20 to 29 wait for its namespace's next turn.
struct Scene {
    theatre: Theatre,
    run: Run,
    events: Events,
    executor: Played,
    id: u64,
    _other: (Run, Events),
}

async fn making_room(theatre: Theatre, run: Run, events: Events, mut executor: Played, id: u64) -> Scene {
    let other = theatre.run("other", &[range(0, 1)]);
    executor.recalled(id).await;
    run.submit(vec![range(20, 10)]).unwrap();
    settle().await;
    Scene {
        theatre,
        run,
        events,
        executor,
        id,
        _other: other,
    }
}

async fn scene() -> Scene {
    let theatre = theatre(Backend::Cpu, 1);
    let (run, events) = theatre.run("first", &[range(0, 10)]);
    let mut executor = theatre.executor().await;
    let (id, ..) = executor.handed().await;
    executor.begin(0, id, 0);
    making_room(theatre, run, events, executor, id).await
}

/// Checks that the executor is killed, and that a chunk that has come back is not handed over to another one.
async fn killed_and_accounted_for(mut scene: Scene) {
    assert!(scene.executor.is_killed().await);
    drop(scene.executor);
    let mut other = scene.theatre.executor().await;
    assert_eq!(other.namespace, "other");
    let (of_other, ..) = other.handed().await;
    other.succeed(0, of_other, 0);
    drop(scene._other);
    let returned = returned(&mut scene.events);
    assert!(
        returned.iter().all(|index| (0..10).contains(index) || (20..30).contains(index)),
        "{returned:?}"
    );
    assert_eq!(scene.run.outstanding(), 0, "all came back");
    assert_eq!(scene.theatre.pool.processes(DEVICE).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_executor_that_returns_a_chunk_twice_is_killed() {
    let scene = scene().await;
    scene.executor.give_back(scene.id, &[range(1, 9), range(1, 9)]);
    killed_and_accounted_for(scene).await;
    let scene = self::scene().await;
    for _ in 0..1000 {
        scene.executor.give_back(scene.id, &[range(1, 1)]);
    }
    killed_and_accounted_for(scene).await;
}

#[tokio::test(start_paused = true)]
async fn an_executor_that_returns_or_ends_what_it_was_not_handed_is_killed() {
    let later = AttemptRange { attempt: 2, ..range(1, 9) };
    for wrong in [
        range(20, 10),
        range(9, 12),
        range(40, 1),
        range(1, 0),
        later,
        range(1, 1 << 60),
        range(u64::MAX, 2),
    ] {
        let scene = scene().await;
        scene.executor.give_back(scene.id, &[wrong]);
        killed_and_accounted_for(scene).await;
    }
    let scene = scene().await;
    let done = ResultRun {
        first: 20,
        count: 10,
        attempt: 1,
        ..ResultRun::default()
    };
    scene.executor.say(from_executor::Kind::Ended(Ended {
        run: scene.id,
        succeeded: vec![done],
        failed: Vec::new(),
    }));
    killed_and_accounted_for(scene).await;
}

/// Returns an executor that runs chunk 4 alone, because the chunk was in flight when a context was poisoned.
async fn with_a_suspect() -> Scene {
    let theatre = theatre(Backend::Cpu, 1);
    let (run, mut events) = theatre.run("first", &[range(4, 1)]);
    let mut executor = theatre.executor().await;
    let (id, ..) = executor.handed().await;
    executor.begin(0, id, 4);
    executor.status_page.poison();
    drop(executor);
    let mut executor = theatre.executor().await;
    let (id, handed, alone) = executor.handed().await;
    assert_eq!((handed.as_slice(), alone), ([range(4, 1)].as_slice(), true));
    run.submit(vec![range(0, 4), range(5, 5)]).unwrap();
    let (_, handed, alone) = executor.handed().await;
    assert_eq!((indices(&handed).len(), alone), (9, false));
    executor.begin(0, id, 0);
    assert!(returned(&mut events).is_empty());
    making_room(theatre, run, events, executor, id).await
}

#[tokio::test(start_paused = true)]
async fn more_chunks_than_there_are_are_not_counted_out_around_a_suspect() {
    for wrong in [range(1, 1 << 60), range(4, u64::MAX)] {
        let scene = with_a_suspect().await;
        scene.executor.give_back(scene.id, &[wrong]);
        killed_and_accounted_for(scene).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_suspect_that_comes_back_among_others_runs_alone_the_next_time() {
    let mut scene = with_a_suspect().await;
    scene.executor.give_back(scene.id, &[range(1, 9)]);
    scene.executor.succeed(0, scene.id, 0);
    scene.executor.end.killed.cancelled().await;
    drop(scene.executor);
    let mut other = scene.theatre.executor().await;
    let (of_other, ..) = other.handed().await;
    other.succeed(0, of_other, 0);
    // The executor is idle, and the other namespace waits.
    let mut executor = scene.theatre.executor().await;
    let (_, handed, alone) = executor.handed().await;
    assert_eq!((handed.as_slice(), alone), ([range(4, 1)].as_slice(), true));
    let (_, handed, alone) = executor.handed().await;
    let rest: Vec<u64> = (1..4).chain(5..10).chain(20..30).collect();
    assert_eq!((indices(&handed).into_iter().collect::<Vec<_>>(), alone), (rest, false));
    assert!(returned(&mut scene.events).is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_is_submitted_as_an_executor_ends_is_returned_or_handed_over_and_not_both() {
    let theatre = theatre(Backend::Cpu, 1);
    let (run, mut events) = theatre.run("first", &[range(0, 1)]);
    for round in 0..64 {
        let mut executor = theatre.executor().await;
        let (id, ..) = executor.handed().await;
        executor.succeed(0, id, round);
        settle().await;
        drop(executor);
        // The supervisor has received neither message yet: which one it handles first is random.
        run.submit(vec![range(round + 1, 1)]).unwrap();
        settle().await;
        let returned = returned(&mut events);
        if returned.contains(&(round + 1)) {
            assert!(!theatre.launches().await, "chunk {} came back", round + 1);
            run.submit(vec![range(round + 1, 1)]).unwrap();
        }
    }
}
