//! The operator: makes what users wrote into VRAM lent and chunks run.
//!
//! ```text
//!  kube-apiserver ─watch─► directory (GpuWorkers, heartbeats) ─► pool ─acquire, renew, release─► agents
//!        │                                                        │ ClaimView                     ▲
//!        └───────watch─► reconcilers: burst ─► coordinators ◄─────┘                               │
//!                     gpu_session, vram_lease, gpu_worker      └────────── burst streams ──────────┘
//! ```
//!
//! - [`agents`]: calls and streams to the worker-agents, and which of them live.
//! - [`pool`]: every device and grant; solves, acquires, renews, gives back.
//! - [`burst`]: `BurstJob`s, from validation to counted results.
//! - [`gpu_session`], [`vram_lease`], [`gpu_worker`]: the other reconcilers.
//! - [`leader`]: one operator of several acts. [`http`]: what this process serves. [`uninstall_check`]: whether it may go.
//!
//! Only the leader watches and acts; one that loses leadership ends.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use kube::{
    Client, Config,
    runtime::events::{Recorder, Reporter},
};
use sahasra_service::{
    api_requests::ApiRequests,
    health::Readiness,
    part, server, shutdown,
    tls::{Connector, RENEW_EVERY},
};
use sahasra_store::StorePolicy;
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
pub mod gpu_worker;
pub mod http;
pub mod leader;
pub mod metrics;
pub(crate) mod objects;
pub mod pool;
pub mod queue;
pub mod uninstall_check;
pub mod vram_lease;

use agents::{AgentClient, Directory, Http2};
use args::{Args, Command};
use burst::intake::Intake;
use clock::Clock;
use context::Context;
use fault::Faults;
use leader::{Candidate, LeaderError};
use metrics::{Caches, Metrics};
use pool::Pool;

/// How long the last writes may take when the process is told to stop.
const FAREWELL: Duration = Duration::from_secs(2);

/// Memory for PTX and inputs of bursts by default: three of the largest, and half of what the chart gives this process.
pub const INPUT_BYTES: u64 = 192 << 20;

/// What the API allows of a lease.
const SESSION_LEASE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(86_400));

/// How an operator is called, and how patient it is.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Who it is among several operators.
    pub identity: String,
    /// Namespace of the leader `Lease` and of the heartbeats.
    pub namespace: String,
    /// A worker is stale after so long without a heartbeat.
    pub worker_timeout: Duration,
    /// A leader is replaced after so long without a sign of life.
    pub leader_timeout: Duration,
    /// How long a session's slice lasts from each renewal; from 5 s to a day, as the API has it.
    pub session_lease: Duration,
    /// Which stores jobs may name.
    pub stores: StorePolicy,
    /// Most bytes of PTX and inputs that all bursts together hold here.
    pub input_bytes: u64,
    /// Where to die, in tests.
    pub faults: Faults,
}

/// Everything of an operator but what it serves.
pub struct Operator {
    context: Arc<Context>,
    candidate: Candidate,
    namespace: String,
}

impl Operator {
    /// An operator that does nothing yet.
    ///
    /// # Errors
    /// When a metric cannot be registered.
    pub fn new(client: Client, agents: AgentClient, clock: Clock, settings: Settings) -> Result<Self, prometheus::Error> {
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
                intake: Intake::new(client.clone(), settings.stores.clone(), settings.input_bytes),
                client,
                agents,
                directory,
                pool,
                metrics,
                caches: Caches::default(),
                session_lease: settings.session_lease.clamp(SESSION_LEASE.0, SESSION_LEASE.1),
                stores: settings.stores,
                faults: settings.faults,
                clock,
            }),
            namespace: settings.namespace,
        })
    }

    /// What its reconcilers share.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Waits for leadership, and reconciles while it leads, until `stop`.
    ///
    /// # Errors
    /// When leadership is lost.
    pub async fn run(self, readiness: Readiness, stop: &CancellationToken) -> Result<(), LeaderError> {
        let Self {
            context,
            candidate,
            namespace,
        } = self;
        let Some(lease) = candidate.win(stop).await else { return Ok(()) };
        readiness.ready("leader");
        let transitions = lease.spec.as_ref().and_then(|spec| spec.lease_transitions);
        context.metrics.leader_transitions.set(transitions.unwrap_or_default().into());
        context.metrics.leader.set(1);
        let (synced, workers_known) = tokio::sync::oneshot::channel();
        let watching = {
            let (directory, client) = (context.directory.clone(), context.client.clone());
            async move {
                directory
                    .run(client, &namespace, move || {
                        readiness.ready("workers");
                        let _ = synced.send(());
                    })
                    .await;
            }
        };
        let (pool, metrics, directory) = (context.pool.clone(), context.metrics.clone(), context.directory.clone());
        let reconciling = async move {
            // All workers have to be known before slices are claimed or released.
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
        let tasks = [part::spawn(watching), part::spawn(pool.run()), part::spawn(reconciling)];
        let outcome = candidate.keep(lease, stop, || directory.api_server_answered()).await;
        metrics.leader.set(0);
        for task in &tasks {
            task.abort();
        }
        outcome
    }
}

/// Runs until a signal, or until leadership is lost (an error).
pub async fn run(args: Args) -> anyhow::Result<()> {
    let requests = ApiRequests::new().context("make metrics")?;
    if let Some(Command::UninstallCheck { within }) = args.command {
        return uninstall_check::run(&client(&requests).await?, within).await;
    }
    let stop = shutdown::on_signal().context("watch for signals")?;
    let settings = Settings {
        identity: args.identity.clone(),
        namespace: args.namespace.clone(),
        worker_timeout: args.worker_timeout,
        leader_timeout: args.leader_timeout,
        session_lease: args.session_lease,
        input_bytes: args.input_memory_mib << 20,
        stores: args.stores.policy(),
        faults: Faults::at(args.fail_at),
    };
    let tls = args.trust().map(Connector::new).transpose().context("--worker-authority")?;
    let agents = AgentClient::over(Arc::new(Http2::new(tls.clone())));
    let operator = Operator::new(client(&requests).await?, agents, Clock::default(), settings).context("register metrics")?;
    if let Some(tls) = tls {
        tokio::spawn(async move { tls.renew(RENEW_EVERY).await });
    }
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("listen on {}", args.listen))?;
    let readiness = Readiness::waiting_for(&["leader", "workers"]);
    let context = operator.context();
    requests.register(&context.metrics.registry()).context("register metrics")?;
    let service = warp::service(http::routes(context.clone(), readiness.clone()));
    let limits = server::Limits {
        drain_timeout: FAREWELL,
        ..server::Limits::default()
    };
    let server = tokio::spawn(server::serve(listener, server::Cleartext, service, limits, stop.clone()));
    tracing::info!(listen = %args.listen, identity = args.identity, namespace = args.namespace, "started");
    operator.run(readiness, &stop).await.context("lead")?;
    server.await.context("serve")
}

/// From `KUBECONFIG`, `~/.kube/config`, or the pod's service account.
async fn client(requests: &ApiRequests) -> anyhow::Result<Client> {
    let config = Config::infer().await.context("find the cluster")?;
    api_client::connect(config, requests).context("make a client")
}
