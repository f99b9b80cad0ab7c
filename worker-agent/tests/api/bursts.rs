//! Tests of bursts: chunks go out, results come in.

use std::time::Duration;

use sahasra_wire::{
    burst::{FailureCode, Store},
    grants::RejectionCode,
};

use super::{
    agent_process::AgentProcess,
    coordinator::{Collected, Coordinator, owner, range},
    programs,
};

const TTL: Duration = Duration::from_secs(120);

#[tokio::test]
async fn a_thousand_chunks_come_back_once_each_with_their_results() {
    let agent = AgentProcess::start(&[]);
    let coordinator = Coordinator::new(&agent.url, "a").await;
    coordinator.acquire(300, TTL).await;
    let mut stream = coordinator.stream(programs::square(1_000)).await;
    let opened = stream.opened().await;
    assert_eq!((opened.boot_id == coordinator.boot_id, opened.chunks.len()), (true, 0));
    assert!(opened.max_outstanding_chunks >= 1_000);
    stream.submit(vec![range(0, 600, 1)]).await;
    stream.submit(vec![range(600, 400, 1)]).await;
    let collected = stream.collect(1_000).await;
    assert!(
        collected.repeated.is_empty() && collected.failures.is_empty(),
        "{:?}",
        collected.causes()
    );
    for (index, (attempt, outputs)) in &collected.results {
        assert_eq!((*attempt, outputs), (1, &programs::squared(*index)), "{index}");
    }
    let metrics = coordinator.metrics().await;
    assert!(
        metrics.contains("sahasra_agent_chunks_total{outcome=\"Succeeded\"} 1000"),
        "{metrics}"
    );
    coordinator.release().await;
    coordinator.until_free().await;
}

#[tokio::test]
async fn hundreds_of_bursts_share_one_connection() {
    let agent = AgentProcess::start(&[]);
    let first = Coordinator::new(&agent.url, "burst-0").await;
    let mut streams = Vec::new();
    for place in 0..300 {
        let one = first.of_owner(&format!("burst-{place}"));
        one.acquire(1, TTL).await;
        let mut stream = one.stream(programs::square(1)).await;
        stream.opened().await;
        streams.push(stream);
    }
    assert_eq!(first.inventory().await.grants.len(), 300, "calls get through beside them");
    let last = streams.last_mut().unwrap();
    last.submit(vec![range(0, 1, 1)]).await;
    assert_eq!(last.collect(1).await.results.len(), 1);
}

#[tokio::test]
async fn no_more_chunks_run_than_slices_are_held() {
    let agent = AgentProcess::start(&["--cpu-device-threads", "4"]);
    let coordinator = Coordinator::new(&agent.url, "a").await;
    coordinator.acquire(1, TTL).await;
    let mut stream = coordinator.stream(programs::stuck_from(0, 8)).await;
    stream.opened().await;
    stream.submit(vec![range(0, 8, 1)]).await;
    let most = async |expected: u64| {
        let start = std::time::Instant::now();
        loop {
            let active = coordinator.inventory().await.devices[0].active_executions;
            assert!(active <= expected, "{active} chunks on {expected} slices");
            if active == expected {
                return;
            }
            assert!(
                start.elapsed() < super::coordinator::TIMEOUT,
                "{active} chunks on {expected} slices"
            );
        }
    };
    most(1).await;
    coordinator.acquire(2, TTL).await;
    most(3).await;
}

#[tokio::test]
async fn chunks_that_find_no_slice_are_returned() {
    let agent = AgentProcess::start(&[]);
    let coordinator = Coordinator::new(&agent.url, "a").await;
    let mut stream = coordinator.stream(programs::stuck_from(2, 2)).await;
    stream.opened().await;
    stream.submit(vec![range(0, 2, 1)]).await;
    let mut collected = Collected::default();
    stream.collect_into(&mut collected, 2).await;
    assert_eq!((collected.returned_without_slices, collected.failures.len()), (2, 0));
    // The returned chunks are not outstanding any more.
    coordinator.acquire(1, TTL).await;
    stream.submit(vec![range(0, 2, 1)]).await;
    stream.collect_into(&mut collected, 4).await;
    assert_eq!(collected.results.keys().copied().collect::<Vec<_>>(), [0, 1]);
}

