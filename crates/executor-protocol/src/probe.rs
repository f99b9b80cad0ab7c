//! Responses of short-lived processes that examine GPUs, a PJRT plugin and the sandbox, as JSON on standard output.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    pub gpus: Vec<Gpu>,
    /// Reason why no GPU, or not every GPU that the driver counts, is usable.
    pub reason: Option<String>,
}

impl Probe {
    /// Result of a discovery that failed for this reason.
    pub fn failed(reason: impl Into<String>) -> Self {
        Self {
            gpus: Vec::new(),
            reason: Some(reason.into()),
        }
    }
}

/// A GPU as the driver describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// Number of the GPU in the driver's order.
    pub ordinal: u32,
    pub model: String,
    pub total_bytes: u64,
    /// Free memory in bytes while one context exists.
    pub free_bytes: u64,
    /// Memory in use while one context exists, in bytes: the context's and that of other processes.
    pub context_bytes: u64,
}

/// Number of chunks that run concurrently. More than this gains little on any GPU, and each lane is a thread.
pub const GPU_LANES: u32 = 32;

/// Platform that a PJRT plugin reports, as the probe process prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginPlatform {
    /// Name of the platform, such as `cpu` or `cuda`.
    pub name: String,
    /// Version text, as the plugin reports it.
    pub version: String,
}

/// Restrictions that are in force, of those that the kernel supports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxFeatures {
    /// ABI version of Landlock that is in force; 0 without Landlock.
    pub landlock: u32,
    /// Whether system calls are filtered.
    pub seccomp: bool,
}

impl SandboxFeatures {
    /// Kernel features that are missing, each with what a compromised executor can do without it; empty if none is missing. A `gpu`
    /// executor needs more of Landlock, because the driver uses sockets.
    pub fn missing(&self, gpu: bool) -> Vec<&'static str> {
        let mut missing = Vec::new();
        match self.landlock {
            0 => missing.push("Landlock (access to the agent's token and key, and to programs and memory of other namespaces)"),
            1 | 2 => missing.push("Landlock 3, Linux 6.2 (truncation of readable files)"),
            _ => {}
        }
        if gpu && (1..4).contains(&self.landlock) {
            missing.push("Landlock 4, Linux 6.7 (reconnecting an inherited socket to another address)");
        }
        if gpu && (1..6).contains(&self.landlock) {
            missing.push("Landlock 6, Linux 6.12 (connections to abstract sockets of other processes)");
        }
        if !self.seccomp {
            missing.push("seccomp (opening connections, starting programs, signaling the agent)");
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let missing = |landlock, seccomp, gpu| SandboxFeatures { landlock, seccomp }.missing(gpu).join("; ");
        for complete in [(3, true, false), (9, true, false), (6, true, true)] {
            assert_eq!(missing(complete.0, complete.1, complete.2), "");
        }
        assert!(missing(5, true, true).starts_with("Landlock 6") && missing(3, true, true).contains("Landlock 4"));
        assert!(missing(2, true, false).contains("truncation"));
        assert!(missing(0, true, true).starts_with("Landlock (") && !missing(0, true, true).contains("seccomp"));
        assert!(missing(7, false, false).starts_with("seccomp"));
        assert!(missing(0, false, false).contains("Landlock") && missing(0, false, false).contains("seccomp"));
    }
}
