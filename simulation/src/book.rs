//! Running agents, and a record of their grants that is derived from the responses of the agents, independently of their
//! ledgers.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use sahasra_service::clock::Clock;
use sahasra_wire::grants::{
    AcquireRequest, AcquireResponse, Owner, RejectionCode, ReleaseRequest, ReleaseResponse, RenewRequest, RenewResponse,
};
use sahasra_worker::agent::Agent;
use tokio_util::sync::CancellationToken;

use crate::{task_group::TaskGroup, world::World};

/// Time after its end for which a grant without running chunks may still be counted as leased.
const IDLE_WITHIN: Duration = Duration::from_millis(1_500);
/// Time after its grace for which a grant with running chunks may still be counted as leased.
const KILLED_WITHIN: Duration = Duration::from_secs(5);

/// A running agent.
#[derive(Debug)]
pub struct Live {
    /// Index of the agent.
    pub index: usize,
    pub agent: Arc<Agent>,
    /// Task group of the agent.
    pub group: TaskGroup,
    /// Clock of the agent.
    pub clock: Clock,
    /// Cancelled to break the connections to the agent.
    pub connections: Mutex<CancellationToken>,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    /// Highest accepted term by owner.
    terms: BTreeMap<String, u64>,
    grants: BTreeMap<u64, Booked>,
    /// Bytes of running chunks by device.
    running: BTreeMap<String, u64>,
    /// Time at which the last running chunk ended, by the agent's clock.
    idle_since: Duration,
}

#[derive(Debug)]
struct Booked {
    owner: String,
    bytes: u64,
    end: Duration,
    grace: Duration,
}

/// A running chunk. It uses its slice until this value is dropped.
#[derive(Debug)]
pub struct Running {
    live: Arc<Live>,
    device: String,
    bytes: u64,
}

impl Drop for Running {
    fn drop(&mut self) {
        let now = self.live.clock.now();
        let mut book = self.live.book.lock();
        if let Some(bytes) = book.running.get_mut(&self.device) {
            *bytes -= self.bytes;
        }
        book.idle_since = now;
    }
}

