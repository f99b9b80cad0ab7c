//! Long polls for a condition.

use http::Method;
use serde_json::json;
use tokio::{io::AsyncWriteExt, net::TcpStream};

use crate::{
    cluster::{Cluster, TOKEN, WITHIN, eventually},
    objects::{BURSTS, SESSIONS, burst, condition, session},
};

#[tokio::test]
async fn a_poll_is_answered_when_the_condition_or_failed_is_true() {
    let cluster = Cluster::start().await;
    for (name, reported) in [("placed", "Placed"), ("failed", "Failed")] {
        cluster.call(Method::POST, SESSIONS, Some(&session(name))).await;
        let path = format!("{SESSIONS}/{name}?waitFor=Placed&timeoutSeconds=300");
        let poll = cluster.get(&path);
        let report = async {
            eventually("it watches", async || (cluster.control_plane.open_watches() == 1).then_some(())).await;
            let other = json!({"conditions": [condition("Accepted", "Valid")]});
            cluster.report("GpuSession", name, other).await;
            let status = json!({"conditions": [condition(reported, "Because")], "endpoint": "http://127.0.0.1:1"});
            cluster.report("GpuSession", name, status).await;
        };
        let (answer, ()) = tokio::time::timeout(WITHIN, async { tokio::join!(poll, report) })
            .await
            .expect("it is answered");
        assert_eq!(answer.json()["status"]["conditions"][0]["type"], reported);
        // The condition is true now, so the answer comes at once.
        assert_eq!(cluster.get(&path).await.json()["status"]["conditions"][0]["type"], reported);
        eventually("no watch is left", async || {
            (cluster.control_plane.open_watches() == 0).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_poll_returns_the_object_at_its_timeout_and_404_after_its_deletion() {
    let cluster = Cluster::start().await;
    cluster.call(Method::POST, SESSIONS, Some(&session("mine"))).await;
    let answer = cluster.get(&format!("{SESSIONS}/mine?waitFor=Placed&timeoutSeconds=1")).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["metadata"]["name"]), (200, &json!("mine")));
    let path = format!("{SESSIONS}/mine?waitFor=Placed&timeoutSeconds=300");
    let disturb = async {
        eventually("it watches", async || (cluster.control_plane.open_watches() == 1).then_some(())).await;
        // A watch that ends is started again.
        cluster.control_plane.close_watches();
        eventually("it watches again", async || {
            (cluster.control_plane.open_watches() == 1).then_some(())
        })
        .await;
        cluster.control_plane.expire_watches();
        eventually("it watches again", async || {
            (cluster.control_plane.open_watches() == 1).then_some(())
        })
        .await;
        cluster.call(Method::DELETE, &format!("{SESSIONS}/mine"), None).await;
    };
    let (answer, ()) = tokio::time::timeout(WITHIN, async { tokio::join!(cluster.get(&path), disturb) })
        .await
        .expect("it is answered");
    answer.refusal(404);
    cluster.get(&path).await.refusal(404);
}

#[tokio::test]
async fn a_poll_whose_client_disconnects_is_abandoned() {
    let cluster = Cluster::start().await;
    cluster.call(Method::POST, SESSIONS, Some(&session("mine"))).await;
    let mut client = TcpStream::connect(cluster.address).await.expect("it listens");
    let head =
        format!("GET {SESSIONS}/mine?waitFor=Placed&timeoutSeconds=300 HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n\r\n");
    client.write_all(head.as_bytes()).await.expect("sent");
    eventually("it watches", async || (cluster.control_plane.open_watches() == 1).then_some(())).await;
    drop(client);
    eventually("it no longer watches", async || {
        (cluster.control_plane.open_watches() == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_poll_for_a_rejected_burst_does_not_wait() {
    let cluster = Cluster::start().await;
    cluster.call(Method::POST, BURSTS, Some(&burst("wrong"))).await;
    let mut refused = condition("Accepted", "EntryNotFound");
    refused["status"] = json!("False");
    cluster
        .report("BurstJob", "wrong", json!({"state": "Pending", "conditions": [refused]}))
        .await;
    // The longest poll allowed, which would exceed this test's timeout.
    let answer = cluster.get(&format!("{BURSTS}/wrong?waitFor=Complete&timeoutSeconds=300")).await;
    assert_eq!(answer.json()["status"]["conditions"][0]["reason"], "EntryNotFound");
    cluster.get(&format!("{BURSTS}/wrong?waitFor=complete")).await.refusal(400);
}
