//! Working state of the solver: the slices that each claim holds on each device, and the free bytes of each device.
//!
//! Devices and claims are identified by numbers: devices by their position in the order of ids, claims by their rank in the order of
//! importance, so that a smaller rank is served first. All changes go through [`Pool::give`] and [`Pool::take`], which keep the sums up to
//! date. A transaction ([`Pool::begin`]) can be rolled back.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use sahasra_names::{DeviceId, Engine};

use crate::{Claim, ClaimKind, Device, Load, Problem};

/// Index into [`Pool::devices`].
pub(crate) type DeviceIndex = u32;
/// Index into [`Pool::demands`]: position of a claim in the order of importance.
pub(crate) type Rank = u32;

/// A claim whose values are normalized: no zero and no maximum below the minimum.
#[derive(Debug)]
pub(crate) struct Demand<'a> {
    pub claim: &'a Claim,
    /// Size of a slice in bytes, at least 1.
    pub slice: u64,
    /// Minimum number of slices, at least 1.
    pub min: u32,
    /// Maximum number of slices: at least `min`, and equal to `min` for a session.
    pub max: u32,
    /// Index into [`Pool::groups`].
    pub group: usize,
}

impl Demand<'_> {
    pub(crate) fn is_session(&self) -> bool {
        self.claim.kind == ClaimKind::Session
    }

    /// Free bytes that a device must have before it can serve this claim: all slices of a session, one slice otherwise.
    pub(crate) fn unit(&self) -> u64 {
        if self.is_session() {
            self.slice.saturating_mul(u64::from(self.min))
        } else {
            self.slice
        }
    }
}

/// Claims that have the same eligible devices and the same terms: their eligible devices, idlest first. If one claim of a group finds no
/// room, no other claim of the group that misses as many slices or more does.
type Group = Vec<DeviceIndex>;

#[derive(PartialEq, Eq, Hash)]
struct GroupKey<'a> {
    class: Option<&'a str>,
    engine: Option<Engine>,
    unit: u64,
    kind: ClaimKind,
    priority: i32,
    /// Id of a claim that has current rejections: such a claim forms a group of its own.
    own: Option<&'a str>,
}

/// Journal entry: the number of slices that a claim held on a device before a change.
type Change = (Rank, DeviceIndex, u32);

#[derive(Debug)]
pub(crate) struct Pool<'a> {
    pub devices: Vec<&'a Device>,
    indices: HashMap<&'a DeviceId, DeviceIndex>,
    pub demands: Vec<Demand<'a>>,
    pub groups: Vec<Group>,
    level_starts: Vec<Rank>,
    free: Vec<u64>,
    session_bytes: Vec<u64>,
    /// Per device: sessions placed by this solution, which [`Device::load`] does not yet include.
    new_sessions: Vec<u64>,
    holders: Vec<BTreeMap<Rank, u32>>,
    holdings: Vec<BTreeMap<DeviceIndex, u32>>,
    held: Vec<u32>,
    journal: Option<Vec<Change>>,
}

