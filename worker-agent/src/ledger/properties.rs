//! Property test: random sequences of calls on the ledger, compared with a model that tracks each slice.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};

use sahasra_wire::grants::{AcquireRequest, Owner, RefusalCode, ReleaseRequest, RenewOwner};

use super::*;

const OWNERS: u8 = 3;
const DEVICES: u8 = 2;
const SLICE: u64 = 10;
const ALLOCATABLE: u64 = 85;

#[derive(Clone, Debug)]
enum Call {
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
struct Slice {
    owner: u8,
    device: u8,
    counter: u64,
    until: u64,
    grace: u64,
    draining: bool,
}

#[derive(Clone, Debug, Default)]
struct Model {
    now: u64,
    counter: u64,
    terms: BTreeMap<u8, u64>,
    slices: Vec<Slice>,
    in_use: BTreeMap<(u8, u8), u32>,
    /// Allocatable bytes of the devices whose limit was changed.
    limits: BTreeMap<u8, u64>,
    /// Expected answer of the last call.
    answer: Option<u32>,
    /// Owner and device of each kill that the last call requests.
    kills: Vec<(u8, u8)>,
}

impl Model {
    fn hear(&mut self, owner: u8, term: u64) -> bool {
        let known = self.terms.entry(owner).or_insert(term);
        let current = term >= *known;
        *known = term.max(*known);
        current
    }

    fn count(&self, owner: u8, device: u8, draining: bool) -> usize {
        let here = self.slices.iter().filter(|slice| (slice.owner, slice.device) == (owner, device));
        here.filter(|slice| slice.draining == draining).count()
    }

    fn leased(&self, device: u8) -> u64 {
        self.slices.iter().filter(|slice| slice.device == device).count() as u64 * SLICE
    }

    fn limit(&self, device: u8) -> u64 {
        self.limits.get(&device).copied().unwrap_or(ALLOCATABLE)
    }

    fn free(&self, device: u8) -> u64 {
        self.limit(device).saturating_sub(self.leased(device))
    }

