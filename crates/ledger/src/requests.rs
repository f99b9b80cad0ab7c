//! Requests of coordinators: fencing by term, acquire, renew and release; and the agent's own extend and forfeit.

use std::{collections::BTreeMap, time::Duration};

use sahasra_names::OwnerUid;
use sahasra_wire::grants::{
    AcquireRequest, Grant, Owner, Refusal, RejectionCode, ReleaseRequest, ReleaseResponse, RenewOutcome, RenewOwner,
};

use super::{Holding, Ledger, MAX_DURATION, MAX_GRANTS, MAX_SILENT_OWNERS, OwnerState, SHUTDOWN_MESSAGE, TERM_MEMORY};

impl Ledger {
    /// Applies fencing: records the term of a coordinator, or rejects it as stale. Every request for an owner starts here.
    pub fn fence(&mut self, now: Duration, owner: &Owner) -> Result<(), Refusal> {
        if owner.uid.is_empty() || owner.uid.len() > 128 || owner.namespace.len() > 253 || owner.name.len() > 512 {
            let message = "owner: uid must have 1 to 128 bytes, namespace at most 253, name at most 512";
            return Err(Refusal::invalid(message));
        }
        if let Some(known) = self.owners.get_mut(owner.uid.as_str()) {
            if owner.term < known.term {
                let message = format!("term {} is stale: the latest term is {} for {}", owner.term, known.term, owner.name);
                return Err(Refusal::new(RejectionCode::StaleTerm, message));
            }
            if owner.namespace != known.namespace {
                let message = format!("owner {} belongs to namespace {:?}", owner.uid, known.namespace);
                return Err(Refusal::invalid(message));
            }
            known.term = owner.term;
            known.last_seen = now;
            return Ok(());
        }
        if self.silent_owners >= MAX_SILENT_OWNERS {
            self.forget_longest_silent();
        }
        self.owners.insert(
            OwnerUid::from(&owner.uid),
            OwnerState {
                term: owner.term,
                namespace: owner.namespace.clone(),
                holdings: BTreeMap::new(),
                last_seen: now,
            },
        );
        self.silent_owners += 1;
        self.wake_by(now + TERM_MEMORY);
        Ok(())
    }

