//! Tests of how clients connect to sessions, and of the sessions' grants and executors.

use std::time::Duration;

use bytes::BytesMut;
use sahasra_wire::{
    grants::{AcquireRequest, ReleaseRequest, RenewOwner, SessionTerms},
    inventory::SessionLoad,
    path,
    session::{ClientFrame, Hello, PROTOCOL, RESUME_HEADER, ServerFrame, VERSION, Welcome, client_frame, frame, hex_value, server_frame},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    agent_process::AgentProcess,
    api_server::{Objects, WORKER, kubeconfig},
    coordinator::{Coordinator, TIMEOUT},
};

const TTL: Duration = Duration::from_secs(60);
const UPGRADE: [(&str, &str); 2] = [("connection", "Upgrade"), ("upgrade", PROTOCOL)];

/// An API server that knows two tokens, and an agent that uses it.
pub(crate) struct Place {
    pub agent: AgentProcess,
    pub objects: Objects,
    _directory: tempfile::TempDir,
    server: Option<DropGuard>,
}

pub(crate) async fn place(arguments: &[&str]) -> Place {
    let directory = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let kubeconfig = kubeconfig(directory.path(), listener.local_addr().unwrap());
    let (objects, stop) = (Objects::default(), CancellationToken::new());
    let serving = (objects.clone(), stop.clone());
    tokio::spawn(async move { serving.0.serve(listener, serving.1).await });
    let agent = AgentProcess::with_kubernetes(&kubeconfig, arguments);
    objects.until(WORKER, |worker| worker["status"]["devices"][0].is_object()).await;
    Place {
        agent,
        objects,
        _directory: directory,
        server: Some(stop.drop_guard()),
    }
}

pub(crate) fn terms(name: &str) -> SessionTerms {
    SessionTerms {
        namespace: "team".to_owned(),
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        engine: "ptx".to_owned(),
        keep_milliseconds: 3_600_000,
    }
}

pub(crate) fn acquisition(coordinator: &Coordinator, terms: SessionTerms) -> AcquireRequest {
    AcquireRequest {
        session: Some(terms),
        ..coordinator.acquisition(1, TTL)
    }
}

/// Sends a request for a stream. Returns the head of the response and the connection.
async fn open(agent: &AgentProcess, name: &str, token: Option<&str>, headers: &[(&str, &str)]) -> (String, TcpStream) {
    let address = agent.url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut request = format!("GET {} HTTP/1.1\r\nhost: {address}\r\n", path::stream("team", name));
    if let Some(token) = token {
        request += &format!("authorization: Bearer {token}\r\n");
    }
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    stream.write_all((request + "\r\n").as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(tokio::time::timeout(TIMEOUT, stream.read_u8()).await.unwrap().unwrap());
    }
    let mut head = String::from_utf8(head).unwrap().to_lowercase();
    if let Some(length) = head.lines().find_map(|line| line.strip_prefix("content-length: ")) {
        let mut body = vec![0; length.parse().unwrap()];
        stream.read_exact(&mut body).await.unwrap();
        head += &String::from_utf8(body).unwrap().to_lowercase();
    }
    (head, stream)
}

/// Checks that the agent knows no such session.
async fn not_here(agent: &AgentProcess, name: &str) {
    let message = format!("session team/{name} does not run on this worker");
    refused(agent, name, Some("right"), &UPGRADE, "404", &message).await;
}

async fn refused(agent: &AgentProcess, name: &str, token: Option<&str>, headers: &[(&str, &str)], status: &str, why: &str) {
    let (answer, _) = open(agent, name, token, headers).await;
    assert!(
        answer.starts_with(&format!("http/1.1 {status} ")) && answer.contains(why),
        "{answer}"
    );
}

