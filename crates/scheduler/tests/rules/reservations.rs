//! Backfill: a large claim waits while smaller ones start before it.

use std::time::Duration;

use sahasra_scheduler::{Claim, ClaimKind, Device, RESERVE_AFTER, WhyNot, solve};

use crate::builders::{GIB, burst, gpu, held, pool, session, since, why_not, with_priority};

const MOMENT: Duration = Duration::from_nanos(1);

#[test]
fn small_claims_start_before_a_large_one_until_it_reserves_devices() {
    let devices = [gpu("a/gpu0", 8)];
    let large = burst("large", 8, 1, 1);
    let running = since(burst("running", 1, 5, 5), 1);
    let small = since(burst("small", 1, 1, 1), 2);
    let problem = pool(&devices, &[large.clone(), running.clone(), small.clone()]);
    let now = held("running", "a/gpu0", 5);

    let early = solve(&problem, std::slice::from_ref(&now), RESERVE_AFTER - MOMENT);
    assert_eq!(early.slices_of("small"), 1);
    assert_eq!(early.revisit_at, Some(RESERVE_AFTER));

    let late = solve(&problem, &[now], RESERVE_AFTER);
    assert_eq!(late.slices_of("small"), 0);
    assert_eq!(why_not(&late, "small", "a/gpu0"), WhyNot::ReservedFor { claim: "large".into() });

    let ended = solve(&pool(&devices, &[large, small]), &late.assignments, RESERVE_AFTER + MOMENT);
    assert_eq!((ended.slices_of("large"), ended.slices_of("small")), (1, 0));
}

#[test]
fn no_burst_grows_on_a_reserved_device() {
    let large = burst("large", 8, 1, 1);
    let growing = since(burst("growing", 1, 1, 8), 1);
    let problem = pool(&[gpu("a/gpu0", 8)], &[large, growing.clone()]);
    let now = [held("growing", "a/gpu0", 1)];
    assert_eq!(solve(&problem, &now, RESERVE_AFTER - MOMENT).slices_of("growing"), 8);
    assert_eq!(solve(&problem, &now, RESERVE_AFTER).slices_of("growing"), 1);

    let important = pool(&[gpu("a/gpu0", 8)], &[burst("large", 8, 1, 1), with_priority(growing, 1)]);
    assert_eq!(
        solve(&important, &now, RESERVE_AFTER).slices_of("growing"),
        8,
        "but a higher priority does"
    );
}

#[test]
fn a_claim_that_no_device_can_serve_delays_no_other() {
    let problem = pool(&[gpu("a/gpu0", 8)], &[burst("huge", 8, 2, 2), since(burst("small", 1, 1, 1), 1)]);
    let solution = solve(&problem, &[], 10 * RESERVE_AFTER);
    assert_eq!(solution.slices_of("small"), 1);
}

#[test]
fn a_claim_that_waits_for_a_session_delays_no_other() {
    // A session that has been served is no claim any more: its slices are foreign bytes without a known release time.
    let occupied = Device {
        foreign_bytes: GIB,
        ..gpu("a/gpu0", 8)
    };
    let whole_pool = burst("whole-pool", 1, 16, 16);
    let (later, growing) = (since(burst("later", 1, 1, 1), 1), since(burst("growing", 1, 1, 4), 2));
    let claims = [whole_pool.clone(), later.clone(), growing.clone()];
    let problem = pool(&[occupied.clone(), gpu("b/gpu0", 8)], &claims);
    let solution = solve(&problem, &[held("growing", "b/gpu0", 1)], 10 * RESERVE_AFTER);
    assert_eq!(
        (
            solution.slices_of("later"),
            solution.slices_of("growing"),
            solution.slices_of("whole-pool")
        ),
        (1, 4, 0)
    );
    // Both block the reservation: a session claim whose agent has not answered yet, and the minimum of a lease.
    for stays in [
        session("stays", 1),
        Claim {
            kind: ClaimKind::Lease,
            ..burst("stays", 1, 1, 1)
        },
    ] {
        let claims = [whole_pool.clone(), later.clone(), growing.clone(), stays];
        let problem = pool(&[gpu("a/gpu0", 8), gpu("b/gpu0", 8)], &claims);
        let solution = solve(&problem, &[held("stays", "a/gpu0", 1)], 10 * RESERVE_AFTER);
        assert_eq!(solution.slices_of("later"), 1);
    }
    // After that claim is removed, the waiting claim gets its reservation.
    let gone = pool(&[gpu("a/gpu0", 8), gpu("b/gpu0", 8)], &claims);
    let solution = solve(&gone, &[held("growing", "b/gpu0", 1)], 10 * RESERVE_AFTER);
    assert_eq!((solution.slices_of("later"), solution.slices_of("growing")), (0, 1));
}

#[test]
fn slices_that_are_being_released_count_for_a_reservation() {
    let returning = Device {
        foreign_bytes: 2 * GIB,
        returning_bytes: 2 * GIB,
        ..gpu("a/gpu0", 8)
    };
    let problem = pool(&[returning], &[burst("large", 8, 1, 1), since(burst("small", 1, 1, 1), 1)]);
    let solution = solve(&problem, &[], RESERVE_AFTER);
    assert_eq!(
        why_not(&solution, "small", "a/gpu0"),
        WhyNot::ReservedFor { claim: "large".into() },
        "or a claim lost its turn whenever something drained"
    );
}