    /// Grants up to `request.slices` slices, or rejects the request with the reason and the free bytes.
    pub fn acquire(&mut self, now: Duration, request: &AcquireRequest) -> Result<Grant, Refusal> {
        self.expire(now);
        if self.boot_id != request.boot_id {
            let message = format!("boot id is {}, not {}", self.boot_id, request.boot_id);
            return Err(Refusal::new(RejectionCode::BootMismatch, message));
        }
        self.fence(now, &request.owner)?;
        let Some(place) = self.place(&request.device) else {
            let message = format!("device {:?} not found", request.device);
            return Err(Refusal::new(RejectionCode::UnknownDevice, message));
        };
        let load = self.devices[place].load;
        let holds_some = self.owners[request.owner.uid.as_str()].holdings.contains_key(&place);
        let beside = match &request.session {
            Some(_) if !holds_some => self.devices[place].session_bytes,
            _ => 0,
        };
        let free = (load.allocatable_bytes - load.leased_bytes).saturating_sub(beside);
        let reject = |code: RejectionCode, message: &str| {
            Err(Refusal {
                free_bytes: free,
                ..Refusal::new(code, message)
            })
        };
        if self.shutting_down {
            return reject(RejectionCode::ShuttingDown, SHUTDOWN_MESSAGE);
        }
        if !load.healthy {
            let message = format!("device {} reported an error that requires a reset", request.device);
            return reject(RejectionCode::Unhealthy, &message);
        }
        let invalid = |message: &str| reject(RejectionCode::InvalidRequest, message);
        let (ttl, grace) = (request.ttl(), request.grace());
        if request.slice_bytes == 0 || request.slices == 0 || request.at_least > request.slices {
            return invalid("slice size and slices must be above 0, at_least no more than slices");
        }
        if ttl.is_zero() || ttl > MAX_DURATION || grace > MAX_DURATION {
            return invalid("time to live must be above 0, and time to live and grace period at most 30 days");
        }
        let owner = self.owners.get_mut(request.owner.uid.as_str()).expect("fencing recorded the owner");
        if let Some(holding) = owner.holdings.get(&place)
            && holding.slice_bytes() != request.slice_bytes
        {
            return invalid("the owner holds slices of another size on this device");
        }
        let slices = (free / request.slice_bytes).min(u64::from(request.slices)) as u32;
        if slices < request.at_least.max(1) || self.grants >= MAX_GRANTS {
            let message = if self.grants >= MAX_GRANTS {
                format!("the agent holds the maximum of {MAX_GRANTS} grants, whatever VRAM is free")
            } else {
                format!(
                    "{} slices of {} bytes requested, {slices} are free on {}",
                    request.at_least.max(1),
                    request.slice_bytes,
                    request.device,
                ) + &match beside {
                    0 => String::new(),
                    bytes => format!(" in addition to {} MiB for the session's context", bytes.div_ceil(1 << 20)),
                }
            };
            return reject(RejectionCode::InsufficientVram, &message);
        }
        self.counter += 1;
        if owner.holdings.is_empty() {
            self.silent_owners -= 1;
        }
        let holding = owner.holdings.entry(place);
        holding.or_insert_with(|| Holding::new(request.slice_bytes, beside));
        let (owner_uid, counter) = (OwnerUid::from(&request.owner.uid), self.counter);
        self.change(now, &owner_uid, place, false, |holding| {
            holding.add(counter, slices, now + ttl, grace);
        });
        self.granted_slices += u64::from(slices);
        self.wake_by(now + ttl);
        Ok(Grant {
            id: self.id(counter),
            owner_uid: request.owner.uid.clone(),
            device: request.device.clone(),
            slice_bytes: request.slice_bytes,
            slices,
            expires_in_milliseconds: request.ttl_milliseconds,
            draining: false,
            term: request.owner.term,
        })
    }

    /// Renews grants of one owner until `ttl` after `now`. Returns one outcome per grant, in the order of the request.
    pub fn renew(&mut self, now: Duration, request: &RenewOwner) -> Vec<RenewOutcome> {
        self.expire(now);
        let ttl = request.ttl();
        let refused = match self.fence(now, &request.owner) {
            Err(refusal) => Some(refusal.code()),
            Ok(()) if ttl.is_zero() || ttl > MAX_DURATION => Some(RejectionCode::InvalidRequest),
            Ok(()) => None,
        };
        let owner = self.owners.get_mut(request.owner.uid.as_str());
        let mut holdings = owner.map(|owner| &mut owner.holdings);
        let mut outcomes = Vec::with_capacity(request.grants.len());
        for id in &request.grants {
            let mut holdings = holdings.iter_mut().flat_map(|holdings| holdings.values_mut());
            let refusal = if let Some(code) = refused {
                code
            } else if self.boot_id != id.boot_id {
                RejectionCode::BootMismatch
            } else if holdings.any(|holding| holding.renew(id.counter, now + ttl)) {
                RejectionCode::Unspecified
            } else {
                RejectionCode::InvalidRequest
            };
            outcomes.push(RenewOutcome {
                id: id.clone(),
                renewed: refusal == RejectionCode::Unspecified,
                refusal: refusal as i32,
            });
        }
        self.wake_by(now + ttl.min(MAX_DURATION));
        outcomes
    }

