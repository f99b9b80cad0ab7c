//! [`Launch`], the interface by which an agent starts session executors. An agent's session executors are processes. In a simulation, where
//! time is virtual, they are tasks, which write the same status page and end on their own or when they are killed.

use std::fmt::Debug;
use std::io;

use futures::future::BoxFuture;
use sahasra_names::{Backend, DeviceName, Engine};

use super::process::Process;
use crate::devices::DeviceDescription;

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("device {device} does not support engine {engine}")]
    NoEngine {
        device: DeviceName,
        /// Name of the engine, which this agent may not know.
        engine: String,
    },
    #[error("failed to start the session's executor")]
    Start(#[from] io::Error),
}

pub trait Launch: Debug + Send + Sync {
    /// Returns the engines that sessions may use on devices of this backend.
    fn engines(&self, backend: Backend) -> Vec<Engine>;

    /// Starts the executor of a session of `namespace`. The session may hold `limit_bytes` on the device.
    fn launch<'a>(
        &'a self,
        device: &'a DeviceDescription,
        namespace: &'a str,
        engine: Engine,
        limit_bytes: u64,
    ) -> BoxFuture<'a, Result<Process, LaunchError>>;

    /// Trims the cache of compiled programs on disk. Blocks, because it reads folders.
    fn trim_cache(&self);
}
