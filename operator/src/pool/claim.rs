//! The requests that owners make to the pool, and the views in which the pool reports their state.

use std::time::Duration;

use sahasra_names::{ClassName, DeviceId, Engine};
use sahasra_scheduler::ClaimKind;
use sahasra_wire::{
    grants::{GrantId, Owner, SessionTerms},
    inventory::SessionLoad,
};

/// A request for slices of one class and size.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaimRequest {
    /// Owner of the grants, including the owner's term.
    pub owner: Owner,
    pub kind: ClaimKind,
    pub slice_bytes: u64,
    /// Class of the device; `None` matches any class.
    pub class: Option<ClassName>,
    /// Engine that the device must have; `None` matches any device.
    pub engine: Option<Engine>,
    /// The claim holds either none or at least this many slices. While a minimum that was raised waits, the former one counts.
    pub min: u32,
    pub max: u32,
    /// Claims with a higher priority are served first.
    pub priority: i32,
    /// Lifetime of a grant without renewal.
    pub ttl: Duration,
    /// Drain timeout: time for which running work may continue after its grant has ended.
    pub grace: Duration,
    pub renewed: bool,
    /// Whether the claim held its minimum in an earlier term; see [`ClaimRequest::is_served_once`].
    pub served: bool,
    /// Whether the claim keeps the slices that it adopts although they are fewer than its minimum, which was raised.
    pub keeps: bool,
    pub lost: Option<Lost>,
    /// The session that the claim is for: its name, its engine and its timeouts, which the agent needs.
    pub session: Option<SessionTerms>,
}

/// Slices that a claim held and has lost.
#[derive(Clone, Debug, PartialEq)]
pub struct Lost {
    pub device: DeviceId,
    pub slices: u32,
    pub why: Loss,
}

/// Reason of a [`Loss::Worker`]: the agent did not respond to calls, or not in time.
pub(crate) const SILENT: &str = "agent does not respond";

/// Cause of a loss, as its display shows it in statuses and events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Loss {
    /// The slices were not renewed in time, although their worker is alive.
    #[error("expired: no operator renewed it in time")]
    Expired,
    /// The worker was removed, has restarted, or does not respond; the string is the reason.
    #[error("{0}")]
    Worker(&'static str),
}

impl ClaimRequest {
    /// Whether slices that the claim has lost are not acquired again. A session is never moved to other slices, and a claim without renewal
    /// is for a limited time.
    pub fn is_served_once(&self) -> bool {
        !self.renewed || self.kind == ClaimKind::Session
    }
}

/// The grants of a claim, and the reasons for which it has no more.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClaimView {
    pub grants: Vec<HeldGrant>,
    /// Whether the claim holds fewer slices than its minimum, which was raised after they were granted.
    pub keeps_fewer: bool,
    /// Reason why the claim does not hold its minimum, with the reason for each device.
    pub why_not: Option<String>,
    /// Whether an agent has seen a higher term of the owner. If so, this coordinator must stop.
    pub fenced: bool,
    /// Whether agents will answer soon, or the next plan will.
    pub acquiring: bool,
    pub lost: Option<Lost>,
    pub losses: u64,
}

impl ClaimView {
    /// Slices held on all devices.
    pub fn slices(&self) -> u64 {
        self.grants.iter().map(|grant| u64::from(grant.slices)).sum()
    }
}

/// The state of a session as its agent reported it.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenSession {
    pub load: SessionLoad,
    pub age: Duration,
}

/// A grant of slices on one device.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldGrant {
    pub id: GrantId,
    pub device: DeviceId,
    pub endpoint: String,
    pub slices: u32,
}
