//! Choice of the device for sessions and leases.

use std::{collections::BTreeMap, time::Duration};

use sahasra_scheduler::{Claim, ClaimKind, Device, Load, Solution, Unusable, WhyNot, solve};

use crate::builders::{GIB, burst, gpu, held, id, on, pool, session, why_not};

#[test]
fn a_session_is_placed_on_the_idlest_device_by_executions_then_bytes_then_tensors() {
    let busy = |name, active_executions, stored_tensor_bytes, tensor_count| Device {
        load: Load {
            active_executions,
            stored_tensor_bytes,
            tensor_count,
        },
        ..gpu(name, 8)
    };
    let devices = [
        busy("a/gpu0", 1, 0, 0),
        busy("b/gpu0", 0, 9, 1),
        busy("c/gpu0", 0, 8, 7),
        busy("d/gpu0", 0, 8, 6),
    ];
    for (count, wanted) in [(4, "d/gpu0"), (3, "c/gpu0"), (2, "b/gpu0"), (1, "a/gpu0")] {
        let solution = solve(&pool(&devices[..count], &[session("s", 1)]), &[], Duration::ZERO);
        assert_eq!(on(&solution, "s", wanted), 1, "of the first {count}");
    }
}

#[test]
fn sessions_that_arrive_together_are_placed_on_different_idle_devices() {
    let devices = [gpu("a/gpu0", 8), gpu("b/gpu0", 8)];
    let solution = solve(&pool(&devices, &[session("s", 1), session("t", 1)]), &[], Duration::ZERO);
    assert_ne!(solution.assignments[0].device, solution.assignments[1].device);
}

#[test]
fn sessions_that_arrive_together_count_for_each_other_as_executions() {
    let stores = Device {
        load: Load {
            stored_tensor_bytes: 9,
            tensor_count: 1,
            ..Load::default()
        },
        ..gpu("a/gpu0", 8)
    };
    let sessions = [session("s", 1), session("t", 1), session("u", 1), session("v", 1)];
    let solution = solve(&pool(&[stores, gpu("b/gpu0", 8)], &sessions), &[], Duration::ZERO);
    let placed: Vec<u32> = sessions.iter().map(|session| on(&solution, &session.id, "a/gpu0")).collect();
    assert_eq!(placed, [0, 1, 0, 1]);
}

#[test]
fn a_session_stays_on_its_device_even_if_the_device_fails() {
    for trouble in [Unusable::NotReady, Unusable::Unhealthy, Unusable::Cordoned] {
        let troubled = Device {
            usable: Err(trouble),
            ..gpu("a/gpu0", 8)
        };
        let solution = solve(
            &pool(&[troubled, gpu("b/gpu0", 8)], &[session("s", 1)]),
            &[held("s", "a/gpu0", 1)],
            Duration::ZERO,
        );
        assert_eq!(on(&solution, "s", "a/gpu0"), 1, "{trouble:?}");
    }
}

#[test]
fn a_cordoned_device_keeps_what_it_has_and_gets_nothing_new() {
    let cordoned = Device {
        usable: Err(Unusable::Cordoned),
        ..gpu("a/gpu0", 8)
    };
    let problem = pool(&[cordoned], &[burst("old", 1, 1, 100), burst("new", 1, 1, 1)]);
    let solution = solve(&problem, &[held("old", "a/gpu0", 3)], Duration::ZERO);
    assert_eq!(solution.slices_of("old"), 3);
    assert_eq!(why_not(&solution, "new", "a/gpu0"), WhyNot::Unusable(Unusable::Cordoned));
}

#[test]
fn leases_spread_over_workers_and_fill_a_workers_devices_one_after_the_other() {
    let names = ["a", "b", "c"]
        .iter()
        .flat_map(|worker| [format!("{worker}/gpu0"), format!("{worker}/gpu1")]);
    let devices: Vec<Device> = names.map(|name| gpu(&name, 8)).collect();
    let lease = |index: usize, max| Claim {
        kind: ClaimKind::Lease,
        ..burst(&format!("lease-{index:02}"), 1, 1, max)
    };
    // Solve once per added lease, then once for all leases together.
    let (mut claims, mut solution) = (Vec::new(), Solution::default());
    for index in 0..30 {
        claims.push(lease(index, 1));
        solution = solve(&pool(&devices, &claims), &solution.assignments, Duration::ZERO);
    }
    for solution in [solution, solve(&pool(&devices, &claims), &[], Duration::ZERO)] {
        let on = |device: &str| solution.assignments.iter().filter(|part| part.device == id(device)).count();
        for worker in ["a", "b", "c"] {
            let slices = (on(&format!("{worker}/gpu0")), on(&format!("{worker}/gpu1")));
            assert_eq!(slices, (8, 2), "{worker}");
        }
    }
    // A lease with many slices is spread too, including its surplus.
    let wide = pool(
        &devices,
        &[Claim {
            min: 6,
            max: 6,
            ..lease(0, 6)
        }],
    );
    let solution = solve(&wide, &[], Duration::ZERO);
    assert_eq!(
        [
            on(&solution, "lease-00", "a/gpu0"),
            on(&solution, "lease-00", "b/gpu0"),
            on(&solution, "lease-00", "c/gpu0")
        ],
        [2; 3]
    );
    let mut held = Vec::new();
    for index in 0..3 {
        let claims: Vec<Claim> = (0..=index).map(|index| lease(index, 2)).collect();
        held = solve(&pool(&devices, &claims), &held, Duration::ZERO).assignments;
    }
    let on_worker = |worker: &str| {
        held.iter()
            .filter(|part| &*part.device.worker == worker)
            .map(|part| part.slices)
            .sum::<u32>()
    };
    assert_eq!([on_worker("a"), on_worker("b"), on_worker("c")], [2; 3]);
}

