//! Sessions and bursts as objects: created, read, listed, deleted, rejected.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, header};
use sahasra_gateway::Limits;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    cluster::{Cluster, TOKEN, eventually},
    objects::{BURSTS, SESSIONS, burst, session},
};

#[tokio::test]
async fn sessions_and_bursts_are_created_read_listed_and_deleted() {
    let cluster = Cluster::start().await;
    for (path, kind, object) in [(SESSIONS, "GpuSession", session("mine")), (BURSTS, "BurstJob", burst("mine"))] {
        let made = cluster.call(Method::POST, path, Some(&object)).await;
        assert_eq!(made.status, 201, "{made:?}");
        let made = made.json();
        assert_eq!(
            (made["kind"].as_str(), made["metadata"]["namespace"].as_str()),
            (Some(kind), Some("default"))
        );
        let read = cluster.get(&format!("{path}/mine")).await;
        assert_eq!((read.status.as_u16(), read.json()), (200, made));
        let mut another = object.clone();
        another["metadata"] = json!({"generateName": "more-", "labels": {"team": "blue"}});
        let another = cluster.call(Method::POST, path, Some(&another)).await.json();
        let name = another["metadata"]["name"].as_str().expect("a name").to_owned();
        assert!(name.starts_with("more-") && name.len() > 5, "{name}");
        let names = async |query: &str| -> Vec<String> {
            let list = cluster.get(&format!("{path}{query}")).await.json();
            let items = list["items"].as_array().expect("a list").clone();
            items
                .iter()
                .map(|item| item["metadata"]["name"].as_str().expect("a name").to_owned())
                .collect()
        };
        assert_eq!(names("").await, ["mine".to_owned(), name.clone()]);
        assert_eq!(names("?labelSelector=team%3Dblue").await, [name]);
        assert_eq!(names("?limit=1").await, ["mine"]);
        assert_eq!(names("?fieldSelector=metadata.name%3Dmine").await, ["mine"]);
        assert!(
            cluster
                .call(Method::POST, path, Some(&object))
                .await
                .refusal(409)
                .contains("already exists")
        );
        assert_eq!(cluster.call(Method::DELETE, &format!("{path}/mine"), None).await.status, 200);
        assert!(
            cluster
                .get(&format!("{path}/mine"))
                .await
                .refusal(404)
                .contains("\"mine\" not found")
        );
        assert_eq!(cluster.call(Method::DELETE, &format!("{path}/mine"), None).await.status, 404);
    }
}

#[tokio::test]
async fn an_error_names_the_field_and_the_remedy() {
    let cluster = Cluster::start().await;
    let post = async |body: Value| cluster.call(Method::POST, SESSIONS, Some(&body)).await;
    let misspelt = json!({"metadata": {"name": "a"}, "spec": {"vram": "1Gi", "clas": "g5"}});
    assert!(post(misspelt).await.refusal(400).contains("unknown field \"spec.clas\""));
    let wrong = json!({"metadata": {"name": "a"}, "spec": {"vram": "1Gi", "idleTimeoutSeconds": 90, "ttlSeconds": 60}});
    let wrong = post(wrong).await;
    assert!(wrong.refusal(422).contains("idleTimeoutSeconds must not exceed ttlSeconds"));
    assert_eq!(wrong.json()["details"]["causes"][0]["field"], "spec.idleTimeoutSeconds");
    let kind = json!({"kind": "Secret", "metadata": {"name": "a"}});
    let kind = post(kind).await;
    assert_eq!(kind.refusal(400), "kind: must be GpuSession, or omitted");
    assert_eq!(kind.json()["details"]["causes"][0]["field"], "kind");
    let version = json!({"metadata": {"name": "a", "resourceVersion": "5"}, "spec": {"vram": "1Gi"}});
    assert!(post(version).await.refusal(400).starts_with("metadata.resourceVersion"));
    let elsewhere = json!({"metadata": {"name": "a", "namespace": "kube-system"}, "spec": {"vram": "1Gi"}});
    post(elsewhere).await.refusal(400);
    for (path, said) in [
        ("?waitfor=Placed", "query.waitfor"),
        (
            "?waitFor=Pla%20ced",
            "query.waitFor: invalid condition of a GpuSession: expected one of Placed, Ready, Failed",
        ),
        ("?waitFor=Complete", "expected one of"),
        ("?timeoutSeconds=5", "add waitFor"),
        ("?waitFor=Placed&timeoutSeconds=301", "from 1 to 300"),
    ] {
        let refused = cluster.get(&format!("{SESSIONS}/a{path}")).await.refusal(400);
        assert!(refused.contains(said), "{refused}");
    }
    assert!(
        cluster
            .get(&format!("{SESSIONS}/..%2fsecrets"))
            .await
            .refusal(400)
            .starts_with("path.name")
    );
    assert!(
        cluster
            .get("/v1/namespaces/default/secrets")
            .await
            .refusal(404)
            .contains("/openapi.json")
    );
    let put = cluster.call(Method::PUT, SESSIONS, None).await;
    assert!(put.refusal(405).contains("GET, POST"));
    assert_eq!(put.headers[header::ALLOW], "GET, POST");

    let bearer = || {
        Request::builder()
            .method(Method::POST)
            .header(header::AUTHORIZATION, format!("Bearer {TOKEN}"))
    };
    let yaml = cluster
        .send(
            SESSIONS,
            bearer().header(header::CONTENT_TYPE, "application/yaml"),
            "spec: {}".into(),
        )
        .await;
    assert!(yaml.refusal(415).contains("application/json"));
    assert!(cluster.send(SESSIONS, bearer(), "{".into()).await.refusal(400).contains("metadata"));
}

