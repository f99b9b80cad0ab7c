//! Holding of one owner on one device: its grants, its draining slices, and how many of its slices are in use.

use std::{collections::BTreeMap, time::Duration};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Active {
    slices: u32,
    expires: Duration,
    grace: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Draining {
    counter: u64,
    slices: u32,
    kill_at: Duration,
}

/// One grant of a holding, or the draining part of one.
pub(super) struct Part {
    pub counter: u64,
    pub slices: u32,
    /// When the grant expires; for a draining part, when it is killed.
    pub expires: Duration,
    pub draining: bool,
}

/// Slices of one size. Invariant after [`Holding::settle`]: the number of draining slices is the number by which the slices in
/// use exceed the active slices.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Holding {
    slice_bytes: u64,
    /// Bytes that the owner's process takes in addition to its slices.
    beside_bytes: u64,
    active: BTreeMap<u64, Active>,
    draining: Vec<Draining>,
    active_slices: u32,
    in_use: u32,
}

impl Holding {
    pub(crate) fn new(slice_bytes: u64, beside_bytes: u64) -> Self {
        Self {
            slice_bytes,
            beside_bytes,
            active: BTreeMap::new(),
            draining: Vec::new(),
            active_slices: 0,
            in_use: 0,
        }
    }

    pub(crate) fn slice_bytes(&self) -> u64 {
        self.slice_bytes
    }

    /// Returns the bytes that the holding takes of the device: 0 once it is empty.
    pub(crate) fn bytes(&self) -> u64 {
        match self.slices() {
            0 => 0,
            slices => slices * self.slice_bytes + self.beside_bytes,
        }
    }

    /// Returns the number of slices that may be taken into use.
    pub(crate) fn active(&self) -> u32 {
        self.active_slices
    }

    /// Returns the number of all slices, draining ones included.
    pub(crate) fn slices(&self) -> u64 {
        u64::from(self.active_slices) + self.draining.iter().map(|part| u64::from(part.slices)).sum::<u64>()
    }

    /// Returns the number of entries, active and draining.
    pub(crate) fn grants(&self) -> usize {
        self.active.len() + self.draining.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.active.is_empty() && self.draining.is_empty()
    }

    /// Adds a grant. Its slices also take over the use of draining ones, of which [`Holding::settle`] frees the same number.
    pub(crate) fn add(&mut self, counter: u64, slices: u32, expires: Duration, grace: Duration) {
        self.active.insert(counter, Active { slices, expires, grace });
        self.active_slices += slices;
    }

    pub(crate) fn renew(&mut self, counter: u64, expires: Duration) -> bool {
        let grant = self.active.get_mut(&counter);
        grant.map(|grant| grant.expires = expires).is_some()
    }

    /// Extends every active grant to `until`. Grants that last longer stay as they are.
    pub(crate) fn extend(&mut self, until: Duration) {
        for grant in self.active.values_mut() {
            grant.expires = grant.expires.max(until);
        }
    }

    pub(crate) fn has(&self, counter: u64) -> bool {
        self.active.contains_key(&counter) || self.is_draining(counter)
    }

    pub(crate) fn is_draining(&self, counter: u64) -> bool {
        self.draining.iter().any(|part| part.counter == counter)
    }

    pub(crate) fn counters(&self) -> Vec<u64> {
        let mut counters: Vec<u64> = self.active.keys().copied().collect();
        counters.extend(self.draining.iter().map(|part| part.counter));
        counters.sort_unstable();
        counters.dedup();
        counters
    }

    /// Reduces a grant to `keep` slices. The others drain until [`Holding::settle`] finds them idle.
    pub(crate) fn end(&mut self, counter: u64, keep: u32, now: Duration, immediately: bool) {
        if immediately {
            let parts = self.draining.iter_mut().filter(|part| part.counter == counter);
            parts.for_each(|part| part.kill_at = part.kill_at.min(now));
        }
        let Some(grant) = self.active.get_mut(&counter) else { return };
        let ended = grant.slices.saturating_sub(keep);
        if ended == 0 {
            return;
        }
        let kill_at = if immediately { now } else { now + grant.grace };
        grant.slices -= ended;
        if grant.slices == 0 {
            self.active.remove(&counter);
        }
        self.drain(counter, ended, kill_at);
    }

    fn drain(&mut self, counter: u64, slices: u32, kill_at: Duration) {
        self.active_slices -= slices;
        self.draining.push(Draining { counter, slices, kill_at });
    }

    /// Returns the number of grants that have expired at `now`.
    pub(crate) fn expired(&self, now: Duration) -> u64 {
        self.active.values().filter(|grant| grant.expires <= now).count() as u64
    }

    /// Ends the grants that have expired at `now`. Their slices drain.
    pub(crate) fn expire(&mut self, now: Duration) {
        let due = self.active.iter().filter(|(_, grant)| grant.expires <= now);
        let due: Vec<(u64, u32, Duration)> = due
            .map(|(counter, grant)| (*counter, grant.slices, grant.expires + grant.grace))
            .collect();
        for (counter, slices, kill_at) in due {
            self.active.remove(&counter);
            self.drain(counter, slices, kill_at);
        }
    }

    /// Takes up to `wanted` active slices into use, and returns how many.
    pub(crate) fn occupy(&mut self, wanted: u32) -> u32 {
        let occupied = wanted.min(self.active_slices.saturating_sub(self.in_use));
        self.in_use += occupied;
        occupied
    }

    pub(crate) fn vacate(&mut self, slices: u32) {
        self.in_use = self.in_use.saturating_sub(slices);
    }

    /// Frees the draining slices that are not in use. Slices are interchangeable, so those with the earliest kill time are freed first: no
    /// chunk is killed before the grace of the slice that still counts for it.
    pub(crate) fn settle(&mut self) {
        let mut excess = self.in_use.saturating_sub(self.active_slices);
        self.draining.sort_by_key(|part| std::cmp::Reverse((part.kill_at, part.counter)));
        for part in &mut self.draining {
            part.slices = part.slices.min(excess);
            excess -= part.slices;
        }
        self.draining.retain(|part| part.slices > 0);
    }

    /// Returns whether the grace of a draining part has passed at `now`. The kill time of such a part becomes `again`.
    pub(crate) fn kill_due(&mut self, now: Duration, again: Duration) -> bool {
        let mut due = false;
        for part in self.draining.iter_mut().filter(|part| part.kill_at <= now) {
            part.kill_at = again;
            due = true;
        }
        due
    }

    /// Returns the time of the next expiry or kill.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let active = self.active.values().map(|grant| grant.expires);
        active.chain(self.draining.iter().map(|part| part.kill_at)).min()
    }

    pub(crate) fn parts(&self) -> impl Iterator<Item = Part> {
        let active = self.active.iter().map(|(counter, grant)| Part {
            counter: *counter,
            slices: grant.slices,
            expires: grant.expires,
            draining: false,
        });
        active.chain(self.draining.iter().map(|part| Part {
            counter: part.counter,
            slices: part.slices,
            expires: part.kill_at,
            draining: true,
        }))
    }
}
