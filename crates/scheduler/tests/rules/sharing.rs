//! Sharing among bursts of equal and unequal priority, and preemption between claims.

use std::time::Duration;

use sahasra_scheduler::{Claim, ClaimKind, Device, Unusable, WhyNot, solve};

use crate::builders::{GIB, burst, gpu, held, on, pool, session, since, why_not, with_priority};

#[test]
fn a_burst_of_a_thousand_slices_spreads_over_all_devices() {
    let devices: Vec<Device> = (0..10).map(|index| gpu(&format!("w{index}/gpu0"), 100)).collect();
    let solution = solve(&pool(&devices, &[burst("b", 1, 1, 1000)]), &[], Duration::ZERO);
    assert_eq!(solution.slices_of("b"), 1000);
    assert_eq!(solution.assignments.len(), 10);
}

#[test]
fn a_burst_shrinks_for_a_session_even_of_lower_priority() {
    let devices = [gpu("a/gpu0", 8)];
    let hungry = with_priority(burst("b", 1, 2, 100), 10);
    let before = solve(&pool(&devices, std::slice::from_ref(&hungry)), &[], Duration::ZERO);
    assert_eq!(before.slices_of("b"), 8);
    let after = solve(&pool(&devices, &[hungry, session("s", 6)]), &before.assignments, Duration::ZERO);
    assert_eq!((after.slices_of("s"), after.slices_of("b")), (1, 2));
}

#[test]
fn a_session_does_not_push_a_burst_of_its_own_priority_below_its_minimum() {
    let problem = pool(&[gpu("a/gpu0", 8)], &[burst("b", 1, 3, 100), session("s", 6)]);
    let solution = solve(&problem, &[held("b", "a/gpu0", 8)], Duration::ZERO);
    assert_eq!(solution.slices_of("s"), 0);
    assert_eq!(solution.slices_of("b"), 8, "and the burst keeps what the session cannot use");
}

#[test]
fn a_higher_priority_preempts_a_burst_and_takes_only_what_it_needs() {
    let devices = [gpu("a/gpu0", 8), gpu("b/gpu0", 8)];
    let running = [held("old", "a/gpu0", 8), held("older", "b/gpu0", 8)];
    let claims = [
        since(burst("old", 1, 8, 8), 5),
        burst("older", 1, 8, 8),
        with_priority(session("s", 4), 1),
    ];
    let solution = solve(&pool(&devices, &claims), &running, Duration::from_secs(10));
    assert_eq!(on(&solution, "s", "a/gpu0"), 1, "the younger burst loses");
    assert_eq!((solution.slices_of("old"), solution.slices_of("older")), (0, 8));
}

#[test]
fn sessions_and_leases_are_never_preempted() {
    let lease = Claim {
        kind: ClaimKind::Lease,
        ..burst("l", 4, 1, 1)
    };
    let problem = pool(
        &[gpu("a/gpu0", 8)],
        &[lease, session("s", 4), with_priority(burst("b", 1, 1, 1), 1000)],
    );
    let solution = solve(&problem, &[held("l", "a/gpu0", 1), held("s", "a/gpu0", 1)], Duration::ZERO);
    assert_eq!(
        (solution.slices_of("l"), solution.slices_of("s"), solution.slices_of("b")),
        (1, 1, 0)
    );
}

#[test]
fn equal_bursts_share_equally_and_a_higher_priority_takes_what_it_can_use() {
    let devices = [gpu("a/gpu0", 12)];
    let three = [
        burst("x", 1, 1, 100),
        since(burst("y", 1, 1, 100), 1),
        since(burst("z", 1, 1, 2), 2),
    ];
    let solution = solve(&pool(&devices, &three), &[held("x", "a/gpu0", 12)], Duration::from_secs(5));
    assert_eq!(
        (solution.slices_of("x"), solution.slices_of("y"), solution.slices_of("z")),
        (5, 5, 2)
    );

    let important = [burst("x", 1, 1, 100), with_priority(burst("y", 1, 1, 100), 1)];
    let solution = solve(&pool(&devices, &important), &solution.assignments, Duration::from_secs(5));
    assert_eq!((solution.slices_of("x"), solution.slices_of("y")), (1, 11));
}

#[test]
fn a_minimum_starts_completely_or_not_at_all() {
    let devices = [gpu("a/gpu0", 8), gpu("b/gpu0", 4)];
    let solution = solve(&pool(&devices, &[burst("b", 4, 4, 4)]), &[], Duration::ZERO);
    assert!(solution.assignments.is_empty());
    assert_eq!(why_not(&solution, "b", "a/gpu0"), WhyNot::TooFewSlices { fit: 2, needed: 4 });

    let solution = solve(&pool(&devices, &[burst("b", 4, 3, 4)]), &[], Duration::ZERO);
    assert_eq!((on(&solution, "b", "a/gpu0"), on(&solution, "b", "b/gpu0")), (2, 1));
}

#[test]
fn a_minimum_that_lost_a_device_is_completed_elsewhere_and_keeps_the_rest() {
    let lost = Device {
        usable: Err(Unusable::NotReady),
        ..gpu("a/gpu0", 4)
    };
    let devices = [lost, gpu("b/gpu0", 4), gpu("c/gpu0", 4)];
    let solution = solve(
        &pool(&devices, &[burst("b", 1, 4, 4)]),
        &[held("b", "a/gpu0", 2), held("b", "c/gpu0", 2)],
        Duration::ZERO,
    );
    assert_eq!((on(&solution, "b", "a/gpu0"), solution.slices_of("b")), (0, 4));
    assert!(on(&solution, "b", "c/gpu0") >= 2);
}

#[test]
fn former_devices_are_preferred_but_do_not_cost_the_minimum() {
    let devices = [
        gpu("a/gpu0", 16),
        gpu("a/gpu1", 7),
        Device {
            foreign_bytes: 2 * GIB,
            ..gpu("b/gpu0", 11)
        },
        gpu("b/gpu1", 18),
    ];
    let claims = [
        with_priority(burst("old", 5, 6, 7), 1),
        with_priority(since(burst("lost", 3, 6, 6), 999), 1),
        burst("low", 3, 3, 4),
        since(burst("late", 2, 5, 5), 999),
    ];
    let problem = pool(&devices, &claims);
    let now = Duration::from_secs(1000);
    // The claim lost what it held on b/gpu0. Beginning there, its slices do not fit beside those of the older claim.
    let solution = solve(&problem, &[held("lost", "b/gpu0", 8)], now);
    assert_eq!((solution.slices_of("old"), solution.slices_of("lost")), (6, 6));
    assert_eq!(solve(&problem, &solution.assignments, now), solution);
}
