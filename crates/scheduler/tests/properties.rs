//! Properties that hold for every problem and every previous state.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use proptest::{prelude::*, sample::subsequence};
use sahasra_names::{DeviceId, Engine};
use sahasra_scheduler::{Assignment, Claim, ClaimKind, Device, Load, Problem, RESERVE_AFTER, Solution, Unusable, WhyNot, solve};

const NOW: Duration = Duration::from_secs(1_000);

/// Times in steps of a millisecond, so that some are equal.
fn time(milliseconds: std::ops::Range<u64>) -> impl Strategy<Value = Duration> {
    milliseconds.prop_map(Duration::from_millis)
}

fn device_id(index: usize) -> DeviceId {
    DeviceId::new(format!("worker-{}", index / 2), format!("gpu{}", index % 2))
}

fn device(index: usize) -> impl Strategy<Value = Device> {
    let usable = prop_oneof![
        6 => Just(Ok(())),
        1 => Just(Err(Unusable::NotReady)),
        1 => Just(Err(Unusable::Unhealthy)),
        1 => Just(Err(Unusable::Cordoned)),
    ];
    let load = (0..3_u64, 0..3_u64, 0..3_u64);
    (
        prop_oneof![Just("g5"), Just("h100")],
        0..24_u64,
        (0..6_u64, 0..6_u64),
        usable,
        load,
        any::<bool>(),
    )
        .prop_map(
            move |(class, allocatable_bytes, (foreign_bytes, returning), usable, load, xla)| Device {
                id: device_id(index),
                class: class.into(),
                engines: if xla { vec![Engine::Ptx, Engine::Xla] } else { vec![Engine::Ptx] },
                allocatable_bytes,
                foreign_bytes,
                returning_bytes: returning.min(foreign_bytes),
                usable,
                load: Load {
                    active_executions: load.0,
                    stored_tensor_bytes: load.1,
                    tensor_count: load.2,
                },
            },
        )
}

fn kept(devices: usize) -> impl Strategy<Value = BTreeMap<DeviceId, u32>> {
    proptest::collection::btree_map((0..devices.max(1)).prop_map(device_id), 1..5_u32, 1..4)
}

fn claim(index: usize, devices: usize) -> impl Strategy<Value = Claim> {
    let kind = prop_oneof![4 => Just(ClaimKind::Burst), 2 => Just(ClaimKind::Session), 1 => Just(ClaimKind::Lease)];
    let class = prop_oneof![3 => Just(None), 1 => Just(Some("g5")), 1 => Just(Some("h100"))];
    let now = NOW.as_millis() as u64;
    let since = prop_oneof![time(0..20), time(now - 20..now)];
    let refused = proptest::collection::vec((0..devices.max(1), time(now - 5..now + 5)), 0..2);
    (
        kind,
        1..10_u64,
        (0..7_u32, prop_oneof![3 => Just(BTreeMap::new()), 1 => kept(devices)]),
        0..20_u32,
        class,
        -1..3_i32,
        since,
        refused,
        prop::bool::weighted(0.2),
    )
        .prop_map(
            move |(kind, slice_bytes, (min, kept), more, class, priority, since, refused, xla)| Claim {
                id: format!("claim-{index}").into(),
                kind,
                slice_bytes,
                min,
                kept,
                max: min + more,
                class: class.map(Into::into),
                engine: xla.then_some(Engine::Xla),
                priority,
                since,
                refused: refused.into_iter().map(|(device, until)| (device_id(device), until)).collect(),
            },
        )
}

fn problem() -> impl Strategy<Value = Problem> {
    (0..7_usize, 0..10_usize).prop_flat_map(|(devices, claims)| {
        let all_devices: Vec<_> = (0..devices).map(device).collect();
        let all_claims: Vec<_> = (0..claims).map(move |index| claim(index, devices)).collect();
        (all_devices, all_claims).prop_map(|(devices, claims)| Problem { devices, claims })
    })
}

/// Arbitrary previous assignments, as they may exist after crashes: over capacity, of removed claims and devices, or duplicated.
fn holdings() -> impl Strategy<Value = Vec<Assignment>> {
    proptest::collection::vec((0..12_usize, 0..9_usize, 0..9_u32), 0..20).prop_map(|held| {
        let assignment = |(claim, device, slices)| Assignment {
            claim: format!("claim-{claim}").into(),
            device: device_id(device),
            slices,
        };
        held.into_iter().map(assignment).collect()
    })
}

/// A pool in which every claim can use every device and all slices have the same size.
fn uniform_problem() -> impl Strategy<Value = Problem> {
    problem().prop_map(|mut problem| {
        problem.devices.iter_mut().for_each(|device| device.usable = Ok(()));
        for claim in &mut problem.claims {
            (claim.slice_bytes, claim.class, claim.engine) = (2, None, None);
            claim.refused.clear();
        }
        problem
    })
}

