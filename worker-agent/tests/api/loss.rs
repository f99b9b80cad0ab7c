//! Tests of lost executors, streams and coordinators.

use std::time::Duration;

use sahasra_wire::{
    burst::{ChunkRange, FailureCode, Open},
    grants::RejectionCode,
};

use super::{
    agent_process::AgentProcess,
    coordinator::{Collected, Coordinator, TIMEOUT, range},
    programs,
};

const TTL: Duration = Duration::from_secs(120);

#[tokio::test]
async fn a_killed_executor_fails_what_it_ran_and_the_agent_goes_on() {
    let mut agent = AgentProcess::start(&["--cpu-device-threads", "2"]);
    let coordinator = Coordinator::new(&agent.url, "a").await;
    coordinator.acquire(2, TTL).await;
    let mut stream = coordinator.stream(programs::stuck_from(10, 20)).await;
    stream.opened().await;
    stream.submit(vec![range(0, 10, 1)]).await;
    let mut collected = stream.collect(10).await;
    stream.submit(vec![range(10, 2, 1)]).await;
    let start = std::time::Instant::now();
    while coordinator.inventory().await.devices[0].active_executions < 2 {
        assert!(start.elapsed() < TIMEOUT);
    }
    assert!(agent.kill_executors() > 0);
    stream.collect_into(&mut collected, 12).await;
    assert_eq!((collected.results.len(), collected.failures.len()), (10, 2));
    assert!(collected.failures.values().all(|(code, _)| *code == FailureCode::ExecutorLost));
    assert!(agent.is_alive());
    stream.submit(vec![range(0, 5, 2)]).await;
    let mut again = Collected {
        sequence: collected.sequence,
        ..Collected::default()
    };
    stream.collect_into(&mut again, 5).await;
    assert_eq!(again.results.len(), 5, "{:?}", again.causes());
}

#[tokio::test]
async fn a_new_coordinator_gets_what_the_old_one_did_not_cover() {
    let agent = AgentProcess::start(&[]);
    let old = Coordinator::new(&agent.url, "a").await;
    old.acquire(2, TTL).await;
    let mut stream = old.stream(programs::slow_square(400)).await;
    stream.opened().await;
    stream.submit(vec![range(0, 400, 1)]).await;
    let seen = stream.collect(40).await;
    drop(stream);

    let new = old.of_term(2);
    let mut stream = new.stream(programs::slow_square(400)).await;
    let opened = stream.opened().await;
    let outstanding: u64 = opened.chunks.iter().map(|range| range.count).sum();
    assert!(outstanding > 0, "chunks went on without a stream");
    let is_submitted = |reported: &ChunkRange| *reported == range(reported.first, reported.count, 1);
    assert!(opened.chunks.iter().all(is_submitted), "{:?}", opened.chunks);
    assert!(opened.resumed, "nothing was dropped");
    let collected = stream.collect(400).await;
    assert_eq!((collected.results.len(), collected.failures.len()), (400, 0));
    assert!(collected.repeated.is_empty(), "none was executed twice: {:?}", collected.repeated);
    assert!(seen.results.iter().all(|(index, result)| collected.results[index] == *result));
    let metrics = new.metrics().await;
    assert!(
        metrics.contains("sahasra_agent_chunks_total{outcome=\"Succeeded\"} 400"),
        "{metrics}"
    );

    // Results that are acknowledged, or covered by a checkpoint, are not sent again.
    stream.acknowledge(collected.sequence - 1).await;
    stream.submit(vec![range(0, 1, 2)]).await;
    let mut last = Collected {
        sequence: collected.sequence,
        ..Collected::default()
    };
    stream.collect_into(&mut last, 1).await;
    drop(stream);
    let newest = old.of_term(3);
    let mut stream = newest
        .stream_as(Open {
            owner: newest.owner.clone(),
            boot_id: newest.boot_id.clone(),
            program: programs::slow_square(400),
            covered: vec![1, 399],
        })
        .await;
    let opened = stream.opened().await;
    assert!(opened.chunks.is_empty());
    assert_eq!(opened.sequence, last.sequence, "what comes now was reported before");
    assert_eq!(opened.last_repeated, last.sequence);
    let collected = stream.collect(1).await;
    assert!(collected.results.contains_key(&0), "{:?}", collected.causes());
    assert_eq!(collected.sequence, opened.sequence);
}

