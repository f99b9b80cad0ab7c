//! A whole Sahasra in this process: an embedded control plane, one operator, some agents.
//!
//! Operator and agents are the same as in a cluster and speak the same protocol, over loopback. Only the API server is
//! another one: `sahasra_local`. Executors are processes of their own, made from this program.

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::{api::core::v1::Namespace, jiff::Timestamp};
use kube::{Api, Client, api::PostParams};
use sahasra_access::Access;
use sahasra_local::{ControlPlane, Options};
use sahasra_operator::{
    Operator, Settings,
    agents::{AgentClient, Http2},
    clock::Clock,
    context::Context,
    fault::Faults,
};
use sahasra_service::{health::Readiness, logging::LogFormat};
use sahasra_store::{StoreArgs, endpoints};
use sahasra_worker::{
    args::{AgentArguments, CpuEngineChoice},
    classes::{ClassRule, ClassTable},
};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;

/// Namespace of the parts' own objects.
pub const SYSTEM_NAMESPACE: &str = "sahasra-system";
/// The parts are ready in milliseconds; a machine under load gets this.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Time between two looks at something that is about to change.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Changes that a watch may lag behind: each holds an object as it was, some kilobytes, in a process that may stay up for months.
const WATCH_HISTORY: usize = 1000;
/// Grace of running chunks when the pool ends. Short: their results are no longer wanted.
const GRACE: Duration = Duration::from_secs(1);
/// Compiled programs that are kept on disk, in bytes.
const PROGRAM_CACHE_BYTES: u64 = 2 << 30;

