//! A complete pool in this process: an embedded control plane, one operator and some agents.
//!
//! Operator and agents are the same as in a cluster and use the same protocol, over loopback. Only the API server is replaced, by
//! `sahasra_local`. Executors are separate processes that run this program.

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use k8s_openapi::{api::core::v1::Namespace, jiff::Timestamp};
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
};
use sahasra_access::Access;
use sahasra_crds::GpuWorker;
use sahasra_local::{ControlPlane, Options};
use sahasra_names::Engine;
use sahasra_operator::{
    Operator, Settings,
    agents::{AgentClient, Http2},
    clock::Clock,
    context::Context,
    fault::Faults,
    leader::LeaderError,
};
use sahasra_service::{health::Readiness, logging::LogFormat};
use sahasra_store::{StoreArgs, endpoints};
use sahasra_worker::{
    args::{AgentArguments, CpuMode, DeviceArguments, MAX_EXECUTORS_PER_DEVICE},
    classes::{ClassRule, ClassTable},
};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;

pub(crate) const SYSTEM_NAMESPACE: &str = "sahasra-system";
/// Timeout of the start, which takes milliseconds unless the machine is under load.
const READY_WITHIN: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Changes that a watch may lag behind. Each keeps a version of an object in memory, some kilobytes, and the process may run for months.
const WATCH_HISTORY: usize = 1000;
/// Grace period of running chunks at shutdown. Short, because their results are not needed.
const GRACE: Duration = Duration::from_secs(1);
pub(crate) const PROGRAM_CACHE_BYTES: u64 = 2 << 30;

