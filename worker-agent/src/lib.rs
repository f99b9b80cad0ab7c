//! The worker agent: owns the devices of one node, grants slices of their memory, and runs chunks in executor processes.
//!
//! ```text
//!  operator ─► api ─► agent ─► ledger            who holds how many slices of which device, until when
//!                │       └───► dispatch ─► executors ─► executor processes ─► device
//!                └ bursts ───────┘   └──► store      segments of results
//!  API server ◄─ registration                    GpuWorker, heartbeat
//! ```
//!
//! [`agent::Agent`] is the core. It alone changes the [ledger](sahasra_ledger), which is a pure state machine, and applies the effects that
//! the ledger asks for. [`dispatch`] takes chunks from the coordinators' streams and runs them on granted slices through the
//! [`burst_executors`]. [`registration`] reports the worker to the API server; no other module depends on it.

use std::{ffi::OsString, net::SocketAddr, process::ExitCode, sync::Arc};

use anyhow::Context;
use sahasra_access::Access;
use sahasra_service::{
    api_requests::{ApiRequests, user_agent},
    clock::Clock,
    health::Readiness,
    logging, server, shutdown, tasks,
    tls::{Acceptor, RENEW_EVERY},
};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::{CancellationToken, DropGuard};

pub mod agent;
pub mod api;
pub mod args;
pub mod burst_executors;
mod child;
pub mod classes;
pub mod devices;
mod dispatch;
pub mod metrics;
pub mod registration;
pub mod session_executors;
mod store;

use agent::{Agent, Identity, Parts};
use api::{guard::Guard, memory_socket::MemorySocket};
use args::{AgentArguments, Arguments, Command};
use burst_executors::{ExecutorPool, PoolConfig};
use child::sandbox_check;
use registration::{Occupied, Registration, RegistrationConfig};
use sahasra_executor_protocol::program_cache::ProgramCache;
use session_executors::launcher::Launcher;

/// Threads of the Tokio runtime. Two suffice because executors do the work, and each thread costs memory.
const WORKER_THREADS: usize = 2;
/// Limit of bursts that run on this agent at the same time: each has a stream, and an operator opens all of its streams on one connection.
/// An operator retries the streams beyond the limit.
const MAX_STREAMS: u32 = 4096;
/// Timeout for coordinators to read their last frames at shutdown.
const DRAIN_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(3);

/// Runs `sahasra-worker`. The first argument is the name of the program.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let outcome = match sahasra_service::args::parse::<Arguments>(None, arguments).command {
        Command::Executor { arguments } => return sahasra_executor::main(std::iter::once("executor".into()).chain(arguments)),
        Command::Agent(arguments) => start(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sahasra-worker: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(arguments: &AgentArguments) -> anyhow::Result<()> {
    let _log = logging::start(&arguments.log_level, arguments.log_format);
    // This process holds a token and a private key: keep processes with the same uid from reading its memory, and keep the key out of core
    // dumps.
    if let Err(error) = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable) {
        tracing::warn!(%error, "failed to protect the memory of this process from processes with the same uid");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKER_THREADS)
        .max_blocking_threads(8)
        .enable_all()
        .build()
        .context("failed to build the Tokio runtime")?;
    runtime.block_on(async {
        let listener = TcpListener::bind(arguments.listen)
            .await
            .with_context(|| format!("failed to listen on {}", arguments.listen))?;
        let shutdown = shutdown::on_signal().context("failed to register signal handlers")?;
        run(arguments, listener, shutdown).await
    })
}

/// Opens the cache of compiled programs if a PJRT plugin and a cache folder are set. Without a cache, programs are only compiled more
/// often, so an error is logged and otherwise ignored.
fn program_cache(arguments: &AgentArguments) -> Option<ProgramCache> {
    let folder = arguments.pjrt_plugin.as_ref().and(arguments.program_cache_dir.as_ref())?;
    match ProgramCache::open(folder, arguments.program_cache_limit) {
        Ok(cache) => Some(cache),
        Err(error) => {
            tracing::warn!(folder = %folder.display(), %error, "failed to open the program cache: compiled programs are kept in memory only");
            None
        }
    }
}

/// Returns a client of the API server whose requests are counted, and the access checker for session streams.
async fn kubernetes(arguments: &AgentArguments, requests: &ApiRequests) -> anyhow::Result<(kube::Client, Access)> {
    let mut config = match &arguments.kubeconfig {
        Some(path) => {
            let kubeconfig = kube::config::Kubeconfig::read_from(path)?;
            kube::Config::from_custom_kubeconfig(kubeconfig, &kube::config::KubeConfigOptions::default()).await?
        }
        None => kube::Config::incluster()?,
    };
    config.headers.push((http::header::USER_AGENT, user_agent("sahasra-worker")));
    let access = Access::of_api_server(config.clone())?;
    Ok((
        sahasra_kubernetes::client_builder(config)?.with_layer(&requests.layer()).build(),
        access,
    ))
}

/// Serves until `shutdown`, then drains: nothing new starts, running chunks end within the grace, and coordinators receive the results.
///
/// # Errors
/// When there is no device, or the configuration cannot be read. An unreachable API server is no error.
pub async fn run(arguments: &AgentArguments, listener: TcpListener, shutdown: CancellationToken) -> anyhow::Result<()> {
    let classes = match &arguments.device_classes_file {
        Some(path) => {
            let text = std::fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))?;
            classes::ClassTable::parse(&text).with_context(|| format!("invalid device classes file {}", path.display()))?
        }
        None => classes::ClassTable::default(),
    };
    let (requests, metrics) = (ApiRequests::new("agent")?, metrics::Metrics::new()?);
    requests.register(&metrics.registry())?;
    let (client, access) = if arguments.no_kubernetes {
        (None, Access::deny_all())
    } else {
        let reached = kubernetes(arguments, &requests).await;
        let (client, access) = reached.context("failed to configure access to the API server (use --no-kubernetes to run without one)")?;
        (Some(client), access)
    };
    serve(arguments, classes, client, access, metrics, listener, shutdown).await
}

