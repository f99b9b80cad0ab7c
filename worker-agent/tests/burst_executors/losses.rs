//! A process that dies, hangs or is killed loses only the chunks in flight, and another process replaces it.

use std::collections::BTreeMap;
use std::time::Duration;

use sahasra_wire::burst::FailureCode;
use sahasra_worker::burst_executors::{Event, PoolConfig};

use crate::harness::{self, Outcome, affine, all_succeeded, argument, collect, failed_with, kernel, pool, pool_with, range, spin};

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_executor_loses_only_what_was_in_flight() {
    let pool = pool().await;
    let work = kernel("work", 3000, vec![argument::output(4), argument::scalar(&20_000u32.to_le_bytes())]);
    let (run, mut events) = pool.open("cpu-0", "default", work.spec()).unwrap();
    run.set_concurrency(8);
    run.submit(vec![range(0, 3000)]).unwrap();
    let mut outcome = BTreeMap::new();
    while outcome.len() < 50 {
        harness::note(&mut outcome, harness::next(&mut events).await.unwrap());
    }
    let executor = pool.processes("cpu-0")[0];
    harness::kill(executor);
    harness::collect_into(&mut outcome, &mut events, 3000).await;
    let failed = failed_with(&outcome, FailureCode::ExecutorLost);
    let returned: Vec<u64> = outcome
        .iter()
        .filter(|(_, outcome)| **outcome == Outcome::Returned)
        .map(|(index, _)| *index)
        .collect();
    let succeeded = outcome.values().filter(|outcome| matches!(outcome, Outcome::Succeeded(_))).count();
    assert_eq!(succeeded + failed + returned.len(), 3000);
    assert!(failed <= 8, "{failed} failed: at most as many as ran");
    assert!(!returned.is_empty());
    run.submit(returned.iter().map(|index| range(*index, 1)).collect()).unwrap();
    let again = collect(&mut events, returned.len() as u64).await;
    assert!(all_succeeded(&again), "a fresh process runs the rest");
    assert_ne!(pool.processes("cpu-0"), [executor]);
    assert_eq!(pool.load("cpu-0").unwrap().lost_executors, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn killing_a_run_fails_its_chunks_with_the_given_code_and_settles() {
    let pool = pool().await;
    let work = spin(100, 0).timeout(600_000);
    let (run, mut events) = pool.open("cpu-0", "default", work.spec()).unwrap();
    run.set_concurrency(2);
    assert_eq!(harness::next(&mut events).await, Some(Event::Settled { concurrency: 2 }));
    run.submit(vec![range(0, 100)]).unwrap();
    harness::until_active(&pool, 2).await;
    run.withdraw();
    run.set_concurrency(0);
    run.kill(FailureCode::GrantExpired);
    let mut outcome = BTreeMap::new();
    let mut settled = false;
    while outcome.len() < 100 || !settled {
        match harness::next(&mut events).await.unwrap() {
            Event::Settled { concurrency: 0 } => {
                assert_eq!(outcome.len(), 100, "settled means that nothing is to come");
                settled = true;
            }
            event => harness::note(&mut outcome, event),
        }
    }
    let expired = failed_with(&outcome, FailureCode::GrantExpired);
    let returned = outcome.values().filter(|outcome| **outcome == Outcome::Returned).count();
    assert_eq!((expired, returned), (2, 98));
    let load = pool.load("cpu-0").unwrap();
    assert_eq!((load.executors, load.lost_executors), (1, 0), "a launch ends without its process");
}

#[tokio::test(flavor = "multi_thread")]
async fn ending_a_run_leaves_what_runs_beside_it_alone() {
    let pool = pool().await;
    // Chunk 7 never ends on its own.
    let work = spin(8, 7).timeout(600_000);
    let (beside, mut of_beside) = pool.open("cpu-0", "default", work.spec()).unwrap();
    beside.set_concurrency(1);
    beside.submit(vec![range(7, 1)]).unwrap();
    harness::until_active(&pool, 1).await;
    let executor = pool.processes("cpu-0");
    for _ in 0..4 {
        let (run, mut events) = pool.open("cpu-0", "default", work.spec()).unwrap();
        run.set_concurrency(1);
        run.submit(vec![range(7, 1)]).unwrap();
        harness::until_active(&pool, 2).await;
        run.set_concurrency(0);
        run.kill(FailureCode::GrantExpired);
        let outcome = collect(&mut events, 1).await;
        assert_eq!(failed_with(&outcome, FailureCode::GrantExpired), 1, "{outcome:?}");
    }
    beside.kill(FailureCode::GrantExpired);
    let outcome = collect(&mut of_beside, 1).await;
    assert_eq!(
        failed_with(&outcome, FailureCode::GrantExpired),
        1,
        "it ran all the while: {outcome:?}"
    );
    assert_eq!(pool.processes("cpu-0"), executor);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hung_process_is_replaced() {
    let config = PoolConfig {
        grace: Duration::from_millis(200),
        ..harness::config()
    };
    let pool = pool_with(config).await;
    let work = spin(100, 3).timeout(500);
    let (run, mut events) = pool.open("cpu-0", "default", work.spec()).unwrap();
    run.set_concurrency(1);
    run.submit(vec![range(0, 4)]).unwrap();
    harness::until_active(&pool, 1).await;
    // A stopped process does nothing, not even enforce its chunk timeouts.
    harness::stop(pool.processes("cpu-0")[0]);
    let outcome = collect(&mut events, 4).await;
    let late = failed_with(&outcome, FailureCode::ChunkTimeout);
    assert_eq!(late, 1, "{outcome:?}");
    run.submit(vec![range(10, 1)]).ok();
    run.withdraw();
    let (run, mut events) = pool.open("cpu-0", "default", affine(10)).unwrap();
    run.set_concurrency(1);
    run.submit(vec![range(0, 10)]).unwrap();
    assert!(all_succeeded(&collect(&mut events, 10).await));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_never_starts_fails_with_growing_delays() {
    let config = PoolConfig {
        program: "/bin/false".into(),
        ..harness::config()
    };
    let pool = pool_with(config).await;
    let (run, mut events) = pool.open("cpu-0", "default", affine(10)).unwrap();
    run.set_concurrency(1);
    let began = std::time::Instant::now();
    for _ in 0..4 {
        run.submit(vec![range(0, 10)]).unwrap();
        let outcome = collect(&mut events, 10).await;
        assert!(
            outcome
                .values()
                .all(|outcome| matches!(outcome, Outcome::Failed(FailureCode::ExecutorLost, _))),
            "{outcome:?}"
        );
    }
    assert!(
        began.elapsed() >= Duration::from_millis(100 + 200 + 400),
        "the second, third and fourth start wait"
    );
    assert!(!pool.load("cpu-0").unwrap().healthy);
}
