//! The gateway as a process without an identity, in front of a real API server, whose RBAC decides what callers may do.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use sahasra_e2e::{ControlPlane, Pool, PoolOptions, Server, eventually, metric, tools};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Timeout for a machine under load.
const WITHIN: Duration = Duration::from_secs(120);

/// Timeout for an answer, which exceeds the longest poll in these tests.
const ANSWER_WITHIN: Duration = Duration::from_secs(240);

/// A gateway and an HTTP client for it.
struct Gateway {
    server: Server,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Gateway {
    async fn start(control_plane: &ControlPlane, more: &[&str]) -> Self {
        Self {
            server: Server::gateway(control_plane, more).await.expect("it starts"),
            client: Client::builder(TokioExecutor::new()).build_http(),
        }
    }

    async fn call(&self, token: &str, method: Method, path: &str, body: Option<&Value>) -> (StatusCode, Value) {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.server.url()));
        if !token.is_empty() {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = request.body(Full::new(Bytes::from(body))).expect("a request");
        let answered = tokio::time::timeout(ANSWER_WITHIN, async {
            let answer = self.client.request(request).await.expect("an answer");
            let (parts, body) = answer.into_parts();
            let body = body.collect().await.expect("a body").to_bytes();
            (parts.status, serde_json::from_slice(&body).unwrap_or_default())
        });
        answered.await.unwrap_or_else(|_| panic!("{path} is not answered"))
    }

    /// Status code of the answer to a WebSocket handshake.
    async fn stream(&self, token: &str, path: &str) -> String {
        let mut connection = TcpStream::connect(self.server.address()).await.expect("it listens");
        let head = format!(
            "GET {path}/stream HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: sahasra-session.v1\r\nAuthorization: Bearer {token}\r\n\r\n"
        );
        connection.write_all(head.as_bytes()).await.expect("sent");
        let mut answer = [0; 12];
        let answered = tokio::time::timeout(ANSWER_WITHIN, connection.read_exact(&mut answer)).await;
        answered
            .unwrap_or_else(|_| panic!("{path}/stream is not answered"))
            .expect("an answer");
        String::from_utf8_lossy(&answer[9..]).into_owned()
    }

    async fn get(&self, token: &str, path: &str) -> (StatusCode, Value) {
        self.call(token, Method::GET, path, None).await
    }
}

/// Creates a namespace with a ServiceAccount `me` that has the cluster role `edit` there; returns its name and the account's token.
async fn tenant(control_plane: &ControlPlane) -> (String, String) {
    let namespace = control_plane.create_namespace("tenant").await.expect("a namespace");
    let token = control_plane.editor(&namespace).await.expect("an account");
    (namespace, token)
}

fn session(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"class": "cpu", "vram": "64Mi", "engine": "ptx"}})
}

fn is_true(object: &Value, kind: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == kind && condition["status"] == "True")
}

