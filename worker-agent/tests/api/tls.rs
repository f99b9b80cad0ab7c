//! Tests of an agent with a certificate: grants, session streams and everything else through TLS.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use http::{Method, StatusCode};
use sahasra_client::{Error, Options, Session, Target, Token};
use sahasra_wire::{CONTENT_TYPE, grants::AcquireRequest, path, session::PROTOCOL};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_rustls::client::TlsStream;

use super::{
    agent_process::AgentProcess,
    api_server::WORKER,
    certificates::{Certificates, NAME},
    coordinator::{Coordinator, TIMEOUT},
    sessions::{Place, acquisition, place, terms},
};

/// More than all buffers between client and executor hold.
const BULK_BYTES: usize = 24 << 20;

async fn tls_place(arguments: Vec<String>) -> Place {
    place(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).await
}

fn address(agent: &AgentProcess) -> SocketAddr {
    agent.url.strip_prefix("https://").unwrap().parse().unwrap()
}

/// Acquires 256 MiB for a session of this name.
async fn granted(coordinator: &Coordinator, name: &str) {
    let request = AcquireRequest {
        slices: 256,
        at_least: 256,
        ..acquisition(coordinator, terms(name))
    };
    coordinator.try_acquire(&request).await.unwrap();
}

fn target(url: &str, certificates: &Certificates, name: &str) -> Target {
    let token = Token::text("right");
    Target::direct(url, token, Some(&certificates.authority()), "team", name).unwrap()
}

fn pattern(seed: u8) -> Bytes {
    (0..BULK_BYTES)
        .map(|at| (at as u8).wrapping_mul(31) ^ ((at >> 12) as u8) ^ seed)
        .collect::<Vec<_>>()
        .into()
}

/// Forwards connections to an agent, and cuts them on request.
async fn passing(to: SocketAddr) -> (SocketAddr, watch::Sender<u32>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (cut, cuts) = watch::channel(0);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut cuts = cuts.clone();
            cuts.mark_unchanged();
            tokio::spawn(async move {
                let mut agent = TcpStream::connect(to).await.unwrap();
                tokio::select! {
                    _ = copy_bidirectional(&mut client, &mut agent) => {}
                    _ = cuts.changed() => {}
                }
            });
        }
    });
    (address, cut)
}

#[tokio::test]
async fn a_session_through_tls_carries_bulk_both_ways_and_survives_a_cut() {
    let certificates = Certificates::new();
    let place = tls_place(certificates.arguments()).await;
    let worker = place.objects.get(WORKER).unwrap();
    assert_eq!(worker["status"]["endpoint"], place.agent.url, "it says where it is");
    let coordinator = Coordinator::through_tls(&place.agent.url, "lease", certificates.config(None)).await;
    granted(&coordinator, "mine").await;
    let (address, cut) = passing(address(&place.agent)).await;
    // The certificate is valid for this name and for 127.0.0.1; endpoints may have any address.
    let target = target(&format!("https://{address}"), &certificates, "mine").named(NAME).unwrap();
    let session = Session::connect(target, Options::default()).await.unwrap();
    let shape = [BULK_BYTES as i64];
    let first = session.put(pattern(1), "u8", &shape).unwrap();
    assert!(
        first.download().await.unwrap().data[..] == pattern(1)[..],
        "what comes back is what went there"
    );
    // Data in transit when the connection breaks still arrives, exactly once.
    let second = session.put(pattern(2), "u8", &shape).unwrap();
    let (coming, again) = (first.download(), second.download());
    cut.send_modify(|cuts| *cuts += 1);
    assert!(coming.await.unwrap().data[..] == pattern(1)[..]);
    assert!(again.await.unwrap().data[..] == pattern(2)[..]);
    assert!(session.resumed() >= 1, "it was not cut");
    assert_eq!(session.load().await.unwrap().tensors, 2);
    session.close().await.unwrap();
}

/// Opens a stream on which nothing has been sent yet.
async fn stream(agent: &AgentProcess, certificates: &Certificates, name: &str) -> (String, TlsStream<TcpStream>) {
    let connector = certificates.connector(None, "http/1.1");
    let connection = TcpStream::connect(address(agent)).await.unwrap();
    let mut stream = connector.connect("127.0.0.1", connection).await.unwrap();
    let request = format!(
        "GET {} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer right\r\nconnection: Upgrade\r\nupgrade: {PROTOCOL}\r\n\r\n",
        path::stream("team", name)
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(tokio::time::timeout(TIMEOUT, stream.read_u8()).await.unwrap().unwrap());
    }
    (String::from_utf8(head).unwrap(), stream)
}

