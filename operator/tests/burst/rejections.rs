//! Tests of bursts whose progress or end is rejected by the API server or the store.

use std::{fs, time::Duration};

use http::{Method, StatusCode};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use sahasra_crds::{
    BurstJob, BurstJobStatus, MAX_CONFIG_MAP_BYTES, VramLease,
    conditions::{self, COMPLETE, FAILED},
};
use sahasra_operator::burst::{
    checkpoint::{Checkpoint, Results},
    index_set::IndexSet,
    objects::Objects,
    validate::validate,
};
use sahasra_store::{Endpoints, StorePolicy};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::{
    agent::{Pool, Stream},
    harness::{ApiServer, NAMESPACE, create, eventually, job, observe},
};

/// A burst whose end is rejected retries for two minutes. It must be deleted within a small part of that.
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// A stream of a burst of four chunks, all of which have been submitted.
async fn submitted(pool: &mut Pool) -> Stream {
    let mut stream = pool.stream().await;
    stream.accept(&[], 0).await;
    stream.submitted(4).await;
    stream
}

/// The status of a burst that failed, with the reason and message of its condition.
async fn failed(pool: &Pool, name: &str) -> (BurstJobStatus, String, String) {
    let jobs = Api::<BurstJob>::namespaced(pool.client.clone(), NAMESPACE);
    let status = eventually(&jobs, name, |job| {
        job.status.clone().filter(|status| status.completion_time.is_some())
    })
    .await;
    let failed = conditions::get(&status.conditions, FAILED).unwrap_or_else(|| panic!("{status:?}"));
    assert_eq!(failed.status, "True", "{status:?}");
    let complete = conditions::get(&status.conditions, COMPLETE).unwrap_or_else(|| panic!("{status:?}"));
    assert_eq!((complete.status.as_str(), &complete.reason), ("False", &failed.reason));
    let (reason, message) = (failed.reason.clone(), failed.message.clone());
    (status, reason, message)
}

