//! The agent's side of execution: which devices there are, and a pool of executor processes that run chunks on them.
//!
//! ```text
//!  dispatch ──Run::submit──► Shared{outstanding} ──Command──► supervisor ──frames──► executor process
//!      ▲                          │                               │ status board        (executor.rs)
//!      └──────Events::next────────┘◄───────────Event──────────────┘
//! ```
//!
//! There is one executor process for each device and namespace: made when chunks arrive, kept warm, ended when idle. A device
//! has room for some of them at a time; where more namespaces have work, they take turns in the order in which they came. Its
//! **supervisor** (a task) hands it ranges of chunks, takes back runs of results, and watches it: a process that ends,
//! hangs past a chunk's timeout or reports a poisoned context is replaced, and what it held comes back as events. The
//! agent itself never loads a driver and never sees a tenant's formula or kernel.
//!
//! How to use it: [`ExecutorPool::start`] once; [`ExecutorPool::open`] a [`Run`] for each burst and device;
//! [`Run::set_concurrency`] to the slices that the ledger knows the burst to hold there, [`Run::submit`], and take
//! [`Events`]. To end: [`Run::withdraw`], `set_concurrency(0)`, take events until [`Event::Settled`] with 0 (memory is free
//! then), or [`Run::kill`] when the grace has passed (`Settled` follows too); then drop the [`Events`].

pub(crate) mod ask;
mod device;
mod discover;
mod entry;
pub mod launch;
mod loss;
mod outstanding;
pub(crate) mod process;
mod program;
mod run;
pub(crate) mod spawn;
mod supervise;
pub(crate) mod walls;
pub(crate) mod words;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;

pub use device::{CpuEngine, DeviceConfig, DeviceDescription, DeviceKind, DeviceLoad};
pub use outstanding::{Outstanding, WorkRange};
pub use program::{ProgramError, ProgramSpec};
pub use run::{Event, Events, Run, SubmitError};

/// How the pool works.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// The program that is the executor when called with `executor` as its first argument: this one.
    pub program: PathBuf,
    /// Which devices there are.
    pub devices: DeviceConfig,
    /// An executor without work for this long ends.
    pub idle_timeout: Duration,
    /// An executor that has had its device for this long makes room, once its running chunks have ended, for a namespace that
    /// waits for one.
    pub turn: Duration,
    /// An executor that has not ended a chunk this long after its timeout is killed.
    pub grace: Duration,
    /// An executor must be ready, and a program prepared, within this (a driver may compile the PTX).
    pub start_timeout: Duration,
    /// Chunks of a run that may be outstanding.
    pub max_outstanding_chunks: u64,
    /// Bytes of a run's events that may wait to be taken before its executor pauses.
    pub max_event_bytes: usize,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            // The program that runs, even when its file has been replaced since.
            program: PathBuf::from("/proc/self/exe"),
            devices: DeviceConfig::default(),
            idle_timeout: Duration::from_secs(60),
            // A start costs a GPU's context and a compilation, about a second: less than a tenth of a turn.
            turn: Duration::from_secs(10),
            grace: Duration::from_secs(2),
            start_timeout: Duration::from_secs(120),
            max_outstanding_chunks: 1 << 20,
            max_event_bytes: 8 << 20,
        }
    }
}

/// Why a run cannot be opened, or the pool cannot start.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// No such device here.
    #[error("there is no device {0}")]
    UnknownDevice(String),
    /// The pool has shut down.
    #[error("the executors have shut down")]
    ShutDown,
    /// Neither a GPU nor the CPU engine.
    #[error("no device: no GPU was found and the CPU engine is not to be used")]
    NoDevice,
    /// No thread to start processes from.
    #[error("no thread to start executors from")]
    Spawner(#[source] std::io::Error),
}

/// Executor processes on demand. Clones share it.
#[derive(Clone, Debug)]
pub struct ExecutorPool {
    inner: Arc<Pool>,
}

#[derive(Debug)]
struct Pool {
    config: PoolConfig,
    devices: Vec<DeviceDescription>,
    /// One for each of `devices`.
    states: Vec<Arc<device::DeviceState>>,
    launcher: Arc<dyn launch::Launcher>,
    runs: AtomicU64,
    executors: Mutex<Executors>,
}