#[tokio::test]
async fn nothing_is_kept_of_streams_whose_client_hangs_up() {
    const STREAMS: usize = 8;
    let certificates = Certificates::new();
    let place = tls_place(certificates.arguments()).await;
    let coordinator = Coordinator::through_tls(&place.agent.url, "lease", certificates.config(None)).await;
    granted(&coordinator, "mine").await;
    let before = place.agent.sockets();
    let mut open = Vec::new();
    for _ in 0..STREAMS {
        let (head, stream) = stream(&place.agent, &certificates, "mine").await;
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        open.push(stream);
    }
    let until = async |what: &str, is_so: &dyn Fn(usize) -> bool| {
        let since = tokio::time::Instant::now();
        while !is_so(place.agent.sockets()) {
            assert!(
                since.elapsed() < TIMEOUT,
                "{what}: {} sockets, {before} before",
                place.agent.sockets()
            );
            tokio::task::yield_now().await;
        }
    };
    // Each stream needs two sockets: the client's connection and one end of a socket pair.
    until("they are relayed", &|now| now >= before + 2 * STREAMS).await;
    // Without a TLS alert, like a client that is killed.
    for stream in open {
        drop(stream.into_inner().0);
    }
    // The executor's control socket and the agent's connections to the API server stay open.
    until("they are forgotten", &|now| now <= before + 3).await;
}

#[tokio::test]
async fn operators_paths_are_for_who_shows_a_certificate_and_streams_for_who_has_a_token() {
    let certificates = Certificates::new();
    let place = tls_place(certificates.guarded()).await;
    let url = &place.agent.url;
    let anybody = Coordinator::silent(url, "nobody", certificates.config(None));
    for (method, path) in [
        (Method::GET, path::INVENTORY),
        (Method::GET, path::LOAD),
        (Method::POST, path::ACQUIRE),
        (Method::POST, path::RENEW),
        (Method::POST, path::RELEASE),
        (Method::POST, path::BURSTS),
    ] {
        let (status, body) = anybody.request(method, path, CONTENT_TYPE, Bytes::new()).await;
        let text = String::from_utf8_lossy(&body);
        assert!(
            status == StatusCode::FORBIDDEN && text.contains("--worker-client-cert-file"),
            "{path}: {status} {text}"
        );
    }
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(
            anybody.request(Method::GET, path, "", Bytes::new()).await.0,
            StatusCode::OK,
            "{path}"
        );
    }
    let operator = Coordinator::through_tls(url, "lease", certificates.config(Some("operator"))).await;
    granted(&operator, "mine").await;
    // A certificate of the agents' authority is not accepted: the TLS handshake fails.
    let connector = certificates.connector(Some("stranger"), "http/1.1");
    let connected = connector
        .connect("127.0.0.1", TcpStream::connect(address(&place.agent)).await.unwrap())
        .await;
    let mut heard = Vec::new();
    let refused = match connected {
        Ok(mut stream) => stream.read_to_end(&mut heard).await.is_err(),
        Err(_) => true,
    };
    assert!(refused, "{heard:?}");
    // A client has no certificate.
    let session = Session::connect(target(url, &certificates, "mine"), Options::default())
        .await
        .unwrap();
    let tensor = session.put(pattern(3), "u8", &[BULK_BYTES as i64]).unwrap();
    assert!(tensor.download().await.unwrap().data[..] == pattern(3)[..]);
    session.close().await.unwrap();
}

#[tokio::test]
async fn a_client_is_told_at_once_what_is_wrong_with_the_certificate() {
    let certificates = Certificates::new();
    let place = tls_place(certificates.arguments()).await;
    let url = &place.agent.url;
    // The error is reported at once, even with a timeout of a year.
    let options = Options {
        connect: Duration::from_secs(365 * 86_400),
        ..Options::default()
    };
    let problem = async |target: Target| match Session::connect(target, options).await {
        Err(Error::Configuration(text)) => text,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it is connected"),
    };
    let wrong_name = target(url, &certificates, "mine").named("elsewhere").unwrap();
    let text = problem(wrong_name).await;
    assert!(
        text.contains("elsewhere") && text.contains(NAME) && text.contains("server_name"),
        "{text}"
    );
    let wrong_authority = target(url, &Certificates::new(), "mine");
    let text = problem(wrong_authority).await;
    assert!(text.contains("is not accepted") && text.contains("set authority"), "{text}");
    // Plain HTTP is rejected: everything is served through TLS.
    let mut plain = TcpStream::connect(address(&place.agent)).await.unwrap();
    plain.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(TIMEOUT, plain.read_to_end(&mut answer)).await.unwrap();
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
}

#[tokio::test]
async fn a_renewed_certificate_is_shown_to_whom_comes_next_and_streams_go_on() {
    let certificates = Certificates::new();
    let place = tls_place(certificates.arguments()).await;
    let coordinator = Coordinator::through_tls(&place.agent.url, "lease", certificates.config(None)).await;
    granted(&coordinator, "mine").await;
    let session = Session::connect(target(&place.agent.url, &certificates, "mine"), Options::default())
        .await
        .unwrap();
    let tensor = session.put(pattern(4), "u8", &[BULK_BYTES as i64]).unwrap();
    let shown = async || {
        let connector = certificates.connector(None, "http/1.1");
        let connection = TcpStream::connect(address(&place.agent)).await.unwrap();
        let stream = connector.connect("127.0.0.1", connection).await.unwrap();
        stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
    };
    let before = shown().await;
    certificates.renew();
    let since = tokio::time::Instant::now();
    while shown().await == before {
        assert!(since.elapsed() < TIMEOUT, "the new certificate is not shown");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(tensor.download().await.unwrap().data[..] == pattern(4)[..]);
    assert_eq!(session.resumed(), 0);
    coordinator.inventory().await;
    session.close().await.unwrap();
}