#[derive(Debug, thiserror::Error)]
pub(crate) enum PoolError {
    #[error("failed to generate a token")]
    Random(#[source] std::io::Error),
    #[error("failed to listen on loopback")]
    Listen(#[source] std::io::Error),
    #[error("failed to start the operator")]
    Operator(#[source] prometheus::Error),
    #[error("failed to start the embedded control plane")]
    ControlPlane(#[source] Box<kube::Error>),
    #[error("failed to start a worker: {0}")]
    Worker(String),
    #[error("failed to start the worker of --gpu: {0}: omit --gpu to use the CPU backend")]
    GpuWorker(String),
    #[error("timed out after {} s waiting for the pool", READY_WITHIN.as_secs())]
    NotReady,
}

#[derive(Clone, Debug)]
pub(crate) struct WorkerSettings {
    /// Class of the worker's devices; derived from the hardware when `None`.
    pub class: Option<String>,
    pub devices: Devices,
    /// Memory of each device of the CPU backend; `None` for the worker's default.
    pub vram_bytes: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Devices {
    /// This many devices of the CPU backend.
    Cpu(u32),
    /// This machine's GPUs.
    Gpus,
    /// This machine's GPUs, or one device of the CPU backend if it has none.
    Found,
}

impl Devices {
    /// Number of devices of the CPU backend that share this machine's cores, as far as it is known.
    fn on_cpu(self) -> u32 {
        match self {
            Self::Cpu(count) => count,
            Self::Gpus | Self::Found => 0,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct PoolSettings {
    pub workers: Vec<WorkerSettings>,
    /// Folder below which jobs may access files; none when `None`.
    pub file_store_root: Option<PathBuf>,
    pub pjrt_plugin: Option<PathBuf>,
    pub program_cache: Option<PathBuf>,
    /// Token that opens streams of sessions; when `None`, every stream is rejected.
    pub token: Option<String>,
    /// Whether jobs are those of clients on other machines, which must not reach what the user of this process can.
    pub has_remote_clients: bool,
    /// Whether workers fail to start on a kernel that lacks a part of the sandbox.
    pub require_sandbox: bool,
}

impl PoolSettings {
    /// Policy of stores. Jobs of the user who started this process can reach whatever that user can.
    fn stores(&self) -> StoreArgs {
        StoreArgs {
            file_store_root: self.file_store_root.clone(),
            allowed_store_endpoints: if self.has_remote_clients {
                Vec::new()
            } else {
                endpoints::of_own_machine()
            },
        }
    }
}

/// Allocatable VRAM of one device, and what is leased of it, draining grants included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceLedger {
    pub worker: String,
    pub device: String,
    pub class: String,
    pub allocatable_bytes: u64,
    pub leased_bytes: u64,
    pub slices: u64,
}

struct Agent {
    name: String,
    gpu: bool,
    endpoint: String,
    stop: CancellationToken,
    task: JoinHandle<anyhow::Result<()>>,
}

pub(crate) struct Pool {
    pub control_plane: ControlPlane,
    pub client: Client,
    pub operator: Arc<Context>,
    pub readiness: Readiness,
    agent_client: AgentClient,
    operator_token: String,
    agents: Vec<Agent>,
    /// Cancelled when the operator has ended and the pool cannot continue.
    pub stop: CancellationToken,
    leading: JoinHandle<()>,
    /// Reason why the operator ended by itself, once it has.
    pub ended: Arc<OnceLock<LeaderError>>,
}

impl Pool {
    /// Starts the control plane, the operator and the agents, and waits until every worker is ready.
    pub(crate) async fn start(settings: PoolSettings) -> Result<Self, PoolError> {
        let seed = Timestamp::now().as_nanosecond() as u64 ^ u64::from(std::process::id());
        let control_plane = ControlPlane::new(Options {
            clock: Arc::new(Timestamp::now),
            seed,
            watch_history: WATCH_HISTORY,
            lasting_namespace: Some(SYSTEM_NAMESPACE),
        });
        let client = control_plane.client("default");
        create_namespace(&client, SYSTEM_NAMESPACE).await?;
        let stop = CancellationToken::new();
        // Every user of this machine can connect to the agents' ports, so the operator authenticates with a token.
        let operator_token = crate::token::random().map_err(PoolError::Random)?;
        let agent_client = AgentClient::over(Arc::new(Http2::default().with_token(&operator_token)));
        let operator = Operator::new(
            client.clone(),
            agent_client.clone(),
            Clock::default(),
            Settings {
                identity: "sahasra".to_owned(),
                namespace: SYSTEM_NAMESPACE.to_owned(),
                // Operator and agents live and end with this process, so only an overloaded machine delays heartbeats.
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
        let ended = Arc::new(OnceLock::new());
        let leading = {
            let (stop, readiness, ended) = (stop.clone(), readiness.clone(), ended.clone());
            tokio::spawn(async move {
                if let Err(error) = operator.run(readiness, &stop).await {
                    tracing::error!(%error, "operator stopped");
                    let _ = ended.set(error);
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
            ended,
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
        let playing: u32 = settings.workers.iter().map(|worker| worker.devices.on_cpu()).sum();
        let arguments = AgentArguments {
            node_name: name.to_owned(),
            namespace: SYSTEM_NAMESPACE.to_owned(),
            listen: address,
            advertise_url: None,
            // No TLS on loopback.
            tls_cert_file: None,
            tls_private_key_file: None,
            client_ca_file: None,
            no_kubernetes: false,
            kubeconfig: None,
            heartbeat_interval: Duration::from_secs(5),
            status_update_interval: Duration::from_secs(1),
            drain_timeout: GRACE,
            device_classes_file: None,
            stores: settings.stores(),
            pjrt_plugin: settings.pjrt_plugin.clone(),
            program_cache_dir: settings.program_cache.clone(),
            program_cache_limit: PROGRAM_CACHE_BYTES,
            devices: DeviceArguments {
                no_cuda: matches!(worker.devices, Devices::Cpu(_)),
                cpu_backend: match worker.devices {
                    Devices::Cpu(_) => CpuMode::Always,
                    Devices::Gpus => CpuMode::Never,
                    Devices::Found => CpuMode::Fallback,
                },
                cpu_devices: worker.devices.on_cpu().max(1),
                cpu_device_memory: worker.vram_bytes,
                // All emulated devices share the cores of this machine.
                cpu_device_threads: Some(cores.div_ceil(playing.max(1))),
                max_executors_per_device: MAX_EXECUTORS_PER_DEVICE,
                ..DeviceArguments::default()
            },
            require_sandbox: settings.require_sandbox,
            executor_idle_timeout: Duration::from_secs(60),
            log_level: String::new(),
            log_format: LogFormat::Text,
            operator_token: Some(self.operator_token.clone()),
        };
        let rules = worker.class.iter().map(|class| ClassRule {
            class: class.into(),
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
            gpu: worker.devices == Devices::Gpus,
            endpoint: format!("http://{address}"),
            stop,
            task,
        });
        Ok(())
    }

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
                    Ok(Ok(())) => "it exited".to_owned(),
                    Ok(Err(error)) => format!("{error:#}"),
                    Err(error) => error.to_string(),
                };
                return Err(not_started(ended.gpu, cause));
            }
            if began.elapsed() > READY_WITHIN {
                return Err(PoolError::NotReady);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Whether sessions can use an engine on some device, as the workers report it.
    pub(crate) async fn has_engine(&self, engine: Engine) -> bool {
        let workers: Api<GpuWorker> = Api::all(self.client.clone());
        let listed = workers
            .list(&ListParams::default())
            .await
            .map(|list| list.items)
            .unwrap_or_default();
        let mut devices = listed
            .iter()
            .filter_map(|worker| worker.status.as_ref())
            .flat_map(|status| &status.devices);
        devices.any(|device| device.engines.contains(&engine))
    }

    /// Returns the leases on every device, as recorded in its agent's ledger.
    pub(crate) async fn ledger(&self) -> Result<Vec<DeviceLedger>, String> {
        let mut devices = Vec::new();
        for agent in &self.agents {
            let inventory = self.agent_client.inventory(&agent.endpoint).await;
            let inventory = inventory.map_err(|error| format!("{} does not respond: {error}", agent.name))?;
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

    /// Waits until no slice is leased on any device, for at most `within`, and returns the last state of the ledgers.
    pub(crate) async fn all_returned(&self, within: Duration) -> Result<Vec<DeviceLedger>, String> {
        let began = Instant::now();
        loop {
            let ledger = self.ledger().await?;
            if is_empty(&ledger) || began.elapsed() > within {
                return Ok(ledger);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Stops agents and operator: agents first, so that no slice is leased when the operator ends.
    pub(crate) async fn stop(self) {
        for agent in &self.agents {
            agent.stop.cancel();
        }
        self.stop.cancel();
        for agent in self.agents {
            match agent.task.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(worker = agent.name, error = format!("{error:#}"), "worker failed"),
                Err(error) => tracing::warn!(worker = agent.name, %error, "worker failed"),
            }
        }
        let _ = self.leading.await;
    }
}

fn not_started(gpu: bool, cause: String) -> PoolError {
    if gpu {
        PoolError::GpuWorker(cause)
    } else {
        PoolError::Worker(cause)
    }
}

pub(crate) fn is_empty(ledger: &[DeviceLedger]) -> bool {
    ledger.iter().all(|device| device.leased_bytes == 0 && device.slices == 0)
}

pub(crate) async fn create_namespace(client: &Client, name: &str) -> Result<(), PoolError> {
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(name.to_owned());
    match Api::all(client.clone()).create(&PostParams::default(), &namespace).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(PoolError::ControlPlane(Box::new(error))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_without_a_gpu_is_reported_with_the_remedy() {
        let told = not_started(true, "no device".to_owned()).to_string();
        assert!(told.contains("no device: omit --gpu"), "{told}");
        assert!(!not_started(false, "no port".to_owned()).to_string().contains("--gpu"));
    }
}