/// Waits until `wanted` accepts the session's load, and returns it.
async fn until(coordinator: &Coordinator, name: &str, wanted: impl Fn(&SessionLoad) -> bool) -> SessionLoad {
    let start = tokio::time::Instant::now();
    loop {
        let sessions = coordinator.inventory().await.sessions;
        if let Some(load) = sessions.iter().find(|load| load.name == name && wanted(load)) {
            return load.clone();
        }
        assert!(start.elapsed() < TIMEOUT, "{sessions:?}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_stream_is_refused_by_cause_before_anything_runs() {
    let mut place = place(&[]).await;
    let agent = &place.agent;
    let coordinator = Coordinator::new(&agent.url, "lease").await;
    coordinator.try_acquire(&acquisition(&coordinator, terms("mine"))).await.unwrap();

    refused(agent, "mine", None, &UPGRADE, "401", "authorization: bearer").await;
    refused(agent, "mine", Some("wrong"), &UPGRADE, "401", "invalid token").await;
    refused(
        agent,
        "mine",
        Some("known"),
        &UPGRADE,
        "403",
        "not allowed to create gpusessions/stream",
    )
    .await;
    // A client without access learns nothing about which sessions exist.
    refused(agent, "other", Some("known"), &UPGRADE, "403", "not allowed to create").await;
    refused(
        agent,
        "other",
        Some("right"),
        &UPGRADE,
        "404",
        "session team/other does not run on this worker",
    )
    .await;
    refused(agent, "mine", Some("right"), &[], "426", "connection: upgrade").await;
    let websocket = [("connection", "upgrade"), ("upgrade", "websocket")];
    refused(agent, "mine", Some("right"), &websocket, "426", PROTOCOL).await;
    assert_eq!(agent.executors().len(), 0, "nobody was let in: nothing runs");

    place.server = None;
    let start = tokio::time::Instant::now();
    loop {
        // The server stops asynchronously; each new name needs a new query of the API server.
        let (answer, _) = open(
            &place.agent,
            &format!("other-{}", start.elapsed().as_nanos()),
            Some("right"),
            &UPGRADE,
        )
        .await;
        if answer.starts_with("http/1.1 503 ") && answer.contains("failed to check the permission") {
            break;
        }
        assert!(start.elapsed() < TIMEOUT, "{answer}");
    }
}

#[tokio::test]
async fn an_agent_without_an_api_server_lets_nobody_in() {
    let agent = AgentProcess::start(&[]);
    let coordinator = Coordinator::new(&agent.url, "lease").await;
    coordinator.try_acquire(&acquisition(&coordinator, terms("mine"))).await.unwrap();
    refused(&agent, "mine", Some("right"), &UPGRADE, "503", "--no-kubernetes").await;
}

#[tokio::test]
async fn a_session_is_told_of_from_its_grant_to_its_release() {
    let place = place(&[]).await;
    let coordinator = Coordinator::new(&place.agent.url, "lease").await;
    coordinator.acquire(1, TTL).await;
    assert!(coordinator.inventory().await.sessions.is_empty(), "a lease is none");
    let session = Coordinator::new(&place.agent.url, "session").await;
    session.try_acquire(&acquisition(&session, terms("mine"))).await.unwrap();
    let load = until(&coordinator, "mine", |_| true).await;
    assert_eq!((load.owner_uid.as_str(), load.namespace.as_str()), ("session", "team"));
    assert!(load.streams && !load.connected && load.ended.is_empty());
    let later = until(&coordinator, "mine", |later| later.idle_milliseconds > load.idle_milliseconds).await;
    assert_eq!((later.tensors, later.active_executions), (0, 0));
    assert!(coordinator.metrics().await.contains("sahasra_agent_sessions 1"));
    session.release().await;
    assert!(coordinator.inventory().await.sessions.is_empty());
    not_here(&place.agent, "mine").await;
}

#[tokio::test]
async fn an_executor_that_ends_by_itself_gives_the_grant_back_and_is_told_of_until_the_release() {
    let place = place(&[]).await;
    let coordinator = Coordinator::new(&place.agent.url, "lease").await;
    coordinator.try_acquire(&acquisition(&coordinator, terms("mine"))).await.unwrap();
    let (answer, mut stream) = open(&place.agent, "mine", Some("right"), &UPGRADE).await;
    assert!(answer.starts_with("http/1.1 101 ") && answer.contains(PROTOCOL), "{answer}");
    let start = tokio::time::Instant::now();
    let load = loop {
        place.agent.kill_executors();
        let sessions = coordinator.inventory().await.sessions;
        if let Some(load) = sessions.into_iter().find(|load| !load.ended.is_empty()) {
            break load;
        }
        assert!(start.elapsed() < TIMEOUT);
    };
    assert!(load.ended.contains("its executor") && !load.streams && !load.connected, "{load:?}");
    coordinator.until_free().await;
    assert!(coordinator.inventory().await.grants.is_empty());
    // The connection of the client is closed too.
    let mut rest = Vec::new();
    let _ = tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut rest)).await.unwrap();
    not_here(&place.agent, "mine").await;
    coordinator.release().await;
    assert!(coordinator.inventory().await.sessions.is_empty());
}

