//! The agent's core: the ledger under its clock, the executors, and the bursts that run on them.
//!
//! Everything that changes the ledger goes through [`Agent::change`], which afterwards does what the ledger asked for
//! (kill an executor, tell a burst that its slices shrank) and re-arms the expiry timer.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
    time::Duration,
};

use sahasra_service::clock::Clock;
use sahasra_wire::{
    burst::FailureCode,
    grants::{
        AcquireRequest, AcquireResponse, Grant, Owner, Refusal, RefusalCode, ReleaseRequest, ReleaseResponse, RenewRequest, RenewResponse,
    },
    inventory::{self, Inventory},
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

mod bursts;
pub mod sessions;

use crate::{
    classes::ClassTable,
    dispatch::Burst,
    executors::{DeviceKind, ExecutorPool},
    ledger::{Device, Effect, Ledger, Load, Totals},
    metrics::Metrics,
    session::{launch::Launch, sessions::Sessions},
    store::StorePolicy,
};

/// What limits the agent's memory and patience.
#[derive(Clone, Debug)]
pub struct AgentLimits {
    /// Chunks of a burst that may be submitted and not yet answered, over all devices.
    pub max_outstanding_chunks: u64,
    /// Bytes of results of a burst that are kept until acknowledged; beyond them nothing of it is executed.
    pub max_retained_bytes: usize,
    /// How long running chunks may take to end once shutdown began.
    pub shutdown_grace: Duration,
    /// Memory of a GPU that a session's process takes beside its slice, in bytes; absent: what a context was measured to take.
    pub session_context_bytes: Option<u64>,
}

impl Default for AgentLimits {
    fn default() -> Self {
        Self {
            // A second of no-op chunks: a coordinator is never waited for on a network's round trip.
            max_outstanding_chunks: 65_536,
            max_retained_bytes: 64 << 20,
            shutdown_grace: Duration::from_secs(20),
            session_context_bytes: None,
        }
    }
}

/// Who the agent is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Name of the worker: its node's.
    pub worker: String,
    /// Which devices are of which class.
    pub classes: ClassTable,
}

/// What runs an agent's work.
#[derive(Debug)]
pub struct Executors {
    /// Chunks of bursts.
    pub chunks: ExecutorPool,
    /// Sessions; without it they are held, and nobody can connect.
    pub sessions: Option<Arc<dyn Launch>>,
}

impl From<ExecutorPool> for Executors {
    fn from(chunks: ExecutorPool) -> Self {
        Self { chunks, sessions: None }
    }
}

/// See the [module](self). Shared behind an [`Arc`].
#[derive(Debug)]
pub struct Agent {
    identity: Identity,
    boot_id: String,
    limits: AgentLimits,
    clock: Clock,
    ledger: Mutex<Ledger>,
    /// Class of each device, in the pool's order.
    classes: Mutex<Vec<String>>,
    pool: ExecutorPool,
    sessions: Sessions,
    bursts: Mutex<BTreeMap<String, Arc<Burst>>>,
    metrics: Metrics,
    store_policy: StorePolicy,
    /// The ledger's next deadline has come nearer.
    alarm: Notify,
    /// Cancelled when shutdown begins.
    draining: CancellationToken,
    /// Highest sequence number of any burst that ended: a new one starts above it.
    sequence_floor: Mutex<u64>,
    /// Number of the last segment.
    segments: AtomicU64,
}

/// A name for this start of the agent that no other start ever has.
///
/// # Errors
/// When the system's random source cannot be read.
pub fn new_boot_id() -> io::Result<String> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

impl Agent {
    /// An agent that has lent nothing, with a fresh ledger over the pool's devices.
    pub fn new(
        identity: Identity,
        boot_id: String,
        limits: AgentLimits,
        executors: Executors,
        metrics: Metrics,
        store_policy: StorePolicy,
        clock: Clock,
    ) -> Arc<Self> {
        let Executors { chunks: pool, sessions } = executors;
        let devices = pool.devices().iter().map(|device| Device {
            name: device.name.clone(),
            allocatable_bytes: identity.classes.lent_bytes(device, &BTreeMap::new()),
            session_bytes: match device.kind {
                // Host memory, and no context.
                DeviceKind::Cpu => 0,
                DeviceKind::Cuda => limits.session_context_bytes.unwrap_or(device.context_bytes),
            },
        });
        let classes = pool.devices().iter();
        let classes = classes.map(|device| identity.classes.class(device, &BTreeMap::new()));
        Arc::new(Self {
            classes: Mutex::new(classes.collect()),
            ledger: Mutex::new(Ledger::new(boot_id.clone(), devices.collect())),
            identity,
            boot_id,
            limits,
            clock,
            pool,
            sessions: Sessions::new(sessions),
            bursts: Mutex::default(),
            metrics,
            store_policy,
            alarm: Notify::new(),
            draining: CancellationToken::new(),
            sequence_floor: Mutex::new(0),
            segments: AtomicU64::new(0),
        })
    }

