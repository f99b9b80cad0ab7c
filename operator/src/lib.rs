//! The operator: makes what users wrote into VRAM lent and chunks run.
//!
//! ```text
//!  kube-apiserver ─watch─► directory (GpuWorkers, heartbeats) ─► pool ─acquire, renew, release─► agents
//!        │                                                        │ ClaimView                     ▲
//!        └───────watch─► reconcilers: burst ─► coordinators ◄─────┘                               │
//!                                     vram_lease, gpu_worker  └────────── burst streams ──────────┘
//! ```
//!
//! - [`agents`]: calls and streams to the worker-agents, and which of them live.
//! - [`pool`]: every device and grant; solves, acquires, renews, gives back.
//! - [`burst`]: `BurstJob`s, from validation to counted results.
//! - [`vram_lease`], [`gpu_worker`]: the other two reconcilers.
//! - [`leader`]: one operator of several acts. [`http`]: what this process serves.
//!
//! Only the leader watches and acts; one that loses its office ends.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use kube::{
    Client, Config,
    runtime::events::{Recorder, Reporter},
};
use sahasra_service::{health::Readiness, server, shutdown};
use sahasra_store::StorePolicy;
use tokio::net::TcpListener;

pub mod agents;
pub mod args;
pub mod burst;
pub mod clock;
pub mod context;
pub mod fault;
pub mod gpu_worker;
pub mod http;
pub mod leader;
pub mod metrics;
pub mod pool;
pub mod queue;
pub mod vram_lease;

use agents::{AgentClient, Directory};
use args::Args;
use clock::Clock;
use context::Context;
use fault::Faults;
use leader::Candidate;
use metrics::Metrics;
use pool::Pool;

/// How long the last writes may take when the process is told to stop.
const FAREWELL: Duration = Duration::from_secs(2);

/// Runs until told to stop, or until the office is lost (an error).
pub async fn run(args: Args) -> anyhow::Result<()> {
    let stop = shutdown::on_signal().context("watch for signals")?;
    let client = client().await?;
    let metrics = Arc::new(Metrics::new().context("register metrics")?);
    let directory = Arc::new(Directory::new(args.worker_timeout));
    let (agents, clock, faults) = (AgentClient::default(), Clock::default(), Faults::at(args.fail_at));
    let pool = Pool::new(agents.clone(), directory.clone(), clock, faults, metrics.clone());
    let reporter = Reporter {
        controller: "sahasra-operator".to_owned(),
        instance: Some(args.identity.clone()),
    };
    let context = Arc::new(Context {
        recorder: Recorder::new(client.clone(), reporter),
        client: client.clone(),
        agents,
        directory: directory.clone(),
        pool: pool.clone(),
        metrics: metrics.clone(),
        stores: StorePolicy {
            file_root: args.file_store_root.clone(),
        },
        faults,
        clock,
    });

    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("listen on {}", args.listen))?;
    let readiness = Readiness::waiting_for(&["leader", "workers"]);
    let service = warp::service(http::routes(directory.clone(), metrics, readiness.clone()));
    let limits = server::Limits {
        drain_timeout: FAREWELL,
        ..server::Limits::default()
    };
    let server = tokio::spawn(server::serve(listener, server::Cleartext, service, limits, stop.clone()));
    tracing::info!(listen = %args.listen, identity = args.identity, namespace = args.namespace, "started");

    let candidate = Candidate::new(client.clone(), &args.namespace, &args.identity, args.leader_timeout);
    let Some(office) = candidate.win(&stop).await else {
        return server.await.context("serve");
    };
    readiness.ready("leader");
    let (synced, workers_known) = tokio::sync::oneshot::channel();
    let watching = {
        let (directory, client, namespace) = (directory.clone(), client.clone(), args.namespace.clone());
        let ready = readiness.clone();
        async move {
            directory
                .run(client, &namespace, move || {
                    ready.ready("workers");
                    let _ = synced.send(());
                })
                .await;
        }
    };
    let reconciling = async move {
        // Who is there must be known before anything is claimed or given back.
        if workers_known.await.is_ok() {
            tokio::join!(
                burst::reconcile::run(context.clone()),
                vram_lease::run(context.clone()),
                gpu_worker::run(context.clone()),
            );
        }
    };
    let tasks = [tokio::spawn(watching), tokio::spawn(pool.run()), tokio::spawn(reconciling)];
    let outcome = candidate.keep(office, &stop).await;
    for task in &tasks {
        task.abort();
    }
    outcome.context("lead")?;
    server.await.context("serve")
}

/// From `KUBECONFIG`, `~/.kube/config`, or the pod's service account.
async fn client() -> anyhow::Result<Client> {
    let mut config = Config::infer().await.context("find the cluster")?;
    // A watch is quiet for minutes; a write that takes longer than this is better tried again.
    config.connect_timeout = Some(Duration::from_secs(5));
    Client::try_from(config).context("make a client")
}
