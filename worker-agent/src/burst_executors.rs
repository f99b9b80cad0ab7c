//! The agent's side of execution: the devices of the node, and a pool of executor processes that run chunks on them.
//!
//! ```text
//!  dispatch ──Run::start──► Shared ──Command──► supervisor ──frames──► executor process
//!      ▲                      │                     │ status page
//!      └────Events::next──────┘◄───────Event────────┘
//! ```
//!
//! Each device and namespace has one executor process: it starts when chunks arrive, stays warm, and ends when it has been idle for a
//! while. A device has room for a limited number of processes; further namespaces with work take turns in the order in which they arrived.
//! The **supervisor** of a process (a task) passes it ranges of chunks, receives runs of results, and monitors it. A process that ends,
//! hangs past a chunk's timeout or reports a poisoned context is replaced, and its chunks come back as events. The agent itself never loads
//! a driver and never sees a tenant's formula or kernel.
//!
//! Usage: call [`ExecutorPool::start`] once, create [`OutstandingChunks`] for each burst, and [`ExecutorPool::open`] a [`Run`] for each
//! burst and device. Set [`Run::set_concurrency`] to the number of slices that the burst holds on the device according to the ledger,
//! [`OutstandingChunks::submit`] and [`Run::start`] chunks, take [`Events`], and remove the chunks of each event from the index. To end a
//! run: [`Run::withdraw`],
//! `set_concurrency(0)`, and take events until [`Event::Settled`] with 0 (then its memory is free), or [`Run::kill`] when the grace has
//! passed (`Settled` follows too); then drop the [`Events`].

mod config;
mod entry;
pub mod launch;
mod loss;
mod outstanding;
mod process;
mod program;
mod room;
mod run;
mod spawn;
mod supervise;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::child::spawn::Spawner;
use crate::devices::{DeviceDescription, discover::discover};

pub use config::PoolConfig;
pub use outstanding::{OutstandingChunks, SubmitError};
pub use process::{Process, TaskEnd};
pub use program::{ProgramError, ProgramSpec};
pub use room::DeviceLoad;
pub use run::{Event, Events, Run};

// The executor, which does not know the definitions, cuts messages to the length that the status takes.
const _: () = assert!(sahasra_executor_protocol::burst::MAX_MESSAGE_BYTES == sahasra_crds::burst_job::status::MAX_MESSAGE_BYTES);

#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    #[error("device {0} not found")]
    UnknownDevice(String),
    #[error("the executors have shut down")]
    ShutDown,
    #[error("no device found: no GPU is available, and the CPU backend is disabled")]
    NoDevice,
    #[error("failed to spawn the thread that starts executors")]
    Spawner(#[source] std::io::Error),
}

/// Pool of executor processes, started on demand.
#[derive(Debug)]
pub struct ExecutorPool {
    config: PoolConfig,
    devices: Vec<DeviceDescription>,
    /// State of each device, in the order of `devices`.
    states: Vec<Arc<room::DeviceState>>,
    launcher: Arc<dyn launch::Launcher>,
    runs: AtomicU64,
    executors: Mutex<Executors>,
}

#[derive(Debug, Default)]
struct Executors {
    shut_down: bool,
    /// Supervisors by device index and namespace.
    supervisors: BTreeMap<(usize, String), mpsc::UnboundedSender<run::Command>>,
}

impl ExecutorPool {
    /// Discovers the devices (a short-lived child process queries the driver), and creates a pool without executors.
    ///
    /// # Errors
    /// [`PoolError::NoDevice`], [`PoolError::Spawner`].
    pub async fn start(config: PoolConfig) -> Result<Arc<Self>, PoolError> {
        let devices = discover(&config.program, &config.devices).await;
        if devices.is_empty() {
            return Err(PoolError::NoDevice);
        }
        let launcher = Spawner::start(config.program.clone()).map_err(PoolError::Spawner)?;
        Ok(Self::with(config, devices, Arc::new(launcher)))
    }

    /// Creates a pool of these devices. `launcher` starts its executors.
    pub fn with(config: PoolConfig, devices: Vec<DeviceDescription>, launcher: Arc<dyn launch::Launcher>) -> Arc<Self> {
        let state = |_| Arc::new(room::DeviceState::new(config.devices.max_executors_per_device));
        Arc::new(Self {
            states: devices.iter().map(state).collect(),
            launcher,
            config,
            devices,
            runs: AtomicU64::new(1),
            executors: Mutex::default(),
        })
    }

    /// Returns the devices as they were when the pool started.
    pub fn devices(&self) -> &[DeviceDescription] {
        &self.devices
    }

    /// Returns the number of a device, which is its position in [`ExecutorPool::devices`].
    pub fn place(&self, device: &str) -> Option<usize> {
        self.devices.iter().position(|description| description.name == *device)
    }

    /// Returns the description of a device, or `None` for an unknown name.
    pub fn device(&self, device: &str) -> Option<&DeviceDescription> {
        Some(&self.devices()[self.place(device)?])
    }

    /// Returns the current load of a device, or `None` for an unknown name.
    pub fn load(&self, device: &str) -> Option<DeviceLoad> {
        Some(self.states[self.place(device)?].load())
    }

    /// Returns the process ids of a device's executors.
    pub fn processes(&self, device: &str) -> Vec<u32> {
        self.place(device).map_or_else(Vec::new, |place| self.states[place].processes())
    }

    /// Opens a run of a program for a namespace on a device. `chunks` is the index of the run's burst, which may have one run on each
    /// device. Its concurrency is 0, so nothing starts yet.
    ///
    /// # Errors
    /// [`PoolError::UnknownDevice`], [`PoolError::ShutDown`].
    pub fn open(
        self: &Arc<Self>,
        device: &str,
        namespace: &str,
        program: Arc<ProgramSpec>,
        chunks: &Arc<OutstandingChunks>,
    ) -> Result<(Run, Events), PoolError> {
        let place = self.place(device).ok_or_else(|| PoolError::UnknownDevice(device.to_owned()))?;
        let mut executors = self.executors.lock();
        if executors.shut_down {
            return Err(PoolError::ShutDown);
        }
        let commands = executors
            .supervisors
            .entry((place, namespace.to_owned()))
            .or_insert_with(|| supervise::start(Arc::clone(self), place, namespace.to_owned()));
        let shared = Arc::new(run::Shared::new(
            self.runs.fetch_add(1, Ordering::Relaxed),
            place,
            program,
            Arc::clone(chunks),
            self.config.max_event_bytes,
            commands.clone(),
        ));
        // Sent under the lock, so that a supervisor which is about to end sees this command first.
        let _ = commands.send(run::Command::Open(Arc::clone(&shared)));
        Ok(Run::open(shared))
    }

    /// Removes a supervisor that has neither process nor runs, unless a command for it is queued. Returns whether it was removed.
    fn retire(&self, place: usize, namespace: &str, commands: &mpsc::UnboundedReceiver<run::Command>) -> bool {
        let mut executors = self.executors.lock();
        if !commands.is_empty() {
            return false;
        }
        executors.supervisors.remove(&(place, namespace.to_owned()));
        true
    }

    /// Kills all executors. Unstarted chunks are returned, chunks in flight fail with `ShuttingDown`, and every [`Events`] ends.
    pub fn shut_down(&self) {
        let mut executors = self.executors.lock();
        executors.shut_down = true;
        for commands in std::mem::take(&mut executors.supervisors).into_values() {
            let _ = commands.send(run::Command::ShutDown);
        }
    }
}
