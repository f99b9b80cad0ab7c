//! What goes into the ledger and what comes out of it.

/// A device as the ledger sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Name, unique on this agent.
    pub name: String,
    /// What may be lent of it, in bytes.
    pub allocatable_bytes: u64,
    /// What a session's process takes of it beside its slices, in bytes.
    pub session_bytes: u64,
}

/// Something to be done outside the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// The grace of a drained grant is over: kill the executor of that namespace on that device. Asked again every
    /// second until what ran is reported to have ended.
    Kill {
        /// Device.
        device: String,
        /// Namespace whose executor it is.
        namespace: String,
        /// UID of the owner whose chunks overstayed.
        owner_uid: String,
    },
    /// The owner has fewer active slices on the device than before; with none left, what has not started there never
    /// will.
    Shrunk {
        /// Device.
        device: String,
        /// UID of the owner.
        owner_uid: String,
        /// Active slices that remain.
        active: u32,
        /// By expiry; else by release.
        expired: bool,
    },
    /// The owner holds nothing on this agent any more, draining slices included.
    Gone {
        /// UID of the owner.
        owner_uid: String,
    },
}

/// Counts since the agent started, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Totals {
    /// Slices granted.
    pub granted_slices: u64,
    /// Slices that became free again, whatever ended them.
    pub freed_slices: u64,
    /// Grants that ended by expiry.
    pub expired_grants: u64,
}

/// How much of a device is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Load {
    /// What may be lent, in bytes.
    pub allocatable_bytes: u64,
    /// What is lent, draining included, in bytes; with what sessions' processes take beside their slices.
    pub leased_bytes: u64,
    /// Slices lent, draining included.
    pub slices: u64,
    /// Slices in use.
    pub slices_in_use: u64,
    /// It answers.
    pub healthy: bool,
}
