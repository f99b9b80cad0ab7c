//! Core of the worker agent: the ledger of grants, the clock that expires them, the executors, and the bursts and sessions that run on
//! them.
//!
//! Every change of the ledger goes through [`Agent::change`]. Afterwards it applies the effects that the ledger asked for (kill an
//! executor, notify a burst that its slices shrank) and re-arms the expiry timer.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use futures::future::OptionFuture;
use parking_lot::Mutex;
use sahasra_ledger::{Device, Effect, Ledger, Load, SHUTDOWN_MESSAGE, Totals};
use sahasra_names::{BootId, ClassName, DeviceName, OwnerUid, WorkerName};
use sahasra_service::clock::Clock;
use sahasra_wire::{
    burst::FailureCode,
    grants::{
        AcquireRequest, AcquireResponse, Grant, Owner, Refusal, RejectionCode, ReleaseRequest, ReleaseResponse, RenewRequest, RenewResponse,
    },
    inventory::{self, Inventory},
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

mod bursts;
pub mod sessions;

pub use crate::dispatch::Parts;
use crate::{
    classes::ClassTable,
    dispatch::Burst,
    session_executors::{launch::Launch, registry::Sessions},
};

/// Limit of submitted, unanswered chunks of a burst, over all devices: enough for one second of no-op chunks, so that executors never wait for a
/// network round trip to the coordinator.
pub(crate) const MAX_OUTSTANDING_CHUNKS: u64 = 65_536;

/// Limit of unacknowledged result bytes kept per burst. A burst at this limit executes nothing more.
pub(crate) const MAX_RETAINED_BYTES: usize = 64 << 20;

/// Name of the worker and rules that classify its devices.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Name of the worker, which is the name of its node.
    pub worker: WorkerName,
    pub classes: ClassTable,
}

/// Shared state of a worker agent, see the [module](self). Lives behind an [`Arc`].
#[derive(Debug)]
pub struct Agent {
    identity: Identity,
    pub parts: Parts,
    /// Time that running chunks have to end after shutdown began.
    shutdown_grace: Duration,
    clock: Clock,
    ledger: Mutex<Ledger>,
    /// Class of each device, in the order of the devices of the pool.
    classes: Mutex<Vec<ClassName>>,
    /// Sessions that hold a slice.
    pub sessions: Sessions,
    bursts: Mutex<BTreeMap<OwnerUid, Arc<Burst>>>,
    /// Wakes [`Agent::keep_time`] when the ledger's next deadline has moved closer.
    alarm: Notify,
    /// Highest sequence number among all bursts that ended. A new burst starts above it.
    sequence_floor: AtomicU64,
}

/// Returns a random boot id, which identifies one start of the agent: 128 bits as 32 hexadecimal digits.
///
/// # Errors
/// When the random source of the operating system cannot be read.
pub fn new_boot_id() -> io::Result<BootId> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)).into())
}

impl Agent {
    /// Creates an agent without grants. Its ledger is new and covers the devices of the pool. `launcher` starts the executors of sessions.
    pub fn new(identity: Identity, parts: Parts, shutdown_grace: Duration, launcher: Arc<dyn Launch>, clock: Clock) -> Arc<Self> {
        let devices = parts.pool.devices().iter().map(|device| Device {
            name: device.name.clone(),
            allocatable_bytes: identity.classes.lent_bytes(device, &BTreeMap::new()),
            session_bytes: device.context_bytes,
        });
        let classes = parts.pool.devices().iter();
        let classes = classes.map(|device| identity.classes.class(device, &BTreeMap::new()));
        Arc::new(Self {
            classes: Mutex::new(classes.collect()),
            ledger: Mutex::new(Ledger::new(parts.boot_id.clone(), devices.collect())),
            identity,
            parts,
            shutdown_grace,
            clock,
            sessions: Sessions::new(launcher),
            bursts: Mutex::default(),
            alarm: Notify::new(),
            sequence_floor: AtomicU64::new(0),
        })
    }

    /// Sets the labels of the node. The classes of devices and their allocatable memory may depend on these labels.
    pub fn set_node_labels(&self, labels: &BTreeMap<String, String>) {
        self.change(|ledger, _| {
            for device in self.parts.pool.devices() {
                ledger.set_limit(&device.name, self.identity.classes.lent_bytes(device, labels));
            }
        });
        let devices = self.parts.pool.devices().iter();
        let classes = devices.map(|device| self.identity.classes.class(device, labels)).collect();
        *self.classes.lock() = classes;
    }

    /// Changes the ledger with `act`, re-arms the expiry timer, and applies the effects that the ledger asked for.
    pub(crate) fn change<T>(&self, act: impl FnOnce(&mut Ledger, Duration) -> T) -> T {
        let (answer, effects) = {
            let mut ledger = self.ledger.lock();
            let before = ledger.next_deadline();
            let answer = act(&mut ledger, self.clock.now());
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
                tracing::warn!(
                    device = device.as_str(),
                    owner = owner_uid.as_str(),
                    "grace period expired: killing the executor"
                );
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
                        device = device.as_str(),
                        owner = owner_uid.as_str(),
                        slices_left = active,
                        "slices expired: no operator renewed them in time"
                    );
                }
                if active == 0 {
                    // Nobody waits for the executions of a session that has ended.
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

    fn end_session(&self, owner_uid: &OwnerUid) {
        if let Some(session) = self.sessions.of_owner(owner_uid) {
            session.ended.cancel();
        }
    }

    /// Expires grants and kills executors whose drain exceeded its grace, each at its deadline, until `stop` is cancelled.
    pub async fn keep_time(self: Arc<Self>, stop: CancellationToken) {
        loop {
            let deadline = self.ledger.lock().next_deadline();
            let due = OptionFuture::from(deadline.map(|deadline| tokio::time::sleep_until(self.clock.instant(deadline))));
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.alarm.notified() => {}
                Some(()) = due => self.change(|ledger, now| ledger.expire(now)),
            }
        }
    }

