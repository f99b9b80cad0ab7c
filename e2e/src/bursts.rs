//! Bursts of the test kernels (`e2e/tests/data/kernels/`), whose results a test can compute itself, and checks of their outcome.

use std::fs;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use crate::audit::{Tally, Write};
use crate::control_plane::{ControlPlane, ControlPlaneError, true_condition};
use crate::eventually::eventually;
use crate::identities::NAMESPACE;
use crate::pool::{Pool, PoolError};
use crate::tools;

/// A burst could not run, or its outcome is wrong.
#[derive(Debug, thiserror::Error)]
pub enum BurstError {
    #[error("read {}", path.display())]
    Kernel {
        path: std::path::PathBuf,
        /// Error of the system call.
        source: std::io::Error,
    },
    /// The API server rejected a request or did not answer, or an expected change did not happen.
    #[error(transparent)]
    ControlPlane(#[from] ControlPlaneError),
    /// An operator or agent did not answer.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The status or the results of a burst are wrong.
    #[error("{what}: {found}")]
    Wrong {
        /// Expected value.
        what: String,
        found: String,
    },
}

fn wrong(what: impl Into<String>, found: impl ToString) -> BurstError {
    BurstError::Wrong {
        what: what.into(),
        found: found.to_string(),
    }
}

/// A `BurstJob` manifest.
#[derive(Debug, Clone)]
pub struct Burst {
    namespace: String,
    name: String,
    spec: Value,
}

impl Burst {
    /// A burst of `chunks` chunks of the kernel `entry` in `e2e/tests/data/kernels/ENTRY.ptx`, on slices of 4 MiB, with the arguments output
    /// and index, which most test kernels start with.
    ///
    /// # Errors
    /// When the kernel cannot be read.
    pub fn of(entry: &str, namespace: &str, name: &str, chunks: u64) -> Result<Self, BurstError> {
        let path = tools::workspace_root().join(format!("e2e/tests/data/kernels/{entry}.ptx"));
        let ptx = fs::read_to_string(&path).map_err(|source| BurstError::Kernel { path, source })?;
        let spec = json!({
            "kernel": {
                "ptx": {"inline": ptx},
                "entry": entry,
                "block": [1],
                "args": [{"output": {"type": "u32"}}, {"chunkIndex": {"type": "u32"}}],
            },
            "chunks": {"count": chunks},
            "slice": {"vram": "4Mi"},
            // Tests should not spend their time in backoff.
            "retryPolicy": {"initialBackoffSeconds": 0, "maxBackoffSeconds": 1},
            "aggregate": {"sum": {"output": 0}},
        });
        Ok(Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            spec,
        })
    }

    /// A burst of `chunks` chunks that execute `steps` steps each; the function [`steps`] computes their results.
    ///
    /// # Errors
    /// When the kernel cannot be read.
    pub fn of_steps(namespace: &str, name: &str, chunks: u64, steps: u32) -> Result<Self, BurstError> {
        Ok(Self::of("steps", namespace, name, chunks)?.scalar(steps))
    }

    /// Appends an argument with the same `u32` for every chunk.
    #[must_use]
    pub fn scalar(self, value: u32) -> Self {
        self.argument(json!({"scalar": {"type": "u32", "value": value}}))
    }

    #[must_use]
    pub fn argument(mut self, argument: Value) -> Self {
        if let Some(arguments) = self.spec.pointer_mut("/kernel/args").and_then(Value::as_array_mut) {
            arguments.push(argument);
        }
        self
    }

    #[must_use]
    pub fn arguments(mut self, arguments: Value) -> Self {
        self.spec["kernel"]["args"] = arguments;
        self
    }

    #[must_use]
    pub fn with(mut self, field: &str, value: Value) -> Self {
        self.spec[field] = value;
        self
    }

    #[must_use]
    pub fn without(mut self, field: &str) -> Self {
        if let Some(spec) = self.spec.as_object_mut() {
            spec.remove(field);
        }
        self
    }

    fn chunks(&self) -> u64 {
        self.spec["chunks"]["count"].as_u64().unwrap_or_default()
    }