impl Live {
    /// Creates the record of an agent without grants.
    pub fn new(index: usize, agent: Arc<Agent>, group: TaskGroup, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            index,
            agent,
            group,
            clock,
            connections: Mutex::default(),
            book: Mutex::default(),
        })
    }

    /// Records that a chunk starts on a slice of a device. Checks that running chunks do not exceed the device.
    pub fn run(self: &Arc<Self>, world: &World, device: &str, bytes: u64) -> Running {
        let allocatable = self
            .agent
            .parts
            .pool
            .devices()
            .iter()
            .find(|description| description.name == *device);
        let allocatable = allocatable.map_or(0, |description| description.allocatable_bytes);
        let running = {
            let mut book = self.book.lock();
            let running = book.running.entry(device.to_owned()).or_default();
            *running += bytes;
            *running
        };
        if running > allocatable {
            let index = self.index;
            world.broken(format!(
                "capacity: {running} bytes run on worker-{index} {device}, which has {allocatable}"
            ));
        }
        Running {
            live: Arc::clone(self),
            device: device.to_owned(),
            bytes,
        }
    }

    /// Checks that the grants on each device do not exceed it, and that the ledger's sum is the sum of the grants.
    pub fn check_capacity(&self, world: &World) {
        let inventory = self.agent.inventory();
        for device in &inventory.devices {
            let grants = inventory.grants.iter().filter(|grant| grant.device == device.name);
            let bytes: u64 = grants.map(|grant| u64::from(grant.slices) * grant.slice_bytes).sum();
            if bytes > device.allocatable_bytes || bytes != device.leased_bytes {
                world.broken(format!(
                    "capacity: grants of {bytes} bytes, counted as {}, on worker-{} {}, which has {}",
                    device.leased_bytes, self.index, device.name, device.allocatable_bytes
                ));
            }
        }
    }

    /// Extends the recorded grants of sessions with a connected client, as the agent itself does.
    fn keep_connected(&self) {
        let now = self.clock.now();
        let mut book = self.book.lock();
        for session in self.agent.sessions.all() {
            if session.process().is_some_and(|process| process.status_page().stats().connected) {
                let end = (now + session.ttl()).min(session.limit());
                let held = book.grants.values_mut().filter(|grant| session.owner_uid == grant.owner);
                held.filter(|grant| grant.end >= now)
                    .for_each(|grant| grant.end = grant.end.max(end));
            }
        }
    }

    /// Checks that ended grants are freed in time by the agent's own clock, without a request from outside.
    pub fn check_expiry(&self, world: &World) {
        self.keep_connected();
        let now = self.clock.now();
        let (leased, _) = self.agent.totals();
        let mut book = self.book.lock();
        let idle = book.running.values().all(|bytes| *bytes == 0) && book.idle_since + IDLE_WITHIN < now;
        book.grants.retain(|_, grant| grant.end + grant.grace + KILLED_WITHIN > now);
        let grants = book.grants.values();
        let counted: u64 = grants
            .filter(|grant| !idle || grant.end + IDLE_WITHIN > now)
            .map(|grant| grant.bytes)
            .sum();
        if leased.leased_bytes > counted {
            let (index, leased) = (self.index, leased.leased_bytes);
            world.broken(format!(
                "expiry: {leased} bytes are lent by worker-{index}, of which only {counted} may still be"
            ));
        }
    }

    /// Records that the agent accepted a request for an owner. Checks that its term is not lower than an earlier one.
    pub fn obeyed(&self, world: &World, owner: &Owner) {
        let mut book = self.book.lock();
        let known = book.terms.entry(owner.uid.clone()).or_default();
        if owner.term < *known {
            let (term, known) = (owner.term, *known);
            world.broken(format!(
                "term: worker-{} obeyed term {term} for {} after {known}",
                self.index, owner.name
            ));
        }
        *known = (*known).max(owner.term);
    }

    /// Checks and records the response to an acquire request.
    pub fn acquired(&self, world: &World, request: &AcquireRequest, response: &AcquireResponse) {
        let Some(grant) = &response.grant else {
            if response
                .refusal
                .as_ref()
                .is_some_and(|refusal| refusal.code() == RejectionCode::Unspecified)
            {
                world.broken("refusal: an acquire was refused without a cause".to_owned());
            }
            return;
        };
        let boot_id = &self.agent.parts.boot_id;
        if *boot_id != request.boot_id || *boot_id != grant.id.boot_id {
            world.broken(format!("boot: worker-{} granted slices of another boot", self.index));
        }
        self.obeyed(world, &request.owner);
        let booked = Booked {
            owner: request.owner.uid.clone(),
            bytes: u64::from(grant.slices) * grant.slice_bytes,
            end: self.clock.now() + request.ttl(),
            grace: request.grace(),
        };
        if self.book.lock().grants.insert(grant.id.counter, booked).is_some() {
            world.broken(format!("names: worker-{} used the name of a grant twice", self.index));
        }
        world.maxima.lock().check(world, &request.owner);
    }

    /// Checks and records the response to a renew request.
    pub fn renewed(&self, world: &World, request: &RenewRequest, response: &RenewResponse) {
        self.keep_connected();
        for outcome in response.outcomes.iter().filter(|outcome| outcome.renewed) {
            let Some(owner) = request.owners.iter().find(|owner| owner.grants.contains(&outcome.id)) else {
                continue;
            };
            if self.agent.parts.boot_id != outcome.id.boot_id {
                world.broken(format!("boot: worker-{} renewed a grant of another boot", self.index));
                continue;
            }
            self.obeyed(world, &owner.owner);
            let now = self.clock.now();
            if let Some(grant) = self.book.lock().grants.get_mut(&outcome.id.counter) {
                if grant.end < now {
                    world.broken(format!("expiry: worker-{} renewed a grant that had ended", self.index));
                }
                grant.end = now + owner.ttl();
            }
        }
    }

    /// Checks and records the response to a release request.
    pub fn released(&self, world: &World, request: &ReleaseRequest, response: &ReleaseResponse) {
        if response.refusal.is_some() {
            return;
        }
        self.obeyed(world, &request.owner);
        if request.keep_slices > 0 {
            return;
        }
        let now = self.clock.now();
        let mut book = self.book.lock();
        for (counter, grant) in book.grants.iter_mut().filter(|(_, grant)| grant.owner == request.owner.uid) {
            let named = request.grants.is_empty()
                || (request.grants.iter()).any(|id| self.agent.parts.boot_id == id.boot_id && id.counter == *counter);
            if named {
                grant.end = grant.end.min(now);
            }
        }
    }
}
