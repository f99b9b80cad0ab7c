//! What the agent knows of its devices.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Which engine runs a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// The CPU engine, `sahasra-ptx`.
    Cpu,
    /// A GPU through the CUDA driver.
    Cuda,
}

/// A device as it was found when the agent started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceDescription {
    /// Name on this worker: `cpu-0`, `cuda-1`.
    pub name: String,
    /// Engine.
    pub kind: DeviceKind,
    /// Its number among those of its kind: for CUDA the driver's ordinal.
    pub ordinal: u32,
    /// Model as the driver tells it.
    pub model: String,
    /// The driver's UUID; empty for the CPU engine.
    pub uuid: String,
    /// Compute capability, major and minor; absent for the CPU engine.
    pub compute_capability: Option<(u32, u32)>,
    /// All memory in bytes.
    pub total_bytes: u64,
    /// What may be lent, in bytes: what was free, less the contexts of as many executors as there may be.
    pub allocatable_bytes: u64,
    /// What an executor's context itself takes, in bytes.
    pub context_bytes: u64,
    /// Chunks that gain from running at a time: cores, or streams.
    pub lanes: u32,
}

/// When the CPU engine is a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpuEngine {
    /// When there is no GPU.
    #[default]
    WithoutGpu,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Which devices the agent offers.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Look for GPUs.
    pub cuda: bool,
    /// When the CPU engine is a device.
    pub cpu: CpuEngine,
    /// How many devices the CPU engine plays, each with the memory below.
    pub cpu_devices: u32,
    /// Memory of one of them in bytes; absent: half of what the machine (or the container) has, divided among them.
    pub cpu_memory_bytes: Option<u64>,
    /// Threads of each; absent: as many as there are cores.
    pub cpu_threads: Option<u32>,
    /// Executors (namespaces) that one device serves at a time; further ones wait until one is idle.
    pub executors_per_device: u32,
    /// The probe of the driver must answer within this.
    pub probe_timeout: Duration,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self {
            cuda: true,
            cpu: CpuEngine::default(),
            cpu_devices: 1,
            cpu_memory_bytes: None,
            cpu_threads: None,
            executors_per_device: 8,
            probe_timeout: Duration::from_secs(60),
        }
    }
}

/// Load of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceLoad {
    /// Chunks running now.
    pub active_executions: u64,
    /// Executor processes alive.
    pub executors: u32,
    /// Executors start on it: `false` after several in a row did not.
    pub healthy: bool,
}
