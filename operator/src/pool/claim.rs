//! Requests of owners to the pool, and the views that they watch.

use std::fmt;

use sahasra_scheduler::ClaimKind;
use sahasra_wire::{
    grants::{GrantId, Owner, SessionTerms},
    inventory::SessionLoad,
};

/// A request for slices of one class and size.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaimRequest {
    /// Owner of the grants, with its term.
    pub owner: Owner,
    /// What kind of owner.
    pub kind: ClaimKind,
    /// Bytes of one slice.
    pub slice_bytes: u64,
    /// Class of device; any when absent.
    pub class: Option<String>,
    /// Engine that the device must have; any when absent.
    pub engine: Option<String>,
    /// Minimum number of slices: the claim holds none or at least so many.
    pub min: u32,
    /// Maximum number of slices.
    pub max: u32,
    /// Claims with a higher priority are served first.
    pub priority: i32,
    /// Lifetime of a grant without renewal.
    pub ttl_milliseconds: u64,
    /// Drain timeout: how long running work may go on when its grant has ended.
    pub grace_milliseconds: u64,
    /// Whether grants are renewed for as long as the claim exists.
    pub renewed: bool,
    /// It has had its minimum once, in an earlier term: see [`ClaimRequest::is_served_once`].
    pub served: bool,
    /// Slices lost since an earlier term.
    pub lost: Option<Lost>,
    /// For a session: its name, engine and timeouts, for the agent.
    pub session: Option<SessionTerms>,
}

/// Slices that a claim held and has lost.
#[derive(Clone, Debug, PartialEq)]
pub struct Lost {
    /// Worker and device.
    pub device: String,
    /// Slices that were lost.
    pub slices: u32,
    /// The cause.
    pub why: Loss,
}

/// Cause of a loss: the agent did not respond to calls, or not in time.
pub(crate) const SILENT: &str = "its agent does not respond";

/// Why slices were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// They were not renewed in time. Their worker lives.
    Expired,
    /// Their worker: it is gone, has restarted, or is silent.
    Worker(&'static str),
}

impl fmt::Display for Loss {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Expired => "expired: no operator renewed it in time",
            Self::Worker(why) => why,
        })
    }
}

impl ClaimRequest {
    /// Whether slices that the claim has lost are not acquired again: a session is never moved, and a claim without renewal is for a
    /// limited time.
    pub fn is_served_once(&self) -> bool {
        !self.renewed || self.kind == ClaimKind::Session
    }
}

/// The grants of a claim, and the reasons for which it has no more.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClaimView {
    /// Every grant.
    pub grants: Vec<HeldGrant>,
    /// Why nothing is held, device by device.
    pub why_not: Option<String>,
    /// An agent has seen a higher term of the owner: this coordinator must stop.
    pub fenced: bool,
    /// An agent has been asked and has not yet answered.
    pub acquiring: bool,
    /// The last loss.
    pub lost: Option<Lost>,
    /// Number of grants lost.
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
    /// The agent's report.
    pub load: SessionLoad,
    /// Age of the report, in milliseconds.
    pub age: u64,
}

/// A grant of slices on one device.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldGrant {
    /// Identifier that its agent has given it.
    pub id: GrantId,
    /// Name of the `GpuWorker`.
    pub worker: String,
    /// Name of the device on the worker.
    pub device: String,
    /// URL of the agent.
    pub endpoint: String,
    /// Number of slices.
    pub slices: u32,
}
