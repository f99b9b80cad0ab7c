//! Reasons and summaries of claims without slices.

use std::time::Duration;

use sahasra_names::Engine;
use sahasra_scheduler::{Claim, Device, Unusable, WhyNot, solve};

use crate::builders::{GIB, burst, gpu, held, pool, session};

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
        engine: Some(Engine::Ptx),
        ..burst("b", 8, 1, 1)
    };
    let solution = solve(
        &pool(&devices, &[session("s", 5), wish]),
        &[held("s", "worker-a/gpu0", 1)],
        Duration::ZERO,
    );
    let refusal = solution.refusal_of("b").expect("refused");
    let lines: Vec<String> = refusal
        .why_not
        .iter()
        .map(|(device, why_not)| format!("{device}: {why_not}"))
        .collect();
    assert_eq!(
        lines,
        [
            "worker-a/gpu0: 3Gi free, slice needs 8Gi",
            "worker-b/gpu0: worker is not ready",
            "worker-c/cpu0: class is cpu, wanted g5",
            "worker-d/gpu0: 4Gi allocatable, slice needs 8Gi",
        ]
    );
    assert_eq!(
        &*refusal.summary,
        "needs 1 slice of 8Gi on class g5; none of 4 devices serves: 1 full, 1 not ready, 1 too small, 1 of another class; \
         nearest worker-a/gpu0: 3Gi free, slice needs 8Gi"
    );
    let alone = solve(&pool(&[], &[burst("b", 1, 2, 2)]), &[], Duration::ZERO);
    assert_eq!(&*alone.refusals[0].summary, "needs 2 slices of 1Gi; the pool has no devices");
}

#[test]
fn amounts_that_round_to_the_same_text_are_distinguished() {
    let nearly = Device {
        foreign_bytes: 1 << 20,
        ..gpu("a/gpu0", 9)
    };
    let solution = solve(&pool(&[nearly], &[burst("b", 9, 1, 1)]), &[], Duration::ZERO);
    assert_eq!(solution.refusals[0].why_not[0].1.to_string(), "8.9Gi free, slice needs 9Gi");
    let hair = WhyNot::InsufficientVram {
        free: 8 * GIB,
        needed: 8 * GIB + (1 << 20),
    };
    assert_eq!(hair.to_string(), "8Gi free, slice needs 1Mi more");
}

#[test]
fn a_missing_engine_xla_is_reported_with_the_missing_plugin() {
    let told = |engine| {
        let wish = Claim {
            engine: Some(engine),
            ..burst("b", 1, 1, 1)
        };
        let device = Device {
            engines: Vec::new(),
            ..gpu("a/gpu0", 8)
        };
        let solution = solve(&pool(&[device], &[wish]), &[], Duration::ZERO);
        solution.refusals[0].why_not[0].1.to_string()
    };
    assert_eq!(told(Engine::Xla), "has no engine xla: its worker has no PJRT plugin");
    assert_eq!(told(Engine::Ptx), "has no engine ptx");
}