#[tokio::test]
async fn requests_without_a_valid_token_are_rejected() {
    let cluster = Cluster::start().await;
    for path in [SESSIONS, BURSTS, "/v1/namespaces/default/bursts/a/results", "/workers"] {
        let anonymous = cluster.send(path, Request::builder(), Bytes::new()).await;
        assert!(anonymous.refusal(401).contains("Authorization: Bearer"));
        let stranger = cluster
            .send(path, Request::builder().header(header::AUTHORIZATION, "Bearer wrong"), Bytes::new())
            .await;
        stranger.refusal(401);
        for answer in [anonymous, stranger] {
            assert_eq!(answer.headers[header::WWW_AUTHENTICATE], "Bearer");
            assert_eq!(answer.headers[header::CACHE_CONTROL], "no-store");
        }
    }
    for path in ["/healthz", "/metrics", "/openapi.json"] {
        assert_eq!(cluster.send(path, Request::builder(), Bytes::new()).await.status, 200, "{path}");
    }
    eventually("it is ready", async || {
        let ready = cluster.send("/readyz", Request::builder(), Bytes::new()).await;
        (ready.status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn every_name_that_can_be_created_can_be_read_and_deleted() {
    let cluster = Cluster::start().await;
    for name in ["y".repeat(64), "y".repeat(253)] {
        let made = json!({"metadata": {"name": name}, "spec": {"vram": "1Gi"}});
        assert_eq!(cluster.call(Method::POST, SESSIONS, Some(&made)).await.status, 201);
        let path = format!("{SESSIONS}/{name}");
        assert_eq!(cluster.get(&path).await.json()["metadata"]["name"], name.as_str());
        assert_eq!(cluster.call(Method::HEAD, &path, None).await.status, 200);
        assert_eq!(cluster.call(Method::DELETE, &path, None).await.status, 200);
    }
    let long = json!({"metadata": {"name": "y".repeat(254)}, "spec": {"vram": "1Gi"}});
    cluster.call(Method::POST, SESSIONS, Some(&long)).await.refusal(422);
}

#[tokio::test]
async fn a_body_has_at_most_3_mib() {
    const MOST: usize = 3 << 20;
    let cluster = Cluster::start().await;
    let post = async |name: &str, bytes: usize| {
        // Spaces after an object are not part of its JSON.
        let mut body = json!({"metadata": {"name": name}, "spec": {"vram": "1Gi"}}).to_string();
        body.push_str(&" ".repeat(bytes - body.len()));
        let request = Request::builder()
            .method(Method::POST)
            .header(header::AUTHORIZATION, format!("Bearer {TOKEN}"))
            .header(header::CONTENT_TYPE, "application/json");
        cluster.send(SESSIONS, request, body.into()).await
    };
    assert_eq!(post("most", MOST).await.status, 201);
    assert!(post("more", MOST + 1).await.refusal(413).contains("3145728 bytes"));
}

#[tokio::test]
async fn a_body_that_is_too_large_or_too_slow_is_rejected() {
    let limits = Limits {
        body_bytes: 64 << 10,
        body_timeout: Duration::from_secs(3),
        ..Limits::default()
    };
    let cluster = Cluster::start_with(&[], limits).await;
    let large = json!({"metadata": {"name": "a", "annotations": {"a": "x".repeat(64 << 10)}}, "spec": {"vram": "1Gi"}});
    let refused = cluster.call(Method::POST, SESSIONS, Some(&large)).await;
    assert!(refused.refusal(413).contains("65536 bytes"));
    // A chunked body without a content length, and one that stops in the middle.
    for (piece, code) in [
        ("10001\r\n".to_owned() + &"x".repeat(0x10001), "413"),
        ("5\r\n{\"met\r\n".to_owned(), "408"),
    ] {
        let mut client = TcpStream::connect(cluster.address).await.expect("it listens");
        let head = format!("POST {SESSIONS} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\ntransfer-encoding: chunked\r\n\r\n");
        client.write_all((head + &piece).as_bytes()).await.expect("sent");
        let mut answer = String::new();
        // Reads to the end: the gateway closes the connection.
        client.read_to_string(&mut answer).await.expect("an answer");
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {code}")) && answer.contains("\"kind\":\"Status\""),
            "{answer}"
        );
    }
    assert_eq!(cluster.get(SESSIONS).await.json()["items"], json!([]));
}

#[tokio::test]
async fn a_thousand_sessions_opened_and_deleted_leave_nothing() {
    let cluster = Cluster::start().await;
    let objects = async |worker: usize| {
        for number in 0..125 {
            let name = format!("session-{worker}-{number}");
            let made = cluster.call(Method::POST, SESSIONS, Some(&session(&name))).await;
            assert_eq!(made.status, 201, "{made:?}");
            assert_eq!(cluster.call(Method::DELETE, &format!("{SESSIONS}/{name}"), None).await.status, 200);
        }
    };
    futures::future::join_all((0..8).map(objects)).await;
    assert_eq!(cluster.get(SESSIONS).await.json()["items"], json!([]));
    assert_eq!(cluster.metric("sahasra_gateway_requests_total{code=\"201\"").await, 1000.0);
}
