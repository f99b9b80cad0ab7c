//! Sessions, bursts, results and workers over HTTP.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, header};
use http_body_util::Full;
use hyper::body::Incoming;
use sahasra_gateway::Limits;
use sahasra_service::server::{self, Cleartext};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_util::sync::CancellationToken;

use crate::cluster::{Cluster, TOKEN, WITHIN, eventually, gateway};

const SESSIONS: &str = "/v1/namespaces/default/sessions";
const BURSTS: &str = "/v1/namespaces/default/bursts";

fn session(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"vram": "1Gi", "class": "g5"}})
}

/// A burst that the API server takes; nothing runs it here.
pub fn burst(name: &str) -> Value {
    json!({
        "apiVersion": "sahasra.dev/v1alpha1", "kind": "BurstJob", "metadata": {"name": name},
        "spec": {
            "kernel": {"ptx": {"inline": ".version 7.0"}, "entry": "main", "block": [1], "args": [{"output": {"type": "f32"}}]},
            "chunks": {"count": 2}, "slice": {"vram": "64Mi"},
        },
    })
}

fn condition(kind: &str, reason: &str) -> Value {
    json!({"type": kind, "status": "True", "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

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
async fn what_is_wrong_is_told_by_field_with_the_remedy() {
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
    assert_eq!(kind.refusal(400), "kind: has to be GpuSession here, or to be left out");
    assert_eq!(kind.json()["details"]["causes"][0]["field"], "kind");
    let version = json!({"metadata": {"name": "a", "resourceVersion": "5"}, "spec": {"vram": "1Gi"}});
    assert!(post(version).await.refusal(400).starts_with("metadata.resourceVersion"));
    let elsewhere = json!({"metadata": {"name": "a", "namespace": "kube-system"}, "spec": {"vram": "1Gi"}});
    post(elsewhere).await.refusal(400);
    for (path, said) in [
        ("?waitfor=Placed", "query.waitfor"),
        (
            "?waitFor=Pla%20ced",
            "query.waitFor: a GpuSession has the conditions Placed, Ready, Failed",
        ),
        ("?waitFor=Complete", "write one of them"),
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
async fn nobody_gets_in_without_a_token_that_the_api_server_knows() {
    let cluster = Cluster::start().await;
    for path in [SESSIONS, BURSTS, "/v1/namespaces/default/bursts/a/results", "/workers"] {
        let nobody = cluster.send(path, Request::builder(), Bytes::new()).await;
        assert!(nobody.refusal(401).contains("Authorization: Bearer"));
        let stranger = cluster
            .send(path, Request::builder().header(header::AUTHORIZATION, "Bearer wrong"), Bytes::new())
            .await;
        stranger.refusal(401);
        for answer in [nobody, stranger] {
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
async fn a_poll_is_answered_when_the_condition_is_true_or_failure_is() {
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
        // And at once now.
        assert_eq!(cluster.get(&path).await.json()["status"]["conditions"][0]["type"], reported);
        eventually("no watch is left", async || {
            (cluster.control_plane.open_watches() == 0).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_poll_whose_time_is_over_shows_the_object_and_one_whose_object_goes_says_so() {
    let cluster = Cluster::start().await;
    cluster.call(Method::POST, SESSIONS, Some(&session("mine"))).await;
    let answer = cluster.get(&format!("{SESSIONS}/mine?waitFor=Placed&timeoutSeconds=1")).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["metadata"]["name"]), (200, &json!("mine")));
    let path = format!("{SESSIONS}/mine?waitFor=Placed&timeoutSeconds=300");
    let disturb = async {
        eventually("it watches", async || (cluster.control_plane.open_watches() == 1).then_some(())).await;
        // A watch that ends is begun again.
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
async fn a_poll_whose_client_leaves_is_given_up() {
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
async fn results_come_as_csv_or_json_and_where_there_are_none_it_says_why() {
    let cluster = Cluster::start().await;
    cluster.call(Method::POST, BURSTS, Some(&burst("search"))).await;
    let path = format!("{BURSTS}/search/results");
    let early = cluster.get(&path).await;
    assert!(early.refusal(409).contains("waitFor=Complete"));
    assert_eq!(early.json()["reason"], "NotFinished");
    cluster
        .report(
            "BurstJob",
            "search",
            json!({"state": "Complete", "conditions": [condition("Complete", "AllChunksCounted")]}),
        )
        .await;
    assert_eq!(cluster.get(&path).await.json()["reason"], "NoResults");
    let mut unkept = burst("unkept");
    unkept["spec"]["results"] = json!("None");
    cluster.call(Method::POST, BURSTS, Some(&unkept)).await;
    let complete = json!({"state": "Complete", "conditions": [condition("Complete", "AllChunksCounted")]});
    cluster.report("BurstJob", "unkept", complete).await;
    let refused = cluster.get(&format!("{BURSTS}/unkept/results")).await;
    assert!(refused.refusal(409).contains("spec.results is None"));
    cluster
        .report(
            "BurstJob",
            "search",
            json!({"results": {"configMap": "search-results", "bytes": 8}}),
        )
        .await;
    cluster.get(&path).await.refusal(404);
    let csv = "index,rate,output0\n0,0.5,1.25\n1,0.25,NaN\n";
    let data = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}, "data": {"results.csv": csv}});
    cluster.apply("ConfigMap", "search-results", data).await;
    let as_csv = cluster.get(&path).await;
    assert_eq!((as_csv.status.as_u16(), &as_csv.body[..]), (200, csv.as_bytes()));
    assert_eq!(as_csv.headers[header::CONTENT_TYPE], "text/csv; charset=utf-8");
    let rows = cluster.get(&format!("{path}?format=json")).await.json();
    assert_eq!(
        rows,
        json!([{"index": 0, "rate": 0.5, "output0": 1.25}, {"index": 1, "rate": 0.25, "output0": "NaN"}])
    );
    assert!(
        cluster
            .get(&format!("{path}?format=xml"))
            .await
            .refusal(400)
            .contains("csv or json")
    );
    cluster
        .report(
            "BurstJob",
            "search",
            json!({"results": {"url": "s3://bucket/search/manifest.json"}}),
        )
        .await;
    let elsewhere = cluster.get(&path).await;
    assert!(elsewhere.refusal(409).contains("s3://bucket/search/manifest.json"));
    assert_eq!(elsewhere.json()["reason"], "ResultsInStore");
}

#[tokio::test]
async fn results_whose_text_is_too_long_for_the_config_map_come_whole() {
    const CHUNKS: usize = 131_072;
    let cluster = Cluster::start().await;
    let mut job = burst("large");
    job["spec"]["chunks"] = json!({"count": CHUNKS});
    job["spec"]["kernel"]["args"] = json!([{"output": {"type": "f32", "count": 1}}]);
    assert_eq!(cluster.call(Method::POST, BURSTS, Some(&job)).await.status, 201);
    let results = json!({"configMap": "large-results", "bytes": 4 * CHUNKS});
    let status = json!({"state": "Complete", "conditions": [condition("Complete", "AllChunksCounted")], "results": results});
    cluster.report("BurstJob", "large", status).await;
    let records: Vec<u8> = (0..CHUNKS).flat_map(|chunk| (chunk as f32).to_le_bytes()).collect();
    let counted = sahasra_results::IndexSet::full(CHUNKS as u64).encode();
    let encoded = |bytes: &[u8]| STANDARD.encode(bytes);
    let data = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {},
        "binaryData": {"results": encoded(&records), "counted": encoded(&counted)},
    });
    cluster.apply("ConfigMap", "large-results", data).await;
    let path = format!("{BURSTS}/large/results");
    let csv = cluster.get(&path).await;
    let text = String::from_utf8(csv.body.to_vec()).expect("text");
    assert_eq!((csv.status.as_u16(), text.lines().count()), (200, CHUNKS + 1));
    assert!(text.ends_with("131071,131071\n"));
    let rows = cluster.get(&format!("{path}?format=json")).await.json();
    assert_eq!(rows.as_array().map(Vec::len), Some(CHUNKS));
    assert_eq!(rows[CHUNKS - 1], json!({"index": 131_071, "output0": 131_071}));

    let broken = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}, "binaryData": {"results": "AAAA"}});
    cluster.apply("ConfigMap", "broken-results", broken).await;
    let results = json!({"configMap": "broken-results", "bytes": 4 * CHUNKS});
    cluster.report("BurstJob", "large", json!({"results": results})).await;
    let refused = cluster.get(&path).await;
    assert!(refused.refusal(409).contains("does not hold the results of large"), "{refused:?}");
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
async fn a_poll_for_a_refused_burst_does_not_wait() {
    let cluster = Cluster::start().await;
    cluster.call(Method::POST, BURSTS, Some(&burst("wrong"))).await;
    let mut refused = condition("Accepted", "EntryMissing");
    refused["status"] = json!("False");
    cluster
        .report("BurstJob", "wrong", json!({"state": "Pending", "conditions": [refused]}))
        .await;
    // The longest poll: it would outlast what this test waits for an answer.
    let answer = cluster.get(&format!("{BURSTS}/wrong?waitFor=Complete&timeoutSeconds=300")).await;
    assert_eq!(answer.json()["status"]["conditions"][0]["reason"], "EntryMissing");
    cluster.get(&format!("{BURSTS}/wrong?waitFor=complete")).await.refusal(400);
}

#[tokio::test]
async fn a_body_that_is_too_large_or_too_slow_is_refused() {
    let limits = Limits {
        body_bytes: 64 << 10,
        body_timeout: Duration::from_secs(3),
        ..Limits::default()
    };
    let cluster = Cluster::start_with(&[], limits).await;
    let large = json!({"metadata": {"name": "a", "annotations": {"a": "x".repeat(64 << 10)}}, "spec": {"vram": "1Gi"}});
    let refused = cluster.call(Method::POST, SESSIONS, Some(&large)).await;
    assert!(refused.refusal(413).contains("65536 bytes"));
    // In pieces, without saying how long it is; and one that stops.
    for (piece, code) in [
        ("10001\r\n".to_owned() + &"x".repeat(0x10001), "413"),
        ("5\r\n{\"met\r\n".to_owned(), "408"),
    ] {
        let mut client = TcpStream::connect(cluster.address).await.expect("it listens");
        let head = format!("POST {SESSIONS} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\ntransfer-encoding: chunked\r\n\r\n");
        client.write_all((head + &piece).as_bytes()).await.expect("sent");
        let mut answer = String::new();
        // To the end: the connection is of no more use.
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
    assert_eq!(cluster.metric("gateway_requests_total{code=\"201\"").await, 1000.0);
}

/// An API server, or an operator, that answers everything alike and remembers what it was asked.
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
        self.asked.lock().expect("a lock").push(asked);
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
        let asked = self.asked.lock().expect("a lock");
        let requests = asked.iter().map(|(request, _)| request.clone());
        requests.filter(|request| request != "GET /readyz").collect()
    }
}

#[tokio::test]
async fn nothing_of_a_request_goes_on_but_the_token_and_what_was_looked_at() {
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    let (recorder, url) = Recorder::start("{}", &stop).await;
    let address = gateway(&["--api-server", &url], Limits::default(), stop).await;
    let mut client = TcpStream::connect(address).await.expect("it listens");
    let head = format!(
        "DELETE {SESSIONS}/a HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer abc\r\nconnection: close\r\nimpersonate-user: admin\r\n\
         impersonate-group: system:masters\r\nx-remote-user: admin\r\nx-forwarded-for: 1.2.3.4\r\ncookie: a=b\r\n\r\n"
    );
    client.write_all(head.as_bytes()).await.expect("sent");
    client.read_to_end(&mut Vec::new()).await.expect("an answer");
    let asked = recorder.asked.lock().expect("a lock").clone();
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
async fn the_workers_are_the_operators_for_who_may_list_them() {
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    let rows = "[{\"id\":\"node-a\",\"status\":\"ready\"}]";
    let (operator, url) = Recorder::start(rows, &stop).await;
    let cluster = Cluster::start_with(&["--operator", &url], Limits::default()).await;
    let stranger = cluster
        .send(
            "/workers",
            Request::builder().header(header::AUTHORIZATION, "Bearer wrong"),
            Bytes::new(),
        )
        .await;
    stranger.refusal(401);
    assert_eq!(operator.requests(), Vec::<String>::new(), "the operator is asked for nobody");
    let answer = cluster.get("/workers").await;
    assert_eq!((answer.status.as_u16(), &answer.body[..]), (200, rows.as_bytes()));
    assert_eq!(answer.headers[header::CONTENT_TYPE], "application/json");
    assert_eq!(operator.requests(), ["GET /workers"]);
    let headers = operator.asked.lock().expect("a lock")[0].1.clone();
    assert!(
        !headers.contains_key(header::AUTHORIZATION),
        "the operator needs no token, and gets none"
    );

    let without = Cluster::start().await;
    assert!(without.get("/workers").await.refusal(503).contains("--operator"));
    let gone = Cluster::start_with(&["--operator", "http://127.0.0.1:1"], Limits::default()).await;
    assert!(gone.get("/workers").await.refusal(502).contains("operator"));
}

#[tokio::test]
async fn without_an_api_server_it_is_not_ready_and_says_so() {
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    let address = gateway(&["--api-server", "http://127.0.0.1:1"], Limits::default(), stop).await;
    for (path, code, said) in [
        (SESSIONS, "503", "the API server cannot be asked"),
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
