//! Grants: messages that acquire, renew and release slices of a device.

use std::time::Duration;

/// Identifier of a grant, unique for all time: no restart of an agent reuses it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Message)]
pub struct GrantId {
    #[prost(string, tag = "1")]
    pub boot_id: String,
    /// Counter within the boot, starting at 1.
    #[prost(uint64, tag = "2")]
    pub counter: u64,
}

impl GrantId {
    /// Returns the identifier as `BOOT/COUNTER`, the form that status fields show.
    pub fn text(&self) -> String {
        format!("{}/{}", self.boot_id, self.counter)
    }
}

/// Owner of a grant, and the term of the coordinator that acts for the owner.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Owner {
    #[prost(string, tag = "1")]
    pub uid: String,
    /// Namespace of the owning object. Executors are never shared between namespaces.
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// Kind and name of the owning object for messages, such as `BurstJob/hyperparameter-search`.
    #[prost(string, tag = "3")]
    pub name: String,
    /// Term of the owner's coordinator. An agent rejects a term lower than the highest that it has seen for the owner.
    #[prost(uint64, tag = "4")]
    pub term: u64,
}

/// Acquires slices of one device.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AcquireRequest {
    #[prost(message, required, tag = "1")]
    pub owner: Owner,
    /// Boot id of the agent for which the placement was computed. An agent with another boot id rejects the request.
    #[prost(string, tag = "2")]
    pub boot_id: String,
    #[prost(string, tag = "3")]
    pub device: String,
    /// Size of one slice in bytes, above 0.
    #[prost(uint64, tag = "4")]
    pub slice_bytes: u64,
    /// Maximum number of slices to grant, above 0. The agent grants up to this number, atomically.
    #[prost(uint32, tag = "5")]
    pub slices: u32,
    /// Minimum number of slices that the owner can use. The agent rejects the request rather than grant fewer.
    #[prost(uint32, tag = "6")]
    pub at_least: u32,
    /// Lifetime of the grant without renewal, in milliseconds of the agent's own monotonic clock.
    #[prost(uint64, tag = "7")]
    pub ttl_milliseconds: u64,
    /// Grace period of a running chunk after the grant has ended, in milliseconds. After it, the chunk's executor is killed.
    #[prost(uint64, tag = "8")]
    pub grace_milliseconds: u64,
    /// Session for which the slice is acquired. Absent if the slice is not for a session.
    #[prost(message, optional, tag = "9")]
    pub session: Option<SessionTerms>,
}

impl AcquireRequest {
    pub fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_milliseconds)
    }

    pub fn grace(&self) -> Duration {
        Duration::from_millis(self.grace_milliseconds)
    }
}

/// Data of a session that its agent needs to accept a client's stream, and to extend the grant while a client is connected.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct SessionTerms {
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// Name of the `GpuSession` object, by which clients request the session.
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(string, tag = "3")]
    pub uid: String,
    /// Engine that runs the session's programs, as in the spec of the `GpuSession`.
    #[prost(string, tag = "4")]
    pub engine: String,
    /// Total time for which the agent may keep the grant without renewal while a client is connected, in milliseconds of the agent's own
    /// clock, counted from the grant.
    #[prost(uint64, tag = "5")]
    pub keep_milliseconds: u64,
}

impl SessionTerms {
    pub fn keep(&self) -> Duration {
        Duration::from_millis(self.keep_milliseconds)
    }
}

/// Response to an [`AcquireRequest`]: exactly one field is set.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AcquireResponse {
    #[prost(message, optional, tag = "1")]
    pub grant: Option<Grant>,
    #[prost(message, optional, tag = "2")]
    pub refusal: Option<Refusal>,
}

/// Slices of one device, held by one owner.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Grant {
    #[prost(message, required, tag = "1")]
    pub id: GrantId,
    #[prost(string, tag = "2")]
    pub owner_uid: String,
    #[prost(string, tag = "3")]
    pub device: String,
    #[prost(uint64, tag = "4")]
    pub slice_bytes: u64,
    #[prost(uint32, tag = "5")]
    pub slices: u32,
    /// Time until the grant expires, in milliseconds from the time of the response.
    #[prost(uint64, tag = "6")]
    pub expires_in_milliseconds: u64,
    /// Whether the grant has ended and waits for the work that still runs on it. Its slices are still counted as granted, but accept no new
    /// work.
    #[prost(bool, tag = "7")]
    pub draining: bool,
    /// Highest term that the agent has seen for the owner.
    #[prost(uint64, tag = "8")]
    pub term: u64,
}