#[tokio::test]
async fn an_old_coordinator_is_cut_off_once_a_new_one_has_spoken() {
    let agent = AgentProcess::start(&[]);
    let old = Coordinator::new(&agent.url, "a").await;
    old.acquire(2, TTL).await;
    let mut stale = old.stream(programs::square(100)).await;
    stale.opened().await;
    let new = old.of_term(2);
    new.acquire(1, TTL).await;
    stale.submit(vec![range(0, 10, 1)]).await;
    assert_eq!(stale.refused().await.code(), RejectionCode::StaleTerm);

    let mut replaced = new.stream(programs::square(100)).await;
    replaced.opened().await;
    let mut stream = new.of_term(3).stream(programs::square(100)).await;
    assert!(stream.opened().await.chunks.is_empty(), "nothing of the stale one was taken");
    assert_eq!(replaced.refused().await.code(), RejectionCode::StaleTerm);
}

#[tokio::test]
async fn everything_is_dropped_when_the_grants_of_a_lost_coordinator_expire() {
    let agent = AgentProcess::start(&[]);
    let old = Coordinator::new(&agent.url, "a").await;
    old.acquire(2, Duration::from_secs(2)).await;
    let mut stream = old.stream(programs::square(100)).await;
    stream.opened().await;
    stream.submit(vec![range(0, 100, 1)]).await;
    let seen = stream.collect(100).await;
    drop(stream);
    old.until_free().await;

    let new = old.of_term(2);
    new.acquire(2, TTL).await;
    let mut stream = new.stream(programs::square(100)).await;
    let opened = stream.opened().await;
    assert!(opened.chunks.is_empty());
    assert_eq!(
        (opened.resumed, opened.last_repeated),
        (false, 0),
        "what was dropped is not passed over"
    );
    stream.submit(vec![range(7, 1, 2)]).await;
    let collected = stream.collect(1).await;
    assert_eq!(
        collected.results.keys().copied().collect::<Vec<_>>(),
        [7],
        "nothing old is replayed"
    );
    assert!(collected.sequence > seen.sequence, "sequence numbers of an owner only grow");
}

#[tokio::test]
async fn a_coordinator_that_does_not_read_or_cover_bounds_what_is_executed() {
    let agent = AgentProcess::start(&[]);
    let coordinator = Coordinator::new(&agent.url, "a").await;
    coordinator.acquire(16, TTL).await;
    // 4 GiB of results in total, far more than the agent retains.
    const BYTES: u64 = 256 << 10;
    let mut stream = coordinator.stream(programs::zeros(16_384, BYTES)).await;
    stream.opened().await;
    stream.submit(vec![range(0, 16_384, 1)]).await;
    let succeeded = async || {
        let metrics = coordinator.metrics().await;
        let line = metrics
            .lines()
            .find(|line| line.starts_with("sahasra_agent_chunks_total{outcome=\"Succeeded\"}"));
        line.map_or(0, |line| line.split(' ').nth(1).unwrap().parse::<u64>().unwrap())
    };
    let start = std::time::Instant::now();
    while coordinator.inventory().await.devices[0].active_executions > 0 || succeeded().await * BYTES < 60 << 20 {
        assert!(start.elapsed() < TIMEOUT, "it does not come to rest");
    }
    assert!(succeeded().await * BYTES <= 72 << 20, "{} chunks", succeeded().await);
    let resident = agent.resident_bytes();
    assert!(resident < 256 << 20, "{resident}");

    // Reading frees no retained results: only a checkpoint does.
    let mut collected = Collected::default();
    while collected.answered() * BYTES < 60 << 20 {
        collected.add(stream.next().await.unwrap());
    }
    let before = collected.answered();
    stream.acknowledge(collected.sequence).await;
    stream.collect_into(&mut collected, before + 200).await;
    assert!(collected.failures.is_empty() && collected.repeated.is_empty());
    coordinator.release().await;
}
