//! Tests of SIGTERM.

use std::time::Duration;

use sahasra_wire::{burst::FailureCode, grants::RejectionCode};

use super::{
    agent_process::AgentProcess,
    coordinator::{Coordinator, TIMEOUT, range},
    programs,
};

const TTL: Duration = Duration::from_secs(120);

#[tokio::test]
async fn an_idle_agent_ends_at_once_with_success() {
    let mut agent = AgentProcess::start(&[]);
    let coordinator = Coordinator::new(&agent.url, "a").await;
    coordinator.acquire(1, TTL).await;
    agent.terminate();
    assert_eq!(agent.wait().code(), Some(0));
}

#[tokio::test]
async fn running_chunks_end_and_the_rest_is_given_back() {
    let mut agent = AgentProcess::start(&["--cpu-device-threads", "1"]);
    let coordinator = Coordinator::new(&agent.url, "a").await;
    coordinator.acquire(4, TTL).await;
    let mut stream = coordinator.stream(programs::slow_square(2_000)).await;
    stream.opened().await;
    stream.submit(vec![range(0, 2_000, 1)]).await;
    let mut collected = stream.collect(5).await;
    agent.terminate();
    let refusal = loop {
        match stream.next().await.expect("a last word comes first") {
            sahasra_wire::burst::server_frame::Kind::Refused(refusal) => break refusal,
            kind => collected.add(kind),
        }
    };
    assert_eq!(refusal.code(), RejectionCode::ShuttingDown);
    assert_eq!(collected.answered(), 2_000, "each chunk was answered");
    assert!(collected.failures.is_empty(), "{:?}", collected.causes());
    assert!(!collected.returned.is_empty());
    assert_eq!(agent.wait().code(), Some(0));
}

#[tokio::test]
async fn what_does_not_end_within_the_grace_is_killed_and_said_so() {
    let mut agent = AgentProcess::start(&["--drain-timeout", "1s"]);
    let coordinator = Coordinator::new(&agent.url, "a").await;
    coordinator.acquire(1, TTL).await;
    let mut stream = coordinator.stream(programs::stuck_from(0, 10)).await;
    stream.opened().await;
    stream.submit(vec![range(0, 10, 1)]).await;
    let start = std::time::Instant::now();
    while coordinator.inventory().await.devices[0].active_executions < 1 {
        assert!(start.elapsed() < TIMEOUT);
    }
    agent.terminate();
    let start = std::time::Instant::now();
    while !coordinator.inventory().await.shutting_down {
        assert!(start.elapsed() < TIMEOUT);
    }
    let refusal = coordinator.try_acquire(&coordinator.acquisition(1, TTL)).await.unwrap_err();
    assert_eq!(refusal.code(), RejectionCode::ShuttingDown);
    let collected = stream.collect(10).await;
    let returned: u64 = collected.returned.iter().map(|range| range.count).sum();
    assert_eq!((collected.failures.len(), returned), (1, 9), "{:?}", collected.causes());
    assert_eq!(collected.failures[&0].0, FailureCode::ShuttingDown);
    assert_eq!(stream.refused().await.code(), RejectionCode::ShuttingDown);
    drop(stream);
    assert_eq!(agent.wait().code(), Some(0));
}
