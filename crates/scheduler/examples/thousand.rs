//! Measures the duration of `solve` for a thousand devices and a thousand claims in several situations: `cargo run --release --example
//! thousand`.

use std::{
    collections::BTreeMap,
    hint::black_box,
    time::{Duration, Instant},
};

use sahasra_names::{DeviceId, Engine};
use sahasra_scheduler::{Assignment, Claim, ClaimKind, Device, Load, Problem, RESERVE_AFTER, solve};

const GIB: u64 = 1 << 30;
const RUNS: usize = 11;

fn devices(count: usize) -> Vec<Device> {
    let device = |index: usize| Device {
        id: DeviceId::new(format!("worker-{:04}", index / 8), format!("gpu{}", index % 8)),
        class: if index.is_multiple_of(3) { "h100".into() } else { "g5".into() },
        engines: vec![Engine::Ptx],
        allocatable_bytes: if index.is_multiple_of(3) { 80 * GIB } else { 24 * GIB },
        foreign_bytes: 0,
        returning_bytes: 0,
        usable: Ok(()),
        load: Load {
            active_executions: index as u64 * 7 % 5,
            ..Load::default()
        },
    };
    (0..count).map(device).collect()
}

fn burst(index: usize, slice_bytes: u64, min: u32, max: u32) -> Claim {
    Claim {
        id: format!("claim-{index:04}").into(),
        kind: ClaimKind::Burst,
        slice_bytes,
        min,
        kept: BTreeMap::new(),
        max,
        class: None,
        engine: Some(Engine::Ptx),
        priority: 0,
        since: Duration::from_millis(index as u64),
        refused: BTreeMap::new(),
    }
}

fn mixed(index: usize) -> Claim {
    Claim {
        kind: [ClaimKind::Burst, ClaimKind::Burst, ClaimKind::Session, ClaimKind::Lease][index % 4],
        class: [None, Some("g5".into()), Some("h100".into())][index % 3].clone(),
        priority: (index % 5) as i32,
        ..burst(
            index,
            (1 + index as u64 * 5 % 16) * GIB,
            1 + (index % 7) as u32,
            1 + (index % 97) as u32,
        )
    }
}

/// Worst case: every claim is in a group of its own, and the devices are far too small for all of them.
fn hostile(index: usize) -> Claim {
    Claim {
        priority: index as i32,
        ..burst(index, (1 << 28) + index as u64 * 4099, 100 + index as u32, 1000)
    }
}

fn main() {
    let devices = devices(1000);
    let problem = |claims: Vec<Claim>| Problem {
        devices: devices.clone(),
        claims,
    };
    let one = problem(vec![burst(0, GIB / 2, 1, 1000)]);
    let same = problem((0..1000).map(|index| burst(index, GIB, 1, 1000)).collect());
    let variety = problem((0..1000).map(mixed).collect());
    let refused = problem((0..1000).map(|index| burst(index, 100 * GIB, 1, 1)).collect());
    let each_its_own = problem((0..1000).map(hostile).collect());
    let hoard = solve(&problem(vec![burst(0, GIB, 1, 100_000)]), &[], Duration::ZERO).assignments;

    println!("{:<64} {:>9} {:>9} {:>9}", "1000 devices", "median ms", "slices", "refused");
    measure("one burst of 1000 slices, empty pool", &one, &[], Duration::ZERO);
    measure("1000 equal bursts, empty pool", &same, &[], Duration::ZERO);
    measure(
        "1000 equal bursts, nothing to do",
        &same,
        &solve(&same, &[], Duration::ZERO).assignments,
        Duration::ZERO,
    );
    measure("999 bursts arrive while one holds everything", &same, &hoard, Duration::ZERO);
    measure("1000 bursts, sessions and leases, empty pool", &variety, &[], Duration::ZERO);
    measure(
        "1000 bursts, sessions and leases, nothing to do",
        &variety,
        &solve(&variety, &[], Duration::ZERO).assignments,
        Duration::ZERO,
    );
    measure("1000 claims that nothing can serve, each explained", &refused, &[], Duration::ZERO);
    measure("1000 priorities, sizes and large minima", &each_its_own, &[], Duration::ZERO);
    measure("the same, every claim may reserve", &each_its_own, &[], 2 * RESERVE_AFTER);
    measure("the same, least important holds everything", &each_its_own, &hoard, Duration::ZERO);
}

fn measure(name: &str, problem: &Problem, previous: &[Assignment], now: Duration) {
    let mut times = Vec::new();
    let mut solution = solve(problem, previous, now);
    for _ in 0..RUNS {
        let start = Instant::now();
        solution = black_box(solve(black_box(problem), black_box(previous), now));
        times.push(start.elapsed());
    }
    times.sort_unstable();
    let slices: u64 = solution.assignments.iter().map(|assignment| u64::from(assignment.slices)).sum();
    println!(
        "{name:<64} {:>9.2} {slices:>9} {:>9}",
        times[RUNS / 2].as_secs_f64() * 1e3,
        solution.refusals.len()
    );
}