impl Grant {
    pub fn expires_in(&self) -> Duration {
        Duration::from_millis(self.expires_in_milliseconds)
    }
}

/// Reason why an agent rejected a request or ended a stream.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Refusal {
    #[prost(enumeration = "RefusalCode", tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub message: String,
    /// Free memory on the device at the time of the rejection, in bytes.
    #[prost(uint64, tag = "3")]
    pub free_bytes: u64,
}

impl Refusal {
    /// Creates a rejection with 0 free bytes.
    pub fn new(code: RefusalCode, message: impl Into<String>) -> Self {
        Self {
            code: code as i32,
            message: message.into(),
            free_bytes: 0,
        }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(RefusalCode::InvalidRequest, message)
    }
}

/// Causes of a [`Refusal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum RefusalCode {
    Unspecified = 0,
    /// The agent has seen a higher term for the owner.
    StaleTerm = 1,
    /// The request was made for another boot of the agent.
    BootMismatch = 2,
    UnknownDevice = 3,
    /// Fewer slices are free than the request's minimum.
    InsufficientVram = 4,
    /// The device reported an error that only a reset repairs.
    Unhealthy = 5,
    ShuttingDown = 6,
    InvalidRequest = 7,
}

labelled! {
    RefusalCode { Unspecified StaleTerm BootMismatch UnknownDevice InsufficientVram Unhealthy ShuttingDown InvalidRequest }
}

/// Extends grants of several owners in one call.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RenewRequest {
    #[prost(message, repeated, tag = "1")]
    pub owners: Vec<RenewOwner>,
}

/// Grants of one owner to extend.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RenewOwner {
    #[prost(message, required, tag = "1")]
    pub owner: Owner,
    #[prost(message, repeated, tag = "2")]
    pub grants: Vec<GrantId>,
    /// Lifetime of the grants from now on, in milliseconds of the agent's own monotonic clock.
    #[prost(uint64, tag = "3")]
    pub ttl_milliseconds: u64,
    /// Current data of the session that the grants are for, because the session's time may have changed. Absent if the grants are not for a
    /// session.
    #[prost(message, optional, tag = "4")]
    pub session: Option<SessionTerms>,
}

impl RenewOwner {
    pub fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_milliseconds)
    }
}

/// Response to a [`RenewRequest`]: the outcome for each grant, in the order of the request.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RenewResponse {
    #[prost(message, repeated, tag = "1")]
    pub outcomes: Vec<RenewOutcome>,
}

/// Outcome of the renewal of one grant.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RenewOutcome {
    #[prost(message, required, tag = "1")]
    pub id: GrantId,
    #[prost(bool, tag = "2")]
    pub renewed: bool,
    /// Reason why the grant was not extended: the term is stale, the grant is of another boot, or (`Invalid`) the grant has ended or the
    /// lifetime is out of range. `Unspecified` if it was extended.
    #[prost(enumeration = "RefusalCode", tag = "3")]
    pub refusal: i32,
}

/// Releases grants. Work that still runs on them drains first.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReleaseRequest {
    #[prost(message, required, tag = "1")]
    pub owner: Owner,
    /// Grants to release. Empty: all grants of the owner.
    #[prost(message, repeated, tag = "2")]
    pub grants: Vec<GrantId>,
    /// Number of slices to keep of each listed grant; 0 releases all of them. Must be 0 if `grants` is empty.
    #[prost(uint32, tag = "3")]
    pub keep_slices: u32,
    /// Whether to kill running work at once instead of granting it the grace period.
    #[prost(bool, tag = "4")]
    pub immediately: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ReleaseResponse {
    #[prost(uint32, tag = "1")]
    pub freed: u32,
    #[prost(uint32, tag = "2")]
    pub draining: u32,
    /// Reason why nothing was released. Absent if the request was accepted.
    #[prost(message, optional, tag = "3")]
    pub refusal: Option<Refusal>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_contains_every_rejection_code() {
        let last = RefusalCode::all().last().map_or(0, |code| code as i32);
        for code in last + 1..1000 {
            assert!(RefusalCode::try_from(code).is_err(), "{code} is missing in `RefusalCode::all`");
        }
    }
}
