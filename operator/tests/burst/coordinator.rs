//! Tests of a burst's coordinator with an agent that the test controls.

use std::{fs, sync::Arc, time::Duration};

use http::{Method, StatusCode};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use sahasra_crds::{
    BurstJob, VramLease,
    conditions::{self, CHECKPOINTED, COMPLETE, FAILED, GRANTED, SUSPENDED},
};
use sahasra_operator::burst::{
    coordinator::{Coordinator, CoordinatorError},
    validate::validate,
};
use sahasra_store::{Endpoints, StorePolicy};
use sahasra_wire::burst::{ChunkRange, FailureCode};
use serde_json::json;
use tokio::{sync::watch, time::Instant};

use crate::{
    agent::{Pool, SLICES, Stream, ended, there},
    harness::{NAMESPACE, client, context, create, eventually, job, observe},
};

#[tokio::test(start_paused = true)]
async fn a_resumed_burst_and_its_lease_show_the_held_slices_soon() {
    let mut pool = Pool::start(0, StorePolicy::default()).await;
    create(&pool.client, &job("resumed", |_| ())).await;
    let mut stream = pool.stream().await;
    stream.accept(&[], 0).await;
    let ranges = stream.submitted(4).await;
    let jobs = Api::<BurstJob>::namespaced(pool.client.clone(), NAMESPACE);
    let suspend = |suspend: bool| Patch::Merge(json!({"spec": {"suspend": suspend}}));
    jobs.patch("resumed", &PatchParams::default(), &suspend(true)).await.unwrap();
    stream.withdrawn().await;
    stream.returned(ranges);
    let state = |wanted: &'static str| move |job: &BurstJob| (job.status.as_ref()?.state.as_deref() == Some(wanted)).then_some(());
    eventually(&jobs, "resumed", state("Suspended")).await;
    // The intervals between writes of the status have grown to their maximum.
    tokio::time::sleep(Duration::from_secs(600)).await;
    let resumed = Instant::now();
    jobs.patch("resumed", &PatchParams::default(), &suspend(false)).await.unwrap();
    let mut stream = pool.stream().await;
    stream.accept(&[], 0).await;
    stream.submitted(4).await;
    let leases = Api::<VramLease>::namespaced(pool.client.clone(), NAMESPACE);
    let held = |lease: &VramLease| (lease.status.as_ref()?.slices > 0).then_some(());
    eventually(&jobs, "resumed", state("Running")).await;
    eventually(&leases, "resumed", held).await;
    assert!(resumed.elapsed() < Duration::from_secs(3), "{:?}", resumed.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_burst_being_suspended_keeps_the_slices_of_running_chunks_and_reports_them() {
    let mut pool = Pool::start(0, StorePolicy::default()).await;
    create(&pool.client, &job("endless", |_| ())).await;
    let mut stream = pool.stream().await;
    stream.accept(&[], 0).await;
    let attempt = stream.submitted(4).await[0].attempt;
    let jobs = Api::<BurstJob>::namespaced(pool.client.clone(), NAMESPACE);
    let suspend = |suspend: bool| {
        let (jobs, patch) = (jobs.clone(), Patch::Merge(json!({"spec": {"suspend": suspend}})));
        async move { jobs.patch("endless", &PatchParams::default(), &patch).await.unwrap() }
    };
    suspend(true).await;
    stream.withdrawn().await;
    stream.returned(vec![there(0, 2, attempt), there(3, 1, attempt)]);
    tokio::time::sleep(Duration::from_millis(900)).await;
    assert_eq!(pool.lent(), 1, "one chunk runs");
    let says = async |status: &'static str, reason: &'static str| {
        eventually(&jobs, "endless", |job| {
            let said = conditions::get(&job.status.as_ref()?.conditions, SUSPENDED)?;
            (said.status == status && said.reason == reason).then(|| said.message.clone())
        })
        .await
    };
    let message = says("False", "Suspending").await;
    assert_eq!(
        message,
        "1 chunk still runs on 1 device; it may take up to chunkTimeoutSeconds (60 s)"
    );
    // The burst continues with as many slices as it has chunks.
    suspend(false).await;
    stream.submitted(3).await;
    says("False", "Resumed").await;
    assert_eq!(pool.lent(), SLICES);
    suspend(true).await;
    stream.withdrawn().await;
    stream.succeeded(1, 2, 1, "");
    stream.returned(vec![there(0, 2, attempt), there(3, 1, attempt)]);
    says("True", "SuspendedBySpec").await;
    assert_eq!(pool.lent(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_burst_near_its_end_holds_no_more_slices_than_it_has_unfinished_chunks() {
    let mut pool = Pool::start(0, StorePolicy::default()).await;
    create(&pool.client, &job("straggling", |_| ())).await;
    let mut stream = pool.stream().await;
    stream.accept(&[], 0).await;
    stream.submitted(4).await;
    stream.succeeded(1, 0, 3, "");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(pool.lent(), 1);
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(pool.lent(), 1);
    // The last chunk is retried on the slice that is left.
    stream.failed(2, 3, FailureCode::ExecutorLost);
    stream.submitted(1).await;
    assert_eq!(pool.lent(), 1);
    stream.succeeded(3, 3, 1, "");
    assert_eq!(ended(&pool, "straggling").await.state.as_deref(), Some("Complete"));
    assert_eq!(pool.lent(), 0);
}

#[tokio::test(start_paused = true)]
async fn chunks_that_find_no_slice_cost_no_attempt_and_are_submitted_later() {
    let mut pool = Pool::start(0, StorePolicy::default()).await;
    let early = job("early", |manifest| manifest["spec"]["retryPolicy"] = json!({"maxRetries": 0}));
    create(&pool.client, &early).await;
    let mut stream = pool.stream().await;
    stream.accept(&[], 0).await;
    let began = Instant::now();
    // The pool counts slices that the agent no longer has.
    for _ in 0..4 {
        let ranges = stream.submitted(4).await;
        stream.returned_without_slices(ranges);
    }
    stream.submitted(4).await;
    assert!(began.elapsed() >= 4 * Duration::from_millis(500), "{:?}", began.elapsed());
    stream.succeeded(1, 0, 4, "");
    let status = ended(&pool, "early").await;
    assert_eq!(status.state.as_deref(), Some("Complete"), "{status:?}");
    assert_eq!((status.chunks.succeeded, status.chunks.retried), (4, 0));
}

#[tokio::test(start_paused = true)]
async fn a_burst_that_failed_shows_no_running_chunks() {
    let mut pool = Pool::start(0, StorePolicy::default()).await;
    create(&pool.client, &job("failing", |_| {})).await;
    let mut stream = pool.stream().await;
    stream.accept(&[], 0).await;
    stream.submitted(4).await;
    stream.failed(1, 2, FailureCode::Trap);
    let status = ended(&pool, "failing").await;
    assert_eq!(
        (status.state.as_deref(), status.reason.as_deref()),
        (Some("Failed"), Some("Trap")),
        "{status:?}"
    );
    let chunks = &status.chunks;
    assert_eq!((chunks.total, chunks.failed, chunks.running, chunks.pending), (4, 1, 0, 3));
    assert_eq!(status.slices.held, 0);
}

#[tokio::test(start_paused = true)]
async fn a_burst_whose_manifest_cannot_be_written_fails_with_the_field_and_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let stores = StorePolicy::new(Some(folder.path().to_owned()), Endpoints::default());
    let mut pool = Pool::start(0, stores).await;
    let url = format!("file://{}", folder.path().display());
    let stored = job("stored", |manifest| manifest["spec"]["output"] = json!({"store": {"url": url}}));
    let uid = create(&pool.client, &stored).await.uid().unwrap();
    // A directory has the manifest's name, so that no file can replace it, whatever the process's rights.
    let own = folder.path().join(NAMESPACE).join("stored").join(uid);
    fs::create_dir_all(own.join("manifest.json")).unwrap();
    let mut stream = pool.stream().await;
    stream.accept(&[], 0).await;
    stream.submitted(4).await;
    stream.succeeded(1, 0, 4, "segments/0.segment");
    let status = ended(&pool, "stored").await;
    assert!(!conditions::is_true(&status.conditions, COMPLETE), "{status:?}");
    let failed = conditions::get(&status.conditions, FAILED).unwrap();
    assert_eq!((failed.status.as_str(), failed.reason.as_str()), ("True", "StoreUnavailable"));
    for part in [
        "spec.output.store: ",
        "write the manifest",
        "timed out after 120 s",
        "create the BurstJob again",
    ] {
        assert!(failed.message.contains(part), "{part} is missing in: {}", failed.message);
    }
    assert_eq!(status.results.and_then(|results| results.url), None, "there is no manifest");
    assert_eq!(status.chunks.succeeded, 4, "and the chunks have succeeded all the same");
}

#[tokio::test(start_paused = true)]
async fn a_burst_whose_store_fails_during_suspension_keeps_its_counted_results() {
    let folder = tempfile::tempdir().unwrap();
    let stores = StorePolicy::new(Some(folder.path().to_owned()), Endpoints::default());
    let mut pool = Pool::start(0, stores).await;
    let url = format!("file://{}", folder.path().display());
    let stored = job("held", |manifest| manifest["spec"]["output"] = json!({"store": {"url": url}}));
    let uid = create(&pool.client, &stored).await.uid().unwrap();
    // A file has the name of the folder of index objects, so that none can be written.
    let own = folder.path().join(NAMESPACE).join("held").join(uid);
    fs::create_dir_all(own.join("index")).unwrap();
    let in_the_way = own.join("index/term-1");
    fs::write(&in_the_way, "").unwrap();
    let mut stream = pool.stream().await;
    stream.accept(&[], 0).await;
    stream.submitted(4).await;
    stream.succeeded(1, 0, 2, "segments/0.segment");
    let jobs = Api::<BurstJob>::namespaced(pool.client.clone(), NAMESPACE);
    let suspend = Patch::Merge(json!({"spec": {"suspend": true}}));
    jobs.patch("held", &PatchParams::default(), &suspend).await.unwrap();
    tokio::time::sleep(Duration::from_secs(600)).await;
    let status = jobs.get("held").await.unwrap().status.unwrap();
    assert!(!conditions::is_true(&status.conditions, SUSPENDED), "{status:?}");
    let saved = conditions::get(&status.conditions, CHECKPOINTED).unwrap();
    assert_eq!(
        (saved.status.as_str(), saved.reason.as_str()),
        ("False", "StoreUnavailable"),
        "{status:?}"
    );
    assert_eq!(pool.lent(), 2, "the last slices go back once what they computed is saved");

    fs::remove_file(in_the_way).unwrap();
    let is_suspended = |job: &BurstJob| {
        let status = job.status.as_ref()?;
        conditions::is_true(&status.conditions, SUSPENDED).then_some(status.chunks.succeeded)
    };
    assert_eq!(eventually(&jobs, "held", is_suspended).await, 2);
    assert_eq!(pool.lent(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_burst_is_deleted_as_soon_as_its_agent_answers_again() {
    let mut pool = Pool::start(0, StorePolicy::default()).await;
    let long = job("deleted", |manifest| manifest["spec"]["lease"] = json!({"ttlSeconds": 86_400}));
    create(&pool.client, &long).await;
    let mut stream = pool.stream().await;
    stream.accept(&[], 0).await;
    stream.submitted(4).await;
    pool.leave_releases_unanswered(3);
    let jobs = Api::<BurstJob>::namespaced(pool.client.clone(), NAMESPACE);
    let began = Instant::now();
    jobs.delete("deleted", &DeleteParams::default()).await.unwrap();
    while jobs.get_opt("deleted").await.unwrap().is_some() {
        assert!(began.elapsed() < Duration::from_secs(60), "it waits for its slices to expire");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(pool.lent(), 0);
}

/// Runs in real time, because the conditions have wall-clock times in seconds.
#[tokio::test]
async fn a_bursts_lease_shows_transition_times_and_the_observed_generation() {
    let pool = Pool::start(SLICES, StorePolicy::default()).await;
    create(&pool.client, &job("leased", |_| {})).await;
    let leases = Api::<VramLease>::namespaced(pool.client.clone(), NAMESPACE);
    let granted = async |slices: i64, generation: i64| {
        eventually(&leases, "leased", |lease| {
            let status = lease.status.as_ref()?;
            let answered = status.slices == slices && status.observed_generation == Some(generation);
            conditions::get(&status.conditions, GRANTED).filter(|_| answered).cloned()
        })
        .await
    };
    let waiting = granted(0, 1).await;
    assert_eq!((waiting.status.as_str(), waiting.observed_generation), ("False", Some(1)));
    pool.occupy(SLICES - 1).await;
    let first = granted(1, 1).await;
    assert_eq!((first.status.as_str(), first.observed_generation), ("True", Some(1)));
    assert!(first.last_transition_time > waiting.last_transition_time, "{waiting:?} {first:?}");

    let changed = json!({"spec": {"slices": {"max": 3}}});
    leases
        .patch("leased", &PatchParams::default(), &Patch::Merge(changed))
        .await
        .unwrap();
    pool.occupy(SLICES - 2).await;
    let second = granted(2, 2).await;
    assert_eq!((second.status.as_str(), second.observed_generation), ("True", Some(2)));
    assert_eq!(second.last_transition_time, first.last_transition_time, "it was granted before");
}

/// A burst whose lease was deleted, and created again by a request whose answer was lost.
async fn with_a_lease_of_unknown_fate(name: &str) -> (Pool, Stream, Api<VramLease>, Vec<ChunkRange>) {
    let mut pool = Pool::start(0, StorePolicy::default()).await;
    create(&pool.client, &job(name, |_| ())).await;
    let mut stream = pool.stream().await;
    stream.accept(&[], 0).await;
    let ranges = stream.submitted(4).await;
    let leases = Api::<VramLease>::namespaced(pool.client.clone(), NAMESPACE);
    eventually(&leases, name, |lease| (lease.status.as_ref()?.slices > 0).then_some(())).await;
    // The cache of leases has the lease by now, so its deletion is noticed.
    tokio::time::sleep(Duration::from_secs(60)).await;
    let uid = leases.get(name).await.expect("it exists").uid();
    pool.api.lose_answers(|method, path, _| {
        let is_lost = *method == Method::POST && path.ends_with("/vramleases");
        is_lost.then_some(StatusCode::INTERNAL_SERVER_ERROR)
    });
    leases.delete(name, &DeleteParams::default()).await.expect("deleted");
    eventually(&leases, name, |lease| (lease.uid() != uid).then_some(())).await;
    (pool, stream, leases, ranges)
}

#[tokio::test(start_paused = true)]
async fn a_burst_that_ends_leaves_no_lease_whose_creation_was_not_answered() {
    let (pool, stream, leases, _) = with_a_lease_of_unknown_fate("lost").await;
    stream.succeeded(1, 0, 4, "");
    assert_eq!(ended(&pool, "lost").await.state.as_deref(), Some("Complete"));
    let jobs = Api::<BurstJob>::namespaced(pool.client.clone(), NAMESPACE);
    eventually(&jobs, "lost", |job| job.finalizers().is_empty().then_some(())).await;
    assert!(leases.get_opt("lost").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_suspended_burst_leaves_no_lease_whose_creation_was_not_answered() {
    let (pool, mut stream, leases, ranges) = with_a_lease_of_unknown_fate("paused").await;
    let jobs = Api::<BurstJob>::namespaced(pool.client.clone(), NAMESPACE);
    let suspend = Patch::Merge(json!({"spec": {"suspend": true}}));
    jobs.patch("paused", &PatchParams::default(), &suspend).await.unwrap();
    stream.withdrawn().await;
    stream.returned(ranges);
    eventually(&jobs, "paused", |job| {
        conditions::is_true(&job.status.as_ref()?.conditions, SUSPENDED).then_some(())
    })
    .await;
    assert!(leases.get_opt("paused").await.unwrap().is_none());
}

#[tokio::test]
async fn a_coordinator_that_starts_on_an_old_version_of_its_job_leaves_no_lease() {
    let client = client();
    let jobs = Api::<BurstJob>::namespaced(client.clone(), NAMESPACE);
    let old = create(&client, &job("finished", |_| {})).await;
    // An earlier coordinator has finished the job in the meantime.
    let status = json!({"status": {"term": 1}});
    let written = jobs.patch_status("finished", &PatchParams::default(), &Patch::Merge(status)).await;
    written.unwrap();

    let context = context(&client);
    let observed = observe(&client, &context.settings.stores, NAMESPACE, &old.spec).await.unwrap();
    let burst = validate(&old.spec, &observed).unwrap_or_else(|invalid| panic!("{}: {}", invalid.path, invalid.message));
    let (_shows, job) = watch::channel(Arc::new(old));
    let outcome = Coordinator::new(context, job, burst).run().await;

    assert!(matches!(outcome, Err(CoordinatorError::Conflict(_))), "{outcome:?}");
    let leases = Api::<VramLease>::namespaced(client, NAMESPACE);
    let left = leases.list(&ListParams::default()).await.unwrap().items;
    assert!(left.is_empty(), "{left:?}");
}
