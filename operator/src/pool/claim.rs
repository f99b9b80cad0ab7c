//! What an owner asks of the pool, and what it is shown.

use std::fmt;

use sahasra_scheduler::ClaimKind;
use sahasra_wire::{
    grants::{GrantId, Owner, SessionTerms},
    inventory::SessionLoad,
};

/// An owner's wish for slices.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaimRequest {
    /// For whom, and in which term.
    pub owner: Owner,
    /// What kind of owner.
    pub kind: ClaimKind,
    /// Bytes of one slice.
    pub slice_bytes: u64,
    /// Class of device; any when absent.
    pub class: Option<String>,
    /// Engine that the device must have; any when absent.
    pub engine: Option<String>,
    /// Fewest slices of use.
    pub min: u32,
    /// Most slices of use.
    pub max: u32,
    /// Higher is more important.
    pub priority: i32,
    /// How long a grant lasts without renewal.
    pub ttl_milliseconds: u64,
    /// How long what runs may go on when its grant has ended.
    pub grace_milliseconds: u64,
    /// Whether grants are renewed for as long as the claim stands.
    pub renewed: bool,
    /// It has had its minimum once, in an earlier term: see [`ClaimRequest::is_served_once`].
    pub served: bool,
    /// What it has lost since an earlier term.
    pub lost: Option<Lost>,
    /// The session that it is for, as agents have to know it.
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
    /// What such a claim has had and lost is not asked for again: a session is never moved, and who does not renew wanted
    /// slices for a time.
    pub fn is_served_once(&self) -> bool {
        !self.renewed || self.kind == ClaimKind::Session
    }
}

/// What an owner holds now, and why not more.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClaimView {
    /// Every grant.
    pub grants: Vec<HeldGrant>,
    /// Why nothing is held, device by device.
    pub why_not: Option<String>,
    /// A coordinator of a higher term has spoken for the owner: this one must stop.
    pub fenced: bool,
    /// An agent has been asked and has not yet answered.
    pub acquiring: bool,
    /// What was lost last.
    pub lost: Option<Lost>,
    /// How often something was lost.
    pub losses: u64,
}

impl ClaimView {
    /// Slices held on all devices.
    pub fn slices(&self) -> u64 {
        self.grants.iter().map(|grant| u64::from(grant.slices)).sum()
    }
}

/// What an agent said of a session.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenSession {
    /// Its words.
    pub load: SessionLoad,
    /// How long ago, in milliseconds.
    pub age: u64,
}

/// One grant.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldGrant {
    /// Its name.
    pub id: GrantId,
    /// Name of the `GpuWorker`.
    pub worker: String,
    /// Device on it.
    pub device: String,
    /// URL of the agent.
    pub endpoint: String,
    /// Slices.
    pub slices: u32,
}
