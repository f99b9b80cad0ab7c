//! Tests of a job's admission, up to a running burst or a reason for the rejection, and of name conflicts. `intake` has the tests of
//! stores.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use sahasra_crds::{
    BurstJob, VramLease,
    conditions::{self, ACCEPTED, ADMITTED, COMPLETE},
};
use sahasra_operator::burst::{
    checkpoint::Contents,
    objects::{Objects, WriteError},
    reconcile,
};
use serde_json::json;

use crate::harness::{NAMESPACE, client, context, counted, create, eventually, job};

#[tokio::test]
async fn a_burst_of_any_size_requests_at_most_the_slices_of_a_lease() {
    let client = client();
    let reconciling = tokio::spawn(reconcile::run(context(&client)));
    for (name, chunks) in [("hundred-thousand-and-one", 100_001), ("ten-million", 10_000_000)] {
        let large = job(name, |manifest| {
            manifest["spec"]["chunks"]["count"] = json!(chunks);
            manifest["spec"]["output"] = json!({"store": {"url": "s3://bucket/a", "secretRef": {"name": "store"}}});
        });
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "store"}, "data": {}});
        let secrets = Api::<k8s_openapi::api::core::v1::Secret>::namespaced(client.clone(), NAMESPACE);
        let _ = secrets
            .create(&PostParams::default(), &serde_json::from_value(secret).unwrap())
            .await;
        create(&client, &large).await;
        let leases = Api::<VramLease>::namespaced(client.clone(), NAMESPACE);
        let bounds = eventually(&leases, name, |lease| Some(lease.spec.slices.clone())).await;
        assert_eq!((bounds.min, bounds.max), (1, 100_000), "{name}");
    }
    reconciling.abort();
}

#[tokio::test]
async fn a_users_own_config_map_stays_unchanged() {
    let client = client();
    let config_maps = Api::<ConfigMap>::namespaced(client.clone(), NAMESPACE);
    let of_user = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "sweep-results"}, "data": {"mine": "kept"}});
    let of_user: ConfigMap = serde_json::from_value(of_user).unwrap();
    config_maps.create(&PostParams::default(), &of_user).await.unwrap();
    let sweep = create(&client, &job("sweep", |_| {})).await;
    let objects = Objects::new(&client, &sweep);
    let contents = || Contents {
        data: [("checkpoint.json".to_owned(), "{}".to_owned())].into(),
        binary_data: Default::default(),
    };
    let version = objects.write_checkpoint(None, 1, contents()).await.unwrap();
    objects.write_checkpoint(Some(&version), 1, contents()).await.unwrap();
    let name = objects.results_name();
    assert!(
        name.starts_with("sweep-") && name.ends_with("-results") && name != "sweep-results",
        "{name}"
    );
    assert_eq!(config_maps.get("sweep-results").await.unwrap().data.unwrap()["mine"], "kept");

    // The next coordinator finds the checkpoint under this name.
    let successor = Objects::new(&client, &sweep);
    assert!(successor.read_checkpoint().await.unwrap().is_some());
    assert_eq!(successor.results_name(), name);

    // Another job, both of whose candidate names are taken.
    let other = create(&client, &job("other", |_| {})).await;
    let uid = other.uid().unwrap();
    for taken in [
        "other-results".to_owned(),
        format!("other-{}-results", uid.split('-').next().unwrap()),
    ] {
        let mut theirs = of_user.clone();
        theirs.metadata.name = Some(taken);
        config_maps.create(&PostParams::default(), &theirs).await.unwrap();
    }
    let outcome = Objects::new(&client, &other).write_checkpoint(None, 1, contents()).await;
    let Err(error @ WriteError::NamesTaken { .. }) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(error.rejection().unwrap().contains("delete or rename"), "{error}");
}

#[tokio::test]
async fn an_earlier_jobs_checkpoint_is_replaced() {
    let client = client();
    let jobs = Api::<BurstJob>::namespaced(client.clone(), NAMESPACE);
    let first = create(&client, &job("again", |_| {})).await;
    let objects = Objects::new(&client, &first);
    objects.write_checkpoint(None, 7, Contents::default()).await.unwrap();
    // The garbage collector has not deleted the earlier job's ConfigMap yet.
    jobs.delete("again", &kube::api::DeleteParams::orphan()).await.unwrap();
    let config_maps = Api::<ConfigMap>::namespaced(client.clone(), NAMESPACE);
    let owner = json!({"metadata": {"ownerReferences": [{
        "apiVersion": "sahasra.dev/v1alpha1", "kind": "BurstJob", "name": "again", "uid": first.uid(), "controller": true,
    }]}});
    let owned = config_maps
        .patch("again-results", &PatchParams::default(), &Patch::Merge(owner))
        .await;
    owned.unwrap();
    let second = create(&client, &job("again", |_| {})).await;
    let objects = Objects::new(&client, &second);
    objects.write_checkpoint(None, 1, Contents::default()).await.unwrap();
    assert_eq!(objects.results_name(), "again-results");
}

