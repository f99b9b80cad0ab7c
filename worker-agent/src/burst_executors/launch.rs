//! [`Launcher`], the interface by which an agent starts burst executors. An agent's executors are processes (`spawn`). In a simulation,
//! where time is virtual, they are tasks that speak the same protocol.

use std::fmt::Debug;
use std::io;
use std::time::Duration;

use futures::future::BoxFuture;

use super::process::Process;
use crate::devices::DeviceDescription;

pub trait Launcher: Debug + Send + Sync {
    /// Starts an executor for a device and a namespace.
    fn launch<'a>(&'a self, device: &'a DeviceDescription, namespace: &'a str) -> BoxFuture<'a, io::Result<Process>>;

    /// Returns the time of the clock that the executors' status pages use.
    fn monotonic_now(&self) -> Duration;
}
