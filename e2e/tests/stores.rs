//! Bursts that read their kernel from an object store and write their results to it: a folder and an S3-compatible server, within the
//! policies of operator and agents.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Empty;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use kube::api::DynamicObject;
use object_store::{ObjectStore, ObjectStoreExt, path::Path as StorePath};
use sahasra_e2e::bursts::{Burst, number};
use sahasra_e2e::{Pool, PoolOptions, condition, tools};
use sahasra_store::{Endpoint, StorePolicy, segment};
use serde_json::{Value, json};

/// Timeout for a machine under load.
const WITHIN: Duration = Duration::from_secs(240);
/// Timeout for the release of slices, which is immediate.
const FREE_WITHIN: Duration = Duration::from_secs(60);
/// Enough chunks for several segments.
const CHUNKS: u64 = 50_000;

/// An S3-compatible server that is stopped when this is dropped.
struct S3Server {
    child: Child,
    url: String,
}

impl S3Server {
    fn start() -> Self {
        let mut child = Command::new(tools::workspace_root().join("e2e/object-store"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut url = String::new();
        let said = BufReader::new(child.stdout.take().expect("piped")).read_line(&mut url);
        said.expect("it says where it is");
        let url = url.trim().to_owned();
        assert!(url.starts_with("http://"), "it did not start: see the lines above");
        Self { child, url }
    }

    async fn make_bucket(&self, name: &str) {
        let request = Request::put(format!("{}/{name}", self.url)).body(Empty::<Bytes>::new());
        let client = Client::builder(TokioExecutor::new()).build_http();
        let answer = client.request(request.expect("a request")).await.expect("it answers");
        assert_eq!(answer.status(), StatusCode::OK);
    }

    /// Opens a folder in the store as a job does.
    fn open(&self, url: &str) -> Arc<dyn ObjectStore> {
        let allowed: Endpoint = self.url.parse().expect("an endpoint");
        let policy = StorePolicy::new(None, [allowed].into_iter().collect());
        sahasra_store::open(&policy, url, &settings(&self.url)).expect("a store")
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// A burst with its kernel and its results in this store.
fn stored(name: &str, url: &str, secret: Option<&str>) -> Burst {
    let mut store = json!({"url": format!("{url}/results")});
    if let Some(secret) = secret {
        store["secretRef"] = json!({"name": secret});
    }
    let args = json!([{"output": {"type": "u32"}}, {"chunkIndex": {"type": "u32"}}, {"scalar": {"type": "u32", "value": 0}}]);
    let kernel = json!({"ptx": {"url": format!("{url}/kernels/steps.ptx")}, "entry": "steps", "block": [1], "args": args});
    let burst = Burst::of("steps", "default", name, CHUNKS).expect("a burst");
    burst.with("kernel", kernel).with("output", json!({"store": store}))
}

/// Settings of a store at this endpoint.
fn settings(endpoint: &str) -> BTreeMap<String, String> {
    let settings = [
        ("aws_access_key_id", "test"),
        ("aws_secret_access_key", "test"),
        ("aws_region", "us-east-1"),
        ("aws_endpoint", endpoint),
        ("aws_allow_http", "true"),
    ];
    settings.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

/// Creates the Secret of a store at this endpoint.
async fn secret(pool: &Pool, name: &str, endpoint: &str) {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "default"},
        "stringData": settings(endpoint),
    });
    pool.control_plane.apply(&secret.to_string()).await.expect("applied");
}

/// Runs the burst to its end; returns the path of its list of results, relative to the store's URL.
async fn completed(pool: &Pool, burst: &Burst, name: &str, url: &str) -> String {
    burst.apply(&pool.control_plane).await.expect("applied");
    let job = pool.completed("default", name, WITHIN).await.expect("it completes");
    assert_eq!(number(&job, "/status/chunks/succeeded"), CHUNKS as i64);
    let sum = job.data.pointer("/status/aggregate/values/0").and_then(Value::as_u64);
    assert_eq!(sum, Some(CHUNKS * (CHUNKS - 1) / 2), "{}", job.data["status"]);
    let manifest = job.data.pointer("/status/results/url").and_then(Value::as_str);
    let manifest = manifest.and_then(|manifest| manifest.strip_prefix(url)?.strip_prefix('/'));
    manifest.unwrap_or_else(|| panic!("{}", job.data["status"])).to_owned()
}

/// Reason and message with which the spec is rejected.
async fn refused(pool: &Pool, burst: &Burst, name: &str) -> (String, String) {
    burst.apply(&pool.control_plane).await.expect("applied");
    let judged = |job: Option<&DynamicObject>| job.is_some_and(|job| condition(job, "Accepted").is_some());
    let job = pool.control_plane.wait_until("BurstJob", "default", name, WITHIN, judged).await;
    let job = job.expect("it is judged").expect("a job");
    let accepted = condition(&job, "Accepted").expect("judged");
    assert_eq!(accepted["status"], "False", "{accepted}");
    let text = |field: &str| accepted[field].as_str().unwrap_or_default().to_owned();
    (text("reason"), text("message"))
}

/// Every index with its value, from the segments below a folder.
fn values(folder: &Path) -> Vec<(u64, u32)> {
    let mut values = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            values.extend(self::values(&path));
        } else if path.extension().is_some_and(|extension| extension == "segment") {
            let bytes = std::fs::read(&path).expect("a segment");
            for (index, outputs) in segment::records(&bytes).expect("a segment") {
                values.push((index, u32::from_le_bytes(outputs.try_into().expect("one u32"))));
            }
        }
    }
    values
}

