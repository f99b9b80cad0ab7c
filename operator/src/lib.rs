//! The operator: reconciles the objects that users create, grants them VRAM of the workers, and runs the chunks of bursts.
//!
//! ```text
//!  kube-apiserver ─watch─► directory (GpuWorkers, heartbeats) ─► pool ─acquire, renew, release─► agents
//!        │                                                        │ ClaimView                     ▲
//!        └───────watch─► reconcilers: burst ─► coordinators ◄─────┘                               │
//!                     gpu_session, vram_lease, gpu_worker      └────────── burst streams ──────────┘
//! ```
//!
//! - [`agents`]: calls and streams to the worker agents, and the directory of live workers.
//! - [`pool`]: all devices and grants. Computes placements, acquires, renews and releases slices.
//! - [`burst`]: `BurstJob`s, from validation to counted results.
//! - [`gpu_session`], [`vram_lease`], `gpu_worker`: the reconcilers of the other kinds.
//! - `leases`: what bursts and other leases have in common: owner, bounds, status and release of their slices.
//! - [`leader`]: leader election among several operators. [`http`]: the HTTP endpoints. `uninstall_check`: whether the operator can be
//!   uninstalled.
//!
//! Only the leader watches objects and acts on them. An operator that loses leadership exits.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use kube::{
    Client, Config,
    runtime::events::{Recorder, Reporter},
};
use sahasra_crds::vram_lease::{MAX_LEASE_SECONDS, MIN_LEASE_SECONDS};
use sahasra_service::{
    api_requests::ApiRequests,
    health::Readiness,
    server, shutdown, tasks,
    tls::{Connector, RENEW_EVERY},
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub mod agents;
mod api_client;
pub mod args;
pub mod burst;
pub mod clock;
pub mod context;
pub mod fault;
pub mod gpu_session;
mod gpu_worker;
pub mod http;
pub mod leader;
mod leases;
mod metrics;
mod objects;
pub mod pool;
mod queue;
mod uninstall_check;
pub mod vram_lease;

use agents::{AgentClient, Directory, Http2};
use args::{Args, Command};
use clock::Clock;
pub use context::Settings;
use context::{Caches, Context};
use fault::Faults;
use leader::{Candidate, LeaderError};
use leases::Releases;
use metrics::Metrics;
use pool::Pool;

/// Drain timeout of the HTTP server when the process is stopped.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Default limit of the memory for the PTX and inputs of all bursts: room for three bursts of the largest size, 56 MiB. The Helm chart
/// limits the operator to 512 MiB.
pub const INPUT_BYTES: u64 = 192 << 20;

/// Shortest and longest TTL that the API accepts for a lease.
const SESSION_LEASE: (Duration, Duration) = (Duration::from_secs(MIN_LEASE_SECONDS), Duration::from_secs(MAX_LEASE_SECONDS));

/// The operator without its HTTP endpoints.
pub struct Operator {
    context: Arc<Context>,
    candidate: Candidate,
}

impl Operator {
    /// Creates an operator, which is idle until [`Operator::run`] is called.
    pub fn new(client: Client, agents: AgentClient, clock: Clock, mut settings: Settings) -> Result<Self, prometheus::Error> {
        settings.session_lease = settings.session_lease.clamp(SESSION_LEASE.0, SESSION_LEASE.1);
        let metrics = Arc::new(Metrics::new()?);
        let directory = Arc::new(Directory::new(
            settings.worker_timeout,
            Candidate::api_timeout(settings.leader_timeout),
        ));
        let pool = Pool::new(agents.clone(), directory.clone(), clock, settings.faults, metrics.clone());
        let reporter = Reporter {
            controller: "sahasra-operator".to_owned(),
            instance: Some(settings.identity.clone()),
        };
        Ok(Self {
            candidate: Candidate::new(client.clone(), &settings.namespace, &settings.identity, settings.leader_timeout),
            context: Arc::new(Context {
                recorder: Recorder::new(client.clone(), reporter),
                client,
                agents,
                directory,
                releases: Releases::new(pool.clone()),
                pool,
                metrics,
                caches: Caches::default(),
                settings,
                clock,
            }),
        })
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Waits for leadership, then reconciles until `stop` is cancelled.
    pub async fn run(self, readiness: Readiness, stop: &CancellationToken) -> Result<(), LeaderError> {
        let Self { context, candidate } = self;
        let Some(lease) = candidate.win(stop).await else { return Ok(()) };
        readiness.ready("leader");
        let transitions = lease.spec.as_ref().and_then(|spec| spec.lease_transitions);
        let (counter, total) = (&context.metrics.leader_transitions, transitions.unwrap_or_default());
        counter.inc_by(u64::try_from(total).unwrap_or_default().saturating_sub(counter.get()));
        context.metrics.leader.set(1);
        let (synced, workers_known) = tokio::sync::oneshot::channel();
        let watching = {
            let context = context.clone();
            async move {
                let known = move || {
                    readiness.ready("workers");
                    let _ = synced.send(());
                };
                let (directory, client) = (context.directory.clone(), context.client.clone());
                directory.run(client, &context.settings.namespace, known).await;
            }
        };
        let (pool, metrics, directory) = (context.pool.clone(), context.metrics.clone(), context.directory.clone());
        let reconciling = async move {
            // The directory must know all workers before slices are claimed or released.
            if workers_known.await.is_ok() {
                context.pool.observe();
                tokio::join!(
                    burst::reconcile::run(context.clone()),
                    vram_lease::run(context.clone()),
                    gpu_session::run(context.clone()),
                    gpu_worker::run(context.clone()),
                );
            }
        };
        let tasks = [tasks::spawn(watching), tasks::spawn(pool.run()), tasks::spawn(reconciling)];
        let outcome = candidate.keep(lease, stop, || directory.api_server_answered()).await;
        metrics.leader.set(0);
        for task in &tasks {
            task.abort();
        }
        outcome
    }
}

/// Runs the operator until a signal stops it, or until it loses leadership, which is an error.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let requests = ApiRequests::new("operator").context("failed to create metrics")?;
    if let Some(Command::UninstallCheck { timeout }) = args.command {
        return uninstall_check::run(&client(&requests).await?, timeout).await;
    }
    let stop = shutdown::on_signal().context("failed to install signal handlers")?;
    let settings = Settings {
        identity: args.leader_elect_identity.clone(),
        namespace: args.namespace.clone(),
        worker_timeout: args.heartbeat_timeout,
        leader_timeout: args.leader_elect_lease_duration,
        session_lease: args.session_lease_ttl,
        input_bytes: args.input_memory_limit,
        stores: args.stores.policy(),
        faults: Faults::at(args.failpoint),
    };
    let tls = args
        .trust()
        .map(Connector::new)
        .transpose()
        .context("failed to load --worker-ca-file")?;
    let agents = AgentClient::over(Arc::new(Http2::new(tls.clone())));
    let operator = Operator::new(client(&requests).await?, agents, Clock::default(), settings).context("failed to register metrics")?;
    if let Some(tls) = tls {
        tokio::spawn(async move { tls.renew(RENEW_EVERY).await });
    }
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("failed to listen on {}", args.listen))?;
    let readiness = Readiness::waiting_for(&["leader", "workers"]);
    let context = operator.context();
    requests
        .register(&context.metrics.registry())
        .context("failed to register metrics")?;
    let service = warp::service(http::routes(context.clone(), readiness.clone()));
    let limits = server::Limits {
        drain_timeout: DRAIN_TIMEOUT,
        ..server::Limits::default()
    };
    let server = tokio::spawn(server::serve(listener, server::Cleartext, service, limits, stop.clone()));
    tracing::info!(listen = %args.listen, identity = args.leader_elect_identity, namespace = args.namespace, "started");
    operator.run(readiness, &stop).await.context("leader election failed")?;
    server.await.context("HTTP server failed")
}

/// Connects to the cluster of `KUBECONFIG`, `~/.kube/config`, or the pod's service account.
async fn client(requests: &ApiRequests) -> anyhow::Result<Client> {
    let config = Config::infer().await.context("failed to find the cluster configuration")?;
    api_client::connect(config, requests).context("failed to create the API client")
}
