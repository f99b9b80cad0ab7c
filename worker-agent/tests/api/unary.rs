//! Tests of grants over HTTP, and of invalid requests.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use sahasra_wire::{CONTENT_TYPE, Message, grants::RejectionCode, path};

use super::{
    agent_process::AgentProcess,
    coordinator::{Coordinator, DEVICE, SLICE},
};

const TTL: Duration = Duration::from_secs(60);

#[tokio::test]
async fn slices_are_granted_renewed_and_given_back() {
    let agent = AgentProcess::start(&[]);
    let coordinator = Coordinator::new(&agent.url, "a").await;
    let before = coordinator.inventory().await;
    assert_eq!((before.worker.as_str(), before.devices[0].class.as_str()), ("node", "cpu"));
    assert_eq!(before.devices[0].name, DEVICE);
    let grant = coordinator.acquire(300, TTL).await;
    assert_eq!((grant.slices, grant.term), (300, 1));
    let rest = coordinator.acquire(1_000, TTL).await;
    assert_eq!(u64::from(rest.slices), before.devices[0].allocatable_bytes / SLICE - 300);
    let refusal = coordinator.try_acquire(&coordinator.acquisition(1, TTL)).await.unwrap_err();
    assert_eq!(refusal.code(), RejectionCode::InsufficientVram);
    let during = coordinator.inventory().await;
    assert_eq!(during.grants.len(), 2);
    assert!(during.devices[0].leased_bytes > before.devices[0].allocatable_bytes - SLICE);
    let renewed = coordinator.renew(&[&grant], TTL).await;
    assert!(renewed.outcomes[0].renewed);
    let metrics = coordinator.metrics().await;
    let active = format!("sahasra_agent_slices_allocated {}", 300 + rest.slices);
    assert!(
        metrics.contains(&active) && metrics.contains("sahasra_agent_acquire_rejections_total{code=\"InsufficientVram\"} 1"),
        "{metrics}"
    );
    assert_eq!(coordinator.release().await.freed, 2);
    assert_eq!(coordinator.release().await.freed, 0);
    let metrics = coordinator.metrics().await;
    assert!(metrics.contains("sahasra_agent_slices_allocated 0"), "{metrics}");
}

#[tokio::test]
async fn an_expired_grant_is_free_within_a_second() {
    let agent = AgentProcess::start(&[]);
    let coordinator = Coordinator::new(&agent.url, "a").await;
    let start = std::time::Instant::now();
    coordinator.acquire(10, Duration::from_millis(300)).await;
    coordinator.until_free().await;
    assert!(start.elapsed() >= Duration::from_millis(300) && start.elapsed() < Duration::from_millis(1_300));
}

#[tokio::test]
async fn a_lower_term_and_another_boot_are_refused() {
    let agent = AgentProcess::start(&[]);
    let old = Coordinator::new(&agent.url, "a").await;
    let grant = old.acquire(1, TTL).await;
    let new = old.of_term(2);
    new.acquire(1, TTL).await;
    let stale = old.try_acquire(&old.acquisition(1, TTL)).await.unwrap_err();
    assert_eq!(stale.code(), RejectionCode::StaleTerm);
    assert_eq!(old.renew(&[&grant], TTL).await.outcomes[0].refusal(), RejectionCode::StaleTerm);
    assert_eq!(old.release().await.refusal.unwrap().code(), RejectionCode::StaleTerm);
    let mut request = new.acquisition(1, TTL);
    request.boot_id = "another".to_owned();
    assert_eq!(new.try_acquire(&request).await.unwrap_err().code(), RejectionCode::BootMismatch);
    assert_eq!(new.release().await.freed, 2);
}

#[tokio::test]
async fn what_is_no_request_is_answered_with_its_cause() {
    let agent = AgentProcess::start(&[]);
    let coordinator = Coordinator::new(&agent.url, "a").await;
    let good = Bytes::from(coordinator.acquisition(1, TTL).encode_to_vec());
    for (method, at, content_type, body, status, word) in [
        (Method::POST, path::ACQUIRE, "text/plain", good.clone(), 415, "x-protobuf"),
        (
            Method::POST,
            path::ACQUIRE,
            CONTENT_TYPE,
            Bytes::from_static(b"\xff\xff"),
            400,
            "failed to read the body",
        ),
        (
            Method::POST,
            path::ACQUIRE,
            CONTENT_TYPE,
            Bytes::from(vec![0; 1 << 20]),
            413,
            "too large",
        ),
        (Method::GET, path::ACQUIRE, CONTENT_TYPE, Bytes::new(), 405, "not allowed"),
        (Method::POST, path::BURSTS, "text/plain", Bytes::new(), 415, "x-protobuf"),
        (Method::GET, "/v2/nothing", CONTENT_TYPE, Bytes::new(), 404, "/v1/inventory"),
        (Method::GET, "/readyz", "", Bytes::new(), 200, "ok"),
        (Method::GET, "/healthz", "", Bytes::new(), 200, "ok"),
    ] {
        let (answer, text) = coordinator.request(method, at, content_type, body).await;
        let text = String::from_utf8_lossy(&text);
        assert_eq!(answer, StatusCode::from_u16(status).unwrap(), "{at} {text}");
        assert!(text.contains(word), "{at} {text}");
    }
}
