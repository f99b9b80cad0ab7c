//! Each rule once, as a story.

use sahasra_scheduler::{
    Assignment, Claim, ClaimKind, Device, DeviceId, Load, PATIENCE_MS, Problem, Refused, Solution, Unusable, WhyNot, solve,
};

const GIB: u64 = 1 << 30;

fn id(device: &str) -> DeviceId {
    let (worker, device) = device.split_once('/').expect("worker/device");
    DeviceId::new(worker, device)
}

fn gpu(name: &str, gib: u64) -> Device {
    Device {
        id: id(name),
        class: "g5".into(),
        engines: vec!["ptx".into()],
        allocatable_bytes: gib * GIB,
        foreign_bytes: 0,
        returning_bytes: 0,
        usable: Ok(()),
        load: Load::default(),
    }
}

fn burst(name: &str, gib: u64, min: u32, max: u32) -> Claim {
    Claim {
        id: name.into(),
        kind: ClaimKind::Burst,
        slice_bytes: gib * GIB,
        min,
        max,
        class: None,
        engine: None,
        priority: 0,
        since: 0,
        pinned: None,
        refused: Vec::new(),
    }
}

fn session(name: &str, gib: u64) -> Claim {
    Claim {
        kind: ClaimKind::Session,
        ..burst(name, gib, 1, 1)
    }
}

fn with_priority(claim: Claim, priority: i32) -> Claim {
    Claim { priority, ..claim }
}

fn since(claim: Claim, since: u64) -> Claim {
    Claim { since, ..claim }
}

fn pool(devices: &[Device], claims: &[Claim]) -> Problem {
    Problem {
        devices: devices.to_vec(),
        claims: claims.to_vec(),
    }
}

fn held(claim: &str, device: &str, slices: u32) -> Assignment {
    Assignment {
        claim: claim.into(),
        device: id(device),
        slices,
    }
}

fn on(solution: &Solution, claim: &str, device: &str) -> u32 {
    solution
        .assignments_of(claim)
        .find(|assignment| assignment.device == id(device))
        .map_or(0, |assignment| assignment.slices)
}

fn why_not(solution: &Solution, claim: &str, device: &str) -> WhyNot {
    let refusal = solution.refusal_of(claim).expect("the claim is refused");
    refusal
        .why_not
        .iter()
        .find(|(explained, _)| *explained == id(device))
        .expect("every device is explained")
        .1
        .clone()
}

#[test]
fn a_burst_of_a_thousand_slices_spreads_over_all_devices() {
    let devices: Vec<Device> = (0..10).map(|index| gpu(&format!("w{index}/gpu0"), 100)).collect();
    let solution = solve(&pool(&devices, &[burst("b", 1, 1, 1000)]), &[], 0);
    assert_eq!(solution.slices_of("b"), 1000);
    assert_eq!(solution.assignments.len(), 10);
}

#[test]
fn a_burst_shrinks_for_a_session_even_of_lower_priority() {
    let devices = [gpu("a/gpu0", 8)];
    let hungry = with_priority(burst("b", 1, 2, 100), 10);
    let before = solve(&pool(&devices, std::slice::from_ref(&hungry)), &[], 0);
    assert_eq!(before.slices_of("b"), 8);
    let after = solve(&pool(&devices, &[hungry, session("s", 6)]), &before.assignments, 0);
    assert_eq!((after.slices_of("s"), after.slices_of("b")), (1, 2));
}

#[test]
fn a_session_does_not_push_a_burst_of_its_own_priority_below_its_minimum() {
    let problem = pool(&[gpu("a/gpu0", 8)], &[burst("b", 1, 3, 100), session("s", 6)]);
    let solution = solve(&problem, &[held("b", "a/gpu0", 8)], 0);
    assert_eq!(solution.slices_of("s"), 0);
    assert_eq!(solution.slices_of("b"), 8, "and the burst keeps what the session cannot use");
}

