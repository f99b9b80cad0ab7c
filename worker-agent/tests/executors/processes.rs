//! When processes begin and end, and who gets one.

use std::time::Duration;

use sahasra_wire::burst::FailureCode;
use sahasra_worker::executors::{Event, PoolConfig, SubmitError};

use crate::harness::{self, Outcome, affine, all_succeeded, collect, failed_with, pool, pool_with, range, spin, u32s};

#[tokio::test(flavor = "multi_thread")]
async fn nothing_starts_without_slices_and_what_waits_can_be_withdrawn() {
    let pool = pool().await;
    let (run, mut events) = pool.open("cpu-0", "default", affine(100)).unwrap();
    run.submit(vec![range(0, 10)]).unwrap();
    run.withdraw();
    let outcome = collect(&mut events, 10).await;
    assert!(outcome.values().all(|outcome| *outcome == Outcome::Returned), "{outcome:?}");
    assert_eq!(pool.processes("cpu-0").len(), 0, "no process was needed");
    run.set_concurrency(1);
    assert_eq!(harness::next(&mut events).await, Some(Event::Settled { concurrency: 1 }));
    run.submit(vec![range(0, 10)]).unwrap();
    let outcome = collect(&mut events, 10).await;
    assert_eq!(outcome[&9], Outcome::Succeeded(u32s(&[28])));
}

#[tokio::test(flavor = "multi_thread")]
async fn namespaces_have_processes_of_their_own_and_idle_ones_end() {
    let config = PoolConfig {
        idle_timeout: Duration::from_millis(100),
        ..harness::config()
    };
    let pool = pool_with(config).await;
    let mut runs = Vec::new();
    for namespace in ["one", "two"] {
        let (run, mut events) = pool.open("cpu-0", namespace, affine(10)).unwrap();
        run.set_concurrency(1);
        run.submit(vec![range(0, 10)]).unwrap();
        collect(&mut events, 10).await;
        runs.push((run, events));
    }
    harness::until("idle processes end", || pool.processes("cpu-0").is_empty()).await;
    // The run is still open: work starts a process again.
    let (run, events) = &mut runs[0];
    run.submit(vec![range(0, 10)]).unwrap();
    assert_eq!(collect(events, 10).await.len(), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_namespaces_than_there_is_room_for_take_turns() {
    let mut config = harness::config();
    config.devices.executors_per_device = 1;
    let pool = pool_with(config).await;
    let mut running = tokio::task::JoinSet::new();
    for namespace in ["one", "two", "three"] {
        let (run, mut events) = pool.open("cpu-0", namespace, affine(100)).unwrap();
        run.set_concurrency(1);
        run.submit(vec![range(0, 100)]).unwrap();
        running.spawn(async move { collect(&mut events, 100).await.len() });
    }
    while let Some(done) = running.join_next().await {
        assert_eq!(done.unwrap(), 100);
        assert!(pool.load("cpu-0").unwrap().executors <= 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_a_run_frees_the_executor_for_others() {
    let pool = pool().await;
    let work = spin(100, 0).timeout(300);
    let (run, events) = pool.open("cpu-0", "default", work.spec()).unwrap();
    run.set_concurrency(2);
    run.submit(vec![range(0, 100)]).unwrap();
    harness::until_active(&pool, 1).await;
    drop(events);
    assert_eq!(run.submit(vec![range(0, 1)]), Err(SubmitError::ShutDown));
    let (run, mut events) = pool.open("cpu-0", "default", affine(10)).unwrap();
    run.set_concurrency(2);
    run.submit(vec![range(0, 10)]).unwrap();
    assert!(all_succeeded(&collect(&mut events, 10).await));
}

#[tokio::test(flavor = "multi_thread")]
async fn shutting_down_accounts_for_everything_and_ends_the_processes() {
    let pool = pool().await;
    let work = spin(100, 0).timeout(600_000);
    let (run, mut events) = pool.open("cpu-0", "default", work.spec()).unwrap();
    run.set_concurrency(1);
    run.submit(vec![range(0, 100)]).unwrap();
    harness::until_active(&pool, 1).await;
    pool.shut_down();
    let outcome = collect(&mut events, 100).await;
    let in_flight = failed_with(&outcome, FailureCode::ShuttingDown);
    assert_eq!(in_flight, 1);
    assert_eq!(harness::next(&mut events).await, None);
    assert!(pool.open("cpu-0", "default", affine(1)).is_err());
    assert!(pool.processes("cpu-0").is_empty());
}