/// Connects a client and completes its greeting.
async fn client(agent: &AgentProcess, name: &str) -> TcpStream {
    let (answer, mut stream) = open(agent, name, Some("right"), &UPGRADE).await;
    assert!(
        answer.starts_with("http/1.1 101 ") && !answer.contains("sahasra-resume"),
        "{answer}"
    );
    greet(&mut stream, &[]).await;
    stream
}

/// Sends `Hello`, with the secret of a broken connection or without one.
async fn greet(stream: &mut TcpStream, resume: &[u8]) -> Welcome {
    let hello = Hello {
        lowest_version: VERSION,
        highest_version: VERSION,
        window_frames: 16,
        window_bytes: 1 << 20,
        resume: resume.to_vec().into(),
        ..Hello::default()
    };
    let hello = ClientFrame {
        kind: Some(client_frame::Kind::Hello(hello)),
        ..ClientFrame::default()
    };
    let mut bytes = BytesMut::new();
    frame::encode(&hello, 0, &mut bytes).unwrap();
    stream.write_all(&bytes).await.unwrap();
    let mut decoder = frame::Decoder::default();
    let welcomed = async {
        loop {
            if let Some((frame, _)) = decoder.next_frame::<ServerFrame>().unwrap() {
                return frame;
            }
            assert!(stream.read_buf(decoder.buffer()).await.unwrap() > 0, "the stream ended");
        }
    };
    let frame = tokio::time::timeout(TIMEOUT, welcomed).await.unwrap();
    match frame.kind {
        Some(server_frame::Kind::Welcome(welcome)) => welcome,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn who_was_let_in_comes_back_by_the_sessions_secret_while_nobody_can_be_asked() {
    let mut place = place(&[]).await;
    let coordinator = Coordinator::new(&place.agent.url, "lease").await;
    coordinator.try_acquire(&acquisition(&coordinator, terms("mine"))).await.unwrap();
    let (answer, mut stream) = open(&place.agent, "mine", Some("right"), &UPGRADE).await;
    assert!(answer.starts_with("http/1.1 101 "), "{answer}");
    let welcome = greet(&mut stream, &[]).await;
    place.server = None;
    let start = tokio::time::Instant::now();
    loop {
        let nobody_s = format!("other-{}", start.elapsed().as_nanos());
        if open(&place.agent, &nobody_s, Some("right"), &UPGRADE)
            .await
            .0
            .starts_with("http/1.1 503 ")
        {
            break;
        }
        assert!(start.elapsed() < TIMEOUT);
    }
    drop(stream);
    let shown = |secret: &[u8]| hex_value(secret);
    let mut wrong = welcome.resume.to_vec();
    wrong[31] ^= 1;
    for (secret, token) in [
        (shown(&wrong), Some("other")),
        (shown(&[]), Some("other")),
        ("zz".to_owned(), Some("other")),
    ] {
        let headers = [UPGRADE[0], UPGRADE[1], (RESUME_HEADER, secret.as_str())];
        refused(&place.agent, "mine", token, &headers, "503", "failed to check the permission").await;
    }
    let right = shown(&welcome.resume);
    let headers = [UPGRADE[0], UPGRADE[1], (RESUME_HEADER, right.as_str())];
    refused(
        &place.agent,
        "other",
        Some("other"),
        &headers,
        "503",
        "failed to check the permission",
    )
    .await;
    // A client that shows the secret needs no token that the API server knows.
    let (answer, mut stream) = open(&place.agent, "mine", None, &headers).await;
    assert!(answer.starts_with("http/1.1 101 "), "{answer}");
    // The header tells a gateway that the secret was accepted.
    assert!(answer.contains("\r\nsahasra-resume: accepted\r\n"), "{answer}");
    assert!(greet(&mut stream, &welcome.resume).await.resumed);
    // The secret is valid as long as the process that issued it.
    place.agent.kill_executors();
    coordinator.until_free().await;
    let start = tokio::time::Instant::now();
    while !open(&place.agent, "mine", Some("other"), &headers)
        .await
        .0
        .starts_with("http/1.1 503 ")
    {
        assert!(start.elapsed() < TIMEOUT);
    }
}

#[tokio::test]
async fn what_cannot_be_resumed_any_more_starts_nothing() {
    let place = place(&[]).await;
    let coordinator = Coordinator::new(&place.agent.url, "lease").await;
    coordinator.try_acquire(&acquisition(&coordinator, terms("mine"))).await.unwrap();
    let secret = hex_value(&[7; 32]);
    let headers = [UPGRADE[0], UPGRADE[1], (RESUME_HEADER, secret.as_str())];
    refused(&place.agent, "mine", Some("right"), &headers, "410", "cannot be resumed").await;
    assert_eq!(place.agent.executors().len(), 0);
}

#[tokio::test]
async fn a_connected_session_outlives_its_ttl_without_any_renewal_up_to_its_limit() {
    const SHORT: Duration = Duration::from_secs(4);
    let place = place(&[]).await;
    let coordinator = Coordinator::new(&place.agent.url, "lease").await;
    let start = tokio::time::Instant::now();
    let grant = coordinator.try_acquire(&acquisition(&coordinator, terms("mine"))).await.unwrap();
    let mut stream = client(&place.agent, "mine").await;
    let load = until(&coordinator, "mine", |load| load.connected).await;
    assert!(load.ended.is_empty());
    let metrics = coordinator.metrics().await;
    assert!(metrics.contains("sahasra_agent_sessions_connected 1"), "{metrics}");
    // Last renewal by the operator. The limit counts from the grant.
    let limit = start.elapsed() + 3 * SHORT;
    let last = RenewOwner {
        owner: coordinator.owner.clone(),
        grants: vec![grant.id],
        ttl_milliseconds: SHORT.as_millis() as u64,
        session: Some(SessionTerms {
            keep_milliseconds: limit.as_millis() as u64,
            ..terms("mine")
        }),
    };
    let renewed = tokio::time::Instant::now();
    assert!(coordinator.renew_as(last).await.outcomes[0].renewed);
    // Wait for twice the TTL: without a client the grant would have expired.
    while renewed.elapsed() < 2 * SHORT {
        let inventory = coordinator.inventory().await;
        assert_eq!(inventory.grants.len(), 1, "{inventory:?}");
        tokio::task::yield_now().await;
    }
    // The limit ends the grant: a connected client does not keep it forever.
    coordinator.until_free().await;
    assert!(start.elapsed() >= limit, "it was held for its time: {:?}", start.elapsed());
    let mut rest = Vec::new();
    let _ = tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut rest)).await.unwrap();
    assert_eq!(place.agent.executors().len(), 0);
}