#[test]
fn a_higher_priority_pushes_a_burst_out_and_takes_no_more_than_it_needs() {
    let devices = [gpu("a/gpu0", 8), gpu("b/gpu0", 8)];
    let running = [held("old", "a/gpu0", 8), held("older", "b/gpu0", 8)];
    let claims = [
        since(burst("old", 1, 8, 8), 5),
        burst("older", 1, 8, 8),
        with_priority(session("s", 4), 1),
    ];
    let solution = solve(&pool(&devices, &claims), &running, 10);
    assert_eq!(on(&solution, "s", "a/gpu0"), 1, "the younger burst loses");
    assert_eq!((solution.slices_of("old"), solution.slices_of("older")), (0, 8));
}

#[test]
fn nothing_pushes_out_a_session_or_a_lease() {
    let lease = Claim {
        kind: ClaimKind::Lease,
        ..burst("l", 4, 1, 1)
    };
    let problem = pool(
        &[gpu("a/gpu0", 8)],
        &[lease, session("s", 4), with_priority(burst("b", 1, 1, 1), 1000)],
    );
    let solution = solve(&problem, &[held("l", "a/gpu0", 1), held("s", "a/gpu0", 1)], 0);
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
    let solution = solve(&pool(&devices, &three), &[held("x", "a/gpu0", 12)], 5);
    assert_eq!(
        (solution.slices_of("x"), solution.slices_of("y"), solution.slices_of("z")),
        (5, 5, 2)
    );

    let important = [burst("x", 1, 1, 100), with_priority(burst("y", 1, 1, 100), 1)];
    let solution = solve(&pool(&devices, &important), &solution.assignments, 5);
    assert_eq!((solution.slices_of("x"), solution.slices_of("y")), (1, 11));
}

#[test]
fn a_gang_starts_whole_or_not_at_all() {
    let devices = [gpu("a/gpu0", 8), gpu("b/gpu0", 4)];
    let solution = solve(&pool(&devices, &[burst("b", 4, 4, 4)]), &[], 0);
    assert!(solution.assignments.is_empty());
    assert_eq!(why_not(&solution, "b", "a/gpu0"), WhyNot::TooFew { fit: 2, needed: 4 });

    let solution = solve(&pool(&devices, &[burst("b", 4, 3, 4)]), &[], 0);
    assert_eq!((on(&solution, "b", "a/gpu0"), on(&solution, "b", "b/gpu0")), (2, 1));
}

#[test]
fn a_gang_that_lost_a_device_makes_up_for_it_elsewhere_and_keeps_the_rest_where_it_is() {
    let lost = Device {
        usable: Err(Unusable::NotReady),
        ..gpu("a/gpu0", 4)
    };
    let devices = [lost, gpu("b/gpu0", 4), gpu("c/gpu0", 4)];
    let solution = solve(
        &pool(&devices, &[burst("b", 1, 4, 4)]),
        &[held("b", "a/gpu0", 2), held("b", "c/gpu0", 2)],
        0,
    );
    assert_eq!((on(&solution, "b", "a/gpu0"), solution.slices_of("b")), (0, 4));
    assert!(on(&solution, "b", "c/gpu0") >= 2);
}

#[test]
fn a_session_goes_to_the_idlest_device_by_executions_then_bytes_then_tensors() {
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
        let solution = solve(&pool(&devices[..count], &[session("s", 1)]), &[], 0);
        assert_eq!(on(&solution, "s", wanted), 1, "of the first {count}");
    }
}

#[test]
fn sessions_that_arrive_together_go_to_different_idle_devices() {
    let devices = [gpu("a/gpu0", 8), gpu("b/gpu0", 8)];
    let solution = solve(&pool(&devices, &[session("s", 1), session("t", 1)]), &[], 0);
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
    let solution = solve(&pool(&[stores, gpu("b/gpu0", 8)], &sessions), &[], 0);
    let placed: Vec<u32> = sessions.iter().map(|session| on(&solution, &session.id, "a/gpu0")).collect();
    assert_eq!(placed, [0, 1, 0, 1]);
}