    /// Says what labels the node has: classes, and how much is lent, may depend on them.
    pub fn set_node_labels(&self, labels: &BTreeMap<String, String>) {
        self.change(|ledger, _| {
            for device in self.pool.devices() {
                ledger.set_limit(&device.name, self.identity.classes.lent_bytes(device, labels));
            }
        });
        let devices = self.pool.devices().iter();
        let classes = devices.map(|device| self.identity.classes.class(device, labels)).collect();
        *self.classes.lock().unwrap_or_else(PoisonError::into_inner) = classes;
    }

    /// Names this start of the agent.
    pub fn boot_id(&self) -> &str {
        &self.boot_id
    }

    /// Who it is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// What limits it.
    pub fn limits(&self) -> &AgentLimits {
        &self.limits
    }

    /// Its executors.
    pub fn pool(&self) -> &ExecutorPool {
        &self.pool
    }

    /// Its counters.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Which object stores it writes to.
    pub fn store_policy(&self) -> &StorePolicy {
        &self.store_policy
    }

    /// Cancelled when shutdown has begun.
    pub fn draining(&self) -> &CancellationToken {
        &self.draining
    }

    fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bursts(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Burst>>> {
        self.bursts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the ledger, then does what it asks for.
    pub(crate) fn change<T>(&self, act: impl FnOnce(&mut Ledger, Duration) -> T) -> T {
        let (answer, effects) = {
            let mut ledger = self.lock();
            let before = ledger.next_deadline();
            let answer = act(&mut ledger, self.clock.elapsed());
            let nearer = match (before, ledger.next_deadline()) {
                (Some(before), Some(after)) => after < before,
                (None, after) => after.is_some(),
                (Some(_), None) => false,
            };
            if nearer {
                self.alarm.notify_one();
            }
            (answer, ledger.take_effects())
        };
        for effect in effects {
            self.apply(effect);
        }
        answer
    }

    fn apply(&self, effect: Effect) {
        match effect {
            Effect::Kill { device, owner_uid, .. } => {
                tracing::warn!(device, owner = owner_uid, "grace is over: killing the executor");
                self.end_session(&owner_uid);
                if let Some(burst) = self.burst(&owner_uid) {
                    burst.kill(&device, FailureCode::GrantExpired);
                }
            }
            Effect::Shrunk {
                device,
                owner_uid,
                active,
                expired,
            } => {
                if expired {
                    tracing::warn!(
                        device,
                        owner = owner_uid,
                        slices_left = active,
                        "slices expired: no operator renewed them in time"
                    );
                }
                if active == 0 {
                    // Nobody waits for what a session runs once it has ended.
                    self.end_session(&owner_uid);
                }
                if let Some(burst) = self.burst(&owner_uid) {
                    burst.shrunk(&device);
                }
            }
            Effect::Gone { owner_uid } => {
                self.sessions.gone(&owner_uid);
                self.close_if_abandoned(&owner_uid);
            }
        }
    }

    fn end_session(&self, owner_uid: &str) {
        if let Some(session) = self.sessions.of_owner(owner_uid) {
            session.ended.cancel();
        }
    }

    /// Ends the agent's part in time: expired grants, overstayed drains. Runs until cancelled.
    pub async fn keep_time(self: Arc<Self>, stop: CancellationToken) {
        loop {
            let deadline = self.lock().next_deadline();
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.alarm.notified() => {}
                () = async {
                    match deadline {
                        Some(deadline) => tokio::time::sleep_until(self.clock.instant_of(deadline)).await,
                        None => std::future::pending().await,
                    }
                } => self.change(|ledger, now| ledger.expire(now)),
            }
        }
    }

    /// Answers `/v1/acquire`.
    pub fn acquire(&self, request: &AcquireRequest) -> AcquireResponse {
        let healthy = self.pool.load(&request.device).is_none_or(|load| load.healthy);
        let answer = self.change(|ledger, now| {
            ledger.set_healthy(&request.device, healthy);
            let grant = ledger.acquire(now, request)?;
            if let Some(terms) = &request.session {
                let bytes = u64::from(grant.slices) * grant.slice_bytes;
                let ttl = Duration::from_millis(request.ttl_milliseconds);
                self.sessions.granted(&request.owner.uid, terms, &request.device, bytes, ttl, now);
            }
            Ok::<_, Refusal>(grant)
        });
        match answer {
            Ok(grant) => {
                self.poke(&request.owner.uid);
                AcquireResponse {
                    grant: Some(grant),
                    refusal: None,
                }
            }
            Err(refusal) => {
                self.metrics.refused(refusal.code());
                AcquireResponse {
                    grant: None,
                    refusal: Some(refusal),
                }
            }
        }
    }

    /// Answers `/v1/renew`.
    pub fn renew(&self, request: &RenewRequest) -> RenewResponse {
        let outcomes = self.change(|ledger, now| {
            let owners = request.owners.iter();
            owners.flat_map(|owner| ledger.renew(now, owner)).collect()
        });
        for owner in &request.owners {
            if let Some(terms) = &owner.session {
                let ttl = Duration::from_millis(owner.ttl_milliseconds);
                self.sessions.renewed(&owner.owner.uid, terms, ttl);
            }
        }
        RenewResponse { outcomes }
    }

    /// Answers `/v1/release`.
    pub fn release(&self, request: &ReleaseRequest) -> ReleaseResponse {
        let response = self.change(|ledger, now| ledger.release(now, request));
        if response.refusal.is_none() {
            self.sessions.forget(&request.owner.uid);
        }
        response
    }

    /// Answers `/v1/inventory`.
    pub fn inventory(&self) -> Inventory {
        self.look(|ledger, now| ledger.grants(now))
    }

    /// Answers `/v1/load`.
    pub fn load(&self) -> Inventory {
        self.look(|_, _| Vec::new())
    }

    fn look(&self, grants: impl FnOnce(&mut Ledger, Duration) -> Vec<Grant>) -> Inventory {
        let (loads, grants, shutting_down) = self.change(|ledger, now| {
            ledger.expire(now);
            let loads: Vec<Load> = ledger.loads().map(|(_, load)| load).collect();
            (loads, grants(ledger, now), ledger.is_shutting_down())
        });
        let classes = self.classes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let devices = self.pool.devices().iter().zip(loads).zip(classes);
        Inventory {
            worker: self.identity.worker.clone(),
            boot_id: self.boot_id.clone(),
            devices: devices
                .map(|((device, load), class)| {
                    let execution = self.pool.load(&device.name).unwrap_or_default();
                    let sessions = self.sessions.on_device(&device.name);
                    inventory::Device {
                        name: device.name.clone(),
                        model: device.model.clone(),
                        class,
                        total_bytes: device.total_bytes,
                        allocatable_bytes: load.allocatable_bytes,
                        leased_bytes: load.leased_bytes,
                        active_executions: execution.active_executions.saturating_add(sessions.active_executions),
                        tensor_count: sessions.tensors,
                        stored_tensor_bytes: sessions.stored_bytes,
                        healthy: execution.healthy,
                    }
                })
                .collect(),
            grants,
            shutting_down,
            sessions: self.sessions.loads(self.clock.elapsed()),
        }
    }

    /// Sums over the devices and counts since the start.
    pub fn totals(&self) -> (Load, Totals) {
        let ledger = self.lock();
        let mut sum = Load::default();
        for (_, load) in ledger.loads() {
            sum.allocatable_bytes += load.allocatable_bytes;
            sum.leased_bytes += load.leased_bytes;
            sum.slices += load.slices;
            sum.slices_in_use += load.slices_in_use;
        }
        (sum, ledger.totals())
    }

    /// Hears a coordinator (fencing), on behalf of a stream.
    pub(crate) fn hear(&self, owner: &Owner) -> Result<(), Refusal> {
        self.change(|ledger, now| ledger.hear(now, owner))
    }

    /// Active slices of the owner on the device.
    pub(crate) fn active_slices(&self, owner_uid: &str, device: &str) -> u32 {
        self.lock().active_slices(owner_uid, device)
    }

    /// The refusal of everything during shutdown.
    pub(crate) fn shutting_down() -> Refusal {
        Refusal {
            code: RefusalCode::ShuttingDown as i32,
            message: "the agent is shutting down".to_owned(),
            free_bytes: 0,
        }
    }
}
