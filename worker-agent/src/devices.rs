//! Devices of the agent: their descriptions, and the selection of those that it offers.

pub mod discover;

use std::time::Duration;

use clap::ValueEnum;
use sahasra_names::{Backend, DeviceName};

/// A device as discovered when the agent started.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceDescription {
    /// Name on this worker, such as `cpu-0` or `cuda-1`.
    pub name: DeviceName,
    pub kind: Backend,
    /// Index among the devices of its kind; for CUDA the driver's ordinal.
    pub ordinal: u32,
    /// Model as the driver reports it.
    pub model: String,
    pub total_bytes: u64,
    /// Allocatable memory in bytes: the free memory, less the contexts of as many executors as the device may have.
    pub allocatable_bytes: u64,
    /// Memory in bytes that a session's process takes in addition to its slice, and each further context of engine cuda within its slice.
    pub context_bytes: u64,
    /// Number of chunks that benefit from running concurrently: cores, or streams.
    pub lanes: u32,
}

impl DeviceDescription {
    /// Returns the arguments of an executor that may use `memory_bytes` of the device.
    pub(crate) fn arguments(&self, memory_bytes: u64) -> [String; 5] {
        [
            format!("--backend={}", self.kind),
            format!("--ordinal={}", self.ordinal),
            format!("--memory-bytes={memory_bytes}"),
            format!("--threads={}", self.lanes),
            format!("--agent-pid={}", std::process::id()),
        ]
    }
}

/// Condition for devices of the CPU backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum CpuMode {
    /// Only if no GPU is found.
    #[default]
    Fallback,
    /// In addition to GPUs.
    Always,
    Never,
}

/// Selection of the devices that the agent offers.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Discover GPUs.
    pub cuda: bool,
    pub cpu: CpuMode,
    /// Number of devices of the CPU backend, each with `cpu_memory_bytes` of memory.
    pub cpu_devices: u32,
    /// Memory of each CPU device in bytes. Default: half of the memory of the machine (or the container), divided by the number of CPU
    /// devices.
    pub cpu_memory_bytes: Option<u64>,
    /// Threads of each CPU device. Default: one per core.
    pub cpu_threads: Option<u32>,
    /// Number of executors (namespaces) that one device serves concurrently. Further ones take turns with them.
    pub executors_per_device: u32,
    /// Context memory of GPUs in bytes. Default: the measured size of a context.
    pub context_bytes: Option<u64>,
    /// Timeout of the probe that queries the driver.
    pub probe_timeout: Duration,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self {
            cuda: true,
            cpu: CpuMode::default(),
            cpu_devices: 1,
            cpu_memory_bytes: None,
            cpu_threads: None,
            executors_per_device: 4,
            context_bytes: None,
            probe_timeout: Duration::from_secs(60),
        }
    }
}
