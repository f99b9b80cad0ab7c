//! Tests of executors that send nothing for a long time.

use std::time::Duration;

use sahasra_names::Backend;

use super::played::{range, settle, theatre};

/// Longer than the time after which a silent executor with work counts as hung.
const LONG: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn an_executor_that_was_idle_is_not_hung_when_work_arrives() {
    let theatre = theatre(Backend::Cpu, 1);
    let (run, _events) = theatre.run("first", &[range(0, 1)]);
    let mut executor = theatre.executor().await;
    let (id, ..) = executor.handed().await;
    executor.begin(0, id, 0);
    executor.succeed(0, id, 0);
    tokio::time::sleep(LONG).await;
    run.submit(vec![range(1, 1)]).unwrap();
    assert_eq!(executor.handed().await.1, [range(1, 1)]);
    assert!(!executor.is_killed().await);
}

#[tokio::test(start_paused = true)]
async fn an_executor_whose_chunk_was_long_is_not_hung_before_it_reports_the_end() {
    let theatre = theatre(Backend::Cpu, 1);
    let (_run, _events) = theatre.run("first", &[range(0, 2)]);
    let mut executor = theatre.executor().await;
    let (id, ..) = executor.handed().await;
    executor.begin(0, id, 0);
    tokio::time::sleep(LONG).await;
    executor.status_page.end(0);
    assert!(!executor.is_killed().await);
}

#[tokio::test(start_paused = true)]
async fn an_executor_that_starts_none_of_its_chunks_is_killed() {
    let theatre = theatre(Backend::Cpu, 1);
    let (_run, _events) = theatre.run("first", &[range(0, 2)]);
    let mut executor = theatre.executor().await;
    executor.handed().await;
    tokio::time::sleep(LONG).await;
    settle().await;
    assert!(executor.is_killed().await);
}
