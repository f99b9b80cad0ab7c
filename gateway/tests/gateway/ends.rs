//! Both ends of a stream through the gateway: a client, and a worker that is a socket of the test. Waits of both have a timeout.

use std::net::SocketAddr;

use bytes::Bytes;
use futures::StreamExt;
use http::{Request, header};
use sahasra_gateway::Limits;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{self, Message, client::IntoClientRequest, protocol::WebSocketConfig},
};

use crate::cluster::{Cluster, TOKEN, WITHIN};

pub(crate) const STREAM: &str = "/v1/namespaces/default/sessions/mine/stream";

/// Stands in for a worker's agent.
pub(crate) struct Agent {
    pub listener: TcpListener,
    pub address: SocketAddr,
}

impl Agent {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        Self { listener, address }
    }

    /// Accepts a connection and reads the head of its request.
    pub(crate) async fn asked(&self) -> (TcpStream, String) {
        let asked = timeout(WITHIN, async {
            let (mut connection, _) = self.listener.accept().await.expect("a connection");
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                head.push(char::from(connection.read_u8().await.expect("a head")));
            }
            (connection, head.to_lowercase())
        });
        asked.await.expect("the gateway comes")
    }

    /// Accepts a stream: answers the upgrade, with `first` directly after the head.
    pub(crate) async fn accept(&self, first: &str) -> TcpStream {
        let (mut connection, head) = self.asked().await;
        for expected in [
            &format!("get {STREAM} http/1.1\r\n"),
            "connection: upgrade\r\n",
            "upgrade: sahasra-session.v1\r\n",
            &format!("authorization: bearer {TOKEN}\r\n"),
        ] {
            assert!(head.contains(expected), "{head}");
        }
        let answer = format!("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: sahasra-session.v1\r\n\r\n{first}");
        connection.write_all(answer.as_bytes()).await.expect("sent");
        connection
    }
}

pub(crate) type Client = WebSocketStream<TcpStream>;

/// A cluster with a session that is placed on the agent.
pub(crate) async fn placed(arguments: &[&str], limits: Limits) -> (Cluster, Agent) {
    let cluster = Cluster::start_with(arguments, limits).await;
    let agent = Agent::start().await;
    let session = json!({"apiVersion": "sahasra.dev/v1alpha1", "kind": "GpuSession", "metadata": {}, "spec": {"vram": "1Gi"}});
    cluster.apply("GpuSession", "mine", session).await;
    let endpoint = format!("http://{}", agent.address);
    cluster.report("GpuSession", "mine", json!({"endpoint": endpoint})).await;
    (cluster, agent)
}

pub(crate) fn request(cluster: &Cluster) -> Request<()> {
    let mut request = format!("ws://{}{STREAM}", cluster.address)
        .into_client_request()
        .expect("a request");
    let headers = request.headers_mut();
    headers.insert(header::AUTHORIZATION, format!("Bearer {TOKEN}").parse().expect("a value"));
    headers.insert(header::SEC_WEBSOCKET_PROTOCOL, "sahasra-session.v1".parse().expect("a value"));
    request
}

pub(crate) async fn connect_with(cluster: &Cluster, request: Request<()>) -> Result<Client, tungstenite::Error> {
    let connection = TcpStream::connect(cluster.address).await.expect("it listens");
    let config = WebSocketConfig::default().max_message_size(None).max_frame_size(None);
    let shaken = timeout(
        WITHIN,
        tokio_tungstenite::client_async_with_config(request, connection, Some(config)),
    );
    let (client, answer) = shaken.await.expect("the gateway answers")?;
    assert_eq!(answer.headers()[header::SEC_WEBSOCKET_PROTOCOL], "sahasra-session.v1");
    Ok(client)
}

/// Opens a stream; returns the client's end and the worker's.
pub(crate) async fn open(cluster: &Cluster, agent: &Agent) -> (Client, TcpStream) {
    let (client, worker) = tokio::join!(connect_with(cluster, request(cluster)), agent.accept(""));
    (client.expect("a WebSocket"), worker)
}

/// Returns code and message of the `Status` with which a stream is rejected. The request is plain HTTP, because tungstenite reads only the
/// part of a body that arrives together with the head.
pub(crate) async fn refused(cluster: &Cluster, request: Request<()>) -> (u16, String) {
    let (head, ()) = request.into_parts();
    let asked = head
        .headers
        .iter()
        .fold(Request::builder(), |asked, (name, value)| asked.header(name, value));
    let answer = cluster.send(head.uri.path(), asked, Bytes::new()).await;
    let code = answer.status.as_u16();
    (code, answer.refusal(code))
}

/// Waits for the close frame of a client; returns code and reason.
pub(crate) async fn close_of(client: &mut Client) -> (u16, String) {
    let waited = timeout(WITHIN, async {
        loop {
            match client.next().await {
                Some(Ok(Message::Close(Some(frame)))) => {
                    // Reading on sends the answer to the close frame, for which the gateway waits.
                    while let Some(Ok(_)) = client.next().await {}
                    return (u16::from(frame.code), frame.reason.to_string());
                }
                Some(Ok(Message::Close(None))) | None => panic!("no reason was given"),
                Some(Ok(_)) => {}
                Some(Err(error)) => panic!("it broke off: {error}"),
            }
        }
    });
    waited.await.expect("it closes")
}

/// Waits until the worker's connection is closed.
pub(crate) async fn ended(worker: &mut TcpStream) {
    let read = timeout(WITHIN, worker.read_to_end(&mut Vec::new())).await.expect("it ends");
    let _ = read;
}

/// Returns the client's next message.
pub(crate) async fn message(client: &mut Client) -> Message {
    let next = timeout(WITHIN, client.next()).await.expect("something comes");
    next.expect("it goes on").expect("a message")
}

/// Reads some bytes at the worker's end; returns their number.
pub(crate) async fn some(worker: &mut TcpStream, buffer: &mut [u8]) -> u64 {
    let read = timeout(WITHIN, worker.read(buffer)).await.expect("something comes");
    let read = read.expect("it goes on") as u64;
    assert!(read > 0, "it is over");
    read
}

/// Reads exactly `BYTES` bytes at the worker's end.
pub(crate) async fn exactly<const BYTES: usize>(worker: &mut TcpStream) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    let read = timeout(WITHIN, worker.read_exact(&mut bytes)).await.expect("they come");
    read.expect("it goes on");
    bytes
}
