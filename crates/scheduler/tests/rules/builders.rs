//! Builders of pools and claims, and accessors of a solution.

use std::{collections::BTreeMap, time::Duration};

use sahasra_names::{DeviceId, Engine};
use sahasra_scheduler::{Assignment, Claim, ClaimKind, Device, Load, Problem, Solution, WhyNot};

pub(crate) const GIB: u64 = 1 << 30;

pub(crate) fn id(device: &str) -> DeviceId {
    let (worker, device) = device.split_once('/').expect("worker/device");
    DeviceId::new(worker, device)
}

pub(crate) fn gpu(name: &str, gib: u64) -> Device {
    Device {
        id: id(name),
        class: "g5".into(),
        engines: vec![Engine::Ptx],
        allocatable_bytes: gib * GIB,
        foreign_bytes: 0,
        returning_bytes: 0,
        usable: Ok(()),
        load: Load::default(),
    }
}

pub(crate) fn burst(name: &str, gib: u64, min: u32, max: u32) -> Claim {
    Claim {
        id: name.into(),
        kind: ClaimKind::Burst,
        slice_bytes: gib * GIB,
        min,
        kept: BTreeMap::new(),
        max,
        class: None,
        engine: None,
        priority: 0,
        since: Duration::ZERO,
        refused: BTreeMap::new(),
    }
}

pub(crate) fn session(name: &str, gib: u64) -> Claim {
    Claim {
        kind: ClaimKind::Session,
        ..burst(name, gib, 1, 1)
    }
}

pub(crate) fn with_priority(claim: Claim, priority: i32) -> Claim {
    Claim { priority, ..claim }
}

pub(crate) fn since(claim: Claim, seconds: u64) -> Claim {
    Claim {
        since: Duration::from_secs(seconds),
        ..claim
    }
}

pub(crate) fn pool(devices: &[Device], claims: &[Claim]) -> Problem {
    Problem {
        devices: devices.to_vec(),
        claims: claims.to_vec(),
    }
}

pub(crate) fn held(claim: &str, device: &str, slices: u32) -> Assignment {
    Assignment {
        claim: claim.into(),
        device: id(device),
        slices,
    }
}

pub(crate) fn on(solution: &Solution, claim: &str, device: &str) -> u32 {
    solution
        .assignments_of(claim)
        .find(|assignment| assignment.device == id(device))
        .map_or(0, |assignment| assignment.slices)
}

pub(crate) fn why_not(solution: &Solution, claim: &str, device: &str) -> WhyNot {
    let refusal = solution.refusal_of(claim).expect("the claim is refused");
    refusal
        .why_not
        .iter()
        .find(|(explained, _)| *explained == id(device))
        .expect("every device is explained")
        .1
        .clone()
}
