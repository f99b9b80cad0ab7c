//! How clients get into sessions, and what becomes of grants and executors.

use std::time::Duration;

use sahasra_wire::{
    grants::{AcquireRequest, SessionTerms},
    inventory::SessionLoad,
    path,
    session::PROTOCOL,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    agent_process::AgentProcess,
    api_server::{Objects, WORKER, kubeconfig},
    coordinator::{Coordinator, PATIENCE},
};

const TTL: Duration = Duration::from_secs(60);
const UPGRADE: [(&str, &str); 2] = [("connection", "Upgrade"), ("upgrade", PROTOCOL)];

/// An API server that knows two tokens, and an agent that asks it.
struct Place {
    agent: AgentProcess,
    _directory: tempfile::TempDir,
    server: Option<DropGuard>,
}

async fn place(arguments: &[&str]) -> Place {
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
        _directory: directory,
        server: Some(stop.drop_guard()),
    }
}

fn terms(name: &str) -> SessionTerms {
    SessionTerms {
        namespace: "team".to_owned(),
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        engine: "ptx".to_owned(),
        keep_milliseconds: 3_600_000,
    }
}

fn acquisition(coordinator: &Coordinator, terms: SessionTerms) -> AcquireRequest {
    AcquireRequest {
        session: Some(terms),
        ..coordinator.acquisition(1, TTL)
    }
}

/// Sends a request for a stream; gives the head of the answer and the connection.
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
        head.push(tokio::time::timeout(PATIENCE, stream.read_u8()).await.unwrap().unwrap());
    }
    let mut head = String::from_utf8(head).unwrap().to_lowercase();
    if let Some(length) = head.lines().find_map(|line| line.strip_prefix("content-length: ")) {
        let mut body = vec![0; length.parse().unwrap()];
        stream.read_exact(&mut body).await.unwrap();
        head += &String::from_utf8(body).unwrap().to_lowercase();
    }
    (head, stream)
}

async fn refused(agent: &AgentProcess, name: &str, token: Option<&str>, headers: &[(&str, &str)], status: &str, why: &str) {
    let (answer, _) = open(agent, name, token, headers).await;
    assert!(
        answer.starts_with(&format!("http/1.1 {status} ")) && answer.contains(why),
        "{answer}"
    );
}

/// The session's load once it is as `wanted`.
async fn until(coordinator: &Coordinator, name: &str, wanted: impl Fn(&SessionLoad) -> bool) -> SessionLoad {
    let start = tokio::time::Instant::now();
    loop {
        let sessions = coordinator.inventory().await.sessions;
        if let Some(load) = sessions.iter().find(|load| load.name == name && wanted(load)) {
            return load.clone();
        }
        assert!(start.elapsed() < PATIENCE, "{sessions:?}");
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
    refused(agent, "mine", Some("wrong"), &UPGRADE, "401", "the token is not known").await;
    refused(
        agent,
        "mine",
        Some("known"),
        &UPGRADE,
        "403",
        "you may not create gpusessions/stream",
    )
    .await;
    // Whoever may not learns nothing of what there is.
    refused(agent, "other", Some("known"), &UPGRADE, "403", "you may not create").await;
    refused(agent, "other", Some("right"), &UPGRADE, "404", "no session team/other").await;
    refused(agent, "mine", Some("right"), &[], "426", "connection: upgrade").await;
    let websocket = [("connection", "upgrade"), ("upgrade", "websocket")];
    refused(agent, "mine", Some("right"), &websocket, "426", PROTOCOL).await;
    assert_eq!(agent.executors().len(), 0, "nobody was let in: nothing runs");

    place.server = None;
    let start = tokio::time::Instant::now();
    loop {
        // The server goes in its own time; what nobody has asked before is asked then.
        let (answer, _) = open(
            &place.agent,
            &format!("other-{}", start.elapsed().as_nanos()),
            Some("right"),
            &UPGRADE,
        )
        .await;
        if answer.starts_with("http/1.1 503 ") && answer.contains("the api server cannot be asked") {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "{answer}");
    }
}

#[tokio::test]
async fn an_agent_without_an_api_server_lets_nobody_in() {
    let agent = AgentProcess::start(&[]);
    let coordinator = Coordinator::new(&agent.url, "lease").await;
    coordinator.try_acquire(&acquisition(&coordinator, terms("mine"))).await.unwrap();
    refused(&agent, "mine", Some("right"), &UPGRADE, "503", "without an api server").await;
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
    assert!(coordinator.metrics().await.contains("gpu_sessions 1"));
    session.release().await;
    assert!(coordinator.inventory().await.sessions.is_empty());
    refused(&place.agent, "mine", Some("right"), &UPGRADE, "404", "no session").await;
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
        assert!(start.elapsed() < PATIENCE);
    };
    assert!(load.ended.contains("its executor") && !load.streams && !load.connected, "{load:?}");
    coordinator.until_free().await;
    assert!(coordinator.inventory().await.grants.is_empty());
    // The client hears it too: its connection is closed.
    let mut rest = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await.unwrap();
    refused(&place.agent, "mine", Some("right"), &UPGRADE, "404", "no session").await;
    coordinator.release().await;
    assert!(coordinator.inventory().await.sessions.is_empty());
}