    fn settle(&mut self) {
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

    fn kill(&mut self) {
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
                if model.hear(owner, term) && granted >= at_least.max(1) {
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
                let (heard, until) = (model.hear(owner, term), model.now + ttl);
                let slices = model.slices.iter_mut();
                let found = slices.filter(|slice| heard && !slice.draining && (slice.owner, slice.counter) == (owner, counter));
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
                if model.hear(owner, term) {
                    let now = model.now;
                    let mut kept: BTreeMap<u64, u32> = BTreeMap::new();
                    for slice in &mut model.slices {
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
                    model.settle();
                    model.kill();
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

struct UnderTest {
    ledger: Ledger,
    now: Duration,
    counters: std::collections::BTreeSet<u64>,
}

fn owner(owner: u8, term: u64) -> Owner {
    Owner {
        uid: format!("{owner}"),
        namespace: format!("namespace-{owner}"),
        name: String::new(),
        term,
    }
}

impl StateMachineTest for UnderTest {
    type SystemUnderTest = UnderTest;
    type Reference = Model;

    fn init_test(_: &Model) -> UnderTest {
        let device = |place: u8| Device {
            name: format!("{place}"),
            allocatable_bytes: ALLOCATABLE,
            session_bytes: 0,
        };
        UnderTest {
            ledger: Ledger::new("boot".to_owned(), (0..DEVICES).map(device).collect()),
            now: Duration::ZERO,
            counters: std::collections::BTreeSet::new(),
        }
    }

    fn apply(mut test: UnderTest, model: &Model, call: Call) -> UnderTest {
        let ledger = &mut test.ledger;
        let id = |counter| GrantId {
            boot_id: "boot".to_owned(),
            counter,
        };
        match call {
            Call::Acquire {
                owner: uid,
                term,
                device,
                slices,
                at_least,
                ttl,
                grace,
            } => {
                let request = AcquireRequest {
                    owner: owner(uid, term),
                    boot_id: "boot".to_owned(),
                    device: format!("{device}"),
                    slice_bytes: SLICE,
                    slices,
                    at_least,
                    ttl_milliseconds: ttl,
                    grace_milliseconds: grace,
                    session: None,
                };
                let answer = ledger.acquire(test.now, &request);
                assert_eq!(answer.as_ref().ok().map(|grant| grant.slices), model.answer);
                match answer {
                    Ok(grant) => assert!(test.counters.insert(grant.id.counter), "a name is never used twice"),
                    Err(refusal) if term < model.terms[&uid] => assert_eq!(refusal.code(), RefusalCode::StaleTerm),
                    Err(refusal) => assert_eq!(
                        (refusal.code(), refusal.free_bytes),
                        (RefusalCode::InsufficientVram, model.free(device))
                    ),
                }
            }
            Call::Renew {
                owner: uid,
                term,
                counter,
                ttl,
            } => {
                let request = RenewOwner {
                    owner: owner(uid, term),
                    grants: vec![id(counter)],
                    ttl_milliseconds: ttl,
                    session: None,
                };
                let outcomes = ledger.renew(test.now, &request);
                assert_eq!(Some(u32::from(outcomes[0].renewed)), model.answer);
            }
            Call::Release {
                owner: uid,
                term,
                counter,
                keep,
                immediately,
            } => {
                let request = ReleaseRequest {
                    owner: owner(uid, term),
                    grants: counter.map(id).into_iter().collect(),
                    keep_slices: keep,
                    immediately,
                };
                let response = ledger.release(test.now, &request);
                assert_eq!(response.refusal.is_some(), term < model.terms[&uid]);
                let leased: Vec<u64> = ledger.loads().map(|(_, load)| load.leased_bytes).collect();
                let again = ledger.release(test.now, &request);
                assert_eq!(again.freed, 0, "the second time there is nothing to free");
                assert_eq!(again.draining, response.draining);
                assert_eq!(leased, ledger.loads().map(|(_, load)| load.leased_bytes).collect::<Vec<_>>());
            }
            Call::Extend { owner, ttl, limit } => {
                let (ttl, limit) = (Duration::from_millis(ttl), Duration::from_millis(limit));
                let held = ledger.extend(test.now, &format!("{owner}"), ttl, limit);
                assert_eq!(Some(u32::from(held)), model.answer);
            }
            Call::Forfeit { owner } => ledger.forfeit(test.now, &format!("{owner}")),
            Call::Limit { device, bytes } => ledger.set_limit(&format!("{device}"), bytes),
            Call::Occupy { owner, device, wanted } => {
                let occupied = ledger.occupy(test.now, &format!("{owner}"), &format!("{device}"), wanted);
                assert_eq!(Some(occupied), model.answer);
            }
            Call::Vacate { owner, device, count } => ledger.vacate(test.now, &format!("{owner}"), &format!("{device}"), count),
            Call::Advance { milliseconds } => {
                test.now += Duration::from_millis(milliseconds);
                let due = ledger.next_deadline();
                let before: Vec<_> = ledger.grants(test.now).into_iter().map(|grant| (grant.id, grant.slices)).collect();
                let effects = ledger.tick(test.now);
                test.ledger.effects = effects;
                if due.is_none_or(|due| test.now < due) {
                    let after: Vec<_> = test
                        .ledger
                        .grants(test.now)
                        .into_iter()
                        .map(|grant| (grant.id, grant.slices))
                        .collect();
                    assert_eq!(before, after, "nothing happens before the deadline that was given");
                }
            }
        }
        let effects = test.ledger.take_effects();
        let mut kills: Vec<(u8, u8)> = Vec::new();
        for effect in effects {
            match effect {
                Effect::Kill {
                    device,
                    namespace,
                    owner_uid,
                } => {
                    assert_eq!(namespace, format!("namespace-{owner_uid}"));
                    kills.push((owner_uid.parse().unwrap(), device.parse().unwrap()));
                }
                Effect::Shrunk {
                    device, owner_uid, active, ..
                } => assert!(test.ledger.active_slices(&owner_uid, &device) <= active),
                Effect::Gone { owner_uid } => assert!(!test.ledger.holds_anything(&owner_uid)),
            }
        }
        kills.sort_unstable();
        kills.dedup();
        assert_eq!(kills, model.kills);
        test
    }

    fn check_invariants(test: &UnderTest, model: &Model) {
        for (name, load) in test.ledger.loads() {
            let device: u8 = name.parse().unwrap();
            assert!(load.leased_bytes <= load.allocatable_bytes, "oversold");
            assert_eq!(load.allocatable_bytes, model.limit(device).max(model.leased(device)));
            assert_eq!(load.leased_bytes, model.leased(device));
            assert_eq!(load.slices * SLICE, load.leased_bytes);
            let in_use = model
                .in_use
                .iter()
                .filter(|((_, at), _)| *at == device)
                .map(|(_, count)| u64::from(*count));
            assert_eq!(load.slices_in_use, in_use.sum::<u64>());
        }
        let grants = test.ledger.grants(test.now);
        for owner in 0..OWNERS {
            for device in 0..DEVICES {
                let (uid, name) = (format!("{owner}"), format!("{device}"));
                assert_eq!(test.ledger.active_slices(&uid, &name) as usize, model.count(owner, device, false));
                let draining = grants
                    .iter()
                    .filter(|grant| grant.draining && grant.owner_uid == uid && grant.device == name);
                assert_eq!(
                    draining.map(|grant| grant.slices as usize).sum::<usize>(),
                    model.count(owner, device, true)
                );
            }
        }
        let held: u64 = grants.iter().map(|grant| u64::from(grant.slices)).sum();
        let totals = test.ledger.totals();
        assert_eq!(totals.granted_slices - totals.freed_slices, held);
        assert_eq!(test.ledger.grants, grants.len());
        if let Some(earliest) = model.slices.iter().map(|slice| slice.until).min() {
            let deadline = test.ledger.next_deadline().expect("something is due");
            assert!(deadline <= Duration::from_millis(earliest), "the deadline comes too late");
        }
    }
}

prop_state_machine! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn the_ledger_agrees_with_a_model_of_single_slices(sequential 1..60 => UnderTest);
}