    #[tracing::instrument(level = "debug", skip_all, fields(owner = request.owner.name, namespace = request.owner.namespace, device = request.device))]
    pub fn acquire(&self, request: &AcquireRequest) -> AcquireResponse {
        let (owner_uid, device) = (OwnerUid::from(&request.owner.uid), DeviceName::from(&request.device));
        let healthy = self.parts.pool.load(&device).is_none_or(|load| load.healthy);
        let answer = self.change(|ledger, now| {
            ledger.set_healthy(&device, healthy);
            let grant = ledger.acquire(now, request)?;
            if let Some(terms) = &request.session {
                let bytes = u64::from(grant.slices) * grant.slice_bytes;
                let ttl = request.ttl();
                self.sessions.granted(&owner_uid, terms, &device, bytes, ttl, now);
            }
            Ok::<_, Refusal>(grant)
        });
        let mut response = AcquireResponse::default();
        match answer {
            Ok(grant) => {
                self.poke(&owner_uid);
                response.grant = Some(grant);
            }
            Err(refusal) => {
                self.parts.metrics.refused(refusal.code());
                response.refusal = Some(refusal);
            }
        }
        response
    }

    pub fn renew(&self, request: &RenewRequest) -> RenewResponse {
        let outcomes = self.change(|ledger, now| {
            let owners = request.owners.iter();
            owners.flat_map(|owner| ledger.renew(now, owner)).collect()
        });
        for owner in &request.owners {
            if let Some(terms) = &owner.session {
                let ttl = owner.ttl();
                self.sessions.renewed(&owner.owner.uid, terms, ttl);
            }
        }
        RenewResponse { outcomes }
    }

    #[tracing::instrument(level = "debug", skip_all, fields(owner = request.owner.name, namespace = request.owner.namespace))]
    pub fn release(&self, request: &ReleaseRequest) -> ReleaseResponse {
        let response = self.change(|ledger, now| ledger.release(now, request));
        if response.refusal.is_none() {
            self.sessions.forget(&request.owner.uid);
        }
        response
    }

    pub fn inventory(&self) -> Inventory {
        self.inspect(|ledger, now| ledger.grants(now))
    }

    /// Handles `/v1/load`.
    pub fn load(&self) -> Inventory {
        self.inspect(|_, _| Vec::new())
    }

    fn inspect(&self, grants: impl FnOnce(&mut Ledger, Duration) -> Vec<Grant>) -> Inventory {
        let (loads, grants, shutting_down) = self.change(|ledger, now| {
            ledger.expire(now);
            let loads: Vec<Load> = ledger.loads().map(|(_, load)| load).collect();
            (loads, grants(ledger, now), ledger.is_shutting_down())
        });
        let classes = self.classes.lock().clone();
        let devices = self.parts.pool.devices().iter().zip(loads).zip(classes);
        Inventory {
            worker: self.identity.worker.to_string(),
            boot_id: self.parts.boot_id.to_string(),
            devices: devices
                .map(|((device, load), class)| {
                    let execution = self.parts.pool.load(&device.name).unwrap_or_default();
                    let sessions = self.sessions.on_device(&device.name);
                    inventory::Device {
                        name: device.name.to_string(),
                        model: device.model.clone(),
                        class: class.to_string(),
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
            sessions: self.sessions.loads(self.clock.now()),
        }
    }

    /// Returns the sum of the devices' loads, and the counters since the agent started.
    pub fn totals(&self) -> (Load, Totals) {
        let ledger = self.ledger.lock();
        let mut sum = Load::default();
        for (_, load) in ledger.loads() {
            sum.allocatable_bytes += load.allocatable_bytes;
            sum.leased_bytes += load.leased_bytes;
            sum.slices += load.slices;
            sum.slices_in_use += load.slices_in_use;
        }
        (sum, ledger.totals())
    }

    /// Updates the metrics for a scrape.
    pub(crate) fn observe(&self) {
        let (load, totals) = self.totals();
        let pool = &self.parts.pool;
        let devices: Vec<_> = pool.devices().iter().filter_map(|device| pool.load(&device.name)).collect();
        self.parts.metrics.observe(&load, &totals, &devices, &self.sessions.totals());
    }

    /// Applies fencing to the coordinator of a stream: records the term of `owner`, or rejects a lower one.
    pub(crate) fn fence(&self, owner: &Owner) -> Result<(), Refusal> {
        self.change(|ledger, now| ledger.fence(now, owner))
    }

    /// Returns the rejection that answers every request during shutdown.
    pub(crate) fn shutting_down() -> Refusal {
        Refusal::new(RejectionCode::ShuttingDown, SHUTDOWN_MESSAGE)
    }
}
