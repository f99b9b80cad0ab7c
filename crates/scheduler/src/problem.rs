//! What is known: devices, claims, and what is held.

use std::{fmt, sync::Arc};

/// A name or id, cheap to copy: answers repeat the same few names very often.
pub type Name = Arc<str>;

/// A device: unique in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId {
    /// Name of the worker that owns it.
    pub worker: Name,
    /// Name of the device, unique on its worker: `gpu0`.
    pub device: Name,
}

impl DeviceId {
    /// The device of that name on that worker.
    pub fn new(worker: impl Into<Name>, device: impl Into<Name>) -> Self {
        Self {
            worker: worker.into(),
            device: device.into(),
        }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.worker, self.device)
    }
}

/// Everything that [`crate::solve`] decides on, apart from what is held. The order of the lists means nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problem {
    /// Every device known, usable or not. Ids are unique; of duplicates one is taken.
    pub devices: Vec<Device>,
    /// Everyone who holds or wants slices. Ids are unique; of duplicates one is taken.
    pub claims: Vec<Claim>,
}

/// One device and what is known of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device {
    /// Which device.
    pub id: DeviceId,
    /// Its class, such as `g5` or `cpu`.
    pub class: Name,
    /// Engines that can run on it: `ptx`, `xla`.
    pub engines: Vec<Name>,
    /// What may be lent of its memory, in bytes.
    pub allocatable_bytes: u64,
    /// Bytes leased or draining there that no previous assignment of a claim stands for: other owners' grants, and what a
    /// claim gave back but the device has not yet confirmed.
    pub foreign_bytes: u64,
    /// How many of the foreign bytes are on their way back: given back and not yet confirmed, or draining. They come free within a
    /// grace period, whatever is decided.
    pub returning_bytes: u64,
    /// Whether new slices may be placed there, or why not.
    pub usable: Result<(), Unusable>,
    /// How busy it is.
    pub load: Load,
}

/// Why a device takes nothing new.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unusable {
    /// Its worker's heartbeat stands still. What bursts and leases hold there counts as lost; sessions stay.
    NotReady,
    /// The device reported an error that requires a reset. As for `NotReady`.
    Unhealthy,
    /// It is being emptied: what is held there stays, nothing new comes.
    Cordoned,
}

/// How busy a device is. Smaller is idler; the fields decide in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Load {
    /// Kernels and programs running now.
    pub active_executions: u64,
    /// Bytes of tensors that sessions keep there.
    pub stored_tensor_bytes: u64,
    /// How many tensors those are.
    pub tensor_count: u64,
}

/// What kind of owner claims slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClaimKind {
    /// Chunks that can run anywhere, and again: elastic, and the only kind that a higher priority can push out.
    Burst,
    /// A client pinned to one device: exactly `min` slices, all there.
    Session,
    /// Slices held for someone outside: keeps at least `min` until it is released.
    Lease,
}

impl fmt::Display for ClaimKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Burst => "burst",
            Self::Session => "session",
            Self::Lease => "lease",
        })
    }
}

/// One owner's wish for slices.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    /// The owner's uid.
    pub id: Name,
    /// What kind of owner.
    pub kind: ClaimKind,
    /// Bytes of one slice; 0 counts as 1.
    pub slice_bytes: u64,
    /// Fewest slices of use; 0 counts as 1.
    pub min: u32,
    /// Most slices of use; less than `min` counts as `min`. A session never gets more than `min`.
    pub max: u32,
    /// Class of device it needs; any when absent.
    pub class: Option<Name>,
    /// Engine it needs; any when absent.
    pub engine: Option<Name>,
    /// Higher is more important.
    pub priority: i32,
    /// Since when it waits, in milliseconds on the clock of `now`.
    pub since: u64,
    /// The device on which a session was once placed: it goes nowhere else. Absent before, and for other kinds.
    pub pinned: Option<DeviceId>,
    /// Agents that lately refused what was proposed for this claim.
    pub refused: Vec<Refused>,
}

/// A device that lately refused a claim's slices.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Refused {
    /// Which device.
    pub device: DeviceId,
    /// Until when not to ask again, in milliseconds on the clock of `now`.
    pub until: u64,
}

/// Slices of one claim on one device: what is held, or what is to be held.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Assignment {
    /// The claim's id.
    pub claim: Name,
    /// Where.
    pub device: DeviceId,
    /// How many; at least 1 in an answer.
    pub slices: u32,
}
