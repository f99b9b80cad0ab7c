//! Reaches every documented maximum (docs/limits.md) and prints the resources used: on a real control plane whose etcd waits for the disk,
//! with one operator and one agent whose CPU device has 128 GiB. `SAHASRA_E2E_BIN_DIR` must name optimised binaries.
//!
//!     limits            every case; exits with 1 when a limit is not reached or its goal is missed
//!     limits NAME ...   only these
//!
//! `SAHASRA_E2E_S3_SERVER` names an S3-compatible server that takes `-H HOST -p PORT` (moto_server); without the variable the case that needs it
//! fails with a message. Every wait has a timeout.

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, PostParams};
use kube::{Api, ResourceExt};
use sahasra_e2e::bursts::{Burst, number};
use sahasra_e2e::{Options, Pool, PoolOptions, Port, Process, Specification, eventually};
use serde_json::{Value, json};

mod spec;

/// Timeout of a case, after which its limit counts as not reached.
const WITHIN: Duration = Duration::from_secs(300);
/// Timeout for the release of all slices after each case.
const BACK_WITHIN: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;
/// Concurrent requests to the API server.
const AT_ONCE: usize = 32;

type Failure = Box<dyn Error>;

/// Every case in order: name, limit, and goals in seconds and in MiB of the operator's memory where there are any.
const CASES: [(&str, &str, Option<f64>, Option<f64>); 18] = [
    ("chunks", "10,000,000 chunks, sum, results: None", Some(15.0), Some(250.0)),
    ("chunks-file", "10,000,000 chunks into a file store", None, None),
    ("chunks-s3", "10,000,000 chunks into an S3-compatible store", None, None),
    ("failures", "5,000,000 failures, every other chunk", Some(60.0), None),
    ("failed", "9,000 failed chunks without a store", None, None),
    ("slices", "100,000 slices of one lease", None, None),
    ("ptx", "8 MiB of PTX", None, None),
    ("inputs", "48 MiB of inputs", None, None),
    ("outputs", "32 MiB of outputs a chunk", None, None),
    ("results", "512 KiB of results in a ConfigMap", None, None),
    ("arguments", "64 arguments", None, None),
    ("parameters", "32 parameters of 4,096 values", None, None),
    ("product", "a product of 16 lists, one of 4,096 values", None, None),
    ("top", "topK of 100", None, None),
    ("summed", "256 summed elements", None, None),
    ("bursts", "200 bursts in 20 namespaces at once", None, None),
    ("sessions", "2,000 sessions on one worker", None, None),
    ("namespaces", "40 namespaces on one device at once", None, None),
];

struct Limits {
    pool: Pool,
    /// Folder of the file store.
    files: PathBuf,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::process::ExitCode {
    match reach().await {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("limits: {}", causes(&*error));
            std::process::ExitCode::FAILURE
        }
    }
}