#[tokio::test]
async fn results_are_written_to_allowed_stores_only() {
    let server = S3Server::start();
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().canonicalize().expect("a path");
    let (root, elsewhere) = (root.to_str().expect("a path in UTF-8"), tempfile::tempdir().expect("a folder"));
    let agent = [
        "--no-cuda",
        "--cpu-device-memory",
        "1Gi",
        "--file-store-root",
        root,
        "--allowed-store-endpoints",
        &server.url,
    ];
    let options = PoolOptions::default()
        .agents(2)
        .agent_arguments(agent)
        .operator_environment("SAHASRA_FILE_STORE_ROOT", root)
        .operator_environment("SAHASRA_ALLOWED_STORE_ENDPOINTS", &server.url);
    let mut pool = Pool::start(options).await.expect("Sahasra starts");
    let kernel = std::fs::read(tools::workspace_root().join("e2e/tests/data/kernels/steps.ptx")).expect("the kernel");

    std::fs::create_dir(folder.path().join("kernels")).expect("made");
    std::fs::write(folder.path().join("kernels/steps.ptx"), &kernel).expect("written");
    let url = format!("file://{root}");
    let manifest = completed(&pool, &stored("in-a-folder", &url, None), "in-a-folder", &url).await;
    let manifest = folder.path().join(manifest);
    let list: Value = serde_json::from_slice(&std::fs::read(&manifest).expect("the manifest is there")).expect("JSON");
    assert_eq!(list["chunks"], CHUNKS);
    let mut found = values(manifest.parent().expect("the burst's folder"));
    found.sort_unstable();
    found.dedup();
    assert!(
        found.iter().copied().eq((0..CHUNKS).map(|index| (index, index as u32))),
        "{} values",
        found.len()
    );

    secret(&pool, "allowed", &server.url).await;
    server.make_bucket("bucket").await;
    let url = "s3://bucket";
    let bucket = server.open(url);
    let name = StorePath::from("kernels/steps.ptx");
    bucket.put(&name, kernel.into()).await.expect("the kernel is there");
    let manifest = completed(&pool, &stored("in-s3", url, Some("allowed")), "in-s3", url).await;
    let list = bucket.get(&StorePath::from(manifest)).await.expect("the manifest is there");
    let list: Value = serde_json::from_slice(&list.bytes().await.expect("whole")).expect("JSON");
    assert_eq!(list["chunks"], CHUNKS);

    secret(&pool, "forbidden", "http://127.0.0.1:1").await;
    let (reason, message) = refused(&pool, &stored("not-this-server", url, Some("forbidden")), "not-this-server").await;
    assert!(
        reason == "InvalidStore" && message.contains("http://127.0.0.1:1"),
        "{reason}: {message}"
    );
    let outside = format!("file://{}", elsewhere.path().display());
    let (reason, message) = refused(&pool, &stored("not-this-folder", &outside, None), "not-this-folder").await;
    assert!(
        reason == "InvalidStore" && message.contains("file stores are not allowed"),
        "{reason}: {message}"
    );

    pool.nothing_held(FREE_WITHIN).await.expect("everything is given back");
    pool.nothing_forbidden().await.expect("the chart's rights suffice");
}