#[test]
fn a_session_stays_on_its_device_whatever_becomes_of_it() {
    for trouble in [Unusable::NotReady, Unusable::Unhealthy, Unusable::Cordoned] {
        let troubled = Device {
            usable: Err(trouble),
            ..gpu("a/gpu0", 8)
        };
        let solution = solve(
            &pool(&[troubled, gpu("b/gpu0", 8)], &[session("s", 1)]),
            &[held("s", "a/gpu0", 1)],
            0,
        );
        assert_eq!(on(&solution, "s", "a/gpu0"), 1, "{trouble:?}");
    }
}

#[test]
fn a_session_whose_device_is_gone_is_not_placed_anew() {
    let pinned = Claim {
        pinned: Some(id("a/gpu0")),
        ..session("s", 1)
    };
    let solution = solve(&pool(&[gpu("b/gpu0", 8)], &[pinned]), &[], 0);
    assert_eq!(why_not(&solution, "s", "b/gpu0"), WhyNot::PinnedTo { device: id("a/gpu0") });
}

#[test]
fn a_cordoned_device_keeps_what_it_has_and_gets_nothing_new() {
    let cordoned = Device {
        usable: Err(Unusable::Cordoned),
        ..gpu("a/gpu0", 8)
    };
    let problem = pool(&[cordoned], &[burst("old", 1, 1, 100), burst("new", 1, 1, 1)]);
    let solution = solve(&problem, &[held("old", "a/gpu0", 3)], 0);
    assert_eq!(solution.slices_of("old"), 3);
    assert_eq!(why_not(&solution, "new", "a/gpu0"), WhyNot::Cordoned);
}

#[test]
fn small_work_passes_large_work_until_patience_ends() {
    let devices = [gpu("a/gpu0", 8)];
    let large = burst("large", 8, 1, 1);
    let running = since(burst("running", 1, 5, 5), 1);
    let small = since(burst("small", 1, 1, 1), 2);
    let problem = pool(&devices, &[large.clone(), running.clone(), small.clone()]);
    let now = held("running", "a/gpu0", 5);

    let early = solve(&problem, std::slice::from_ref(&now), PATIENCE_MS - 1);
    assert_eq!(early.slices_of("small"), 1);
    assert_eq!(early.revisit_at, Some(PATIENCE_MS));

    let late = solve(&problem, &[now], PATIENCE_MS);
    assert_eq!(late.slices_of("small"), 0);
    assert_eq!(why_not(&late, "small", "a/gpu0"), WhyNot::ReservedFor { claim: "large".into() });

    let ended = solve(&pool(&devices, &[large, small]), &late.assignments, PATIENCE_MS + 1);
    assert_eq!((ended.slices_of("large"), ended.slices_of("small")), (1, 0));
}

#[test]
fn nobody_grows_into_what_is_reserved() {
    let large = burst("large", 8, 1, 1);
    let growing = since(burst("growing", 1, 1, 8), 1);
    let problem = pool(&[gpu("a/gpu0", 8)], &[large, growing.clone()]);
    let now = [held("growing", "a/gpu0", 1)];
    assert_eq!(solve(&problem, &now, PATIENCE_MS - 1).slices_of("growing"), 8);
    assert_eq!(solve(&problem, &now, PATIENCE_MS).slices_of("growing"), 1);

    let important = pool(&[gpu("a/gpu0", 8)], &[burst("large", 8, 1, 1), with_priority(growing, 1)]);
    assert_eq!(
        solve(&important, &now, PATIENCE_MS).slices_of("growing"),
        8,
        "but a higher priority does"
    );
}

