//! Input of the solver: devices, claims and the previous assignments.

use std::{collections::BTreeMap, time::Duration};

use sahasra_names::{ClassName, DeviceId, Engine, OwnerUid};

/// Input of [`crate::solve`], except for the previous assignments. The order of the lists has no effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problem {
    /// All known devices, including unusable ones. If several devices have the same id, only one of them counts.
    pub devices: Vec<Device>,
    /// All owners that hold or request slices. If several claims have the same id, only one of them counts.
    pub claims: Vec<Claim>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device {
    pub id: DeviceId,
    pub class: ClassName,
    pub engines: Vec<Engine>,
    pub allocatable_bytes: u64,
    /// Bytes that are leased or draining on this device and belong to no previous assignment: grants of other owners, and slices that a
    /// claim has released but whose release the device has not yet confirmed.
    pub foreign_bytes: u64,
    /// Part of `foreign_bytes` that is being released: release not yet confirmed, or draining. These bytes become free within a grace
    /// period, whatever the solver decides.
    pub returning_bytes: u64,
    /// Whether the device takes new slices, or the reason why it does not.
    pub usable: Result<(), Unusable>,
    pub load: Load,
}

/// Reason why a device takes no new slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unusable {
    /// The worker's heartbeat has stopped. The slices of bursts and leases on this device count as lost; sessions stay.
    NotReady,
    /// The device reported an error that requires a reset. Same effect as `NotReady`.
    Unhealthy,
    /// The device is being emptied: present slices stay, new ones are not placed.
    Cordoned,
}

/// Load of a device. A smaller value is idler; the fields are compared in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Load {
    /// Number of running kernels and programs.
    pub active_executions: u64,
    /// Bytes of tensors that sessions store on this device.
    pub stored_tensor_bytes: u64,
    /// Number of tensors that sessions store on this device.
    pub tensor_count: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClaimKind {
    /// Chunks that can run on any device and can be run again. Elastic, and the only kind that a higher priority can preempt.
    Burst,
    /// A client pinned to one device: exactly `min` slices, all on that device.
    Session,
    /// Slices held for an external user: at least `min` slices until the lease is released.
    Lease,
}

/// Request of one owner for slices.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    pub id: OwnerUid,
    pub kind: ClaimKind,
    /// Size of a slice in bytes; 0 counts as 1.
    pub slice_bytes: u64,
    /// Minimum number of slices; 0 counts as 1.
    pub min: u32,
    /// Slices that the claim keeps while it waits for the rest of a `min` that was raised after it had been served, by device; slices that
    /// it does not hold have no effect. A burst keeps all that it holds, and grows, if this is not empty. No effect on a session.
    pub kept: BTreeMap<DeviceId, u32>,
    /// Largest useful number of slices; a value below `min` counts as `min`. A session never gets more than `min`.
    pub max: u32,
    /// Required class of device; any class if absent.
    pub class: Option<ClassName>,
    /// Required engine; any engine if absent.
    pub engine: Option<Engine>,
    /// A higher value is more important.
    pub priority: i32,
    /// Start of waiting, on the clock of `now`.
    pub since: Duration,
    /// Devices whose agents recently rejected slices of this claim, each with the time before which it is not proposed again, on the clock
    /// of `now`.
    pub refused: BTreeMap<DeviceId, Duration>,
}

/// Slices of one claim on one device, either held now or as a target.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Assignment {
    pub claim: OwnerUid,
    pub device: DeviceId,
    /// Number of slices, at least 1 in a solution.
    pub slices: u32,
}