#[tokio::test]
async fn names_of_every_length_have_room_for_results() {
    let client = client();
    for length in [245, 246, 252, 253] {
        let long = create(&client, &job(&"b".repeat(length), |_| {})).await;
        let objects = Objects::new(&client, &long);
        let version = objects.write_checkpoint(None, 1, Contents::default()).await.unwrap();
        assert!(objects.results_name().len() <= 253 && objects.results_name().ends_with("-results"));
        assert_eq!(objects.results_name() == format!("{}-results", long.name_any()), length == 245);
        let (_, read) = Objects::new(&client, &long).read_checkpoint().await.unwrap().unwrap();
        assert_eq!(read, version);
    }
}

#[tokio::test]
async fn contents_too_large_for_a_config_map_are_permanently_rejected() {
    let client = client();
    let large = create(&client, &job("large", |_| {})).await;
    let contents = Contents {
        data: [("checkpoint.json".to_owned(), "x".repeat(2 << 20))].into(),
        binary_data: Default::default(),
    };
    let error = Objects::new(&client, &large).write_checkpoint(None, 1, contents).await.unwrap_err();
    assert!(error.is_final() && error.rejection().is_some(), "{error:?}");
}

#[tokio::test]
async fn a_rejection_by_the_api_server_is_reported_in_a_condition() {
    let client = client();
    let blocked = create(&client, &job("blocked", |_| {})).await;
    let leases = Api::<VramLease>::namespaced(client.clone(), NAMESPACE);
    let uid = blocked.uid().unwrap();
    for name in ["blocked".to_owned(), format!("blocked-{}", uid.split('-').next().unwrap())] {
        let lease = json!({"apiVersion": "sahasra.dev/v1alpha1", "kind": "VramLease", "metadata": {"name": name}, "spec": {"slice": {"vram": "1Mi"}}});
        leases
            .create(&PostParams::default(), &serde_json::from_value(lease).unwrap())
            .await
            .unwrap();
    }
    let context = context(&client);
    let reconciling = tokio::spawn(reconcile::run(context.clone()));
    let jobs = Api::<BurstJob>::namespaced(client.clone(), NAMESPACE);
    let condition = eventually(&jobs, "blocked", |job| {
        let status = job.status.as_ref()?;
        conditions::get(&status.conditions, ADMITTED).cloned()
    })
    .await;
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "WriteRejected"));
    assert!(
        condition.message.contains("VramLease blocked and blocked-"),
        "{}",
        condition.message
    );
    assert_eq!(leases.list(&Default::default()).await.unwrap().items.len(), 2);
    // Once the conflicting object is deleted, the burst continues. An error of the user never counts as one of the operator.
    leases.delete("blocked", &Default::default()).await.unwrap();
    eventually(&leases, "blocked", |lease| (!lease.owner_references().is_empty()).then_some(())).await;
    assert_eq!(counted(&context, "sahasra_operator_reconcile_errors_total", "name"), 0.0);
    reconciling.abort();
}

#[tokio::test]
async fn a_change_after_the_end_is_observed() {
    let client = client();
    let jobs = Api::<BurstJob>::namespaced(client.clone(), NAMESPACE);
    create(&client, &job("over", |_| {})).await;
    let at = "2026-01-01T00:00:00Z";
    let complete = |kind: &str| json!({"type": kind, "status": "True", "reason": "Tested", "message": "", "lastTransitionTime": at, "observedGeneration": 1});
    let ended = json!({"status": {"observedGeneration": 1, "completionTime": at, "conditions": [complete(ACCEPTED), complete(COMPLETE)]}});
    let written = jobs.patch_status("over", &PatchParams::default(), &Patch::Merge(ended)).await;
    written.unwrap();
    let reconciling = tokio::spawn(reconcile::run(context(&client)));
    let changed = json!({"spec": {"priority": 5}});
    jobs.patch("over", &PatchParams::default(), &Patch::Merge(changed)).await.unwrap();
    let status = eventually(&jobs, "over", |job| {
        let status = job.status.clone()?;
        (status.observed_generation == Some(2)).then_some(status)
    })
    .await;
    for condition in &status.conditions {
        assert_eq!(condition.observed_generation, Some(2), "{}", condition.type_);
        assert_eq!(
            condition.last_transition_time.0.to_string(),
            at,
            "nothing has changed but what was seen"
        );
    }
    reconciling.abort();
}
