//! Requests of the gateway to the API server and the operator, and its answers when these do not answer.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, header};
use http_body_util::Full;
use hyper::body::Incoming;
use parking_lot::Mutex;
use sahasra_gateway::Limits;
use sahasra_service::server::{self, Cleartext};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_util::sync::CancellationToken;

use crate::{
    cluster::{Cluster, gateway},
    objects::SESSIONS,
};

/// An API server or operator that gives the same answer to every request and records the requests.
#[derive(Clone)]
struct Recorder {
    answer: &'static str,
    asked: Arc<Mutex<Vec<(String, HeaderMap)>>>,
}

impl tower_service::Service<Request<Incoming>> for Recorder {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let asked = (format!("{} {}", request.method(), request.uri()), request.headers().clone());
        self.asked.lock().push(asked);
        let answer = Response::new(Full::new(Bytes::from_static(self.answer.as_bytes())));
        Box::pin(std::future::ready(Ok(answer)))
    }
}

impl Recorder {
    async fn start(answer: &'static str, stop: &CancellationToken) -> (Self, String) {
        let recorder = Self {
            answer,
            asked: Arc::default(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        tokio::spawn(server::serve(
            listener,
            Cleartext,
            recorder.clone(),
            server::Limits::default(),
            stop.clone(),
        ));
        (recorder, url)
    }

    fn requests(&self) -> Vec<String> {
        let asked = self.asked.lock();
        let requests = asked.iter().map(|(request, _)| request.clone());
        requests.filter(|request| request != "GET /readyz").collect()
    }
}

#[tokio::test]
async fn only_the_token_and_validated_parts_of_a_request_are_forwarded() {
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    let (recorder, url) = Recorder::start("{}", &stop).await;
    let address = gateway(&["--api-server-url", &url], Limits::default(), stop).await;
    let mut client = TcpStream::connect(address).await.expect("it listens");
    let head = format!(
        "DELETE {SESSIONS}/a HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer abc\r\nconnection: close\r\nimpersonate-user: admin\r\n\
         impersonate-group: system:masters\r\nx-remote-user: admin\r\nx-forwarded-for: 1.2.3.4\r\ncookie: a=b\r\n\r\n"
    );
    client.write_all(head.as_bytes()).await.expect("sent");
    client.read_to_end(&mut Vec::new()).await.expect("an answer");
    let asked = recorder.asked.lock().clone();
    let (request, headers) = asked.iter().find(|(request, _)| request.starts_with("DELETE")).expect("it went on");
    assert!(
        request.ends_with("/apis/sahasra.dev/v1alpha1/namespaces/default/gpusessions/a?propagationPolicy=Background"),
        "{request}"
    );
    let mut names: Vec<&str> = headers.keys().map(header::HeaderName::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["accept", "authorization", "host", "user-agent"]);
    assert_eq!(
        (&headers["authorization"], &headers["host"]),
        (&"Bearer abc".parse().expect("a value"), &url[7..].parse().expect("a value"))
    );
}

#[tokio::test]
async fn callers_that_may_list_workers_get_the_operators_list() {
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    let rows = "[{\"id\":\"node-a\",\"status\":\"ready\"}]";
    let (operator, url) = Recorder::start(rows, &stop).await;
    let cluster = Cluster::start_with(&["--operator-url", &url], Limits::default()).await;
    let stranger = cluster
        .send(
            "/workers",
            Request::builder().header(header::AUTHORIZATION, "Bearer wrong"),
            Bytes::new(),
        )
        .await;
    stranger.refusal(401);
    assert_eq!(
        operator.requests(),
        Vec::<String>::new(),
        "the operator is not asked without a token"
    );
    let answer = cluster.get("/workers").await;
    assert_eq!((answer.status.as_u16(), &answer.body[..]), (200, rows.as_bytes()));
    assert_eq!(answer.headers[header::CONTENT_TYPE], "application/json");
    assert_eq!(operator.requests(), ["GET /workers"]);
    let headers = operator.asked.lock()[0].1.clone();
    assert!(
        !headers.contains_key(header::AUTHORIZATION),
        "the operator needs no token, and gets none"
    );

    let without = Cluster::start().await;
    assert!(without.get("/workers").await.refusal(503).contains("--operator-url"));
    let gone = Cluster::start_with(&["--operator-url", "http://127.0.0.1:1"], Limits::default()).await;
    assert!(gone.get("/workers").await.refusal(502).contains("operator"));
}

#[tokio::test]
async fn the_gateway_is_not_ready_without_an_api_server() {
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    let address = gateway(&["--api-server-url", "http://127.0.0.1:1"], Limits::default(), stop).await;
    for (path, code, said) in [
        (SESSIONS, "503", "API server unreachable"),
        ("/readyz", "503", "waiting for: the API server"),
        ("/healthz", "200", "ok"),
    ] {
        let mut client = TcpStream::connect(address).await.expect("it listens");
        let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer a\r\nconnection: close\r\n\r\n");
        client.write_all(head.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("an answer");
        assert!(answer.starts_with(&format!("HTTP/1.1 {code}")) && answer.contains(said), "{answer}");
    }
}