/// Runs the cases that the arguments name, or all.
async fn reach() -> Result<(), Failure> {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    if let Some(unknown) = wanted.iter().find(|name| !CASES.iter().any(|case| case.0 == **name)) {
        return Err(format!("no case {unknown}; there are {}", CASES.map(|case| case.0).join(", ")).into());
    }
    let folder = tempfile::tempdir()?;
    let files = folder.path().canonicalize()?;
    let agent = ["--no-cuda", "--cpu-device-memory", "128Gi", "--file-store-root"];
    let agent: Vec<String> = agent.map(str::to_owned).into_iter().chain([files.display().to_string()]).collect();
    let options = PoolOptions::default()
        .agents(1)
        .agent_arguments(agent)
        .operator_environment("SAHASRA_FILE_STORE_ROOT", &files.display().to_string())
        .control_plane(Options::default().durable());
    let mut limits = Limits {
        pool: Pool::start(options).await?,
        files,
    };
    println!(
        "{:<48} {:>26} {:>9} {:>13} {:>10}",
        "limit", "reached", "seconds", "operator MiB", "agent MiB"
    );
    let (mut missed, mut slow) = (Vec::new(), Vec::new());
    for (name, limit, seconds_goal, memory_goal) in CASES {
        if !wanted.is_empty() && !wanted.iter().any(|one| one == name) {
            continue;
        }
        limits.pool.operator.process.forget_peak()?;
        limits.pool.agents[0].process.forget_peak()?;
        let began = Instant::now();
        let outcome = tokio::time::timeout(WITHIN, limits.run(name)).await;
        let seconds = began.elapsed().as_secs_f64();
        let peak = |process: &Process| process.peak_kib().unwrap_or_default() as f64 / 1024.0;
        let (operator, agent) = (peak(&limits.pool.operator.process), peak(&limits.pool.agents[0].process));
        let reached = match outcome {
            Ok(Ok(reached)) => reached,
            Ok(Err(error)) => {
                missed.push(format!("{name}: {}", causes(&*error)));
                "NOT REACHED".to_owned()
            }
            Err(_) => {
                missed.push(format!("{name}: not within {WITHIN:?}"));
                "NOT REACHED".to_owned()
            }
        };
        let mut mark = |value: f64, goal: Option<f64>, unit: &str| match goal {
            Some(goal) if value > goal => {
                slow.push(format!("{name}: {value:.1} {unit}, the goal is {goal}"));
                format!("{value:.1} > {goal}")
            }
            _ => format!("{value:.1}"),
        };
        let seconds = mark(seconds, seconds_goal, "s");
        let operator = mark(operator, memory_goal, "MiB of the operator");
        println!("{limit:<48} {reached:>26} {seconds:>9} {operator:>13} {agent:>10.1}");
        std::io::stdout().flush()?;
        limits.clear().await?;
    }
    outcome(&missed, &slow).inspect_err(|_| limits.pool.report())
}

/// Fails with the cases whose limit was not reached, and those that missed their goal.
fn outcome(missed: &[String], slow: &[String]) -> Result<(), Failure> {
    let mut said = Vec::new();
    for (what, cases) in [("limits were not reached", missed), ("goals were missed", slow)] {
        if !cases.is_empty() {
            said.push(format!("{} {what}\n{}", cases.len(), cases.join("\n")));
        }
    }
    if said.is_empty() { Ok(()) } else { Err(said.join("\n").into()) }
}

impl Limits {
    /// Runs one case; returns a description of the limit reached.
    async fn run(&self, name: &str) -> Result<String, Failure> {
        match name {
            "chunks" => self.chunks(name, |burst| burst.with("results", json!("None"))).await,
            "chunks-file" => {
                let store = self.store("chunks");
                self.chunks(name, |burst| burst.with("output", store)).await
            }
            "chunks-s3" => self.chunks_to_s3().await,
            "failures" => self.failures().await,
            "failed" => self.failed().await,
            "slices" => self.slices().await,
            "ptx" => self.ptx().await,
            "inputs" => self.inputs().await,
            "outputs" => self.outputs().await,
            "results" => self.results().await,
            "arguments" => self.arguments().await,
            "parameters" => self.parameters().await,
            "product" => self.product().await,
            "top" => self.top().await,
            "summed" => self.summed().await,
            "bursts" => self.bursts().await,
            "sessions" => self.sessions().await,
            "namespaces" => self.namespaces().await,
            _ => Err(format!("no case {name}").into()),
        }
    }

    /// Deletes all objects of a case, so that nothing is left for the next.
    async fn clear(&mut self) -> Result<(), Failure> {
        let delete = "delete burstjobs,gpusessions,vramleases --all --all-namespaces --wait=false";
        self.pool.control_plane.kubectl(delete.split(' ')).await?.success()?;
        Ok(self.pool.nothing_held(BACK_WITHIN).await?)
    }

    /// `spec.output` of a job with its results in a folder of the file store.
    fn store(&self, folder: &str) -> Value {
        json!({"store": {"url": format!("file://{}/{folder}", self.files.display())}})
    }

    fn file(&self, name: &str, bytes: &[u8]) -> Result<Value, Failure> {
        let path = self.files.join(name);
        std::fs::write(&path, bytes)?;
        Ok(json!({"url": format!("file://{}", path.display())}))
    }