/// Why there is no pool.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The system gave no randomness.
    #[error("no random source for a token")]
    Random(#[source] std::io::Error),
    /// No port, or none on loopback.
    #[error("cannot listen on loopback")]
    Listen(#[source] std::io::Error),
    /// A part did not start.
    #[error("the operator did not start")]
    Operator(#[source] prometheus::Error),
    /// The embedded API refused a part's own object.
    #[error("the embedded control plane did not start")]
    ControlPlane(#[source] Box<kube::Error>),
    /// An agent ended.
    #[error("a worker did not start: {0}")]
    Worker(String),
    /// Not ready in time.
    #[error("the pool was not ready after {} s", READY_WITHIN.as_secs())]
    NotReady,
}

/// One worker to be started.
#[derive(Clone, Debug)]
pub struct WorkerSettings {
    /// Class of its devices; what the hardware suggests when absent.
    pub class: Option<String>,
    /// Devices that the CPU engine plays; `None` for this machine's GPUs.
    pub cpu_devices: Option<u32>,
    /// VRAM of each of those in bytes.
    pub vram_bytes: u64,
}

/// What a pool is made from.
#[derive(Clone, Debug)]
pub struct PoolSettings {
    /// Its workers.
    pub workers: Vec<WorkerSettings>,
    /// Folder below which jobs may name files.
    pub file_store_root: Option<PathBuf>,
    /// PJRT plugin of sessions.
    pub pjrt_plugin: Option<PathBuf>,
    /// Folder of compiled programs of sessions.
    pub program_cache: Option<PathBuf>,
    /// The token with which streams of sessions are opened; when absent none can be opened.
    pub token: Option<String>,
}

impl PoolSettings {
    /// The jobs are those of the user who started this process, and reach no more than that user does.
    fn stores(&self) -> StoreArgs {
        StoreArgs {
            file_store_root: self.file_store_root.clone(),
            store_endpoints: endpoints::of_own_machine(),
        }
    }
}

/// What one device has lent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLedger {
    /// Name of the worker.
    pub worker: String,
    /// Name of the device.
    pub device: String,
    /// Its class.
    pub class: String,
    /// What it may lend, in bytes.
    pub allocatable_bytes: u64,
    /// What it has lent, in bytes, draining included.
    pub leased_bytes: u64,
    /// Slices that it has lent, draining included.
    pub slices: u64,
}

struct Agent {
    name: String,
    endpoint: String,
    stop: CancellationToken,
    task: JoinHandle<anyhow::Result<()>>,
}

/// A running pool.
pub struct Pool {
    control_plane: ControlPlane,
    client: Client,
    operator: Arc<Context>,
    readiness: Readiness,
    agent_client: AgentClient,
    operator_token: String,
    agents: Vec<Agent>,
    stop: CancellationToken,
    leading: JoinHandle<()>,
}

impl Pool {
    /// Starts everything and waits until every worker has told what it has.
    ///
    /// # Errors
    /// [`PoolError`].
    pub async fn start(settings: PoolSettings) -> Result<Self, PoolError> {
        let seed = Timestamp::now().as_nanosecond() as u64 ^ u64::from(std::process::id());
        let control_plane = ControlPlane::new(Options::default().clock(Timestamp::now).seed(seed).watch_history(WATCH_HISTORY));
        let client = control_plane.client("default");
        create_namespace(&client, SYSTEM_NAMESPACE).await?;
        let stop = CancellationToken::new();
        // Every user of this machine can connect to the agents' ports.
        let operator_token = crate::token::random().map_err(PoolError::Random)?;
        let agent_client = AgentClient::over(Arc::new(Http2::default().with_token(&operator_token)));
        let operator = Operator::new(
            client.clone(),
            agent_client.clone(),
            Clock::default(),
            Settings {
                identity: "sahasra".to_owned(),
                namespace: SYSTEM_NAMESPACE.to_owned(),
                // Everything lives and dies with this process: only a machine under great load falls silent.
                worker_timeout: Duration::from_secs(30),
                leader_timeout: Duration::from_secs(60),
                session_lease: Duration::from_secs(60),
                input_bytes: sahasra_operator::INPUT_BYTES,
                stores: settings.stores().policy(),
                faults: Faults::at(None),
            },
        )
        .map_err(PoolError::Operator)?;
        let context = operator.context().clone();
        let readiness = Readiness::waiting_for(&["leader", "workers"]);
        let leading = {
            let (stop, readiness) = (stop.clone(), readiness.clone());
            tokio::spawn(async move {
                if let Err(error) = operator.run(readiness, &stop).await {
                    // The machine slept for longer than the lease duration of the leader election; no other operator is there to lead.
                    tracing::error!(%error, "the operator ended");
                    stop.cancel();
                }
            })
        };
        let mut pool = Self {
            control_plane,
            client,
            operator: context,
            readiness,
            agent_client,
            operator_token,
            agents: Vec::new(),
            stop,
            leading,
        };
        for (number, worker) in settings.workers.iter().enumerate() {
            pool.start_agent(&format!("local-{number}"), worker, &settings).await?;
        }
        pool.ready().await?;
        Ok(pool)
    }

    async fn start_agent(&mut self, name: &str, worker: &WorkerSettings, settings: &PoolSettings) -> Result<(), PoolError> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(PoolError::Listen)?;
        let address = listener.local_addr().map_err(PoolError::Listen)?;
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        let playing: u32 = settings.workers.iter().filter_map(|worker| worker.cpu_devices).sum();
        let arguments = AgentArguments {
            node_name: name.to_owned(),
            namespace: SYSTEM_NAMESPACE.to_owned(),
            listen: address,
            advertise_address: None,
            // On loopback.
            tls_certificate: None,
            tls_key: None,
            tls_client_authority: None,
            no_kubernetes: false,
            kubeconfig: None,
            heartbeat_interval_seconds: Duration::from_secs(5),
            status_interval_seconds: Duration::from_secs(1),
            shutdown_grace_seconds: GRACE,
            class_table: None,
            stores: settings.stores(),
            pjrt_plugin: settings.pjrt_plugin.clone(),
            program_cache: settings.program_cache.clone(),
            program_cache_size: PROGRAM_CACHE_BYTES,
            no_cuda: worker.cpu_devices.is_some(),
            cpu_engine: if worker.cpu_devices.is_some() {
                CpuEngineChoice::Always
            } else {
                CpuEngineChoice::Never
            },
            cpu_devices: worker.cpu_devices.unwrap_or(1),
            cpu_memory: Some(worker.vram_bytes),
            // All devices of this process share its cores.
            cpu_threads: Some(cores.div_ceil(playing.max(1))),
            session_context_memory: None,
            executors_per_device: 8,
            require_executor_walls: false,
            executor_idle_seconds: Duration::from_secs(60),
            log: String::new(),
            log_format: LogFormat::Text,
            operator_token: Some(self.operator_token.clone()),
        };
        let rules = worker.class.iter().map(|class| ClassRule {
            class: class.clone(),
            model: Some("*".to_owned()),
            node_labels: BTreeMap::new(),
            memory: None,
        });
        let classes = ClassTable { classes: rules.collect() };
        let access = settings.token.clone().map_or_else(Access::deny_all, Access::token);
        let (client, stop) = (self.client.clone(), CancellationToken::new());
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let metrics = sahasra_worker::metrics::Metrics::new()?;
            sahasra_worker::serve(&arguments, classes, Some(client), access, metrics, listener, stopped).await
        });
        self.agents.push(Agent {
            name: name.to_owned(),
            endpoint: format!("http://{address}"),
            stop,
            task,
        });
        Ok(())
    }

    /// Waits until the operator leads and knows every worker.
    async fn ready(&mut self) -> Result<(), PoolError> {
        let began = Instant::now();
        loop {
            let known = self.operator.directory.workers();
            let ready = known.iter().filter(|worker| worker.ready.is_ok()).count();
            if self.readiness.is_ready() && ready == self.agents.len() {
                return Ok(());
            }
            if let Some(ended) = self.agents.iter_mut().find(|agent| agent.task.is_finished()) {
                let outcome = (&mut ended.task).await;
                let cause = match outcome {
                    Ok(Ok(())) => "it ended".to_owned(),
                    Ok(Err(error)) => format!("{error:#}"),
                    Err(error) => error.to_string(),
                };
                return Err(PoolError::Worker(cause));
            }
            if began.elapsed() > READY_WITHIN {
                return Err(PoolError::NotReady);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// The embedded API.
    pub fn control_plane(&self) -> &ControlPlane {
        &self.control_plane
    }

    /// A client of it.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// What the operator knows and counts.
    pub fn operator(&self) -> &Arc<Context> {
        &self.operator
    }

    /// What the operator still waits for.
    pub fn readiness(&self) -> &Readiness {
        &self.readiness
    }

    /// Cancelled when the pool cannot go on.
    pub fn stopped(&self) -> &CancellationToken {
        &self.stop
    }

    /// What every device has lent now, as its agent's own ledger tells. An agent that does not answer is named.
    ///
    /// # Errors
    /// The agents that did not answer.
    pub async fn ledger(&self) -> Result<Vec<DeviceLedger>, String> {
        let mut devices = Vec::new();
        for agent in &self.agents {
            let inventory = self.agent_client.inventory(&agent.endpoint).await;
            let inventory = inventory.map_err(|error| format!("{} does not answer: {error}", agent.name))?;
            for device in inventory.devices {
                let grants = inventory.grants.iter().filter(|grant| grant.device == device.name);
                devices.push(DeviceLedger {
                    slices: grants.map(|grant| u64::from(grant.slices)).sum(),
                    worker: agent.name.clone(),
                    device: device.name,
                    class: device.class,
                    allocatable_bytes: device.allocatable_bytes,
                    leased_bytes: device.leased_bytes,
                });
            }
        }
        Ok(devices)
    }

    /// Waits until nothing is lent on any device; the ledgers as they are then, or as they are when the time is over.
    ///
    /// # Errors
    /// The agents that did not answer.
    pub async fn all_returned(&self, within: Duration) -> Result<Vec<DeviceLedger>, String> {
        let began = Instant::now();
        loop {
            let ledger = self.ledger().await?;
            if is_empty(&ledger) || began.elapsed() > within {
                return Ok(ledger);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Ends everything: agents first, so that nothing is lent any more when the operator goes.
    pub async fn stop(self) {
        for agent in &self.agents {
            agent.stop.cancel();
        }
        self.stop.cancel();
        for agent in self.agents {
            match agent.task.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(worker = agent.name, error = format!("{error:#}"), "ended badly"),
                Err(error) => tracing::warn!(worker = agent.name, %error, "ended badly"),
            }
        }
        let _ = self.leading.await;
    }
}

/// Whether nothing is lent on any device.
pub fn is_empty(ledger: &[DeviceLedger]) -> bool {
    ledger.iter().all(|device| device.leased_bytes == 0 && device.slices == 0)
}

/// Makes a namespace unless it is there.
///
/// # Errors
/// [`PoolError::ControlPlane`].
pub async fn create_namespace(client: &Client, name: &str) -> Result<(), PoolError> {
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(name.to_owned());
    match Api::all(client.clone()).create(&PostParams::default(), &namespace).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(PoolError::ControlPlane(Box::new(error))),
    }
}
