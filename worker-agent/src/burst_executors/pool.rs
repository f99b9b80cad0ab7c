//! State that the supervisors of a pool share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::config::PoolConfig;
use super::launch::Launcher;
use super::room::DeviceState;
use super::run::Command;
use crate::devices::DeviceDescription;

#[derive(Debug)]
pub(super) struct Pool {
    pub(super) config: PoolConfig,
    pub(super) devices: Vec<DeviceDescription>,
    /// State of each device, in the order of `devices`.
    pub(super) states: Vec<Arc<DeviceState>>,
    pub(super) launcher: Arc<dyn Launcher>,
    pub(super) runs: AtomicU64,
    pub(super) executors: Mutex<Executors>,
}

impl Pool {
    /// Removes a supervisor that has neither process nor runs, unless a command for it is queued. Returns whether it was removed.
    pub(super) fn retire(&self, place: usize, namespace: &str, commands: &mpsc::UnboundedReceiver<Command>) -> bool {
        let mut executors = self.executors.lock();
        if !commands.is_empty() {
            return false;
        }
        executors.supervisors.remove(&(place, namespace.to_owned()));
        true
    }
}

#[derive(Debug, Default)]
pub(super) struct Executors {
    pub(super) shut_down: bool,
    /// Supervisors by device index and namespace.
    pub(super) supervisors: BTreeMap<(usize, String), mpsc::UnboundedSender<Command>>,
}
