//! Grants: asking for slices, keeping them, giving them back.

use std::fmt;

/// Names a grant for ever: no restart reuses it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Message)]
pub struct GrantId {
    /// Boot id of the agent that made it.
    #[prost(string, tag = "1")]
    pub boot_id: String,
    /// Counter within that boot, from 1.
    #[prost(uint64, tag = "2")]
    pub counter: u64,
}

impl GrantId {
    /// `BOOT/COUNTER`, as status shows it.
    pub fn text(&self) -> String {
        format!("{}/{}", self.boot_id, self.counter)
    }
}

/// For whom a grant is held, and who speaks for that owner.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Owner {
    /// UID of the owning object.
    #[prost(string, tag = "1")]
    pub uid: String,
    /// Its namespace: executors are never shared between namespaces.
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// Kind and name for people: `BurstJob/hyperparameter-search`.
    #[prost(string, tag = "3")]
    pub name: String,
    /// Generation of its coordinator: an agent refuses a lower one than it has seen.
    #[prost(uint64, tag = "4")]
    pub term: u64,
}

/// Asks one device for slices.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AcquireRequest {
    /// For whom.
    #[prost(message, required, tag = "1")]
    pub owner: Owner,
    /// Boot of the agent that the proposal was made for; the agent refuses another.
    #[prost(string, tag = "2")]
    pub boot_id: String,
    /// Device on the agent.
    #[prost(string, tag = "3")]
    pub device: String,
    /// Size of one slice in bytes.
    #[prost(uint64, tag = "4")]
    pub slice_bytes: u64,
    /// Most slices that are wanted: the agent grants up to so many, atomically.
    #[prost(uint32, tag = "5")]
    pub slices: u32,
    /// Fewest with which the asker can do anything; the agent refuses rather than grant fewer.
    #[prost(uint32, tag = "6")]
    pub at_least: u32,
    /// How long the grant lasts without renewal, in milliseconds of the agent's own monotonic clock.
    #[prost(uint64, tag = "7")]
    pub ttl_milliseconds: u64,
    /// How long a running chunk may go on when the grant has ended, in milliseconds, before its executor is killed.
    #[prost(uint64, tag = "8")]
    pub grace_milliseconds: u64,
    /// The session that the slice is for, if it is for one.
    #[prost(message, optional, tag = "9")]
    pub session: Option<SessionTerms>,
}

/// A session as its agent has to know it: by this a client's stream is let in, and its grant extended while it is there.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct SessionTerms {
    /// Namespace of the `GpuSession`.
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// Its name: clients ask for it by this.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Its UID.
    #[prost(string, tag = "3")]
    pub uid: String,
    /// Engine that runs its programs: `ptx`, `xla`.
    #[prost(string, tag = "4")]
    pub engine: String,
    /// For how long in all, from the moment of the grant and in milliseconds of the agent's own clock, a client that is there
    /// may keep it without any renewal.
    #[prost(uint64, tag = "5")]
    pub keep_milliseconds: u64,
}

/// The answer: exactly one of the fields.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AcquireResponse {
    /// What was granted.
    #[prost(message, optional, tag = "1")]
    pub grant: Option<Grant>,
    /// Why nothing was.
    #[prost(message, optional, tag = "2")]
    pub refusal: Option<Refusal>,
}

/// Slices of one device, held by one owner.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Grant {
    /// Its name.
    #[prost(message, required, tag = "1")]
    pub id: GrantId,
    /// UID of the owner.
    #[prost(string, tag = "2")]
    pub owner_uid: String,
    /// Device on the agent.
    #[prost(string, tag = "3")]
    pub device: String,
    /// Size of one slice in bytes.
    #[prost(uint64, tag = "4")]
    pub slice_bytes: u64,
    /// How many.
    #[prost(uint32, tag = "5")]
    pub slices: u32,
    /// Milliseconds until it expires, at the time of the answer.
    #[prost(uint64, tag = "6")]
    pub expires_in_milliseconds: u64,
    /// It has ended and only waits for what still runs: counted, but of no more use.
    #[prost(bool, tag = "7")]
    pub draining: bool,
    /// Highest term seen for the owner.
    #[prost(uint64, tag = "8")]
    pub term: u64,
}

