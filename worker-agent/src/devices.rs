//! Devices of the agent: their descriptions, and the selection of those that it offers.

pub mod discover;

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