impl<'a> Pool<'a> {
    /// Creates the pool without any assignment.
    pub(crate) fn new(problem: &'a Problem, now: Duration) -> Self {
        let mut devices: Vec<&Device> = problem.devices.iter().collect();
        devices.sort_unstable();
        devices.dedup_by(|right, left| right.id == left.id);
        let claims = ranked(&problem.claims);
        let mut idlest_first: Vec<DeviceIndex> = (0..devices.len() as DeviceIndex).collect();
        idlest_first.sort_by_key(|&device| devices[device as usize].load);

        let mut groups: Vec<Group> = Vec::new();
        let mut known: HashMap<GroupKey, usize> = HashMap::new();
        let demands: Vec<Demand> = claims
            .into_iter()
            .map(|claim| {
                let min = claim.min.max(1);
                let mut demand = Demand {
                    claim,
                    slice: claim.slice_bytes.max(1),
                    min,
                    max: if claim.kind == ClaimKind::Session {
                        min
                    } else {
                        claim.max.max(min)
                    },
                    group: 0,
                };
                let own = claim.refused.values().any(|until| *until > now);
                let key = GroupKey {
                    class: claim.class.as_deref(),
                    engine: claim.engine,
                    unit: demand.unit(),
                    kind: claim.kind,
                    priority: claim.priority,
                    own: own.then_some(&*claim.id),
                };
                demand.group = *known.entry(key).or_insert_with(|| {
                    let fits = |&device: &DeviceIndex| accepts(devices[device as usize], &demand, now);
                    groups.push(idlest_first.iter().copied().filter(fits).collect());
                    groups.len() - 1
                });
                demand
            })
            .collect();
        let mut level_starts: Vec<Rank> = Vec::with_capacity(demands.len());
        for (rank, demand) in demands.iter().enumerate() {
            let same = rank
                .checked_sub(1)
                .filter(|&before| demands[before].claim.priority == demand.claim.priority);
            level_starts.push(same.map_or(rank as Rank, |before| level_starts[before]));
        }

        Self {
            level_starts,
            indices: devices
                .iter()
                .enumerate()
                .map(|(index, device)| (&device.id, index as DeviceIndex))
                .collect(),
            free: devices.iter().copied().map(room).collect(),
            session_bytes: vec![0; devices.len()],
            new_sessions: vec![0; devices.len()],
            holders: vec![BTreeMap::new(); devices.len()],
            holdings: vec![BTreeMap::new(); demands.len()],
            held: vec![0; demands.len()],
            journal: None,
            devices,
            demands,
            groups,
        }
    }

    pub(crate) fn ranks(&self) -> std::ops::Range<Rank> {
        0..self.demands.len() as Rank
    }