#[test]
fn a_device_that_rejected_a_claim_is_proposed_again_after_the_rejection_expires() {
    let refused = Claim {
        refused: [(id("a/gpu0"), Duration::from_secs(50))].into(),
        ..burst("b", 1, 1, 1)
    };
    let problem = pool(&[gpu("a/gpu0", 8)], &[refused]);
    let before = solve(&problem, &[], Duration::from_secs(49));
    assert_eq!(
        why_not(&before, "b", "a/gpu0"),
        WhyNot::RejectedRecently {
            until: Duration::from_secs(50)
        }
    );
    assert_eq!(before.revisit_at, Some(Duration::from_secs(50)));
    assert_eq!(solve(&problem, &[], Duration::from_secs(50)).slices_of("b"), 1);
}

#[test]
fn draining_slices_are_not_assigned() {
    let draining = Device {
        foreign_bytes: 5 * GIB,
        ..gpu("a/gpu0", 8)
    };
    let solution = solve(&pool(&[draining], &[burst("b", 1, 1, 100)]), &[], Duration::ZERO);
    assert_eq!(solution.slices_of("b"), 3);
}

#[test]
fn a_raised_minimum_is_added_to_the_held_slices_or_waits() {
    let lease = |min, kept| Claim {
        kind: ClaimKind::Lease,
        kept: BTreeMap::from([(id("a/gpu0"), kept)]),
        ..burst("lease", 1, min, 8)
    };
    let devices = [gpu("a/gpu0", 4), gpu("b/gpu0", 4), gpu("c/gpu0", 4)];
    let previous = [held("lease", "a/gpu0", 4)];
    // As a fresh claim, it would be spread again.
    let solution = solve(&pool(&devices, &[lease(5, 4)]), &previous, Duration::ZERO);
    assert_eq!(on(&solution, "lease", "a/gpu0"), 4);
    let full = [gpu("a/gpu0", 4)];
    let solution = solve(&pool(&full, &[lease(6, 4), burst("next", 1, 1, 8)]), &previous, Duration::ZERO);
    assert_eq!(on(&solution, "lease", "a/gpu0"), 4);
    let refusal = solution.refusal_of("lease").expect("two slices are missing");
    assert_eq!(&*refusal.summary, "needs 2 more slices of 1Gi; a/gpu0: 0 free, slice needs 1Gi");
    // A part of the missing slices is not kept, so that two such claims do not wait for each other.
    let two = [gpu("a/gpu0", 4), gpu("b/gpu0", 2)];
    let partly = [held("lease", "a/gpu0", 4), held("lease", "b/gpu0", 1)];
    let solution = solve(&pool(&two, &[lease(7, 4)]), &partly, Duration::ZERO);
    assert_eq!((on(&solution, "lease", "a/gpu0"), on(&solution, "lease", "b/gpu0")), (4, 0));
    // Of the kept slices, those that are left stay.
    let solution = solve(&pool(&full, &[lease(6, 4)]), &[held("lease", "a/gpu0", 3)], Duration::ZERO);
    assert_eq!(solution.slices_of("lease"), 3);
}

#[test]
fn a_burst_with_a_raised_minimum_keeps_its_slices_and_grows() {
    let raised = Claim {
        kept: BTreeMap::from([(id("a/gpu0"), 1)]),
        ..burst("burst", 1, 9, 9)
    };
    let devices = [gpu("a/gpu0", 2), gpu("b/gpu0", 2)];
    let solution = solve(&pool(&devices, &[raised]), &[held("burst", "a/gpu0", 1)], Duration::ZERO);
    assert_eq!((solution.slices_of("burst"), solution.refusal_of("burst").is_some()), (4, true));
}