/// Waits until the burst holds nothing any more.
async fn nothing_held(pool: &Pool) {
    let leases = Api::<VramLease>::namespaced(pool.client.clone(), NAMESPACE);
    let began = Instant::now();
    while pool.lent() > 0 || !leases.list(&ListParams::default()).await.expect("listed").items.is_empty() {
        assert!(began.elapsed() < GONE_WITHIN, "{} slices are lent", pool.lent());
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_permanently_rejected_checkpoint_fails_the_burst_while_it_runs_and_at_its_end() {
    for (name, succeeded) in [("running", 2), ("ending", 4)] {
        let mut pool = Pool::start(0, StorePolicy::default()).await;
        pool.api
            .refuse(|_, path, _| path.contains("/configmaps").then_some(StatusCode::UNPROCESSABLE_ENTITY));
        create(&pool.client, &job(name, |_| {})).await;
        let stream = submitted(&mut pool).await;
        stream.succeeded(1, 0, succeeded, "");
        let (status, reason, message) = failed(&pool, name).await;
        assert_eq!(reason, "CheckpointRejected", "{name}: {message}");
        let remedy = "failed to write the checkpoint: refused by the test: set spec.output.store, or create smaller BurstJobs";
        assert_eq!(message, remedy, "{name}");
        assert_eq!(
            (status.chunks.succeeded, status.slices.held),
            (i64::try_from(succeeded).unwrap(), 0),
            "{name}"
        );
        nothing_held(&pool).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_too_large_for_a_config_map_fails_the_burst_with_the_remedy() {
    /// End of a range of indices. A subset of it without any pattern takes a bit for each index, and just fits into a ConfigMap.
    const BEFORE: u64 = 8_330_000;
    /// End of a range of indices, a subset of which does not fit into a ConfigMap.
    const AFTER: u64 = 8_420_000;
    let mut random = fastrand::Rng::with_seed(1);
    let chosen: Vec<u64> = (0..AFTER).filter(|_| random.bool()).collect();
    let (before, after) = chosen.split_at(chosen.partition_point(|index| *index < BEFORE));
    let api = ApiServer::new();
    let client = api.client();
    let large = create(
        &client,
        &job("large", |manifest| {
            let spec = &mut manifest["spec"];
            spec["chunks"]["count"] = json!(10_000_000);
            spec["results"] = json!("None");
        }),
    )
    .await;
    let observed = observe(&client, &StorePolicy::default(), NAMESPACE, &large.spec).await.unwrap();
    let burst = validate(&large.spec, &observed).unwrap_or_else(|invalid| panic!("{invalid}"));
    let checkpoint = Checkpoint {
        uid: large.uid().unwrap(),
        term: 1,
        completed: before.iter().map(|index| (*index, 1)).collect::<IndexSet>(),
        failed: Default::default(),
        failures: Vec::new(),
        retried: 0,
        peak_slices: 1,
        aggregator: burst.aggregator,
        results: Results::Nowhere,
    };
    let contents = checkpoint.encode();
    assert!(contents.bytes() <= MAX_CONFIG_MAP_BYTES, "{} bytes", contents.bytes());
    Objects::new(&client, &large).write_checkpoint(None, 1, contents).await.unwrap();
    // A coordinator of the first term wrote the checkpoint; another coordinator follows.
    let term = Patch::Merge(json!({"status": {"term": 1}}));
    let jobs = Api::<BurstJob>::namespaced(client, NAMESPACE);
    jobs.patch_status("large", &PatchParams::default(), &term).await.unwrap();

    let mut pool = Pool::on(api, 0, StorePolicy::default()).await;
    let stream = submitted(&mut pool).await;
    stream.succeeded_each(1, after.iter().copied());
    let (_, reason, message) = failed(&pool, "large").await;
    assert_eq!(reason, "CheckpointTooLarge", "{message}");
    for part in [
        "spec.output: ",
        "the 1048576 of a ConfigMap",
        "set output.store, or lower spec.maxFailedChunks",
    ] {
        assert!(message.contains(part), "{part} is missing in: {message}");
    }
    nothing_held(&pool).await;
}

#[tokio::test(start_paused = true)]
async fn a_permanently_rejected_status_is_written_without_optional_fields() {
    let mut pool = Pool::start(0, StorePolicy::default()).await;
    pool.api.refuse(|method, path, body| {
        let refused = *method == Method::PATCH && path.ends_with("/burstjobs/wordy/status") && body.contains("\"aggregate\":{");
        refused.then_some(StatusCode::UNPROCESSABLE_ENTITY)
    });
    create(&pool.client, &job("wordy", |_| {})).await;
    let stream = submitted(&mut pool).await;
    stream.succeeded(1, 0, 4, "");
    let (status, reason, message) = failed(&pool, "wordy").await;
    assert_eq!(reason, "StatusRejected", "{message}");
    assert!(message.contains("failed to write the status"), "{message}");
    assert!(message.ends_with("aggregate and failures are omitted"), "{message}");
    assert_eq!((status.chunks.succeeded, status.aggregate), (4, None));
    nothing_held(&pool).await;
}

/// Deletes a burst whose chunks have all succeeded but whose end is rejected, and checks that it is deleted soon.
async fn is_deleted_at_once(pool: &Pool, name: &str) {
    let jobs = Api::<BurstJob>::namespaced(pool.client.clone(), NAMESPACE);
    sleep(Duration::from_secs(30)).await;
    let status = jobs.get(name).await.expect("it stands").status.expect("a status");
    assert_eq!(status.completion_time, None, "its end is refused");
    let began = Instant::now();
    jobs.delete(name, &DeleteParams::default()).await.expect("deleted");
    while jobs.get_opt(name).await.expect("an answer").is_some() {
        assert!(began.elapsed() < GONE_WITHIN, "{name} stands although it is deleted");
        sleep(Duration::from_millis(100)).await;
    }
    nothing_held(pool).await;
}

#[tokio::test(start_paused = true)]
async fn a_burst_whose_end_the_api_server_rejects_is_deleted_at_once() {
    for (name, refused) in [("checkpoint", "/configmaps"), ("status", "/burstjobs/status/status")] {
        let mut pool = Pool::start(0, StorePolicy::default()).await;
        create(&pool.client, &job(name, |_| {})).await;
        let stream = submitted(&mut pool).await;
        pool.api
            .refuse(move |_, path, _| path.contains(refused).then_some(StatusCode::INTERNAL_SERVER_ERROR));
        stream.succeeded(1, 0, 4, "");
        is_deleted_at_once(&pool, name).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_burst_whose_end_its_store_rejects_is_deleted_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let stores = StorePolicy::new(Some(folder.path().to_owned()), Endpoints::default());
    let mut pool = Pool::start(0, stores).await;
    let url = format!("file://{}", folder.path().display());
    let stored = job("stored", |manifest| manifest["spec"]["output"] = json!({"store": {"url": url}}));
    let uid = create(&pool.client, &stored).await.uid().unwrap();
    // A directory has the manifest's name, so that no file can replace it, whatever the process's rights.
    fs::create_dir_all(folder.path().join(NAMESPACE).join("stored").join(uid).join("manifest.json")).unwrap();
    let stream = submitted(&mut pool).await;
    stream.succeeded(1, 0, 4, "segments/0.segment");
    is_deleted_at_once(&pool, "stored").await;
}
