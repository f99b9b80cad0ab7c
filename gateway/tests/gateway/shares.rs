//! Shares of the streams with several callers: an API server for which every token is the name of a user, and a worker that knows one secret.

use std::{
    convert::Infallible,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::Full;
use hyper::body::Incoming;
use sahasra_gateway::Limits;
use sahasra_service::server::{self, Cleartext};
use sahasra_wire::session::RESUME_HEADER;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::cluster::{WITHIN, gateway};

/// Secret of every session on the worker.
const SECRET: &str = "5ec2e7";

/// An API server that allows every action.
#[derive(Clone)]
struct Reviews {
    endpoint: String,
}

impl tower_service::Service<Request<Incoming>> for Reviews {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let authorization = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let user = authorization.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
        let answer = match request.uri().path().rsplit('/').next() {
            Some("selfsubjectaccessreviews") => json!({"metadata": {}, "spec": {}, "status": {"allowed": true}}),
            Some("selfsubjectreviews") => json!({"metadata": {}, "status": {"userInfo": {"username": user}}}),
            _ => json!({"metadata": {}, "status": {"endpoint": self.endpoint}}),
        };
        let mut answer = Response::new(Full::new(answer.to_string().into()));
        answer
            .headers_mut()
            .insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
        Box::pin(std::future::ready(Ok(answer)))
    }
}

/// Serves the API server until `stop` is cancelled, and a worker that accepts every stream; returns the URL of the API server.
async fn cluster(stop: &CancellationToken) -> String {
    let worker = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let endpoint = format!("http://{}", worker.local_addr().expect("an address"));
    tokio::spawn(async move {
        loop {
            let (mut connection, _) = worker.accept().await.expect("a connection");
            tokio::spawn(async move {
                let head = head(&mut connection).await.to_lowercase();
                let accepted = match head.contains(&format!("\r\nsahasra-resume: {SECRET}\r\n")) {
                    true => "Sahasra-Resume: accepted\r\n",
                    false => "",
                };
                let answer =
                    format!("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: sahasra-session.v1\r\n{accepted}\r\n");
                connection.write_all(answer.as_bytes()).await.expect("sent");
                let _ = connection.read_to_end(&mut Vec::new()).await;
            });
        }
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let reviews = Reviews { endpoint };
    tokio::spawn(server::serve(listener, Cleartext, reviews, server::Limits::default(), stop.clone()));
    url
}

/// Reads the head of a request or answer.
async fn head(connection: &mut TcpStream) -> String {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        head.push(char::from(connection.read_u8().await.expect("a head")));
    }
    head
}

/// Requests the stream of the caller's session with this number. Returns the connection if it opens, or else code and message.
async fn stream(gateway: SocketAddr, caller: &str, number: usize, secret: Option<&str>) -> Result<TcpStream, (u16, String)> {
    let resume = secret.map(|secret| format!("{RESUME_HEADER}: {secret}\r\n")).unwrap_or_default();
    let request = format!(
        "GET /v1/namespaces/default/sessions/{caller}-{number}/stream HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {caller}\r\n\
         Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Protocol: sahasra-session.v1\r\n{resume}\r\n"
    );
    let asked = timeout(WITHIN, async {
        let mut connection = TcpStream::connect(gateway).await.expect("it listens");
        connection.write_all(request.as_bytes()).await.expect("sent");
        let head = head(&mut connection).await.to_lowercase();
        let code: u16 = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a code");
        if code == 101 {
            return Ok(connection);
        }
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .expect("a length");
        let mut body = vec![0; length.parse().expect("a length")];
        connection.read_exact(&mut body).await.expect("a body");
        let status: Value = serde_json::from_slice(&body).expect("a Status");
        Err((code, status["message"].as_str().expect("a message").to_owned()))
    });
    asked.await.expect("the gateway answers")
}

#[tokio::test]
async fn after_a_restart_every_stream_is_resumed_in_any_order_of_clients() {
    const SHARES: [(&str, usize); 3] = [("ada", 8), ("ben", 4), ("cyd", 2)];
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    let api_server = cluster(&stop).await;
    let arguments = ["--api-server-url", &api_server, "--max-streams", "16"];

    let before = stop.child_token();
    let address = gateway(&arguments, Limits::default(), before.clone()).await;
    let mut held = Vec::new();
    for (caller, count) in SHARES {
        for number in 0..count {
            held.push(stream(address, caller, number, None).await.expect("within its share"));
        }
        let (code, message) = stream(address, caller, count, None).await.expect_err("beyond its share");
        assert_eq!(code, 429, "{message}");
    }
    before.cancel();
    drop(held);

    let address = gateway(&arguments, Limits::default(), stop.clone()).await;
    let mut held = Vec::new();
    for (caller, count) in SHARES.into_iter().rev() {
        for number in 0..count {
            let resumed = stream(address, caller, number, Some(SECRET)).await;
            held.push(resumed.unwrap_or_else(|refused| panic!("{caller}-{number}: {refused:?}")));
        }
    }
    // The share still limits new streams, also those of a caller with a wrong secret, whether the session's worker is known to this gateway
    // or not.
    for (number, secret) in [(8, None), (8, Some("00")), (0, Some("00"))] {
        let (code, message) = stream(address, "ada", number, secret).await.expect_err("beyond its share");
        assert_eq!(code, 429, "{message}");
    }
    // Broken connections to known workers are resumed too, up to the total number of slots.
    held.push(stream(address, "ada", 0, Some(SECRET)).await.expect("a slot is free"));
    held.push(stream(address, "dan", 0, None).await.expect("a new caller finds room"));
    let (code, message) = stream(address, "ada", 1, Some(SECRET)).await.expect_err("all are taken");
    assert_eq!(code, 503, "{message}");
}
