//! Checks of bursts after their end.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::core::v1::ConfigMap;
use sahasra_crds::{BurstJob, conditions};

mod stored;

use crate::{kernel, plan::BurstPlan, users::Named, world::World};

/// Time within which the slices of a deleted owner are free in a run without faults.
pub const FREED_WITHIN: Duration = Duration::from_millis(250);

/// Number of writes allowed for a burst: a fixed number, and one more per this many milliseconds of its duration.
const WRITES: (u64, u64) = (20, 5_000);

/// Checks that no agent leases slices to a deleted owner.
pub fn freed(world: &World, uid: &str, name: &Named) {
    for live in world.agents.lock().values() {
        let grants = live.agent.inventory().grants;
        if let Some(grant) = grants.iter().find(|grant| grant.owner_uid == uid) {
            let (index, slices) = (live.index, grant.slices);
            world.broken(format!(
                "deletion: worker-{index} still lends {slices} slices to {name} {FREED_WITHIN:?} after it was deleted"
            ));
        }
    }
}

/// Parses indices from a text such as `0-41,43`.
fn indices(text: &str) -> Option<BTreeSet<u64>> {
    let mut set = BTreeSet::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let range: std::ops::RangeInclusive<u64> = first.parse().ok()?..=last.parse().ok()?;
        set.extend(range);
    }
    Some(set)
}

/// Checks that every index was counted once, and that counts, aggregate and results equal those computed here.
pub fn burst(world: &World, plan: &BurstPlan, name: &Named, job: &BurstJob, results: Option<&ConfigMap>) {
    let wrong = |what: String| world.broken(format!("{name}: {what}"));
    if plan.is_refused() {
        return stored::refused(&wrong, plan, job);
    }
    let Some(status) = &job.status else {
        return wrong("no status".to_owned());
    };
    let set = |text: &Option<String>| indices(text.as_deref().unwrap_or_default());
    let (Some(completed), Some(failed)) = (set(&status.completed_indexes), set(&status.failed_indexes)) else {
        return wrong("indices that do not parse".to_owned());
    };
    let counts = &status.chunks;
    let number = |count: i64| u64::try_from(count).unwrap_or(u64::MAX);
    if let Some(twice) = completed.intersection(&failed).next() {
        wrong(format!("chunk {twice} both succeeded and failed"));
    }
    if (number(counts.succeeded), number(counts.failed)) != (completed.len() as u64, failed.len() as u64) {
        wrong(format!("counts {counts:?} of {} and {} indices", completed.len(), failed.len()));
    }
    if conditions::is_true(&status.conditions, conditions::COMPLETE) {
        if completed.len() + failed.len() != plan.chunks as usize || completed.union(&failed).any(|index| *index >= plan.chunks) {
            wrong(format!(
                "complete with {} of {} chunks",
                completed.len() + failed.len(),
                plan.chunks
            ));
        }
    } else {
        // A burst must not fail: its limit of failed chunks exceeds the number of its chunks whose kernels trap.
        wrong(format!("failed: {:?}", status.reason));
    }
    for index in &completed {
        if kernel::traps(plan.salt, *index) {
            wrong(format!("chunk {index} succeeded, whose kernel traps"));
        }
    }
    if let Some(index) = failed.iter().find(|index| !kernel::traps(plan.salt, **index)) {
        let failure = status.failures.iter().find(|failure| number(failure.index) == *index);
        wrong(format!("chunk {index} failed, whose kernel does not trap: {failure:?}"));
    }
    aggregate(&wrong, plan, job, &completed);
    if plan.bucket.is_some() {
        return stored::results(&wrong, world, plan, job, &completed, &failed);
    }
    let records = results.and_then(|map| map.binary_data.as_ref()?.get("results"));
    let listed = results.and_then(|map| map.data.as_ref()?.get("failed.csv"));
    if plan.results() == "Failed" {
        let rows: Option<BTreeSet<u64>> = listed.and_then(|text| {
            let rows = text.lines().skip(1).map(|row| row.split(',').next()?.parse().ok());
            rows.collect()
        });
        if rows.as_ref() != Some(&failed) {
            wrong(format!("listed as failed are {rows:?}, not {failed:?}"));
        }
    }
    let Some(records) = records else {
        if plan.results() == "All" {
            wrong("no results".to_owned());
        }
        return;
    };
    if plan.results() != "All" {
        wrong("results are kept that nobody wants".to_owned());
    }
    for index in completed {
        let at = index as usize * 4;
        let record = records
            .0
            .get(at..at + 4)
            .and_then(|bytes| bytes.try_into().ok())
            .map(u32::from_le_bytes);
        let expected = kernel::value(plan.salt, index);
        if record != Some(expected) {
            wrong(format!("the result of chunk {index} is {record:?}, not {expected}"));
        }
    }
}

fn aggregate(wrong: &dyn Fn(String), plan: &BurstPlan, job: &BurstJob, completed: &BTreeSet<u64>) {
    let aggregate = job.status.as_ref().and_then(|status| status.aggregate.clone());
    let Some(aggregate) = aggregate else {
        if !completed.is_empty() {
            wrong("no aggregate".to_owned());
        }
        return;
    };
    if plan.argmin {
        let best = completed.iter().map(|index| (kernel::value(plan.salt, *index), *index)).min();
        let said = aggregate
            .best
            .first()
            .map(|best| (best.value.unwrap_or(f64::NAN) as u32, best.index as u64));
        if said != best {
            wrong(format!("the smallest is said to be {said:?}, and is {best:?}"));
        }
        return;
    }
    let sum: u64 = completed.iter().map(|index| u64::from(kernel::value(plan.salt, *index))).sum();
    let count = completed.len() as i64;
    if aggregate.values != [Some(sum as f64)] || aggregate.count != count {
        wrong(format!(
            "the sum of {count} results is said to be {:?} of {}, and is {sum}",
            aggregate.values, aggregate.count
        ));
    }
}

/// Checks that no attempt was lost, in a run in which at most connections broke.
pub fn attempts(world: &World, plan: &BurstPlan, name: &Named, job: &BurstJob) {
    let retried = job.status.as_ref().map_or(0, |status| status.chunks.retried);
    if retried > 0 && !kernel::stumbles(plan.salt) {
        world.broken(format!(
            "attempts: {retried} attempts of {name} were lost, though connections broke alone"
        ));
    }
}

/// Checks that the burst was written no more often than its duration allows.
pub fn budget(world: &World, name: &Named, job: &BurstJob) {
    let writes = world.writes.lock().of_burst(name);
    let created = job.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let ended = job
        .status
        .as_ref()
        .and_then(|status| status.completion_time.as_ref())
        .map(|time| time.0);
    let (Some(created), Some(ended)) = (created, ended) else { return };
    let lasted = u64::try_from(ended.duration_since(created).as_millis()).unwrap_or_default();
    let allowed = WRITES.0 + lasted / WRITES.1;
    if writes > allowed {
        world.broken(format!(
            "budget: {writes} writes for {name}, which lasted {lasted} ms: {allowed} are allowed"
        ));
    }
}