#[test]
fn who_can_never_be_served_holds_nobody_back() {
    let problem = pool(&[gpu("a/gpu0", 8)], &[burst("huge", 8, 2, 2), since(burst("small", 1, 1, 1), 1)]);
    let solution = solve(&problem, &[], 10 * PATIENCE_MS);
    assert_eq!(solution.slices_of("small"), 1);
}

#[test]
fn who_cannot_be_served_because_a_session_stays_holds_nobody_back() {
    // The session was served: it is no claim any more, and nobody knows when it ends.
    let occupied = Device {
        foreign_bytes: GIB,
        ..gpu("a/gpu0", 8)
    };
    let whole_pool = burst("whole-pool", 1, 16, 16);
    let (later, growing) = (since(burst("later", 1, 1, 1), 1), since(burst("growing", 1, 1, 4), 2));
    let claims = [whole_pool.clone(), later.clone(), growing.clone()];
    let problem = pool(&[occupied.clone(), gpu("b/gpu0", 8)], &claims);
    let solution = solve(&problem, &[held("growing", "b/gpu0", 1)], 10 * PATIENCE_MS);
    assert_eq!(
        (
            solution.slices_of("later"),
            solution.slices_of("growing"),
            solution.slices_of("whole-pool")
        ),
        (1, 4, 0)
    );
    // As a claim, before its agent has answered, and a lease's minimum.
    for stays in [
        session("stays", 1),
        Claim {
            kind: ClaimKind::Lease,
            ..burst("stays", 1, 1, 1)
        },
    ] {
        let claims = [whole_pool.clone(), later.clone(), growing.clone(), stays];
        let problem = pool(&[gpu("a/gpu0", 8), gpu("b/gpu0", 8)], &claims);
        let solution = solve(&problem, &[held("stays", "a/gpu0", 1)], 10 * PATIENCE_MS);
        assert_eq!(solution.slices_of("later"), 1);
    }
    // Once it has gone, the claim's turn has come.
    let gone = pool(&[gpu("a/gpu0", 8), gpu("b/gpu0", 8)], &claims);
    let solution = solve(&gone, &[held("growing", "b/gpu0", 1)], 10 * PATIENCE_MS);
    assert_eq!((solution.slices_of("later"), solution.slices_of("growing")), (0, 1));
}