    /// The burst as a `BurstJob` object.
    #[must_use]
    pub fn manifest(&self) -> Value {
        json!({
            "apiVersion": "sahasra.dev/v1alpha1",
            "kind": "BurstJob",
            "metadata": {"namespace": self.namespace, "name": self.name},
            "spec": self.spec,
        })
    }

    /// Applies the burst.
    ///
    /// # Errors
    /// When the API server rejects the burst.
    pub async fn apply(&self, control_plane: &ControlPlane) -> Result<(), BurstError> {
        control_plane.apply(&self.manifest().to_string()).await?;
        Ok(())
    }
}

/// Result of the chunk `index` of a burst of `steps` steps.
#[must_use]
pub fn steps(index: u32, steps: u32) -> u32 {
    (0..steps).fold(index, |x, _| x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223))
}

/// Number at a JSON pointer in an object; -1 if there is none.
#[must_use]
pub fn number(object: &DynamicObject, pointer: &str) -> i64 {
    object.data.pointer(pointer).and_then(Value::as_i64).unwrap_or(-1)
}

/// Whether a burst is `Complete` or `Failed`.
#[must_use]
pub fn has_ended(job: &DynamicObject) -> bool {
    true_condition(job, "Complete").is_some() || true_condition(job, "Failed").is_some()
}

impl Pool {
    /// Waits until the burst is `Complete`.
    ///
    /// # Errors
    /// When the burst fails, or takes longer than `within`.
    pub async fn completed(&self, namespace: &str, name: &str, within: Duration) -> Result<DynamicObject, BurstError> {
        let job = self.ended(namespace, name, within).await?;
        match true_condition(&job, "Complete") {
            Some(_) => Ok(job),
            None => Err(wrong(format!("{name} should be Complete"), &job.data["status"])),
        }
    }

    /// Waits until the burst is `Complete` or `Failed`.
    ///
    /// # Errors
    /// When the burst takes longer than `within`.
    pub async fn ended(&self, namespace: &str, name: &str, within: Duration) -> Result<DynamicObject, BurstError> {
        let ended = |job: Option<&DynamicObject>| job.is_some_and(has_ended);
        let job = self.control_plane.wait_until("BurstJob", namespace, name, within, ended).await?;
        job.ok_or_else(|| wrong(format!("{name} should exist"), "it does not"))
    }

    /// Waits until a metric of the operator has grown by at least `more` since it was `before`, and returns its value.
    ///
    /// # Errors
    /// When the growth takes longer than `within`.
    pub async fn operator_metric_grows(&self, metric: &'static str, before: f64, more: f64, within: Duration) -> Result<f64, BurstError> {
        let mut last = before;
        let grown = eventually(within, async || {
            last = self.operator.metric(metric).await.ok()??;
            (last >= before + more).then_some(last)
        });
        match grown.await {
            Some(value) => Ok(value),
            None => Err(wrong(format!("{metric} should grow by {more} from {before}"), last)),
        }
    }

    /// Applies a burst and waits until at least `done` of its chunks are done, but not all.
    ///
    /// # Errors
    /// When the burst is rejected, when the chunks take longer than `within`, or when all chunks are done by then.
    pub async fn in_the_middle_of(&self, burst: &Burst, done: u64, within: Duration) -> Result<(), BurstError> {
        let before = self.operator.metric("chunks_done").await?.unwrap_or(0.0);
        burst.apply(&self.control_plane).await?;
        let grown = self.operator_metric_grows("chunks_done", before, done as f64, within).await? - before;
        let all = burst.chunks();
        if grown < all as f64 {
            Ok(())
        } else {
            Err(wrong(format!("{done} of {all} chunks should be done"), grown))
        }
    }

