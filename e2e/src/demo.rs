//! `make demo`: the hyperparameter search, from nothing to the verified best configuration and back to nothing.
//!
//! It does what a user would, with the user's own commands shown, on a control plane, an operator and two agents that are
//! processes of this machine and gone at the end.

use std::io::{self, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use kube::api::DynamicObject;
use serde_json::Value;
use tokio::process::Command;

use crate::control_plane::{ControlPlaneError, true_condition};
use crate::eventually::eventually;
use crate::kubectl::{CommandError, Output};
use crate::pool::{Pool, PoolError, PoolOptions};
use crate::process::ProcessError;
use crate::tools::{self, ToolError};

/// The example's folder and its job's name.
const EXAMPLE: &str = "hyperparameter-search";
/// The search takes seconds; a machine under load gets minutes.
const COMPLETE_WITHIN: Duration = Duration::from_secs(300);
/// Time between two looks at the burst.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// A released slice is free at once; a deleted owner's within a quarter second. This is for a machine under load.
const FREE_WITHIN: Duration = Duration::from_secs(30);
/// A process that is asked to end drains first.
const END_WITHIN: Duration = Duration::from_secs(30);

/// Why the demonstration did not reach its end.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// A program could not be built or found.
    #[error("build")]
    Tool(#[from] ToolError),
    /// Sahasra did not start.
    #[error("start Sahasra")]
    Pool(#[from] PoolError),
    /// The control plane failed.
    #[error("control plane")]
    ControlPlane(#[from] ControlPlaneError),
    /// A command failed.
    #[error("run a command")]
    Command(#[from] CommandError),
    /// A process did not end as asked.
    #[error("end a process")]
    Process(#[from] ProcessError),
    /// Nothing could be printed.
    #[error("print")]
    Print(#[from] io::Error),
    /// The burst failed, or took too long.
    #[error("the burst did not complete: {0}")]
    Burst(String),
    /// The host check disagrees with the burst.
    #[error("the independent check on the host does not agree with the burst")]
    Check,
    /// Something was still held at the end.
    #[error("not everything was given back: {0}")]
    Held(String),
}

/// Runs the demonstration, telling what happens on standard output.
///
/// # Errors
/// When any step fails; the logs of all processes are then kept and their ends shown on stderr.
pub async fn run() -> Result<(), DemoError> {
    let started = Instant::now();
    let screen = Screen { started };
    screen.title("Sahasra: 1000 training runs on borrowed VRAM")?;
    screen.step("building the operator, the agent and a Kubernetes control plane, unless they are there")?;
    tools::binaries().await?;
    tools::kubectl().await?;
    tools::helm().await?;
    screen.step("starting etcd, kube-apiserver, the operator and two agents")?;
    let pool = Pool::start(PoolOptions::default()).await?;
    let outcome = perform(&screen, &pool).await;
    if outcome.is_err() {
        pool.report();
        pool.control_plane.keep();
    } else {
        take_down(&screen, pool).await?;
    }
    outcome
}

async fn perform(screen: &Screen, pool: &Pool) -> Result<(), DemoError> {
    screen.step(&format!("ready: the API server is {}", pool.control_plane.server()))?;
    show(screen, pool, "get gpuworkers").await?;

    show(screen, pool, &format!("apply --server-side -f examples/{EXAMPLE}/")).await?;
    let job = follow(screen, pool).await?;
    show(screen, pool, "get burstjobs,vramleases,gpuworkers").await?;

    best(screen, &job)?;
    check(screen, pool).await?;

    show(screen, pool, &format!("delete burstjob {EXAMPLE}")).await?;
    nothing_held(screen, pool).await
}

/// Prints progress until the job has ended; the finished job.
async fn follow(screen: &Screen, pool: &Pool) -> Result<DynamicObject, DemoError> {
    screen.title("  seconds   slices held   chunks done   failed   retried")?;
    let started = Instant::now();
    let mut last = String::new();
    loop {
        let job = burst_job(pool).await?;
        let line = progress(&job, pool).await;
        if line != last {
            screen.line(&format!("{:>9.1}   {line}", started.elapsed().as_secs_f64()))?;
            last = line;
        }
        if condition(&job, "Complete").is_some() {
            screen.title(&format!("Complete {:.1} s after it was applied.", started.elapsed().as_secs_f64()))?;
            return Ok(job);
        }
        if let Some(failed) = condition(&job, "Failed") {
            return Err(DemoError::Burst(failed));
        }
        if started.elapsed() > COMPLETE_WITHIN {
            let status = job.data.get("status").map(Value::to_string).unwrap_or_default();
            return Err(DemoError::Burst(format!(
                "it was still running after {COMPLETE_WITHIN:?}: {status}"
            )));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The object is written at most every few seconds: what happens in between is in the operator's metrics.
async fn progress(job: &DynamicObject, pool: &Pool) -> String {
    let count = |name: &str| {
        job.data
            .pointer(&format!("/status/chunks/{name}"))
            .and_then(Value::as_u64)
            .unwrap_or(0)
    };
    let metric = async |name: &str| pool.operator.metric(name).await.ok().flatten().unwrap_or(0.0);
    let held = metric("gpu_leases_active").await;
    let done = metric("chunks_done").await.max(count("succeeded") as f64);
    let retried = metric("chunks_retry_total").await.max(count("retried") as f64);
    format!("{held:>11.0}   {done:>11.0}   {:>6}   {retried:>7.0}", count("failed"))
}

async fn burst_job(pool: &Pool) -> Result<DynamicObject, DemoError> {
    let job = pool.control_plane.object("BurstJob", "default", EXAMPLE).await?;
    job.ok_or_else(|| DemoError::Burst("it is gone".to_owned()))
}

/// Reason and message of a condition that is `True`.
fn condition(job: &DynamicObject, kind: &str) -> Option<String> {
    let condition = true_condition(job, kind)?;
    Some(format!("{}: {}", condition["reason"].as_str()?, condition["message"].as_str()?))
}

fn best(screen: &Screen, job: &DynamicObject) -> Result<(), DemoError> {
    let best = job.data.pointer("/status/aggregate/best/0");
    let best = best.ok_or_else(|| DemoError::Burst("its status names no best chunk".to_owned()))?;
    let loss = single(&best["value"]);
    screen.title(&format!("Best configuration: chunk {} with validation loss {loss}", best["index"]))?;
    let parameters = best["parameters"].as_object().into_iter().flatten();
    for (name, value) in parameters {
        screen.line(&format!("    {name:<14} {}", single(value)))?;
    }
    Ok(())
}

/// The kernel computes in single precision: its 0.1 stands as 0.10000000149 in JSON.
fn single(value: &Value) -> String {
    value.as_f64().map_or_else(|| value.to_string(), |value| (value as f32).to_string())
}

/// Runs the example's own check: all configurations again, on the host, by another program.
async fn check(screen: &Screen, pool: &Pool) -> Result<(), DemoError> {
    screen.command(&format!("examples/check {EXAMPLE}"))?;
    let program = tools::workspace_root().join("examples/check");
    let status = Command::new(&program)
        .arg(EXAMPLE)
        .env("KUBECONFIG", pool.control_plane.kubeconfig())
        .env("KUBECTL", tools::kubectl().await?)
        .stdin(Stdio::null())
        .status()
        .await
        .map_err(|source| CommandError::Run { program, source })?;
    if status.success() { Ok(()) } else { Err(DemoError::Check) }
}

/// Waits until no object, no operator and no agent knows of a lease.
async fn nothing_held(screen: &Screen, pool: &Pool) -> Result<(), DemoError> {
    let free = eventually(FREE_WITHIN, async || {
        let leases = pool
            .control_plane
            .kubectl(["get", "vramleases", "-A", "-o", "name"])
            .await
            .ok()?
            .success()
            .ok()?;
        let active = pool.operator.metric("gpu_leases_active").await.ok()?;
        let mut allocated = 0.0;
        for agent in &pool.agents {
            allocated += agent.metric("gpu_vram_allocated_bytes").await.ok()?.unwrap_or(0.0);
        }
        (leases.is_empty() && active == Some(0.0) && allocated == 0.0).then_some(())
    });
    if free.await.is_none() {
        let leases = pool.control_plane.kubectl(["get", "vramleases", "-A"]).await?;
        return Err(DemoError::Held(leases.to_string()));
    }
    show(screen, pool, "get vramleases -A").await?;
    screen.line("No lease is left: gpu_leases_active is 0 at the operator, gpu_vram_allocated_bytes is 0 at both agents.")?;
    Ok(())
}

async fn take_down(screen: &Screen, mut pool: Pool) -> Result<(), DemoError> {
    for server in pool.agents.iter_mut().chain(std::iter::once(&mut pool.operator)) {
        server.process.terminate(END_WITHIN).await?;
    }
    drop(pool);
    screen.step("operator, agents and control plane have ended; nothing is left running")
}

/// Runs kubectl as the user would and shows both.
async fn show(screen: &Screen, pool: &Pool, arguments: &str) -> Result<Output, DemoError> {
    screen.command(&format!("kubectl {arguments}"))?;
    let output = pool.control_plane.kubectl(arguments.split(' ')).await?;
    screen.output(&output.stdout)?;
    if output.is_success() {
        screen.output(&output.stderr)?;
        Ok(output)
    } else {
        Err(CommandError::Failed(output).into())
    }
}

struct Screen {
    started: Instant,
}

impl Screen {
    fn line(&self, text: &str) -> Result<(), DemoError> {
        Ok(writeln!(io::stdout(), "{text}")?)
    }

    fn title(&self, text: &str) -> Result<(), DemoError> {
        self.line(&format!("\n{text}"))
    }

    fn step(&self, text: &str) -> Result<(), DemoError> {
        self.line(&format!("[{:>5.1} s] {text}", self.started.elapsed().as_secs_f64()))
    }

    fn command(&self, text: &str) -> Result<(), DemoError> {
        self.line(&format!("\n$ {text}"))
    }

    fn output(&self, text: &str) -> Result<(), DemoError> {
        for line in text.lines() {
            self.line(&format!("  {line}"))?;
        }
        Ok(())
    }
}