#[test]
fn what_is_on_its_way_back_is_waited_for() {
    let returning = Device {
        foreign_bytes: 2 * GIB,
        returning_bytes: 2 * GIB,
        ..gpu("a/gpu0", 8)
    };
    let problem = pool(&[returning], &[burst("large", 8, 1, 1), since(burst("small", 1, 1, 1), 1)]);
    let solution = solve(&problem, &[], PATIENCE_MS);
    assert_eq!(
        why_not(&solution, "small", "a/gpu0"),
        WhyNot::ReservedFor { claim: "large".into() },
        "or a claim lost its turn whenever something drained"
    );
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
    // One after the other, as they come, and all at once.
    let (mut claims, mut solution) = (Vec::new(), Solution::default());
    for index in 0..30 {
        claims.push(lease(index, 1));
        solution = solve(&pool(&devices, &claims), &solution.assignments, 0);
    }
    for solution in [solution, solve(&pool(&devices, &claims), &[], 0)] {
        let on = |device: &str| solution.assignments.iter().filter(|part| part.device == id(device)).count();
        for worker in ["a", "b", "c"] {
            let slices = (on(&format!("{worker}/gpu0")), on(&format!("{worker}/gpu1")));
            assert_eq!(slices, (8, 2), "{worker}");
        }
    }
    // One that wants many slices spreads too, and what it holds above its minimum.
    let wide = pool(
        &devices,
        &[Claim {
            min: 6,
            max: 6,
            ..lease(0, 6)
        }],
    );
    let solution = solve(&wide, &[], 0);
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
        held = solve(&pool(&devices, &claims), &held, 0).assignments;
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
fn a_device_that_refused_is_asked_again_when_the_refusal_lapses() {
    let refused = Claim {
        refused: vec![Refused {
            device: id("a/gpu0"),
            until: 50,
        }],
        ..burst("b", 1, 1, 1)
    };
    let problem = pool(&[gpu("a/gpu0", 8)], &[refused]);
    let before = solve(&problem, &[], 49);
    assert_eq!(why_not(&before, "b", "a/gpu0"), WhyNot::RefusedRecently { until: 50 });
    assert_eq!(before.revisit_at, Some(50));
    assert_eq!(solve(&problem, &[], 50).slices_of("b"), 1);
}

#[test]
fn what_drains_is_not_given_away() {
    let draining = Device {
        foreign_bytes: 5 * GIB,
        ..gpu("a/gpu0", 8)
    };
    let solution = solve(&pool(&[draining], &[burst("b", 1, 1, 100)]), &[], 0);
    assert_eq!(solution.slices_of("b"), 3);
}

#[test]
fn reasons_read_well() {
    let devices = [
        gpu("worker-a/gpu0", 8),
        Device {
            usable: Err(Unusable::NotReady),
            ..gpu("worker-b/gpu0", 8)
        },
        Device {
            class: "cpu".into(),
            ..gpu("worker-c/cpu0", 64)
        },
        gpu("worker-d/gpu0", 4),
    ];
    let wish = Claim {
        class: Some("g5".into()),
        engine: Some("ptx".into()),
        ..burst("b", 8, 1, 1)
    };
    let solution = solve(&pool(&devices, &[session("s", 5), wish]), &[held("s", "worker-a/gpu0", 1)], 0);
    let refusal = solution.refusal_of("b").expect("refused");
    let lines: Vec<String> = refusal
        .why_not
        .iter()
        .map(|(device, why_not)| format!("{device}: {why_not}"))
        .collect();
    assert_eq!(
        lines,
        [
            "worker-a/gpu0: 3 GiB free, slice needs 8 GiB",
            "worker-b/gpu0: worker is not ready",
            "worker-c/cpu0: class is cpu, wanted g5",
            "worker-d/gpu0: lends 4 GiB at most, slice needs 8 GiB",
        ]
    );
    assert_eq!(
        &*refusal.summary,
        "needs 1 slice of 8 GiB on class g5; none of 4 devices serves: 1 full, 1 not ready, 1 too small, 1 of another class; \
         nearest worker-a/gpu0: 3 GiB free, slice needs 8 GiB"
    );
    let alone = solve(&pool(&[], &[burst("b", 1, 2, 2)]), &[], 0);
    assert_eq!(&*alone.refusals[0].summary, "needs 2 slices of 1 GiB; the pool has no devices");
}

#[test]
fn bytes_that_look_equal_are_told_apart() {
    let nearly = Device {
        foreign_bytes: 1 << 20,
        ..gpu("a/gpu0", 9)
    };
    let solution = solve(&pool(&[nearly], &[burst("b", 9, 1, 1)]), &[], 0);
    assert_eq!(solution.refusals[0].why_not[0].1.to_string(), "8.9 GiB free, slice needs 9 GiB");
    let hair = WhyNot::Full {
        free: 8 * GIB,
        needed: 8 * GIB + (1 << 20),
    };
    assert_eq!(hair.to_string(), "8 GiB free, slice needs 1 MiB more");
}

#[test]
fn a_missing_engine_that_is_brought_along_is_told_with_what_is_missing() {
    let told = |engine: &str| {
        let wish = Claim {
            engine: Some(engine.into()),
            ..burst("b", 1, 1, 1)
        };
        let solution = solve(&pool(&[gpu("a/gpu0", 8)], &[wish]), &[], 0);
        solution.refusals[0].why_not[0].1.to_string()
    };
    assert_eq!(told("xla"), "has no engine xla: its worker has no PJRT plugin");
    assert_eq!(told("other"), "has no engine other");
}