#[tokio::test]
async fn of_an_expired_grant_only_chunks_that_run_fail() {
    let agent = AgentProcess::start(&["--cpu-device-threads", "1"]);
    let coordinator = Coordinator::new(&agent.url, "a").await;
    let mut stream = coordinator.stream(programs::stuck_from(2, 100)).await;
    stream.opened().await;
    let mut request = coordinator.acquisition(1, Duration::from_secs(2));
    request.grace_milliseconds = 500;
    coordinator.try_acquire(&request).await.unwrap();
    stream.submit(vec![range(0, 100, 1)]).await;
    let mut collected = Collected::default();
    stream.collect_into(&mut collected, 100).await;
    assert_eq!(collected.results.keys().copied().collect::<Vec<_>>(), [0, 1]);
    assert_eq!(
        collected.failures.values().map(|(code, _)| *code).collect::<Vec<_>>(),
        [FailureCode::GrantExpired],
        "{:?}",
        collected.causes()
    );
    assert_eq!(collected.returned_without_slices, 97);
    coordinator.until_free().await;
}

#[tokio::test]
async fn what_has_not_started_is_returned_when_withdrawn() {
    let agent = AgentProcess::start(&[]);
    let coordinator = Coordinator::new(&agent.url, "a").await;
    coordinator.acquire(1, TTL).await;
    let mut stream = coordinator.stream(programs::stuck_from(1, 50)).await;
    stream.opened().await;
    stream.submit(vec![range(0, 1, 1)]).await;
    let mut collected = stream.collect(1).await;
    stream.submit(vec![range(1, 49, 1)]).await;
    stream.withdraw().await;
    while collected.returned.is_empty() {
        collected.add(stream.next().await.unwrap());
    }
    let returned: u64 = collected.returned.iter().map(|range| range.count).sum();
    assert!(returned >= 48 && collected.failures.is_empty(), "{:?}", collected.causes());
    assert!(collected.returned.iter().all(|range| range.attempt == 1));
}

#[tokio::test]
async fn over_submission_and_nonsense_refuse_the_stream() {
    let agent = AgentProcess::start(&[]);
    let coordinator = Coordinator::new(&agent.url, "a").await;
    coordinator.acquire(1, TTL).await;
    let program = programs::stuck_from(0, 1 << 20);
    let wrong = |limit: u64| {
        let mut elsewhere = range(0, 1, 1);
        elsewhere.device = "gpu-9".to_owned();
        [
            (vec![range(0, limit + 1, 1)], RejectionCode::InvalidRequest, "outstanding"),
            (vec![range(5, 1, 1), range(5, 1, 1)], RejectionCode::InvalidRequest, "outstanding"),
            (vec![range(5, 0, 1)], RejectionCode::InvalidRequest, "empty"),
            (vec![range(u64::MAX, 2, 1)], RejectionCode::InvalidRequest, "empty"),
            (vec![elsewhere], RejectionCode::UnknownDevice, "gpu-9"),
        ]
    };
    for case in 0..5 {
        let mut stream = coordinator.stream(program.clone()).await;
        let opened = stream.opened().await;
        assert!(opened.chunks.is_empty(), "nothing of a refused submission was taken");
        let cases = wrong(opened.max_outstanding_chunks);
        let (ranges, code, word) = cases[case].clone();
        stream.submit(ranges).await;
        let refusal = stream.refused().await;
        assert_eq!(refusal.code(), code, "{refusal:?}");
        assert!(refusal.message.contains(word), "{refusal:?}");
        assert!(stream.next().await.is_none(), "nothing follows");
    }
}

#[tokio::test]
async fn streams_that_must_not_open_are_refused() {
    let agent = AgentProcess::start(&[]);
    let coordinator = Coordinator::new(&agent.url, "a").await;
    let open = |boot: &str, term: u64, program| sahasra_wire::burst::Open {
        owner: owner("a", term),
        boot_id: boot.to_owned(),
        program,
        covered: Vec::new(),
    };
    let boot = coordinator.boot_id.clone();
    coordinator.of_term(5).acquire(1, TTL).await;
    let mut other_digest = programs::square(1);
    other_digest.digest = bytes::Bytes::from(vec![0; 32]);
    for (open, code) in [
        (open("another", 5, programs::square(1)), RejectionCode::BootMismatch),
        (open(&boot, 4, programs::square(1)), RejectionCode::StaleTerm),
        (open(&boot, 5, other_digest), RejectionCode::InvalidRequest),
    ] {
        let mut stream = coordinator.stream_as(open).await;
        assert_eq!(stream.refused().await.code(), code);
    }
}

