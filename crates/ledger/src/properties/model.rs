//! Model of the ledger that tracks each slice, and the calls on both.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest_state_machine::ReferenceStateMachine;

pub(super) const OWNERS: u8 = 3;
pub(super) const DEVICES: u8 = 2;
pub(super) const SLICE: u64 = 10;
pub(super) const ALLOCATABLE: u64 = 85;

#[derive(Clone, Debug)]
pub(super) enum Call {
    Acquire {
        owner: u8,
        term: u64,
        device: u8,
        slices: u32,
        at_least: u32,
        ttl: u64,
        grace: u64,
    },
    Renew {
        owner: u8,
        term: u64,
        counter: u64,
        ttl: u64,
    },
    Release {
        owner: u8,
        term: u64,
        counter: Option<u64>,
        keep: u32,
        immediately: bool,
    },
    Extend {
        owner: u8,
        ttl: u64,
        limit: u64,
    },
    Forfeit {
        owner: u8,
    },
    Limit {
        device: u8,
        bytes: u64,
    },
    Occupy {
        owner: u8,
        device: u8,
        wanted: u32,
    },
    Vacate {
        owner: u8,
        device: u8,
        count: u32,
    },
    Advance {
        milliseconds: u64,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Slice {
    pub(super) owner: u8,
    pub(super) device: u8,
    pub(super) counter: u64,
    pub(super) until: u64,
    pub(super) grace: u64,
    pub(super) draining: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    pub(super) now: u64,
    pub(super) counter: u64,
    pub(super) terms: BTreeMap<u8, u64>,
    pub(super) slices: Vec<Slice>,
    pub(super) in_use: BTreeMap<(u8, u8), u32>,
    /// Allocatable bytes of the devices whose limit was changed.
    pub(super) limits: BTreeMap<u8, u64>,
    /// Expected answer of the last call.
    pub(super) answer: Option<u32>,
    /// Owner and device of each kill that the last call requests.
    pub(super) kills: Vec<(u8, u8)>,
}

impl Model {
    pub(super) fn fence(&mut self, owner: u8, term: u64) -> bool {
        let known = self.terms.entry(owner).or_insert(term);
        let current = term >= *known;
        *known = term.max(*known);
        current
    }

    pub(super) fn count(&self, owner: u8, device: u8, draining: bool) -> usize {
        let here = self.slices.iter().filter(|slice| (slice.owner, slice.device) == (owner, device));
        here.filter(|slice| slice.draining == draining).count()
    }

    pub(super) fn leased(&self, device: u8) -> u64 {
        self.slices.iter().filter(|slice| slice.device == device).count() as u64 * SLICE
    }

    pub(super) fn limit(&self, device: u8) -> u64 {
        self.limits.get(&device).copied().unwrap_or(ALLOCATABLE)
    }

    pub(super) fn free(&self, device: u8) -> u64 {
        self.limit(device).saturating_sub(self.leased(device))
    }

    pub(super) fn release(&mut self, owner: u8, counter: Option<u64>, keep: u32, immediately: bool) {
        let now = self.now;
        let mut kept: BTreeMap<u64, u32> = BTreeMap::new();
        for slice in &mut self.slices {
            if slice.owner != owner || counter.is_some_and(|counter| counter != slice.counter) {
                continue;
            }
            let kept = kept.entry(slice.counter).or_default();
            if slice.draining {
                slice.until = if immediately { slice.until.min(now) } else { slice.until };
            } else if *kept < keep {
                *kept += 1;
            } else {
                slice.draining = true;
                slice.until = if immediately { now } else { now + slice.grace };
            }
        }
        self.settle();
        self.kill();
    }

    pub(super) fn settle(&mut self) {
        self.slices.sort_by_key(|slice| std::cmp::Reverse((slice.until, slice.counter)));
        for owner in 0..OWNERS {
            for device in 0..DEVICES {
                let in_use = self.in_use.get(&(owner, device)).copied().unwrap_or(0) as usize;
                let mut excess = in_use.saturating_sub(self.count(owner, device, false));
                self.slices.retain(|slice| {
                    if !slice.draining || (slice.owner, slice.device) != (owner, device) {
                        return true;
                    }
                    let kept = excess > 0;
                    excess = excess.saturating_sub(1);
                    kept
                });
            }
        }
    }

    pub(super) fn kill(&mut self) {
        let now = self.now;
        let mut kills = Vec::new();
        for slice in self.slices.iter_mut().filter(|slice| slice.draining && slice.until <= now) {
            slice.until = now + 1_000;
            kills.push((slice.owner, slice.device));
        }
        kills.sort_unstable();
        kills.dedup();
        self.kills = kills;
    }
}

impl ReferenceStateMachine for Model {
    type State = Model;
    type Transition = Call;

    fn init_state() -> BoxedStrategy<Model> {
        Just(Model::default()).boxed()
    }

    fn transitions(model: &Model) -> BoxedStrategy<Call> {
        let (owner, device, term) = (0..OWNERS, 0..DEVICES, prop_oneof![5 => Just(1u64), 1 => 0..4u64]);
        let counter = 0..model.counter + 2;
        prop_oneof![
            4 => (owner.clone(), term.clone(), device.clone(), 1..9u32, 0..4u32, 1..5_000u64, 0..3_000u64).prop_map(
                |(owner, term, device, slices, at_least, ttl, grace)| Call::Acquire {
                    owner, term, device, slices, at_least: at_least.min(slices), ttl, grace,
                }
            ),
            2 => (owner.clone(), term.clone(), counter.clone(), 1..5_000u64)
                .prop_map(|(owner, term, counter, ttl)| Call::Renew { owner, term, counter, ttl }),
            2 => (owner.clone(), term, proptest::option::weighted(0.8, counter), 0..4u32, any::<bool>()).prop_map(
                |(owner, term, counter, keep, immediately)| Call::Release {
                    owner, term, counter, keep: if counter.is_some() { keep } else { 0 }, immediately,
                }
            ),
            2 => (owner.clone(), 1..5_000u64, 0..12_000u64).prop_map(|(owner, ttl, limit)| Call::Extend { owner, ttl, limit }),
            1 => owner.clone().prop_map(|owner| Call::Forfeit { owner }),
            1 => (device.clone(), 0..=ALLOCATABLE).prop_map(|(device, bytes)| Call::Limit { device, bytes }),
            4 => (owner.clone(), device.clone(), 1..6u32).prop_map(|(owner, device, wanted)| Call::Occupy { owner, device, wanted }),
            3 => (owner, device, 1..6u32).prop_map(|(owner, device, count)| Call::Vacate { owner, device, count }),
            2 => (0..2_000u64).prop_map(|milliseconds| Call::Advance { milliseconds }),
        ]
        .boxed()
    }

    fn preconditions(model: &Model, call: &Call) -> bool {
        match call {
            Call::Vacate { owner, device, count } => model.in_use.get(&(*owner, *device)).is_some_and(|in_use| in_use >= count),
            _ => true,
        }
    }

    fn apply(mut model: Model, call: &Call) -> Model {
        model.answer = None;
        model.kills.clear();
        match *call {
            Call::Acquire {
                owner,
                term,
                device,
                slices,
                at_least,
                ttl,
                grace,
            } => {
                let granted = ((model.free(device) / SLICE) as u32).min(slices);
                if model.fence(owner, term) && granted >= at_least.max(1) {
                    model.counter += 1;
                    let slice = Slice {
                        owner,
                        device,
                        counter: model.counter,
                        until: model.now + ttl,
                        grace,
                        draining: false,
                    };
                    model.slices.extend(std::iter::repeat_n(slice, granted as usize));
                    model.answer = Some(granted);
                    model.settle();
                }
            }
            Call::Renew { owner, term, counter, ttl } => {
                let (is_current, until) = (model.fence(owner, term), model.now + ttl);
                let slices = model.slices.iter_mut();
                let found = slices.filter(|slice| is_current && !slice.draining && (slice.owner, slice.counter) == (owner, counter));
                let renewed = found.map(|slice| slice.until = until).count();
                model.answer = Some(u32::from(renewed > 0));
            }
            Call::Release {
                owner,
                term,
                counter,
                keep,
                immediately,
            } => {
                if model.fence(owner, term) {
                    model.release(owner, counter, keep, immediately);
                }
            }
            Call::Extend { owner, ttl, limit } => {
                let until = (model.now + ttl).min(limit);
                let held = model.slices.iter_mut().filter(|slice| !slice.draining && slice.owner == owner);
                let held = held.map(|slice| slice.until = slice.until.max(until)).count();
                model.answer = Some(u32::from(held > 0));
            }
            Call::Forfeit { owner } => {
                let now = model.now;
                for slice in model.slices.iter_mut().filter(|slice| slice.owner == owner) {
                    slice.until = if slice.draining { slice.until.min(now) } else { now };
                    slice.draining = true;
                }
                model.settle();
                model.kill();
            }
            Call::Limit { device, bytes } => {
                model.limits.insert(device, bytes);
            }
            Call::Occupy { owner, device, wanted } => {
                let active = model.count(owner, device, false) as u32;
                let in_use = model.in_use.entry((owner, device)).or_default();
                let occupied = wanted.min(active.saturating_sub(*in_use));
                *in_use += occupied;
                model.answer = Some(occupied);
            }
            Call::Vacate { owner, device, count } => {
                *model.in_use.entry((owner, device)).or_default() -= count;
                model.settle();
            }
            Call::Advance { milliseconds } => {
                model.now += milliseconds;
                let now = model.now;
                for slice in model.slices.iter_mut().filter(|slice| !slice.draining && slice.until <= now) {
                    slice.draining = true;
                    slice.until += slice.grace;
                }
                model.settle();
                model.kill();
            }
        }
        model
    }
}