impl Pool {
    /// Ends a supervisor that has neither process nor runs, unless it was just told something.
    fn retire(&self, place: usize, namespace: &str, commands: &mpsc::UnboundedReceiver<entry::Command>) -> bool {
        let mut executors = self.executors.lock().unwrap_or_else(PoisonError::into_inner);
        if !commands.is_empty() {
            return false;
        }
        executors.supervisors.remove(&(place, namespace.to_owned()));
        true
    }
}

#[derive(Debug, Default)]
struct Executors {
    shut_down: bool,
    /// Supervisors by place of the device and namespace.
    supervisors: BTreeMap<(usize, String), mpsc::UnboundedSender<entry::Command>>,
}

impl ExecutorPool {
    /// Finds the devices (the driver is asked by a short-lived child) and makes a pool without any executor yet.
    ///
    /// # Errors
    /// [`PoolError::NoDevice`], [`PoolError::Spawner`].
    pub async fn start(config: PoolConfig) -> Result<Self, PoolError> {
        let devices = discover::discover(&config).await;
        if devices.is_empty() {
            return Err(PoolError::NoDevice);
        }
        let launcher = spawn::Spawner::start(config.program.clone()).map_err(PoolError::Spawner)?;
        Ok(Self::with(config, devices, Arc::new(launcher)))
    }

    /// A pool of these devices whose executors `launcher` launches.
    pub fn with(config: PoolConfig, devices: Vec<DeviceDescription>, launcher: Arc<dyn launch::Launcher>) -> Self {
        let state = |_| Arc::new(device::DeviceState::new(config.devices.executors_per_device));
        Self {
            inner: Arc::new(Pool {
                states: devices.iter().map(state).collect(),
                launcher,
                config,
                devices,
                runs: AtomicU64::new(1),
                executors: Mutex::default(),
            }),
        }
    }

    /// The devices, as they were when the pool started.
    pub fn devices(&self) -> &[DeviceDescription] {
        &self.inner.devices
    }

    /// Load of a device now; `None` when there is none of that name.
    pub fn load(&self, device: &str) -> Option<DeviceLoad> {
        let place = self.inner.devices.iter().position(|description| description.name == device)?;
        Some(self.inner.states[place].load())
    }

    /// Process ids of a device's executors.
    pub fn processes(&self, device: &str) -> Vec<u32> {
        let place = self.inner.devices.iter().position(|description| description.name == device);
        place.map_or_else(Vec::new, |place| self.inner.states[place].processes())
    }

    /// Opens a run of a program for a namespace on a device, with concurrency 0: nothing starts yet.
    ///
    /// # Errors
    /// [`PoolError::UnknownDevice`], [`PoolError::ShutDown`].
    pub fn open(&self, device: &str, namespace: &str, program: ProgramSpec) -> Result<(Run, Events), PoolError> {
        let place = self
            .inner
            .devices
            .iter()
            .position(|description| description.name == device)
            .ok_or_else(|| PoolError::UnknownDevice(device.to_owned()))?;
        let mut executors = self.inner.executors.lock().unwrap_or_else(PoisonError::into_inner);
        if executors.shut_down {
            return Err(PoolError::ShutDown);
        }
        let commands = executors
            .supervisors
            .entry((place, namespace.to_owned()))
            .or_insert_with(|| supervise::start(Arc::clone(&self.inner), place, namespace.to_owned()));
        let config = &self.inner.config;
        let shared = Arc::new(run::Shared::new(
            self.inner.runs.fetch_add(1, Ordering::Relaxed),
            program,
            config.max_outstanding_chunks,
            config.max_event_bytes,
            commands.clone(),
        ));
        // Under the lock: a supervisor that is about to end sees this command first.
        let _ = commands.send(entry::Command::Open(Arc::clone(&shared)));
        Ok(Run::open(shared))
    }

    /// Ends all executors at once; what they held comes back (in flight: failed with `ShuttingDown`), and every
    /// [`Events`] ends.
    pub fn shut_down(&self) {
        let mut executors = self.inner.executors.lock().unwrap_or_else(PoisonError::into_inner);
        executors.shut_down = true;
        for commands in std::mem::take(&mut executors.supervisors).into_values() {
            let _ = commands.send(entry::Command::ShutDown);
        }
    }
}