    async fn complete(&self, burst: &Burst, name: &str) -> Result<DynamicObject, Failure> {
        burst.apply(&self.pool.control_plane).await?;
        Ok(self.pool.completed("default", name, WITHIN).await?)
    }

    async fn chunks(&self, name: &str, how: impl FnOnce(Burst) -> Burst) -> Result<String, Failure> {
        const CHUNKS: u64 = 10_000_000;
        let burst = how(Burst::of_steps("default", name, CHUNKS, 0)?).with("slices", json!({"max": 1000}));
        let job = self.complete(&burst, name).await?;
        let sum = job.data.pointer("/status/aggregate/values/0").and_then(Value::as_f64);
        equal("the sum", sum, Some((CHUNKS * (CHUNKS - 1) / 2) as f64))?;
        equal("chunks that succeeded", number(&job, "/status/chunks/succeeded"), CHUNKS as i64)?;
        Ok("10,000,000".to_owned())
    }

    async fn chunks_to_s3(&self) -> Result<String, Failure> {
        let program = std::env::var_os("SAHASRA_E2E_S3_SERVER").ok_or("SAHASRA_E2E_S3_SERVER names no S3-compatible server")?;
        let port = Port::reserve()?;
        let logs = self.pool.control_plane.log_directory();
        let server = Specification::new("s3", program, &logs)
            .arguments(["-H", "127.0.0.1", "-p", &port.number().to_string()])
            .ready_at(format!("{}/moto-api/", port.url()));
        let _server = server.start().await?;
        let bucket = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new()).build_http();
        let request = http::Request::put(format!("{}/limits", port.url())).body(http_body_util::Empty::<bytes::Bytes>::new())?;
        equal("the answer to a new bucket", bucket.request(request).await?.status().as_u16(), 200)?;
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3", "namespace": "default"},
            "stringData": {
                "aws_access_key_id": "limits", "aws_secret_access_key": "limits", "aws_region": "us-east-1",
                "aws_endpoint": port.url(), "aws_allow_http": "true",
            },
        });
        self.pool.control_plane.apply(&secret.to_string()).await?;
        let store = json!({"store": {"url": "s3://limits/chunks", "secretRef": {"name": "s3"}}});
        self.chunks("chunks-s3", |burst| burst.with("output", store)).await
    }

    async fn failures(&self) -> Result<String, Failure> {
        const CHUNKS: u64 = 10_000_000;
        let odd = json!({"type": "u32", "cel": "index % 2 == 1 ? index : 4294967295"});
        let burst = Burst::of("trap_at", "default", "failures", CHUNKS)?
            .with("chunks", json!({"count": CHUNKS, "parameters": {"where": odd}}))
            .argument(json!({"parameter": "where"}))
            .with("maxFailedChunks", json!(CHUNKS))
            .with("slices", json!({"max": 1000}))
            .with("results", json!("None"));
        let job = self.complete(&burst, "failures").await?;
        equal("chunks that failed", number(&job, "/status/chunks/failed"), 5_000_000)?;
        equal("chunks that succeeded", number(&job, "/status/chunks/succeeded"), 5_000_000)?;
        Ok("5,000,000".to_owned())
    }

    async fn slices(&self) -> Result<String, Failure> {
        let lease = json!({
            "apiVersion": "sahasra.dev/v1alpha1", "kind": "VramLease", "metadata": {"name": "slices", "namespace": "default"},
            "spec": {"slice": {"vram": "1Mi"}, "slices": {"min": 100_000, "max": 100_000}},
        });
        self.pool.control_plane.apply(&lease.to_string()).await?;
        let wait = format!("wait --for=condition=Granted vramlease/slices --timeout={}s", WITHIN.as_secs());
        self.pool.control_plane.kubectl(wait.split(' ')).await?.success()?;
        let held = self.pool.operator.metric("gpu_leases_active").await?;
        equal("slices held", held, Some(100_000.0))?;
        Ok("100,000".to_owned())
    }

    async fn ptx(&self) -> Result<String, Failure> {
        const BYTES: usize = 8 * MIB;
        let kernel = std::fs::read_to_string(kernel("steps"))?;
        let (head, entry) = kernel.split_at(kernel.find(".visible").ok_or("no entry")?);
        let mut text = format!("{head}{entry}");
        for number in 0_u32.. {
            let more = entry.replace("steps", &format!("s{number}"));
            if text.len() + more.len() > BYTES {
                break;
            }
            text.push_str(&more);
        }
        text.extend(std::iter::repeat_n('\n', BYTES - text.len()));
        let ptx = self.file("large.ptx", text.as_bytes())?;
        let args = json!([{"output": {"type": "u32"}}, {"chunkIndex": {"type": "u32"}}, {"scalar": {"type": "u32", "value": 0}}]);
        let burst = Burst::of("steps", "default", "ptx", 10)?
            .with("kernel", json!({"ptx": ptx, "entry": "steps", "block": [1], "args": args}))
            .with("output", self.store("ptx"));
        let job = self.complete(&burst, "ptx").await?;
        equal("the sum", number(&job, "/status/aggregate/values/0"), 45)?;
        Ok(format!("{BYTES} bytes"))
    }

    async fn inputs(&self) -> Result<String, Failure> {
        const BYTES: usize = 48 * MIB;
        let mut bytes = vec![0; BYTES];
        bytes[BYTES - 1] = 7;
        let from = self.file("input", &bytes)?;
        let at = json!({"scalar": {"type": "u32", "value": BYTES - 1}});
        let burst = Burst::of("reads", "default", "inputs", 4)?
            .arguments(json!([{"output": {"type": "u32"}}, {"constant": from}, at]))
            .with("slice", json!({"vram": "128Mi"}))
            .with("output", self.store("inputs"));
        let job = self.complete(&burst, "inputs").await?;
        equal("the sum", number(&job, "/status/aggregate/values/0"), 4 * 7)?;
        Ok(format!("{BYTES} bytes"))
    }

    async fn outputs(&self) -> Result<String, Failure> {
        const BYTES: usize = 32 * MIB;
        let rate = json!({"scalar": {"type": "f32", "value": 0}});
        let burst = Burst::of("empty", "default", "outputs", 4)?
            .arguments(json!([{"output": {"type": "u32", "count": BYTES / 4}}, rate]))
            .without("aggregate")
            .with("slice", json!({"vram": "128Mi"}))
            .with("output", self.store("outputs"));
        self.complete(&burst, "outputs").await?;
        Ok(format!("{BYTES} bytes"))
    }

    async fn results(&self) -> Result<String, Failure> {
        const CHUNKS: u64 = 131_072;
        let burst = Burst::of_steps("default", "results", CHUNKS, 0)?;
        self.complete(&burst, "results").await?;
        let size = "get configmap results-results -o jsonpath={.binaryData.results}";
        let text = self.pool.control_plane.kubectl(size.split(' ')).await?.success()?;
        equal("bytes of results in base64", text.len(), (CHUNKS as usize * 4).div_ceil(3) * 4)?;
        Ok("524288 bytes".to_owned())
    }

    async fn namespaces_called(&self, prefix: &str, count: usize) -> Result<Vec<String>, Failure> {
        let made = stream::iter(0..count).map(|_| self.pool.control_plane.create_namespace(prefix));
        Ok(made.buffer_unordered(AT_ONCE).try_collect().await?)
    }

    /// Applies bursts with one command and waits until each of them is complete.
    async fn all_complete(&self, bursts: Vec<(String, String, Burst)>) -> Result<(), Failure> {
        let manifests: Vec<String> = bursts.iter().map(|(_, _, burst)| burst.manifest().to_string()).collect();
        self.pool.control_plane.apply(&manifests.join("\n---\n")).await?;
        let ends = stream::iter(bursts).map(async |(namespace, name, _)| self.pool.completed(&namespace, &name, WITHIN).await);
        let ends: Vec<DynamicObject> = ends.buffer_unordered(AT_ONCE).try_collect().await?;
        for job in ends {
            equal("the sum", number(&job, "/status/aggregate/values/0"), 499_500)?;
        }
        Ok(())
    }

    async fn bursts(&self) -> Result<String, Failure> {
        let mut bursts = Vec::new();
        for namespace in self.namespaces_called("limits", 20).await? {
            for index in 0..10 {
                let name = format!("burst-{index}");
                let burst = Burst::of_steps(&namespace, &name, 1000, 0)?;
                bursts.push((namespace.clone(), name, burst));
            }
        }
        self.all_complete(bursts).await?;
        Ok("200 bursts".to_owned())
    }

    async fn sessions(&self) -> Result<String, Failure> {
        const SESSIONS: usize = 2_000;
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("sahasra.dev", "v1alpha1", "GpuSession"));
        let sessions: Api<DynamicObject> = Api::namespaced_with(self.pool.control_plane.client().await?, "default", &resource);
        let session = |index: usize| {
            let spec = json!({"spec": {"vram": "1Mi", "engine": "ptx"}});
            DynamicObject::new(&format!("session-{index}"), &resource).data(spec)
        };
        let create = PostParams::default();
        let made = stream::iter(0..SESSIONS).map(async |index| sessions.create(&create, &session(index)).await.map(drop));
        made.buffer_unordered(AT_ONCE).try_collect::<()>().await?;
        let mut ready = 0;
        let all = eventually(WITHIN, async || {
            let listed = sessions.list(&ListParams::default()).await.ok()?;
            let state = |session: &&DynamicObject| session.data.pointer("/status/state").and_then(Value::as_str) == Some("Ready");
            ready = listed.items.iter().filter(state).count();
            (ready == SESSIONS).then_some(())
        });
        if all.await.is_none() {
            let one = sessions.list(&ListParams::default().limit(1)).await?;
            let one = one
                .items
                .first()
                .map(|session| (session.name_any(), session.data["status"].to_string()));
            return Err(format!("{ready} sessions are Ready; the first is {one:?}").into());
        }
        Ok(format!("{SESSIONS} sessions"))
    }

    /// Eight namespaces, as many as a device has executors, have work during the whole case. The chunks of the other namespaces
    /// must still run.
    async fn namespaces(&self) -> Result<String, Failure> {
        const EXECUTORS: usize = 8;
        let one = json!({"min": 1, "max": 1});
        let namespaces = self.namespaces_called("device", 40).await?;
        let (busy, waiting) = namespaces.split_at(EXECUTORS);
        for namespace in busy {
            let burst = Burst::of_steps(namespace, "busy", 10_000_000, 0)?;
            let burst = burst.with("slices", one.clone()).with("results", json!("None"));
            burst.apply(&self.pool.control_plane).await?;
        }
        for namespace in busy {
            self.progress(namespace).await?;
        }
        let mut bursts = Vec::new();
        for namespace in waiting {
            let burst = Burst::of_steps(namespace, "shares", 1000, 0)?.with("slices", one.clone());
            bursts.push((namespace.clone(), "shares".to_owned(), burst));
        }
        self.all_complete(bursts).await?;
        for namespace in busy {
            let job = self.progress(namespace).await?;
            equal(
                "the state of a burst that holds an executor",
                job.data["status"]["state"].as_str(),
                Some("Running"),
            )?;
        }
        Ok(format!("{} namespaces", namespaces.len()))
    }

    /// Returns the burst `busy` of a namespace once some of its chunks have succeeded.
    async fn progress(&self, namespace: &str) -> Result<DynamicObject, Failure> {
        let progress = self.pool.control_plane.wait_until("BurstJob", namespace, "busy", WITHIN, |job| {
            job.is_some_and(|job| number(job, "/status/chunks/succeeded") > 0)
        });
        progress.await?.ok_or_else(|| "the burst is gone".into())
    }
}

fn kernel(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/kernels/{name}.ptx"))
}

/// Formats an error with its sources.
fn causes(error: &dyn Error) -> String {
    let (mut text, mut error) = (error.to_string(), error);
    while let Some(source) = error.source() {
        text = format!("{text}: {source}");
        error = source;
    }
    text
}

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Result<(), Failure> {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what} should be {expected:?}, not {found:?}").into())
}
