//! Start and end of executor processes, and their distribution among namespaces.

use std::collections::BTreeMap;
use std::time::Duration;

use sahasra_wire::burst::FailureCode;
use sahasra_worker::burst_executors::{Event, PoolConfig, SubmitError};

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
    // The run is still open: new work starts a process again.
    let (run, events) = &mut runs[0];
    run.submit(vec![range(0, 10)]).unwrap();
    assert_eq!(collect(events, 10).await.len(), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_namespaces_than_there_is_room_for_take_turns() {
    let mut config = harness::config();
    config.devices.max_executors_per_device = 1;
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
async fn a_ninth_namespace_gets_its_turn_while_eight_have_work_without_end() {
    // Longer than it takes until all namespaces wait: turns end by their time, not because a new namespace arrives.
    let mut config = PoolConfig {
        turn: Duration::from_secs(1),
        ..harness::config()
    };
    config.devices.max_executors_per_device = 8;
    let pool = pool_with(config).await;
    let mut busy = Vec::new();
    let work = harness::kernel(
        "work",
        1 << 20,
        vec![harness::argument::output(4), harness::argument::scalar(&u32s(&[20_000]))],
    );
    for namespace in 0..8 {
        let (run, events) = pool.open("cpu-0", &format!("busy-{namespace}"), work.spec()).unwrap();
        run.set_concurrency(1);
        run.submit(vec![range(0, 1 << 20)]).unwrap();
        busy.push((run, events));
    }
    harness::until("eight executors", || pool.processes("cpu-0").len() == 8).await;
    let mut late = tokio::task::JoinSet::new();
    for namespace in 0..32 {
        let (run, mut events) = pool.open("cpu-0", &format!("late-{namespace}"), affine(5)).unwrap();
        run.set_concurrency(1);
        run.submit(vec![range(0, 5)]).unwrap();
        late.spawn(async move { all_succeeded(&collect(&mut events, 5).await) });
    }
    while let Some(succeeded) = late.join_next().await {
        assert!(succeeded.unwrap());
        assert!(pool.load("cpu-0").unwrap().executors <= 8);
    }
    // The namespaces that made room lose nothing: each continues where it was, and no chunk failed or was returned.
    for (run, mut events) in busy {
        let mut outcome = BTreeMap::new();
        let before = run.outstanding();
        harness::until("each has another turn", || run.outstanding() < before || before == 0).await;
        while let Some(event) = events.try_next() {
            harness::note(&mut outcome, event);
        }
        assert!(!outcome.is_empty(), "each has had a turn");
        assert!(all_succeeded(&outcome), "nothing failed or was returned");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_withdrawn_while_an_executor_makes_room_comes_back() {
    let mut config = PoolConfig {
        turn: Duration::from_millis(1),
        ..harness::config()
    };
    config.devices.max_executors_per_device = 1;
    let pool = pool_with(config).await;
    let endless = spin(100, 10).timeout(600_000);
    let (run, mut events) = pool.open("cpu-0", "first", endless.spec()).unwrap();
    run.set_concurrency(1);
    run.submit(vec![range(10, 20)]).unwrap();
    harness::until_active(&pool, 1).await;
    let (other, mut of_other) = pool.open("cpu-0", "second", affine(5)).unwrap();
    other.set_concurrency(1);
    other.submit(vec![range(0, 5)]).unwrap();
    harness::until("the second waits", || pool.load("cpu-0").unwrap().waiting == 1).await;
    // The run may or may not have begun to make room.
    run.withdraw();
    run.set_concurrency(0);
    let outcome = collect(&mut events, 19).await;
    assert!(outcome.values().all(|outcome| *outcome == Outcome::Returned), "{outcome:?}");
    run.kill(FailureCode::GrantExpired);
    assert_eq!(failed_with(&collect(&mut events, 1).await, FailureCode::GrantExpired), 1);
    assert!(all_succeeded(&collect(&mut of_other, 5).await));
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
    assert_eq!(run.start(vec![range(0, 1)]), Err(SubmitError::ShutDown));
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