/// Why an agent does not do what it was asked.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Refusal {
    /// The cause.
    #[prost(enumeration = "RefusalCode", tag = "1")]
    pub code: i32,
    /// For people, with figures.
    #[prost(string, tag = "2")]
    pub message: String,
    /// Bytes free on the device at that moment.
    #[prost(uint64, tag = "3")]
    pub free_bytes: u64,
}

/// Causes of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum RefusalCode {
    /// Not said.
    Unspecified = 0,
    /// A coordinator of a higher term has spoken for the owner.
    StaleTerm = 1,
    /// The request was made for another boot of the agent.
    OtherBoot = 2,
    /// No such device.
    UnknownDevice = 3,
    /// Not even the smallest acceptable number of slices is free.
    Capacity = 4,
    /// The device reported an error that only a reset mends.
    Unhealthy = 5,
    /// The agent is shutting down.
    ShuttingDown = 6,
    /// The request itself is wrong.
    Invalid = 7,
}

impl RefusalCode {
    /// Every code.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..=Self::Invalid as i32).filter_map(|code| Self::try_from(code).ok())
    }

    /// Name for metrics and messages.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Unspecified => "Unspecified",
            Self::StaleTerm => "StaleTerm",
            Self::OtherBoot => "OtherBoot",
            Self::UnknownDevice => "UnknownDevice",
            Self::Capacity => "Capacity",
            Self::Unhealthy => "Unhealthy",
            Self::ShuttingDown => "ShuttingDown",
            Self::Invalid => "Invalid",
        }
    }
}

impl fmt::Display for RefusalCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// Extends grants, of many owners in one call.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RenewRequest {
    /// One entry an owner.
    #[prost(message, repeated, tag = "1")]
    pub owners: Vec<RenewOwner>,
}

/// The grants of one owner to extend.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RenewOwner {
    /// Whose, and who asks.
    #[prost(message, required, tag = "1")]
    pub owner: Owner,
    /// Which.
    #[prost(message, repeated, tag = "2")]
    pub grants: Vec<GrantId>,
    /// From now, in milliseconds.
    #[prost(uint64, tag = "3")]
    pub ttl_milliseconds: u64,
    /// The session that they are for, as it is now: its time may have been changed.
    #[prost(message, optional, tag = "4")]
    pub session: Option<SessionTerms>,
}

/// What became of each grant, in the order asked.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RenewResponse {
    /// One entry a grant.
    #[prost(message, repeated, tag = "1")]
    pub outcomes: Vec<RenewOutcome>,
}

/// What became of one grant.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RenewOutcome {
    /// Which.
    #[prost(message, required, tag = "1")]
    pub id: GrantId,
    /// It was extended.
    #[prost(bool, tag = "2")]
    pub renewed: bool,
    /// Why not: its term is stale, it is of another boot, or (`Invalid`) it has ended.
    #[prost(enumeration = "RefusalCode", tag = "3")]
    pub refusal: i32,
}

/// Gives grants back. What still runs on them drains first.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReleaseRequest {
    /// Whose, and who asks.
    #[prost(message, required, tag = "1")]
    pub owner: Owner,
    /// Which; all of the owner's when empty.
    #[prost(message, repeated, tag = "2")]
    pub grants: Vec<GrantId>,
    /// Keep so many slices of each named grant; 0 gives all back.
    #[prost(uint32, tag = "3")]
    pub keep_slices: u32,
    /// Kill what runs at once instead of letting it end within its grace.
    #[prost(bool, tag = "4")]
    pub immediately: bool,
}

/// What was given back.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReleaseResponse {
    /// Grants that are free now.
    #[prost(uint32, tag = "1")]
    pub freed: u32,
    /// Grants that drain.
    #[prost(uint32, tag = "2")]
    pub draining: u32,
    /// Why nothing was done.
    #[prost(message, optional, tag = "3")]
    pub refusal: Option<Refusal>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_codes_of_refusals_are_all() {
        let last = RefusalCode::all().last().map_or(0, |code| code as i32);
        for code in last + 1..1000 {
            assert!(RefusalCode::try_from(code).is_err(), "{code} is missing in `RefusalCode::all`");
        }
    }
}
