//! Checks of bursts with results in the object store.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use sahasra_crds::{BurstJob, conditions};
use sahasra_store::segment;
use serde_json::Value;

use super::indices;
use crate::{kernel, plan::BurstPlan, store::Bucket, world::World};

/// Checks that a burst whose store rejects every write has failed, and that its message names the field to change.
pub(super) fn refused(wrong: &dyn Fn(String), plan: &BurstPlan, job: &BurstJob) {
    let conditions = job.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let failed = conditions::get(conditions, conditions::FAILED).filter(|failed| failed.status == "True");
    let Some(failed) = failed else {
        return wrong(format!("it has not failed, whose store takes nothing: {conditions:?}"));
    };
    let remedy = match plan.bucket {
        Some(Bucket::Forbidden) => "Secret",
        _ => "bucket",
    };
    let says = |text: &str| failed.message.contains(text);
    if failed.reason != "StoreUnavailable" || !says("spec.output.store") || !says(remedy) {
        wrong(format!("its store takes nothing: it says {}: {}", failed.reason, failed.message));
    }
}

/// Checks that the store holds each counted chunk exactly once, at the location that the burst reports.
pub(super) fn results(
    wrong: &dyn Fn(String),
    world: &World,
    plan: &BurstPlan,
    job: &BurstJob,
    completed: &BTreeSet<u64>,
    failed: &BTreeSet<u64>,
) {
    let results = job.status.as_ref().and_then(|status| status.results.as_ref());
    let url = results.and_then(|results| results.url.as_deref());
    if plan.results() == "None" {
        if let Some(url) = url {
            wrong(format!("results are kept that nobody wants: {url}"));
        }
        return;
    }
    let Some(name) = url.and_then(|url| url.strip_prefix("s3://")) else {
        return wrong(format!("its results are nowhere: {results:?}"));
    };
    let objects = world.objects.lock();
    let read = |name: &str| {
        let found = objects.get(name).cloned();
        if found.is_none() {
            wrong(format!("{name} is not in the store"));
        }
        found.unwrap_or_default()
    };
    let list = read(name);
    if plan.results() == "Failed" {
        let text = String::from_utf8_lossy(&list).into_owned();
        let rows: Option<BTreeSet<u64>> = text.lines().skip(1).map(|row| row.split(',').next()?.parse().ok()).collect();
        if rows.as_ref() != Some(failed) {
            wrong(format!("listed as failed are {rows:?}, not {failed:?}"));
        }
        return;
    }
    let folder = name.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut listed = BTreeSet::new();
    for index in names(&list, "/index") {
        let index: Value = serde_json::from_slice(&read(&format!("{folder}/{index}"))).unwrap_or_default();
        for segment in index["segments"].as_array().into_iter().flatten() {
            let text = |key: &str| segment[key].as_str().unwrap_or_default();
            let bytes = read(&format!("{folder}/{}", text("name")));
            let records = records(&bytes);
            for index in indices(text("indexes")).unwrap_or_default() {
                let record = records.get(&index).map(|bytes| u32::from_le_bytes(*bytes));
                let expected = kernel::value(plan.salt, index);
                if record != Some(expected) {
                    wrong(format!(
                        "the result of chunk {index} in {} is {record:?}, not {expected}",
                        text("name")
                    ));
                }
                if !listed.insert(index) {
                    wrong(format!("chunk {index} is listed twice"));
                }
            }
        }
    }
    if listed != *completed {
        wrong(format!("the manifest lists {listed:?}, and {completed:?} succeeded"));
    }
}

fn names(manifest: &Bytes, pointer: &str) -> Vec<String> {
    let manifest: Value = serde_json::from_slice(manifest).unwrap_or_default();
    let names = manifest.pointer(pointer).cloned().unwrap_or_default();
    serde_json::from_value(names).unwrap_or_default()
}

fn records(bytes: &[u8]) -> BTreeMap<u64, [u8; 4]> {
    let records = segment::records(bytes).into_iter().flatten();
    records
        .filter_map(|(index, outputs)| Some((index, outputs.try_into().ok()?)))
        .collect()
}