/// Runs an agent as [`run`] does, with classes, client, `access` of streams and metrics from the caller: for agents that share a process
/// with others. Reads no environment variables, and no files except those of the certificate.
///
/// # Errors
/// When there is no device, or the certificate cannot be used.
#[tracing::instrument(level = "error", name = "agent", skip_all, fields(worker = arguments.node_name))]
pub async fn serve(
    arguments: &AgentArguments,
    classes: classes::ClassTable,
    client: Option<kube::Client>,
    access: Access,
    metrics: metrics::Metrics,
    listener: TcpListener,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let acceptor = arguments.tls().map(Acceptor::new).transpose().context("failed to configure TLS")?;
    let config = PoolConfig {
        devices: arguments.devices.clone(),
        idle_timeout: arguments.executor_idle_timeout,
        ..PoolConfig::default()
    };
    let program = config.program.clone();
    let memory_socket = MemorySocket::bind()
        .inspect_err(|error| tracing::warn!(%error, "failed to listen on a Unix socket: clients on this machine share no memory with their sessions"))
        .ok();
    let socket_name = memory_socket.as_ref().map(|socket| socket.name().to_owned());
    let (plugin, cache) = (arguments.pjrt_plugin.clone(), program_cache(arguments));
    let launcher = Launcher::start(program.clone(), plugin, cache, socket_name).await;
    let launcher = launcher.context("failed to spawn the thread that starts executors")?;
    let pool = ExecutorPool::start(config).await?;
    let gpu = pool.devices().iter().any(|device| device.kind.is_gpu());
    sandbox_check::check(&program, gpu, arguments.require_sandbox).await?;
    let bound = listener.local_addr()?;
    let agent = Agent::new(
        Identity {
            worker: arguments.node_name.as_str().into(),
            classes,
        },
        Parts::new(
            agent::new_boot_id().context("failed to generate the boot id")?,
            pool,
            metrics,
            arguments.stores.policy(),
        ),
        arguments.drain_timeout,
        Arc::new(launcher),
        Clock::default(),
    );
    tracing::info!(address = %bound, tls = acceptor.is_some(), boot = agent.parts.boot_id.as_str(), "serving");

    let readiness = Readiness::default();
    let stop = CancellationToken::new();
    let expiry = tasks::spawn(Arc::clone(&agent).keep_time(stop.clone()));
    let sessions = tasks::spawn(Arc::clone(&agent).keep_sessions(stop.clone()));
    let sharing = memory_socket.map(|socket| tasks::spawn(socket.serve(Arc::clone(&agent), stop.clone())));
    let guard = match &arguments.operator_token {
        Some(token) => Guard::Token(token.as_str().into()),
        None if arguments.client_ca_file.is_some() => Guard::Certificate,
        None => Guard::Open,
    };
    let service = warp::service(api::routes(Arc::clone(&agent), access, guard, readiness.clone()));
    let limits = server::Limits {
        streams: MAX_STREAMS,
        ..server::Limits::default()
    };
    let stopping = stop.clone();
    let server = tasks::spawn(async move {
        let Some(acceptor) = acceptor else {
            return server::serve(listener, server::Cleartext, service, limits, stopping).await;
        };
        let renewing = acceptor.clone();
        tokio::select! {
            () = server::serve(listener, acceptor, service, limits, stopping) => {}
            () = renewing.renew(RENEW_EVERY) => {}
        }
    });
    // Cancelled when registration ends, which happens when another agent owns the node: this agent then stops.
    let ended = CancellationToken::new();
    let registration = client.map(|client| register(arguments, bound, &agent, client, shutdown.clone(), ended.clone().drop_guard()));

    tokio::select! {
        () = shutdown.cancelled() => {}
        () = ended.cancelled(), if registration.is_some() => {}
    }
    readiness.not_ready("shutdown");
    agent.drain(DRAIN_TIMEOUT).await;
    stop.cancel();
    server.await.context("server task failed")?;
    expiry.await.context("expiry task failed")?;
    sessions.await.context("session task failed")?;
    if let Some(sharing) = sharing {
        sharing.await.context("shared memory task failed")?;
    }
    let registered = match registration {
        Some(registration) => registration.await.context("registration task failed")?,
        None => Ok(()),
    };
    agent.parts.pool.shut_down();
    registered?;
    tracing::info!("stopped");
    Ok(())
}

/// Starts the registration with the API server, which runs until `stop`. Drops `ended` at its end.
fn register(
    arguments: &AgentArguments,
    bound: SocketAddr,
    agent: &Arc<Agent>,
    client: kube::Client,
    stop: CancellationToken,
    ended: DropGuard,
) -> JoinHandle<Result<(), Occupied>> {
    let config = RegistrationConfig {
        node_name: arguments.node_name.as_str().into(),
        namespace: arguments.namespace.clone(),
        endpoint: arguments.endpoint(bound),
        heartbeat_interval: arguments.heartbeat_interval,
        status_interval: arguments.status_update_interval,
    };
    let registration = Registration::new(config, Arc::clone(agent), client);
    tasks::spawn(async move {
        let _ended = ended;
        registration.run(stop).await
    })
}