    pub(crate) fn demand(&self, claim: Rank) -> &Demand<'a> {
        &self.demands[claim as usize]
    }

    pub(crate) fn priority(&self, claim: Rank) -> i32 {
        self.demand(claim).claim.priority
    }

    /// Rank of the first claim with the same priority. This claim and all later ones have that priority or a lower one.
    pub(crate) fn level_start(&self, claim: Rank) -> Rank {
        self.level_starts[claim as usize]
    }

    pub(crate) fn device_index(&self, id: &DeviceId) -> Option<DeviceIndex> {
        self.indices.get(id).copied()
    }

    /// Devices that can take new slices of `claim`, idlest first.
    pub(crate) fn eligible(&self, claim: Rank) -> &[DeviceIndex] {
        &self.groups[self.demand(claim).group]
    }

    /// Free bytes of `device`.
    pub(crate) fn free(&self, device: DeviceIndex) -> u64 {
        self.free[device as usize]
    }

    /// Bytes of each device whose release time is unknown: foreign bytes that are not being released, the slices of sessions, and the
    /// minima of leases. Excludes the slices of bursts and the surplus of leases.
    pub(crate) fn stuck(&self) -> Vec<u64> {
        let mut stuck: Vec<u64> = (self.devices.iter())
            .zip(&self.session_bytes)
            .map(|(device, sessions)| {
                let foreign = device.foreign_bytes.saturating_sub(device.returning_bytes);
                foreign.saturating_add(*sessions)
            })
            .collect();
        for (lease, device, minimum, _) in self.held_by_leases() {
            stuck[device as usize] = stuck[device as usize].saturating_add(u64::from(minimum) * self.demand(lease).slice);
        }
        stuck
    }

    /// Surplus of leases in bytes, per lease and device. The surplus of a lease yields only to claims of the same or a higher priority.
    pub(crate) fn surplus_of_leases(&self) -> Vec<(Rank, DeviceIndex, u64)> {
        let held = self.held_by_leases().filter(|(_, _, _, surplus)| *surplus > 0);
        held.map(|(lease, device, _, surplus)| (lease, device, u64::from(surplus) * self.demand(lease).slice))
            .collect()
    }

    /// Slices of each lease on each device: those of its minimum, and its surplus. The first slices, in device order, count as the minimum.
    fn held_by_leases(&self) -> impl Iterator<Item = (Rank, DeviceIndex, u32, u32)> {
        let leases = self.ranks().filter(|&claim| self.demand(claim).claim.kind == ClaimKind::Lease);
        leases.flat_map(|lease| {
            let mut missing = self.demand(lease).min;
            self.holdings(lease).iter().map(move |(&device, &slices)| {
                let minimum = slices.min(missing);
                missing -= minimum;
                (lease, device, minimum, slices - minimum)
            })
        })
    }

    /// For each device, the allocated share of its worker's allocatable bytes, in units of 2^-32. `u64::MAX` for a worker without
    /// allocatable bytes.
    pub(crate) fn lent_shares(&self) -> Vec<u64> {
        let mut shares = Vec::with_capacity(self.devices.len());
        for worker in self.devices.chunk_by(|left, right| left.id.worker == right.id.worker) {
            let place = shares.len();
            let free: u128 = self.free[place..place + worker.len()].iter().map(|&free| u128::from(free)).sum();
            let lendable: u128 = worker.iter().map(|device| u128::from(device.allocatable_bytes)).sum();
            let share = (((lendable - free) << 32).checked_div(lendable)).map_or(u64::MAX, |share| share as u64);
            shares.resize(place + worker.len(), share);
        }
        shares
    }

    /// Number of slices of `claim` that fit into the free bytes of `device`.
    pub(crate) fn fit(&self, claim: Rank, device: DeviceIndex) -> u32 {
        u32::try_from(self.free(device) / self.demand(claim).slice).unwrap_or(u32::MAX)
    }

    /// Number of slices that `claim` holds on all devices.
    pub(crate) fn held(&self, claim: Rank) -> u32 {
        self.held[claim as usize]
    }

    /// Whether `claim` may hold its slices while a raised minimum waits.
    fn only_keeps(&self, claim: Rank) -> bool {
        let Claim { kind, kept, .. } = self.demand(claim).claim;
        if *kind == ClaimKind::Burst {
            return !kept.is_empty();
        }
        (self.holdings(claim).iter())
            .all(|(&device, slices)| kept.get(&self.devices[device as usize].id).is_some_and(|kept| slices <= kept))
    }

    /// Number of slices that `claim` lacks of its minimum.
    pub(crate) fn missing(&self, claim: Rank) -> u32 {
        self.demand(claim).min.saturating_sub(self.held(claim))
    }

    /// Number of slices that `claim` holds above its minimum.
    pub(crate) fn surplus(&self, claim: Rank) -> u32 {
        self.held(claim).saturating_sub(self.demand(claim).min)
    }

    /// Claims with slices on `device` and their number of slices, most important claim first.
    pub(crate) fn holders(&self, device: DeviceIndex) -> &BTreeMap<Rank, u32> {
        &self.holders[device as usize]
    }

    /// Devices on which `claim` holds slices, with their number.
    pub(crate) fn holdings(&self, claim: Rank) -> &BTreeMap<DeviceIndex, u32> {
        &self.holdings[claim as usize]
    }

    /// Adds `slices` to what `claim` holds on `device`, which must have enough free bytes.
    pub(crate) fn give(&mut self, claim: Rank, device: DeviceIndex, slices: u32) {
        if slices > 0 {
            self.set(claim, device, self.slices(claim, device) + slices);
        }
    }

    /// Places a session that holds no slices yet on `device`, which must have enough free bytes.
    pub(crate) fn give_session(&mut self, claim: Rank, device: DeviceIndex) {
        self.give(claim, device, self.demand(claim).min);
        self.new_sessions[device as usize] += 1;
    }

    /// Load of `device`, including one execution for each session that this solution has placed there.
    pub(crate) fn load(&self, device: DeviceIndex) -> Load {
        let load = self.devices[device as usize].load;
        Load {
            active_executions: load.active_executions.saturating_add(self.new_sessions[device as usize]),
            ..load
        }
    }

    /// Removes `slices` from what `claim` holds on `device`, which must be at least as many.
    pub(crate) fn take(&mut self, claim: Rank, device: DeviceIndex, slices: u32) {
        if slices > 0 {
            self.set(claim, device, self.slices(claim, device) - slices);
        }
    }

    /// Removes all slices of `claim`. Returns the slices that it held per device.
    pub(crate) fn evict(&mut self, claim: Rank) -> BTreeMap<DeviceIndex, u32> {
        let holdings = self.holdings[claim as usize].clone();
        for &device in holdings.keys() {
            self.set(claim, device, 0);
        }
        holdings
    }

    /// Starts a transaction. Transactions do not nest.
    pub(crate) fn begin(&mut self) {
        debug_assert!(self.journal.is_none(), "transactions do not nest");
        self.journal = Some(Vec::new());
    }

    /// Ends the transaction and keeps its changes.
    pub(crate) fn commit(&mut self) {
        self.journal = None;
    }

    /// Ends the transaction and reverts its changes.
    pub(crate) fn roll_back(&mut self) {
        for (claim, device, before) in self.journal.take().unwrap_or_default().into_iter().rev() {
            self.set(claim, device, before);
        }
    }

    fn slices(&self, claim: Rank, device: DeviceIndex) -> u32 {
        self.holdings[claim as usize].get(&device).copied().unwrap_or(0)
    }

    fn set(&mut self, claim: Rank, device: DeviceIndex, slices: u32) {
        let (slice, session) = (self.demand(claim).slice, self.demand(claim).is_session());
        let (row, column) = (claim as usize, device as usize);
        let before = if slices == 0 {
            self.holders[column].remove(&claim);
            self.holdings[row].remove(&device)
        } else {
            self.holders[column].insert(claim, slices);
            self.holdings[row].insert(device, slices)
        }
        .unwrap_or(0);
        self.held[row] = self.held[row] - before + slices;
        // Both products are at most the device's allocatable bytes, because `give` never adds more slices than fit.
        let (old, new) = (u64::from(before) * slice, u64::from(slices) * slice);
        debug_assert!(self.free[column] + old >= new, "more given than is free");
        self.free[column] = self.free[column] + old - new;
        if session {
            self.session_bytes[column] = self.session_bytes[column] + new - old;
        }
        if let Some(journal) = &mut self.journal {
            journal.push((claim, device, before));
        }
    }

    /// Checks all sums, and that every claim holds a number of slices that the rules allow. For assertions.
    pub(crate) fn is_consistent(&self) -> bool {
        let devices_add_up = (0..self.devices.len()).all(|device| {
            let held: u64 = self.holders[device]
                .iter()
                .map(|(&claim, &slices)| u64::from(slices) * self.demand(claim).slice)
                .sum();
            self.free[device] + held == room(self.devices[device])
        });
        devices_add_up
            && self.ranks().all(|claim| {
                let (demand, held) = (self.demand(claim), self.held(claim));
                let sum: u32 = self.holdings(claim).values().sum();
                let pinned = !demand.is_session() || self.holdings(claim).len() <= 1;
                let allowed = held == 0 || (demand.min..=demand.max).contains(&held) || self.only_keeps(claim);
                sum == held && allowed && pinned
            })
    }
}

/// Bytes of `device` for all claims together.
fn room(device: &Device) -> u64 {
    device.allocatable_bytes.saturating_sub(device.foreign_bytes)
}

/// Claims in the order of importance, without duplicate ids.
fn ranked(claims: &[Claim]) -> Vec<&Claim> {
    let mut claims: Vec<&Claim> = claims.iter().collect();
    claims.sort_unstable();
    claims.dedup_by(|right, left| right.id == left.id);
    claims.sort_by(|left, right| {
        let importance = right.priority.cmp(&left.priority);
        importance.then(left.since.cmp(&right.since)).then_with(|| left.id.cmp(&right.id))
    });
    claims
}

/// Whether `device` can take new slices of `demand`, regardless of free bytes and reservations.
fn accepts(device: &Device, demand: &Demand, now: Duration) -> bool {
    let claim = demand.claim;
    claim.class.as_ref().is_none_or(|class| *class == device.class)
        && claim.engine.is_none_or(|engine| device.engines.contains(&engine))
        && device.usable.is_ok()
        && demand.unit() <= device.allocatable_bytes
        && claim.refused.get(&device.id).is_none_or(|until| *until <= now)
}
