//! Tests of the streams of a burst's coordinator: breaks, and chunks that the agent has from an earlier stream or coordinator.

use std::time::Duration;

use kube::{
    Api,
    api::{Patch, PatchParams},
};
use sahasra_crds::BurstJob;
use sahasra_store::StorePolicy;
use sahasra_wire::burst::{ChunkRange, FailureCode};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    agent::{Pool, Stream, ended, there},
    harness::{NAMESPACE, counted, create, job},
};

#[tokio::test(start_paused = true)]
async fn a_stream_that_breaks_and_is_reopened_costs_no_attempt() {
    let mut pool = Pool::start(0, StorePolicy::default()).await;
    // A single lost attempt fails the burst.
    let broken = job("broken", |manifest| manifest["spec"]["retryPolicy"] = json!({"maxRetries": 0}));
    create(&pool.client, &broken).await;
    let mut stream = pool.stream().await;
    stream.accept(&[], 0).await;
    stream.submitted(4).await;
    stream.cut();
    // Chunk 0 had succeeded, chunk 1 continues, and the others never reached the agent.
    let mut stream = pool.stream().await;
    stream.accept(&[there(1, 1, 1)], 1).await;
    stream.succeeded(1, 0, 1, "");
    let again = stream.submitted(2).await;
    assert!(again.iter().all(|range| range.first >= 2 && range.attempt == 1), "{again:?}");
    stream.succeeded(2, 1, 3, "");
    let status = ended(&pool, "broken").await;
    assert_eq!(status.state.as_deref(), Some("Complete"), "{status:?}");
    assert_eq!((status.chunks.succeeded, status.chunks.retried), (4, 0));
    let lost = counted(&pool.context, "gpu_submit_errors", FailureCode::Disconnected.label());
    assert_eq!(lost, 0.0);
}

#[tokio::test(start_paused = true)]
async fn failures_and_returns_of_adopted_chunks_count_on_the_device_and_in_the_attempt_that_the_agent_reports() {
    let mut pool = Pool::start(0, StorePolicy::default()).await;
    create(&pool.client, &job("other", |_| ())).await;
    let mut stream = pool.stream().await;
    stream.accept(&[], 0).await;
    stream.submitted(4).await;
    stream.failed(1, 0, FailureCode::ExecutorLost);
    assert_eq!(stream.submitted(1).await[0].attempt, 2);
    stream.cut();
    let mut stream = pool.stream().await;
    let another = ChunkRange {
        device: "another".to_owned(),
        ..there(1, 2, 3)
    };
    stream.accept(&[there(0, 1, 2), another.clone(), there(3, 1, 1)], 1).await;
    stream.failed_in(2, 2, 0, FailureCode::ExecutorLost);
    assert_eq!(stream.submitted(1).await[0].attempt, 3);
    stream.returned(vec![another]);
    let again = stream.submitted(2).await;
    assert!(again.iter().all(|range| range.attempt == 3), "{again:?}");
    stream.succeeded(3, 0, 4, "");
    let status = ended(&pool, "other").await;
    assert_eq!(status.state.as_deref(), Some("Complete"), "{status:?}");
    assert_eq!((status.chunks.succeeded, status.chunks.retried), (4, 2));
}

/// A stream on which the agent reports chunks 0 to 3, submitted on an earlier stream of this coordinator or by an earlier coordinator.
async fn with_chunks_there(pool: &mut Pool, name: &str, handed_over: bool) -> Stream {
    let job = job(name, |manifest| manifest["spec"]["retryPolicy"] = json!({"maxRetries": 0}));
    create(&pool.client, &job).await;
    let mut stream = pool.stream().await;
    if handed_over {
        stream.accept(&[], 0).await;
        stream.submitted(4).await;
        stream.cut();
        stream = pool.stream().await;
    }
    stream.accept(&[there(0, 4, 1)], 0).await;
    stream
}