#[tokio::test]
async fn results_go_to_the_store_and_only_the_aggregated_output_comes_back() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().to_str().unwrap();
    let agent = AgentProcess::start(&["--file-store-root", root]);
    let coordinator = Coordinator::new(&agent.url, "a").await;
    coordinator.acquire(100, TTL).await;
    let mut program = programs::square(500);
    program.store = Some(Store {
        url: format!("file://{root}/job"),
        options: Default::default(),
    });
    program.aggregated_output = Some(0);
    let mut stream = coordinator.stream(program).await;
    stream.opened().await;
    stream.submit(vec![range(0, 500, 1)]).await;
    let collected = stream.collect(500).await;
    assert_eq!(collected.failures.len(), 0, "{:?}", collected.causes());
    assert!(!collected.segments.is_empty());
    let mut stored = std::collections::BTreeMap::new();
    for name in &collected.segments {
        assert!(name.contains(&coordinator.boot_id) && name.contains("term-1"), "{name}");
        let bytes = std::fs::read(directory.path().join("job").join(name)).unwrap();
        for (index, outputs) in sahasra_store::segment::records(&bytes).unwrap() {
            stored.insert(index, outputs.to_vec());
        }
    }
    for (index, (_, outputs)) in &collected.results {
        assert_eq!(outputs, &programs::squared(*index));
        assert_eq!(stored.get(index), Some(outputs));
    }
    assert_eq!(stored.len(), 500);
}

#[tokio::test]
async fn outputs_that_nobody_keeps_stay_here_but_for_the_aggregated_one() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().to_str().unwrap();
    let agent = AgentProcess::start(&["--file-store-root", root]);
    for (uid, aggregated, bytes) in [("a", Some(0), programs::squared(7).len()), ("b", None, 0)] {
        let coordinator = Coordinator::new(&agent.url, uid).await;
        coordinator.acquire(10, TTL).await;
        let mut program = programs::square(500);
        // The store is unused, because these outputs are not kept.
        program.store = Some(Store {
            url: format!("file://{root}/job"),
            options: Default::default(),
        });
        program.aggregate_only = true;
        program.aggregated_output = aggregated;
        let mut stream = coordinator.stream(program).await;
        stream.opened().await;
        stream.submit(vec![range(0, 500, 1)]).await;
        let collected = stream.collect(500).await;
        assert_eq!(collected.failures.len(), 0, "{:?}", collected.causes());
        assert!(collected.results.values().all(|(_, outputs)| outputs.len() == bytes));
        assert!(!directory.path().join("job").exists());
    }
}

#[tokio::test]
async fn a_store_that_cannot_be_written_fails_the_chunks_for_now() {
    let agent = AgentProcess::start(&[]);
    let coordinator = Coordinator::new(&agent.url, "a").await;
    coordinator.acquire(10, TTL).await;
    let mut program = programs::square(10);
    program.store = Some(Store {
        url: "file:///somewhere".to_owned(),
        options: Default::default(),
    });
    let mut stream = coordinator.stream(program).await;
    stream.opened().await;
    stream.submit(vec![range(0, 10, 1)]).await;
    let collected = stream.collect(10).await;
    assert_eq!(collected.failures.len(), 10);
    for (code, message) in collected.failures.values() {
        assert_eq!(*code, FailureCode::StoreUnavailable);
        assert!(message.contains("not allowed"), "{message}");
    }
}

#[tokio::test]
async fn the_4096th_burst_of_a_connection_has_a_stream_and_the_next_waits_for_one_to_end() {
    const STREAMS: usize = 4_096;
    let agent = AgentProcess::start(&[]);
    let first = Coordinator::new(&agent.url, "burst-0").await;
    let mut streams = Vec::with_capacity(STREAMS);
    for place in 0..STREAMS {
        let mut stream = first.of_owner(&format!("burst-{place}")).stream(programs::square(1)).await;
        stream.opened().await;
        streams.push(stream);
    }
    let next = first.of_owner("next");
    let mut waiting = std::pin::pin!(next.stream(programs::square(1)));
    let early = tokio::time::timeout(Duration::from_secs(1), waiting.as_mut()).await;
    assert!(early.is_err(), "there are as many as there may be");
    // The agent has room: the connection is full.
    Coordinator::new(&agent.url, "other")
        .await
        .stream(programs::square(1))
        .await
        .opened()
        .await;
    drop(streams.pop());
    waiting.await.opened().await;
}

#[tokio::test]
async fn as_many_chunks_as_an_agent_takes_of_a_burst_are_computed_and_then_more() {
    const CHUNKS: u64 = 65_536;
    let agent = AgentProcess::start(&[]);
    let coordinator = Coordinator::new(&agent.url, "a").await;
    coordinator.acquire(300, TTL).await;
    let mut stream = coordinator.stream(programs::zeros(CHUNKS + 1, 4)).await;
    assert_eq!(stream.opened().await.max_outstanding_chunks, CHUNKS);
    stream.submit(vec![range(0, CHUNKS, 1)]).await;
    let mut collected = stream.collect(CHUNKS).await;
    stream.submit(vec![range(CHUNKS, 1, 1)]).await;
    stream.collect_into(&mut collected, CHUNKS + 1).await;
    assert!(
        collected.repeated.is_empty() && collected.failures.is_empty() && collected.returned.is_empty(),
        "{:?}",
        collected.causes()
    );
    assert_eq!(collected.results.len() as u64, CHUNKS + 1);
}