fn slices(solution: &Solution) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for assignment in &solution.assignments {
        *sums.entry(assignment.claim.to_string()).or_default() += u64::from(assignment.slices);
    }
    sums
}

fn min_of(claim: &Claim) -> u64 {
    u64::from(claim.min.max(1))
}

/// Whether the claim may hold these slices, which are fewer than its minimum.
fn may_keep(claim: &Claim, solution: &Solution) -> bool {
    let is_kept = |held: &Assignment| claim.kept.get(&held.device).is_some_and(|kept| held.slices <= *kept);
    match claim.kind {
        ClaimKind::Session => false,
        ClaimKind::Burst => !claim.kept.is_empty(),
        ClaimKind::Lease => solution.assignments_of(&claim.id).all(is_kept),
    }
}

fn check_rules(problem: &Problem, solution: &Solution) -> Result<(), TestCaseError> {
    for device in &problem.devices {
        let held: u64 = solution
            .assignments
            .iter()
            .filter(|assignment| assignment.device == device.id)
            .map(|assignment| {
                let claim = problem
                    .claims
                    .iter()
                    .find(|claim| claim.id == assignment.claim)
                    .expect("only known claims hold slices");
                u64::from(assignment.slices) * claim.slice_bytes
            })
            .sum();
        prop_assert!(
            held == 0 || held + device.foreign_bytes <= device.allocatable_bytes,
            "{} is oversold",
            device.id
        );
    }
    let pairs: BTreeSet<_> = solution
        .assignments
        .iter()
        .map(|assignment| (&assignment.claim, &assignment.device))
        .collect();
    prop_assert_eq!(pairs.len(), solution.assignments.len(), "a pair stands twice");
    prop_assert!(solution.assignments.is_sorted() && solution.assignments.iter().all(|assignment| assignment.slices > 0));

    let sums = slices(solution);
    for claim in &problem.claims {
        let held = sums.get(&*claim.id).copied().unwrap_or(0);
        let max = if claim.kind == ClaimKind::Session {
            min_of(claim)
        } else {
            u64::from(claim.max).max(min_of(claim))
        };
        let keeps = held <= max && may_keep(claim, solution);
        prop_assert!(
            held == 0 || (min_of(claim)..=max).contains(&held) || keeps,
            "{} holds {held}",
            claim.id
        );
        prop_assert_eq!(held, solution.slices_of(&claim.id));
        if claim.kind == ClaimKind::Session {
            prop_assert!(
                solution.assignments_of(&claim.id).count() <= 1,
                "session {} is on several devices",
                claim.id
            );
        }
        let refusal = solution.refusal_of(&claim.id);
        prop_assert_eq!(refusal.is_some(), held < min_of(claim), "{} holds {}", claim.id, held);
        if let Some(refusal) = refusal {
            let devices: BTreeSet<_> = problem.devices.iter().map(|device| &device.id).collect();
            let explained: BTreeSet<_> = refusal.why_not.iter().map(|(device, _)| device).collect();
            prop_assert_eq!(devices, explained, "every device is explained");
            prop_assert!(!refusal.summary.is_empty());
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_answer_obeys_the_rules(problem in problem(), previous in holdings()) {
        check_rules(&problem, &solve(&problem, &previous, NOW))?;
    }

    #[test]
    fn solving_twice_changes_nothing(problem in problem(), previous in holdings()) {
        let once = solve(&problem, &previous, NOW);
        let twice = solve(&problem, &once.assignments, NOW);
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn the_order_of_the_input_has_no_effect(
        (problem, shuffled) in problem().prop_flat_map(|problem| {
            let shuffled = (Just(problem.devices.clone()).prop_shuffle(), Just(problem.claims.clone()).prop_shuffle());
            (Just(problem), shuffled.prop_map(|(devices, claims)| Problem { devices, claims }))
        }),
        (previous, reordered) in holdings().prop_flat_map(|held| (Just(held.clone()), Just(held).prop_shuffle())),
    ) {
        prop_assert_eq!(solve(&problem, &previous, NOW), solve(&shuffled, &reordered, NOW));
    }

    #[test]
    fn a_removed_claim_frees_its_slices_and_no_other_claim_loses_its_minimum(problem in problem(), previous in holdings(), which in any::<prop::sample::Index>()) {
        prop_assume!(!problem.claims.is_empty());
        let before = solve(&problem, &previous, NOW);
        let mut rest = problem.clone();
        let removed = rest.claims.remove(which.index(problem.claims.len()));
        let after = solve(&rest, &before.assignments, NOW);
        check_rules(&rest, &after)?;
        prop_assert_eq!(after.slices_of(&removed.id), 0);
        let newly_served = |than: i32| rest.claims.iter().any(|claim| {
            claim.priority > than && before.refusal_of(&claim.id).is_some() && after.refusal_of(&claim.id).is_none()
        });
        for claim in &rest.claims {
            let (held, holds) = (before.slices_of(&claim.id), after.slices_of(&claim.id));
            prop_assert!(held == 0 || holds > 0 || newly_served(claim.priority), "{} was pushed out without a cause", claim.id);
        }
    }

    #[test]
    fn without_waiting_claims_a_removal_reduces_no_claim(mut problem in uniform_problem(), which in any::<prop::sample::Index>()) {
        let crowded = solve(&problem, &[], NOW);
        problem.claims.retain(|claim| crowded.slices_of(&claim.id) > 0);
        prop_assume!(!problem.claims.is_empty());
        let before = solve(&problem, &crowded.assignments, NOW);
        prop_assert!(before.refusals.is_empty());
        let mut rest = problem.clone();
        let removed = rest.claims.remove(which.index(problem.claims.len()));
        let after = solve(&rest, &before.assignments, NOW);
        for claim in &rest.claims {
            let (held, holds) = (before.slices_of(&claim.id), after.slices_of(&claim.id));
            prop_assert!(holds >= held, "{} fell from {held} to {holds} when {} went", claim.id, removed.id);
        }
    }

    #[test]
    fn equals_share_equally(problem in uniform_problem(), previous in holdings()) {
        let solution = solve(&problem, &previous, NOW);
        let elastic = |claim: &&Claim| claim.kind != ClaimKind::Session && solution.slices_of(&claim.id) > 0;
        for poor in problem.claims.iter().filter(elastic) {
            for rich in problem.claims.iter().filter(elastic) {
                let (has, rich_has) = (solution.slices_of(&poor.id), solution.slices_of(&rich.id));
                let wants_more = has < u64::from(poor.max);
                let can_yield = rich_has > min_of(rich);
                if wants_more && can_yield && rich.priority <= poor.priority && solution.refusals.is_empty() {
                    let fair = if rich.priority < poor.priority { false } else { rich_has <= has + 1 };
                    prop_assert!(fair, "{} has {has}, {} has {rich_has}", poor.id, rich.id);
                }
            }
        }
    }

    #[test]
    fn sessions_and_leases_keep_their_minimum(problem in problem(), late in claim(99, 7)) {
        let before = solve(&problem, &[], NOW);
        let mut crowded = problem.clone();
        crowded.claims.push(late);
        let after = solve(&crowded, &before.assignments, NOW);
        for claim in problem.claims.iter().filter(|claim| claim.kind != ClaimKind::Burst) {
            if before.slices_of(&claim.id) > 0 {
                prop_assert!(after.slices_of(&claim.id) >= min_of(claim), "{} lost its minimum", claim.id);
            }
            if claim.kind == ClaimKind::Session && before.slices_of(&claim.id) > 0 {
                prop_assert!(before.assignments_of(&claim.id).eq(after.assignments_of(&claim.id)), "{} moved", claim.id);
            }
        }
    }

    #[test]
    fn a_lease_keeps_its_slices_while_it_waits_for_a_raised_minimum(
        mut problem in problem(),
        which in any::<prop::sample::Index>(),
        more in 1..9_u32,
        partly in proptest::option::of((any::<prop::sample::Index>(), 1..3_u32)),
    ) {
        problem.claims.iter_mut().for_each(|claim| claim.kept.clear());
        // A burst may be preempted meanwhile.
        for burst in problem.claims.iter_mut().filter(|claim| claim.kind == ClaimKind::Burst).step_by(2) {
            burst.kind = ClaimKind::Lease;
        }
        let before = solve(&problem, &[], NOW);
        let mut served: Vec<&mut Claim> = (problem.claims.iter_mut())
            .filter(|claim| claim.kind == ClaimKind::Lease && before.slices_of(&claim.id) > 0)
            .collect();
        if served.is_empty() {
            return Ok(());
        }
        let place = which.index(served.len());
        let raised = &mut served[place];
        let held = before.slices_of(&raised.id);
        // Without a surplus, none of the slices yields to another claim.
        raised.kept = before.assignments_of(&raised.id).map(|held| (held.device.clone(), held.slices)).collect();
        raised.min = held as u32 + more;
        raised.max = raised.min;
        let raised = raised.clone();
        // An agent has granted a part of the missing slices, and others have rejected the rest.
        let mut previous = before.assignments.clone();
        if let Some((device, slices)) = partly {
            let device = problem.devices[device.index(problem.devices.len())].clone();
            let used: u64 = (previous.iter().filter(|held| held.device == device.id))
                .map(|held| u64::from(held.slices) * problem.claims.iter().find(|claim| claim.id == held.claim).expect("a claim").slice_bytes)
                .sum();
            if used + device.foreign_bytes + u64::from(slices) * raised.slice_bytes <= device.allocatable_bytes {
                previous.push(Assignment { claim: raised.id.clone(), device: device.id, slices });
            }
        }
        let after = solve(&problem, &previous, NOW);
        check_rules(&problem, &after)?;
        let stays = |held: &Assignment| {
            let now = after.assignments_of(&raised.id).find(|now| now.device == held.device);
            u64::from(now.map_or(0, |now| now.slices.min(held.slices)))
        };
        let stayed: u64 = before.assignments_of(&raised.id).map(stays).sum();
        prop_assert_eq!(stayed, held, "{} kept {} in place", raised.id, stayed);
        let holds = after.slices_of(&raised.id);
        prop_assert!(holds == held || holds == u64::from(raised.min), "all of the missing slices or none of them");
    }

    #[test]
    fn bursts_fall_below_their_minimum_only_for_a_higher_priority(problem in problem(), late in claim(99, 7)) {
        let before = solve(&problem, &[], NOW);
        let mut crowded = problem.clone();
        crowded.claims.push(late.clone());
        let after = solve(&crowded, &before.assignments, NOW);
        for claim in &problem.claims {
            if before.slices_of(&claim.id) > 0 && after.slices_of(&claim.id) == 0 {
                prop_assert!(late.priority > claim.priority, "{} was pushed out by an equal", claim.id);
            }
        }
    }

    #[test]
    fn by_its_reasons_a_waiting_claim_does_not_fit(problem in problem(), previous in holdings()) {
        let solution = solve(&problem, &previous, NOW);
        for refusal in &solution.refusals {
            let fits: u64 = refusal.why_not.iter().map(|(_, why_not)| match why_not {
                WhyNot::TooFewSlices { fit, needed } => { assert!(fit < needed); u64::from(*fit) }
                WhyNot::InsufficientVram { free, needed } => { assert!(free < needed); 0 }
                _ => 0,
            }).sum();
            let claim = problem.claims.iter().find(|claim| claim.id == refusal.claim).expect("a known claim");
            prop_assert!(solution.slices_of(&claim.id) + fits < min_of(claim), "{} would fit: {}", claim.id, refusal.summary);
        }
    }

    #[test]
    fn a_reserving_claim_is_served_once_bursts_have_ended_and_releases_are_complete(mut problem in problem(), previous in holdings()) {
        // A greedy search selects the surplus of a lease that yields. That search may miss a solution that exists, so leases have no
        // surplus here.
        for lease in problem.claims.iter_mut().filter(|claim| claim.kind == ClaimKind::Lease) {
            lease.max = lease.min;
        }
        let solution = solve(&problem, &previous, NOW);
        let reserved = (solution.refusals.iter()).flat_map(|refusal| refusal.why_not.iter()).filter_map(|(_, why_not)| match why_not {
            WhyNot::ReservedFor { claim } => Some(claim.clone()),
            _ => None,
        });
        for reserving in reserved.collect::<BTreeSet<_>>() {
            let mut rest = problem.clone();
            for device in &mut rest.devices {
                device.foreign_bytes -= std::mem::take(&mut device.returning_bytes);
            }
            rest.claims.retain(|claim| claim.id == reserving || (claim.kind != ClaimKind::Burst && solution.slices_of(&claim.id) > 0));
            let after = solve(&rest, &solution.assignments, NOW);
            prop_assert!(after.refusal_of(&reserving).is_none(), "{reserving} reserved for nothing");
        }
    }

    #[test]
    fn arrivals_and_departures_end_in_a_settled_pool(
        problem in problem(),
        steps in proptest::collection::vec(any::<prop::sample::Selector>(), 1..4),
        kept in subsequence((0..10_usize).collect::<Vec<_>>(), 0..10),
    ) {
        let mut held = Vec::new();
        for (step, selector) in steps.iter().enumerate() {
            let mut present = problem.clone();
            present.claims.retain(|claim| kept.iter().any(|index| *claim.id == *format!("claim-{index}")));
            if !problem.claims.is_empty() {
                let one = selector.select(&problem.claims);
                if !present.claims.iter().any(|claim| claim.id == one.id) {
                    present.claims.push(one.clone());
                }
            }
            let now = NOW + step as u32 * RESERVE_AFTER;
            let solution = solve(&present, &held, now);
            check_rules(&present, &solution)?;
            prop_assert_eq!(&solution, &solve(&present, &solution.assignments, now));
            held = solution.assignments;
        }
    }
}