#[tokio::test]
async fn a_release_ends_the_executor_tells_its_client_and_frees_the_slice() {
    let place = place(&[]).await;
    let coordinator = Coordinator::new(&place.agent.url, "lease").await;
    coordinator.try_acquire(&acquisition(&coordinator, terms("mine"))).await.unwrap();
    let mut stream = client(&place.agent, "mine").await;
    assert_eq!(place.agent.executors().len(), 1);
    let request = ReleaseRequest {
        owner: coordinator.owner.clone(),
        immediately: true,
        ..ReleaseRequest::default()
    };
    coordinator.release_as(request).await;
    coordinator.until_free().await;
    assert_eq!(
        place.agent.executors().len(),
        0,
        "the slice is free when the process is gone, not before"
    );
    let mut rest = Vec::new();
    let _ = tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut rest)).await.unwrap();
    let reported = coordinator.inventory().await.sessions;
    assert!(reported.is_empty(), "an end that was asked for is no loss: {reported:?}");
}

#[tokio::test]
async fn an_agent_that_stops_ends_its_sessions() {
    let mut place = place(&[]).await;
    let coordinator = Coordinator::new(&place.agent.url, "lease").await;
    coordinator.try_acquire(&acquisition(&coordinator, terms("mine"))).await.unwrap();
    let mut stream = client(&place.agent, "mine").await;
    place.agent.terminate();
    let mut rest = Vec::new();
    let _ = tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut rest)).await.unwrap();
    assert!(place.agent.wait().success());
}