#[tokio::test(start_paused = true)]
async fn chunks_that_an_agent_keeps_without_a_slice_are_lost_in_the_end() {
    for handed_over in [true, false] {
        let mut pool = Pool::start(0, StorePolicy::default()).await;
        let _stream = with_chunks_there(&mut pool, "kept", handed_over).await;
        pool.expire();
        let status = ended(&pool, "kept").await;
        let failed = (status.state.as_deref(), status.reason.as_deref(), status.chunks.failed);
        assert_eq!(failed, (Some("Failed"), Some(FailureCode::GrantExpired.label()), 4), "{status:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_repeated_after_a_second_break_counts() {
    for handed_over in [true, false] {
        let mut pool = Pool::start(0, StorePolicy::default()).await;
        // The stream breaks again before the failure is received.
        with_chunks_there(&mut pool, "twice", handed_over).await.cut();
        let mut stream = pool.stream().await;
        stream.accept(&[there(1, 3, 1)], 1).await;
        stream.failed(1, 0, FailureCode::Trap);
        stream.succeeded(2, 1, 3, "");
        let status = ended(&pool, "twice").await;
        assert_eq!((status.chunks.succeeded, status.chunks.failed), (3, 1), "{status:?}");
        assert_eq!(status.reason.as_deref(), Some(FailureCode::Trap.label()), "{status:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_repeated_failure_counts_once() {
    let mut pool = Pool::start(0, StorePolicy::default()).await;
    create(&pool.client, &job("once", |_| ())).await;
    let mut stream = pool.stream().await;
    stream.accept(&[], 0).await;
    stream.submitted(4).await;
    stream.cut();
    let mut stream = pool.stream().await;
    stream.accept(&[there(0, 4, 1)], 0).await;
    stream.failed(1, 0, FailureCode::ExecutorLost);
    stream.cut();
    let mut stream = pool.stream().await;
    stream.accept(&[there(1, 3, 1)], 1).await;
    stream.failed(1, 0, FailureCode::ExecutorLost);
    assert_eq!(stream.submitted(1).await[0].attempt, 2);
    stream.succeeded(2, 0, 4, "");
    let status = ended(&pool, "once").await;
    assert_eq!((status.chunks.succeeded, status.chunks.retried), (4, 1), "{status:?}");
}

#[tokio::test(start_paused = true)]
async fn a_repeated_failure_does_not_concern_an_attempt_that_the_agent_still_has() {
    let mut pool = Pool::start(0, StorePolicy::default()).await;
    let again = job("again", |manifest| manifest["spec"]["retryPolicy"] = json!({"maxRetries": 0}));
    create(&pool.client, &again).await;
    // Before the failure of its first attempt was received, the chunk was submitted again by a coordinator that did not know of it.
    let mut stream = pool.stream().await;
    stream.accept(&[there(0, 4, 1)], 1).await;
    stream.failed(1, 0, FailureCode::ExecutorLost);
    stream.succeeded(2, 0, 4, "");
    let status = ended(&pool, "again").await;
    assert_eq!(status.state.as_deref(), Some("Complete"), "{status:?}");
    assert_eq!((status.chunks.succeeded, status.chunks.retried), (4, 0), "{status:?}");
}

#[tokio::test(start_paused = true)]
async fn a_burst_being_suspended_withdraws_the_chunks_of_a_reconnected_agent() {
    let mut pool = Pool::start(0, StorePolicy::default()).await;
    create(&pool.client, &job("suspended", |_| ())).await;
    let mut stream = pool.stream().await;
    stream.accept(&[], 0).await;
    stream.submitted(4).await;
    let jobs = Api::<BurstJob>::namespaced(pool.client.clone(), NAMESPACE);
    let suspend = Patch::Merge(json!({"spec": {"suspend": true}}));
    jobs.patch("suspended", &PatchParams::default(), &suspend).await.unwrap();
    stream.withdrawn().await;
    stream.cut();
    let mut stream = pool.stream().await;
    stream.accept(&[there(0, 4, 1)], 0).await;
    stream.withdrawn().await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_gets_at_most_its_maximum_including_the_chunks_that_it_has() {
    let mut pool = Pool::start(0, StorePolicy::default()).await;
    create(&pool.client, &job("full", |_| ())).await;
    let mut stream = pool.stream().await;
    stream.accept_at_most(3, &[there(0, 3, 1)], 0).await;
    // There is room for the fourth chunk when one of the agent's chunks has ended.
    stream.quiet().await;
    stream.succeeded(1, 0, 1, "");
    assert_eq!(stream.submitted(1).await[0].first, 3);
    stream.succeeded(2, 1, 3, "");
    assert_eq!(ended(&pool, "full").await.state.as_deref(), Some("Complete"));
}

#[tokio::test(start_paused = true)]
async fn an_agent_has_three_seconds_to_be_reached_again_after_its_stream_broke() {
    let mut pool = Pool::start(0, StorePolicy::default()).await;
    let lost = job("lost", |manifest| manifest["spec"]["retryPolicy"] = json!({"maxRetries": 0}));
    create(&pool.client, &lost).await;
    let mut stream = pool.stream().await;
    stream.accept(&[], 0).await;
    stream.submitted(4).await;
    stream.cut();
    let began = Instant::now();
    // The agent accepts the connection for the next stream, but does not answer.
    let _silent = pool.stream().await;
    let status = ended(&pool, "lost").await;
    assert_eq!(
        (status.state.as_deref(), status.reason.as_deref()),
        (Some("Failed"), Some(FailureCode::Disconnected.label())),
        "{status:?}"
    );
    let waited = began.elapsed();
    assert!((Duration::from_secs(3)..Duration::from_secs(10)).contains(&waited), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_never_answered_is_opened_again() {
    let mut pool = Pool::start(0, StorePolicy::default()).await;
    create(&pool.client, &job("unanswered", |_| {})).await;
    let _silent = pool.stream().await;
    let mut stream = pool.stream().await;
    stream.accept(&[], 0).await;
    stream.submitted(4).await;
    stream.succeeded(1, 0, 4, "");
    assert_eq!(ended(&pool, "unanswered").await.state.as_deref(), Some("Complete"));
}
