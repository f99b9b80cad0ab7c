//! Property test: random sequences of calls on the ledger, compared with a model that tracks each slice.

use proptest::prelude::*;
use proptest_state_machine::{StateMachineTest, prop_state_machine};

use sahasra_wire::grants::{AcquireRequest, Owner, RejectionCode, ReleaseRequest, RenewOwner};

use super::*;

mod model;

use model::*;

struct UnderTest {
    ledger: Ledger,
    now: Duration,
    counters: std::collections::BTreeSet<u64>,
}

impl UnderTest {
    /// Releases twice, which frees nothing the second time.
    fn release(&mut self, request: &ReleaseRequest, is_stale: bool) {
        let response = self.ledger.release(self.now, request);
        assert_eq!(response.refusal.is_some(), is_stale);
        let leased: Vec<u64> = self.ledger.loads().map(|(_, load)| load.leased_bytes).collect();
        let again = self.ledger.release(self.now, request);
        assert_eq!(again.freed, 0, "the second time there is nothing to free");
        assert_eq!(again.draining, response.draining);
        assert_eq!(leased, self.ledger.loads().map(|(_, load)| load.leased_bytes).collect::<Vec<_>>());
    }

    /// Takes the effects of a call and checks them. Returns owner and device of each kill, sorted.
    fn kills(&mut self) -> Vec<(u8, u8)> {
        let mut kills: Vec<(u8, u8)> = Vec::new();
        for effect in self.ledger.take_effects() {
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
                } => assert!(self.ledger.active_slices(&owner_uid, &device) <= active),
                Effect::Gone { owner_uid } => assert!(!self.ledger.holds_anything(&owner_uid)),
            }
        }
        kills.sort_unstable();
        kills.dedup();
        kills
    }
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
            name: format!("{place}").into(),
            allocatable_bytes: ALLOCATABLE,
            session_bytes: 0,
        };
        UnderTest {
            ledger: Ledger::new("boot".into(), (0..DEVICES).map(device).collect()),
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
                    Err(refusal) if term < model.terms[&uid] => assert_eq!(refusal.code(), RejectionCode::StaleTerm),
                    Err(refusal) => assert_eq!(
                        (refusal.code(), refusal.free_bytes),
                        (RejectionCode::InsufficientVram, model.free(device))
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
                test.release(&request, term < model.terms[&uid]);
            }
            Call::Extend { owner, ttl, limit } => {
                let (ttl, limit) = (Duration::from_millis(ttl), Duration::from_millis(limit));
                let held = ledger.extend(test.now, &format!("{owner}").into(), ttl, limit);
                assert_eq!(Some(u32::from(held)), model.answer);
            }
            Call::Forfeit { owner } => ledger.forfeit(test.now, &format!("{owner}").into()),
            Call::Limit { device, bytes } => ledger.set_limit(&format!("{device}").into(), bytes),
            Call::Occupy { owner, device, wanted } => {
                let occupied = ledger.occupy(test.now, &format!("{owner}").into(), &format!("{device}").into(), wanted);
                assert_eq!(Some(occupied), model.answer);
            }
            Call::Vacate { owner, device, count } => {
                ledger.vacate(test.now, &format!("{owner}").into(), &format!("{device}").into(), count)
            }
            Call::Advance { milliseconds } => {
                test.now += Duration::from_millis(milliseconds);
                let due = ledger.next_deadline();
                let before: Vec<_> = ledger.grants(test.now).into_iter().map(|grant| (grant.id, grant.slices)).collect();
                let effects = ledger.tick(test.now);
                test.ledger.effects = effects;
                if due.is_none_or(|due| test.now < due) {
                    let after: Vec<_> = (test.ledger.grants(test.now).into_iter())
                        .map(|grant| (grant.id, grant.slices))
                        .collect();
                    assert_eq!(before, after, "nothing happens before the deadline that was given");
                }
            }
        }
        assert_eq!(test.kills(), model.kills);
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
                let (uid, name) = (OwnerUid::from(format!("{owner}")), DeviceName::from(format!("{device}")));
                assert_eq!(test.ledger.active_slices(&uid, &name) as usize, model.count(owner, device, false));
                let draining = grants
                    .iter()
                    .filter(|grant| grant.draining && uid == grant.owner_uid && name == grant.device);
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
