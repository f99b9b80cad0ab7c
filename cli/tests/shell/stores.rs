//! Bursts that read their kernel from an object store and write their results to it: a folder, and an S3-compatible server.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
};

use futures::TryStreamExt;
use object_store::{ObjectStoreExt, path::Path};
use sahasra_store::{StorePolicy, endpoints, segment};
use serde_json::{Value, json};

use crate::program::{Limit, Sahasra, root, text};

/// PTX that computes a chain of steps from the chunk's index; with 0 steps its output is the index.
const STEPS: &str = include_str!("../../../e2e/tests/data/kernels/steps.ptx");
/// Enough chunks for several segments of each device.
const CHUNKS: u64 = 200_000;

/// Runs a burst with this store and the Secret's settings, and checks everything that the burst wrote to the store.
fn runs_with(url: &str, settings: &BTreeMap<String, String>, root_of_files: Option<&std::path::Path>) {
    let policy = StorePolicy::new(root_of_files.map(Into::into), endpoints::of_own_machine().into_iter().collect());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let kernels = sahasra_store::open(&policy, &format!("{url}/kernels"), settings).expect("a store");
    runtime
        .block_on(kernels.put(&Path::from("steps.ptx"), STEPS.into()))
        .expect("the kernel is there");
    let mut store = json!({"url": format!("{url}/results")});
    if !settings.is_empty() {
        store["secretRef"] = json!({"name": "store"});
    }
    let job = json!({
        "apiVersion": "sahasra.dev/v1alpha1", "kind": "BurstJob", "metadata": {"name": "stored"},
        "spec": {
            "kernel": {
                "ptx": {"url": format!("{url}/kernels/steps.ptx")}, "entry": "steps",
                "args": [{"output": {"type": "u32"}}, {"chunkIndex": {"type": "u32"}}, {"scalar": {"type": "u32", "value": 0}}],
            },
            "chunks": {"count": CHUNKS},
            "slice": {"vram": "1Mi"},
            "aggregate": {"sum": {}},
            "output": {"store": store},
        },
    });
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "store"}, "stringData": settings});
    let folder = tempfile::tempdir().expect("a folder");
    let (manifest, kept) = (folder.path().join("job.yaml"), folder.path().join("kept"));
    fs::write(&manifest, format!("{secret}\n---\n{job}\n")).expect("written");
    let mut run = Sahasra::new(["run", "--devices", "2", "--results"]).arg(&kept).arg(&manifest);
    if let Some(root) = root_of_files {
        run = run.arg("--file-store-root").arg(root);
    }
    let output = run.output();
    assert_eq!(output.status.code(), Some(0), "{}\n{}", text(&output.stdout), text(&output.stderr));

    let job: Value = serde_json::from_slice(&fs::read(kept.join("stored.json")).expect("kept")).expect("JSON");
    assert_eq!(job["status"]["chunks"]["succeeded"], CHUNKS, "{}", job["status"]);
    let sum = job["status"]["aggregate"]["values"][0].as_f64();
    assert_eq!(sum, Some((CHUNKS * (CHUNKS - 1) / 2) as f64), "{}", job["status"]);
    let manifest = job["status"]["results"]["url"].as_str().expect("where the results are").to_owned();
    let (its_folder, name) = manifest.rsplit_once('/').expect("a folder");
    runtime.block_on(async {
        let results = sahasra_store::open(&policy, its_folder, settings).expect("a store");
        let manifest = results.get(&Path::from(name)).await.expect("the manifest is there");
        let manifest: Value = serde_json::from_slice(&manifest.bytes().await.expect("whole")).expect("JSON");
        assert_eq!(manifest["chunks"], CHUNKS);
        let mut values = BTreeMap::new();
        let objects: Vec<_> = results.list(Some(&Path::from("segments"))).try_collect().await.expect("listed");
        for object in objects.iter().filter(|object| object.location.as_ref().ends_with(".segment")) {
            let bytes = results.get(&object.location).await.expect("there").bytes().await.expect("whole");
            for (index, outputs) in segment::records(&bytes).expect("a segment") {
                values.insert(index, u32::from_le_bytes(outputs.try_into().expect("one u32")));
            }
        }
        assert_eq!(values.len() as u64, CHUNKS);
        assert!(values.iter().all(|(index, value)| *index == u64::from(*value)));
    });
}

/// An S3-compatible server that is stopped when this is dropped.
struct Server {
    child: Child,
    endpoint: String,
    _limit: Limit,
}

impl Server {
    fn start() -> Self {
        let mut child = Command::new(root().join("e2e/object-store"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let limit = Limit::of(&child);
        let mut endpoint = String::new();
        BufReader::new(child.stdout.take().expect("piped"))
            .read_line(&mut endpoint)
            .expect("it says where it is");
        let endpoint = endpoint.trim().to_owned();
        assert!(endpoint.starts_with("http://"), "it did not start: see the lines above");
        Self {
            child,
            endpoint,
            _limit: limit,
        }
    }

    fn make_bucket(&self, name: &str) {
        let host = self.endpoint.strip_prefix("http://").expect("as above");
        let mut connection = TcpStream::connect(host).expect("it listens");
        write!(
            connection,
            "PUT /{name} HTTP/1.1\r\nhost: {host}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        )
        .expect("sent");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).expect("it answers");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

#[test]
fn a_burst_keeps_its_results_in_a_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    runs_with(
        &format!("file://{}", folder.path().display()),
        &BTreeMap::new(),
        Some(folder.path()),
    );
}

#[test]
fn a_burst_keeps_its_results_in_an_s3_compatible_store() {
    let server = Server::start();
    server.make_bucket("bucket");
    let settings = [
        ("aws_access_key_id", "test"),
        ("aws_secret_access_key", "test"),
        ("aws_region", "us-east-1"),
        ("aws_endpoint", server.endpoint.as_str()),
        ("aws_allow_http", "true"),
    ];
    let settings = settings.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    runs_with("s3://bucket/prefix", &settings, None);
}