    /// Waits until neither the operator nor any running agent has a leased slice, and no burst's `VramLease` is left.
    ///
    /// # Errors
    /// A list of the slices and objects that are left after `within`.
    pub async fn nothing_held(&mut self, within: Duration) -> Result<(), BurstError> {
        let mut last = String::new();
        let mut running = Vec::new();
        if self.operator.process.is_running() {
            running.push((&self.operator, "gpu_leases_active", "gpu_vram_allocated_bytes"));
        }
        for agent in &mut self.agents {
            if agent.process.is_running() {
                running.push((&*agent, "sahasra_agent_slices_allocated", "sahasra_agent_vram_allocated_bytes"));
            }
        }
        let free = eventually(within, async || {
            last.clear();
            for (server, slices, bytes) in &running {
                let active = server.metric(slices).await;
                let bytes = server.metric(bytes).await;
                if !matches!((&active, &bytes), (Ok(Some(0.0)), Ok(Some(0.0)))) {
                    last += &format!("{}: {active:?} slices, {bytes:?} bytes; ", server.process.name());
                }
            }
            let leases = self.control_plane.kubectl(["get", "vramleases", "-A", "-o", "name"]).await.ok()?;
            let leases = leases.success().ok()?;
            last += leases.trim();
            last.is_empty().then_some(())
        });
        match free.await {
            Some(()) => Ok(()),
            None => Err(wrong("nothing should be held", last)),
        }
    }

    /// Checks that RBAC never rejected a request of the operator or an agent.
    ///
    /// # Errors
    /// The rejected writes, or a line of a log.
    pub async fn nothing_forbidden(&self) -> Result<(), BurstError> {
        let ours = format!("system:serviceaccount:{NAMESPACE}:");
        let refused = |write: &Write| write.code == 403 && write.user.starts_with(&ours);
        let refused = self.control_plane.audited_writes(refused).await?;
        if !refused.is_empty() {
            return Err(wrong("no write should be forbidden", Tally::of(&refused)));
        }
        for server in std::iter::once(&self.operator).chain(&self.agents) {
            let log = fs::read(server.process.log()).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            if let Some(line) = log.lines().find(|line| line.to_lowercase().contains("forbidden")) {
                return Err(wrong(format!("{} should not be forbidden anything", server.process.name()), line));
            }
        }
        Ok(())
    }

    /// Checks that a completed burst of [`Burst::of_steps`] counted every index exactly once: the counts of chunks, the sum, and every row of
    /// the results.
    ///
    /// # Errors
    /// The first value that is wrong.
    pub async fn every_index_counted_once(&self, job: &DynamicObject, chunks: u64, count: u32) -> Result<(), BurstError> {
        let counts = ["pending", "running", "succeeded", "failed"].map(|count| number(job, &format!("/status/chunks/{count}")));
        let total = i64::try_from(chunks).unwrap_or(i64::MAX);
        if counts != [0, 0, total, 0] {
            return Err(wrong("pending, running, succeeded, failed", format!("{counts:?}")));
        }
        if number(job, "/status/aggregate/count") != total {
            return Err(wrong(
                format!("the aggregate should cover {total}"),
                &job.data["status"]["aggregate"],
            ));
        }
        let results: Vec<u32> = (0..chunks).map(|index| steps(index as u32, count)).collect();
        let sum: f64 = results.iter().copied().map(f64::from).sum();
        if job.data.pointer("/status/aggregate/values/0").and_then(Value::as_f64) != Some(sum) {
            return Err(wrong(format!("the sum should be {sum}"), &job.data["status"]["aggregate"]));
        }
        let expected: String = std::iter::once("index,output0\n".to_owned())
            .chain(results.iter().enumerate().map(|(index, value)| format!("{index},{value}\n")))
            .collect();
        let found = self.results(job).await?;
        if found != expected {
            let differing = found.lines().zip(expected.lines()).find(|(found, expected)| found != expected);
            return Err(wrong(
                "results.csv should have every index once, with its value",
                format!("{} lines, first difference {differing:?}", found.lines().count()),
            ));
        }
        Ok(())
    }

    /// Returns `results.csv` of a completed burst.
    ///
    /// # Errors
    /// When the burst has no ConfigMap with `results.csv`.
    pub async fn results(&self, job: &DynamicObject) -> Result<String, BurstError> {
        let name = job.data.pointer("/status/results/configMap").and_then(Value::as_str);
        let name = name.ok_or_else(|| wrong("the status should name the results", &job.data["status"]))?;
        let namespace = job.metadata.namespace.as_deref().unwrap_or("default");
        let config_maps: Api<ConfigMap> = Api::namespaced(self.control_plane.client().await?, namespace);
        let found = config_maps.get(name).await.map_err(ControlPlaneError::from)?;
        let csv = found.data.and_then(|mut data| data.remove("results.csv"));
        csv.ok_or_else(|| wrong("the ConfigMap should have results.csv", name))
    }
}
