//! Device that the agent has assigned to an executor.

use sahasra_names::Backend;

/// Options of every process that the agent starts for a tenant.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Assigned {
    #[arg(long)]
    pub backend: Backend,
    /// Index of the device among those of its backend.
    #[arg(long, default_value_t = 0)]
    pub ordinal: u32,
    /// Memory of a CPU device, or maximum device memory of a session, in bytes.
    #[arg(long)]
    pub memory_bytes: u64,
    /// Threads of a CPU device.
    #[arg(long, default_value_t = 1)]
    pub threads: u32,
    /// Process id of the agent.
    #[arg(long)]
    pub agent_pid: i32,
}