    /// Extends an owner's grants without a coordinator, while a client is connected: each lasts until `ttl` from now, but not past `limit`,
    /// and never shorter than before. Ended grants stay ended. Returns whether the owner holds active slices.
    pub fn extend(&mut self, now: Duration, owner_uid: &OwnerUid, ttl: Duration, limit: Duration) -> bool {
        self.expire(now);
        let until = (now + ttl.min(MAX_DURATION)).min(limit);
        let mut held = false;
        let owner = self.owners.get_mut(owner_uid);
        for holding in owner.into_iter().flat_map(|owner| owner.holdings.values_mut()) {
            holding.extend(until);
            held |= holding.active() > 0;
        }
        held
    }

    /// Returns the time at which the last active grant of an owner ends unless it is extended.
    pub fn ends(&self, owner_uid: &OwnerUid) -> Option<Duration> {
        let holdings = self.owners.get(owner_uid)?.holdings.values();
        let active = holdings.flat_map(|holding| holding.parts()).filter(|part| !part.draining);
        active.map(|part| part.expires).max()
    }

    /// Ends all grants of an owner at once, without a coordinator, because the process that used them is gone.
    pub fn forfeit(&mut self, now: Duration, owner_uid: &OwnerUid) {
        self.expire(now);
        let owner = self.owners.get(owner_uid);
        let places: Vec<usize> = owner.map(|owner| owner.holdings.keys().copied().collect()).unwrap_or_default();
        for place in places {
            self.change(now, owner_uid, place, false, |holding| {
                for counter in holding.counters() {
                    holding.end(counter, 0, now, true);
                }
            });
        }
        self.sweep_kills(now);
    }

    /// Releases grants, completely or down to `keep_slices` each. Grants that are gone, of another boot or of another owner are skipped, so
    /// that a repeated request changes nothing.
    pub fn release(&mut self, now: Duration, request: &ReleaseRequest) -> ReleaseResponse {
        self.expire(now);
        let fenced = self.fence(now, &request.owner).and_then(|()| {
            if request.grants.is_empty() && request.keep_slices > 0 {
                return Err(Refusal::invalid("keep_slices requires a list of grants"));
            }
            Ok(())
        });
        if let Err(refusal) = fenced {
            return ReleaseResponse {
                refusal: Some(refusal),
                ..ReleaseResponse::default()
            };
        }
        let owner_uid = OwnerUid::from(&request.owner.uid);
        let owner = &self.owners[&owner_uid];
        let mut named: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        for (place, holding) in &owner.holdings {
            let counters = if request.grants.is_empty() {
                holding.counters()
            } else {
                let of_this_boot = request.grants.iter().filter(|id| self.boot_id == id.boot_id);
                of_this_boot.map(|id| id.counter).filter(|counter| holding.has(*counter)).collect()
            };
            named.insert(*place, counters);
        }
        let mut response = ReleaseResponse::default();
        for (place, counters) in named {
            self.change(now, &owner_uid, place, false, |holding| {
                for counter in &counters {
                    holding.end(*counter, request.keep_slices, now, request.immediately);
                }
            });
            let holding = self.owners.get(&owner_uid).and_then(|owner| owner.holdings.get(&place));
            for counter in counters {
                if holding.is_some_and(|holding| holding.is_draining(counter)) {
                    response.draining += 1;
                } else if holding.is_none_or(|holding| !holding.has(counter)) {
                    response.freed += 1;
                }
            }
        }
        self.sweep_kills(now);
        response
    }

    /// Forgets the owners that hold nothing and were silent longest: an eighth of [`MAX_SILENT_OWNERS`].
    fn forget_longest_silent(&mut self) {
        let silent = self.owners.iter().filter(|(_, owner)| owner.holdings.is_empty());
        let mut silent: Vec<(Duration, OwnerUid)> = silent.map(|(uid, owner)| (owner.last_seen, uid.clone())).collect();
        silent.sort_unstable();
        silent.truncate(MAX_SILENT_OWNERS / 8);
        self.silent_owners -= silent.len();
        for (_, uid) in silent {
            self.owners.remove(&uid);
        }
    }
}
