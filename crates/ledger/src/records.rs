//! Input and output types of the ledger.

use sahasra_names::{DeviceName, OwnerUid};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Name, unique on this agent.
    pub name: DeviceName,
    pub allocatable_bytes: u64,
    /// Bytes that the process of a session takes in addition to its slices.
    pub session_bytes: u64,
}

/// Action that the ledger requests of its caller.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// The grace of draining slices has passed: kill the executor of the namespace on the device. Requested again every second until the
    /// slices are vacated.
    Kill {
        device: DeviceName,
        namespace: String,
        /// UID of the owner whose chunks exceeded the grace.
        owner_uid: OwnerUid,
    },
    /// The owner has fewer active slices on the device than before. With none left, chunks that have not started there never will.
    Shrunk {
        device: DeviceName,
        owner_uid: OwnerUid,
        /// Active slices that remain.
        active: u32,
        /// Whether slices expired; otherwise they were released.
        expired: bool,
    },
    /// The owner holds nothing on this agent any more, draining slices included.
    Gone { owner_uid: OwnerUid },
}

/// Counters since the agent started, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Totals {
    pub granted_slices: u64,
    /// Slices that became free again, for whatever reason.
    pub freed_slices: u64,
    pub expired_grants: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Load {
    pub allocatable_bytes: u64,
    /// Leased bytes, including draining slices and the memory of session processes beside their slices.
    pub leased_bytes: u64,
    /// Leased slices, draining ones included.
    pub slices: u64,
    pub slices_in_use: u64,
    /// The device accepts new grants.
    pub healthy: bool,
}