#[tokio::test]
async fn callers_have_their_rbac_rights_and_a_session_and_a_burst_run_through_the_gateway() {
    let pool = Pool::start(PoolOptions::default().agents(1)).await.expect("Sahasra starts");
    let control_plane = &pool.control_plane;
    let gateway = Gateway::start(control_plane, &["--operator-url", &pool.operator.url()]).await;
    let ((mine, token), (theirs, their_token)) = (tenant(control_plane).await, tenant(control_plane).await);
    let sessions = |namespace: &str| format!("/v1/namespaces/{namespace}/sessions");

    // No token, an unknown token, and the token of another tenant.
    for (caller, code) in [("", 401_u16), ("wrong", 401), (&their_token, 403)] {
        for (method, path, body) in [
            (Method::GET, sessions(&mine), None),
            (Method::POST, sessions(&mine), Some(session("stolen"))),
            (Method::GET, format!("{}/mine", sessions(&mine)), None),
            (
                Method::GET,
                format!("{}/mine?waitFor=Placed&timeoutSeconds=1", sessions(&mine)),
                None,
            ),
            (Method::DELETE, format!("{}/mine", sessions(&mine)), None),
            (Method::GET, format!("/v1/namespaces/{mine}/bursts"), None),
            (Method::GET, format!("/v1/namespaces/{mine}/bursts/mine/results"), None),
            (Method::GET, "/workers".to_owned(), None),
        ] {
            let (status, answer) = gateway.call(caller, method.clone(), &path, body.as_ref()).await;
            assert_eq!(status.as_u16(), code, "{method} {path}: {answer}");
            assert_eq!(
                (&answer["kind"], answer["code"].as_u64()),
                (&json!("Status"), Some(u64::from(code))),
                "{answer}"
            );
        }
    }
    // The role `edit` in a namespace grants no right to the cluster-scoped workers.
    let (status, answer) = gateway.get(&token, "/workers").await;
    assert!(
        status == 403 && answer["message"].as_str().is_some_and(|message| message.contains("gpuworkers")),
        "{answer}"
    );
    control_plane.let_list_workers(&mine).await.expect("it is bound");
    let workers = eventually(WITHIN, async || {
        let (status, workers) = gateway.get(&token, "/workers").await;
        (status == 200).then_some(workers)
    });
    let workers = workers.await.expect("the workers");
    assert_eq!((&workers[0]["id"], &workers[0]["status"]), (&json!("node-0"), &json!("healthy")));

    // A session is created, placed, listed and deleted.
    let (status, answer) = gateway.call(&token, Method::POST, &sessions(&mine), Some(&session("mine"))).await;
    assert_eq!(status, 201, "{answer}");
    let path = format!("{}/mine", sessions(&mine));
    let (status, placed) = gateway.get(&token, &format!("{path}?waitFor=Placed&timeoutSeconds=120")).await;
    assert!(status == 200 && is_true(&placed, "Placed"), "{placed}");
    assert_eq!(gateway.get(&their_token, &path).await.0, 403);
    assert_eq!(gateway.get(&token, &format!("{}/mine", sessions(&theirs))).await.0, 403);
    let (_, ready) = gateway.get(&token, &format!("{path}?waitFor=Ready&timeoutSeconds=120")).await;
    assert!(is_true(&ready, "Ready"), "{ready}");
    for (caller, path, code) in [
        (&*token, path.clone(), "101"),
        ("wrong", path.clone(), "401"),
        (&their_token, path.clone(), "403"),
        (&token, format!("{}/mine", sessions(&theirs)), "403"),
        (&token, format!("{}/other", sessions(&mine)), "404"),
    ] {
        assert_eq!(gateway.stream(caller, &path).await, code, "{path}");
    }
    let (_, list) = gateway.get(&token, &sessions(&mine)).await;
    assert_eq!(list["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(gateway.call(&token, Method::DELETE, &path, None).await.0, 200);
    let gone = eventually(WITHIN, async || (gateway.get(&token, &path).await.0 == 404).then_some(()));
    gone.await.expect("it goes");

    // A burst is created, and its results are read.
    let ptx = "//\n.version 7.0\n.target sm_70\n.address_size 64\n.visible .entry seven(.param .u64 out)\n{\n.reg .b64 %rd<3>;\n.reg .b32 %r<2>;\n\
               ld.param.u64 %rd1, [out];\ncvta.to.global.u64 %rd2, %rd1;\nmov.u32 %r1, 7;\nst.global.u32 [%rd2], %r1;\nret;\n}\n";
    let burst = json!({"metadata": {"name": "sevens"}, "spec": {
        "kernel": {"ptx": {"inline": ptx}, "entry": "seven", "block": [1], "args": [{"output": {"type": "u32"}}]},
        "chunks": {"count": 3}, "slice": {"vram": "4Mi"},
    }});
    let bursts = format!("/v1/namespaces/{mine}/bursts");
    let (status, answer) = gateway.call(&token, Method::POST, &bursts, Some(&burst)).await;
    assert_eq!(status, 201, "{answer}");
    let (_, answer) = gateway
        .get(&token, &format!("{bursts}/sevens?waitFor=Complete&timeoutSeconds=120"))
        .await;
    assert!(is_true(&answer, "Complete"), "{answer}");
    let (status, rows) = gateway.get(&token, &format!("{bursts}/sevens/results?format=json")).await;
    assert_eq!(status, 200, "{rows}");
    assert_eq!(
        rows,
        json!([{"index": 0, "output0": 7}, {"index": 1, "output0": 7}, {"index": 2, "output0": 7}])
    );
    assert_eq!(gateway.get(&their_token, &format!("{bursts}/sevens/results")).await.0, 403);
}

#[tokio::test]
async fn a_thousand_sessions_leave_nothing_and_slow_or_excessive_clients_are_disconnected() {
    let control_plane = ControlPlane::start(sahasra_e2e::Options::default()).await.expect("a control plane");
    control_plane.apply_chart_identities().await.expect("the chart's roles");
    let gateway = Gateway::start(&control_plane, &[]).await;
    let (mine, token) = tenant(&control_plane).await;
    let sessions = format!("/v1/namespaces/{mine}/sessions");

    let turn = async |caller: usize, turns: usize| {
        for number in 0..turns {
            let name = format!("session-{caller}-{number}");
            let (status, answer) = gateway.call(&token, Method::POST, &sessions, Some(&session(&name))).await;
            assert_eq!(status, 201, "{answer}");
            assert_eq!(
                gateway.call(&token, Method::DELETE, &format!("{sessions}/{name}"), None).await.0,
                200
            );
        }
    };
    futures::future::join_all((0..10).map(|caller| turn(caller, 10))).await;
    let before = gateway.server.process.resident_kib().expect("it runs");
    futures::future::join_all((10..20).map(|caller| turn(caller, 90))).await;
    let after = gateway.server.process.resident_kib().expect("it runs");
    assert!(
        after < before + (16 << 10),
        "{before} KiB after 100 sessions, {after} KiB after 1000"
    );
    let (_, list) = gateway.get(&token, &sessions).await;
    assert_eq!(list["items"], json!([]));
    let (_, page) = sahasra_e2e::get(&format!("{}/metrics", gateway.server.url()))
        .await
        .expect("metrics");
    assert_eq!(metric(&page, "sahasra_gateway_streams"), Some(0.0));

    // The body has 4 MiB, which exceeds the limit.
    let mut large = session("large");
    large["metadata"]["annotations"] = json!({"a": "x".repeat(4 << 20)});
    let request = Request::post(format!("{}{sessions}", gateway.server.url())).header(header::AUTHORIZATION, format!("Bearer {token}"));
    let request = request.body(Full::new(Bytes::from(large.to_string()))).expect("a request");
    // The gateway answers and closes while the client is still sending: an answer or a broken connection are both correct.
    if let Ok(answer) = gateway.client.request(request).await {
        assert_eq!(answer.status(), 413);
    }
    assert_eq!(gateway.get(&token, &format!("{sessions}/large")).await.0, 404);

    // A request head that never ends is cut off, without an answer or with 408.
    let mut slow = TcpStream::connect(gateway.server.address()).await.expect("it listens");
    slow.write_all(format!("GET {sessions} HTTP/1.1\r\nHost: x\r\n").as_bytes())
        .await
        .expect("sent");
    let mut answer = Vec::new();
    let cut = tokio::time::timeout(WITHIN, slow.read_to_end(&mut answer)).await;
    assert!(cut.is_ok(), "a slow client holds its connection");
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");

    // An address that other machines can reach is served over TLS only.
    let program = tools::binaries().await.expect("binaries").join("sahasra-gateway");
    let open = tokio::process::Command::new(program)
        .args(["--listen", "0.0.0.0:0"])
        .output()
        .await
        .expect("it runs");
    let complaint = String::from_utf8_lossy(&open.stderr).into_owned();
    assert!(!open.status.success() && complaint.contains("--tls-cert-file"), "{complaint}");
}
