//! From a job as it was applied to one that runs or says why not; and objects that are in the way.

use std::{
    io::{Read, Write},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use sahasra_crds::{
    BurstJob, VramLease,
    conditions::{self, ACCEPTED, ADMITTED, COMPLETE},
};
use sahasra_operator::{
    agents::AgentClient,
    burst::{
        checkpoint::Contents,
        intake::{Intake, LEAST_INPUT_BYTES, Outcome, Verdict, Waiting},
        objects::{Objects, WriteError},
        observe::{ObserveError, observe},
        reconcile,
    },
};
use sahasra_store::{Endpoint, Endpoints, StorePolicy};
use serde_json::json;

use crate::harness::{LIMIT, NAMESPACE, PTX, client, context, context_with, counted, create, eventually, job};

#[tokio::test]
async fn a_burst_of_any_size_asks_for_no_more_slices_than_a_lease_may() {
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
async fn a_users_own_config_map_is_left_alone() {
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

    // The next coordinator finds it there.
    let successor = Objects::new(&client, &sweep);
    assert!(successor.read_checkpoint().await.unwrap().is_some());
    assert_eq!(successor.results_name(), name);

    // Another job, and somebody has both of its names.
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
async fn an_earlier_jobs_checkpoint_makes_way() {
    let client = client();
    let jobs = Api::<BurstJob>::namespaced(client.clone(), NAMESPACE);
    let first = create(&client, &job("again", |_| {})).await;
    let objects = Objects::new(&client, &first);
    objects.write_checkpoint(None, 7, Contents::default()).await.unwrap();
    // The garbage collector has not come by yet.
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
async fn contents_that_no_config_map_holds_are_rejected_for_good() {
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
async fn what_the_api_server_rejects_stands_in_a_condition() {
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
    // Once it is out of the way the burst goes on; a user's error never was one of the operator.
    leases.delete("blocked", &Default::default()).await.unwrap();
    eventually(&leases, "blocked", |lease| (!lease.owner_references().is_empty()).then_some(())).await;
    assert_eq!(counted(&context, "reconcile_errors_total", "name"), 0.0);
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

/// A store below a folder of its own, with a file of so many bytes.
fn store_with(name: &str, bytes: u64) -> (tempfile::TempDir, StorePolicy, String) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = std::fs::File::create(folder.path().join(name)).expect("the folder takes a file");
    file.set_len(bytes).expect("a sparse file takes no room");
    let stores = StorePolicy::new(Some(folder.path().to_owned()), Endpoints::default());
    let url = format!("file://{}", folder.path().display());
    (folder, stores, url)
}

/// A job whose kernel takes an input from that URL.
fn with_input(name: &str, store: &str, url: &str) -> BurstJob {
    job(name, |manifest| {
        let spec = &mut manifest["spec"];
        spec["kernel"]["ptx"]["inline"] = json!(PTX.replace("u64 out", "u64 out, .param .u64 input"));
        spec["kernel"]["args"] = json!([{"output": {"type": "u8"}}, {"constant": {"url": url}}]);
        spec["slice"]["vram"] = json!("64Mi");
        spec["output"] = json!({"store": {"url": store}});
    })
}

fn missing(outcome: Result<sahasra_operator::burst::observe::Observed, ObserveError>) -> (String, &'static str, String) {
    match outcome {
        Err(ObserveError::Missing { path, reason, message }) => (path, reason, message),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_job_reads_no_file_outside_the_file_store() {
    let (_folder, stores, url) = store_with("input", 1);
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::write(elsewhere.path().join("token"), "the operator's own").unwrap();
    let token = format!("file://{}/token", elsewhere.path().display());
    let thief = with_input("thief", &url, &token);
    let (path, reason, message) = missing(observe(&client(), &stores, NAMESPACE, &thief.spec).await);
    assert_eq!((path.as_str(), reason), ("spec.kernel.args[1].constant.url", "StoreUnreadable"));
    assert!(!message.contains("own"), "{message}");
}

#[tokio::test]
async fn objects_are_read_up_to_the_limits_and_once() {
    const MOST: u64 = 48 << 20;
    let (folder, stores, url) = store_with("most", MOST);
    std::fs::File::create(folder.path().join("more"))
        .unwrap()
        .set_len(MOST + 1)
        .unwrap();
    std::fs::File::create(folder.path().join("third"))
        .unwrap()
        .set_len(MOST / 3)
        .unwrap();
    let client = client();
    let read = |file: &str| {
        let (client, stores) = (client.clone(), stores.clone());
        let job = with_input("reader", &url, &format!("{url}/{file}"));
        async move { observe(&client, &stores, NAMESPACE, &job.spec).await }
    };
    assert_eq!(read("most").await.unwrap().inputs[1].len() as u64, MOST);
    let (path, reason, _) = missing(read("more").await);
    assert_eq!((path.as_str(), reason), ("spec.kernel.args[1].constant.url", "InputTooLarge"));

    let mut thrice = with_input("thrice", &url, &format!("{url}/third"));
    let again = thrice.spec.kernel.args[1].clone();
    thrice.spec.kernel.args.extend([again.clone(), again.clone()]);
    let observed = observe(&client, &stores, NAMESPACE, &thrice.spec).await.unwrap();
    assert!(
        observed.inputs[1..]
            .iter()
            .all(|input| input.as_ptr() == observed.inputs[1].as_ptr())
    );
    assert!(observed.bytes() < MOST / 3 + 1024, "what is named thrice is here once");
    // They travel once each.
    thrice.spec.kernel.args.push(again);
    let (path, reason, _) = missing(observe(&client, &stores, NAMESPACE, &thrice.spec).await);
    assert_eq!((path.as_str(), reason), ("spec.kernel.args[4].constant.url", "InputTooLarge"));
}

#[tokio::test]
async fn inputs_of_all_bursts_wait_for_memory_and_say_so() {
    let (_folder, stores, url) = store_with("large", 40 << 20);
    let client = client();
    let reconciling = tokio::spawn(reconcile::run(context_with(
        &client,
        AgentClient::default(),
        stores,
        LEAST_INPUT_BYTES,
    )));
    let (jobs, leases) = (
        Api::<BurstJob>::namespaced(client.clone(), NAMESPACE),
        Api::<VramLease>::namespaced(client.clone(), NAMESPACE),
    );
    create(&client, &with_input("first", &url, &format!("{url}/large"))).await;
    eventually(&leases, "first", |_| Some(())).await;
    create(&client, &with_input("second", &url, &format!("{url}/large"))).await;
    let waits = eventually(&jobs, "second", |job| {
        let status = job.status.as_ref()?;
        conditions::get(&status.conditions, ACCEPTED).cloned()
    })
    .await;
    assert_eq!((waits.status.as_str(), waits.reason.as_str()), ("False", "WaitingForMemory"));
    assert!(waits.message.contains("40 of the 56 MiB"), "{}", waits.message);
    // A job without inputs does not wait.
    create(&client, &job("small", |_| {})).await;
    eventually(&leases, "small", |_| Some(())).await;
    jobs.delete("first", &Default::default()).await.unwrap();
    eventually(&leases, "second", |_| Some(())).await;
    let status = jobs.get("second").await.unwrap().status.unwrap();
    assert!(conditions::is_true(&status.conditions, ACCEPTED), "{status:?}");
    reconciling.abort();
}

#[tokio::test]
async fn a_store_that_does_not_answer_delays_no_other_burst() {
    // It takes connections, and no more.
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let stores = StorePolicy::new(None, [endpoint.parse::<Endpoint>().unwrap()].into_iter().collect());
    let client = client();
    let encoded = |text: &str| k8s_openapi::ByteString(text.as_bytes().to_vec());
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "store"}, "data": {
        "endpoint": encoded(&endpoint), "allow_http": encoded("true"), "region": encoded("us-east-1"),
    }});
    let secrets = Api::<k8s_openapi::api::core::v1::Secret>::namespaced(client.clone(), NAMESPACE);
    secrets
        .create(&PostParams::default(), &serde_json::from_value(secret).unwrap())
        .await
        .unwrap();
    let reconciling = tokio::spawn(reconcile::run(context_with(&client, AgentClient::default(), stores, 0)));
    let jobs = Api::<BurstJob>::namespaced(client.clone(), NAMESPACE);
    // More than reconcile at the same time.
    for number in 0..40 {
        let mut slow = with_input(&format!("slow-{number}"), "s3://bucket/a", "s3://bucket/input");
        slow.spec.output.as_mut().unwrap().store.secret_ref = serde_json::from_value(json!({"name": "store"})).unwrap();
        create(&client, &slow).await;
    }
    create(&client, &job("quick", |_| {})).await;
    let leases = Api::<VramLease>::namespaced(client.clone(), NAMESPACE);
    eventually(&leases, "quick", |_| Some(())).await;
    jobs.delete("quick", &Default::default()).await.unwrap();
    let gone = async {
        while jobs.get_opt("quick").await.unwrap().is_some() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LIMIT, gone).await.expect("in time");
    // Eight ask the store, without an answer so far; the others say that they wait for those.
    let waiting = async || {
        let mut waiting = 0;
        for slow in jobs.list(&Default::default()).await.unwrap() {
            if let Some(status) = slow.status {
                let accepted = conditions::get(&status.conditions, ACCEPTED).unwrap();
                assert_eq!(accepted.reason, "WaitingForStores", "{}", accepted.message);
                waiting += 1;
            }
        }
        waiting
    };
    let all = async {
        while waiting().await < 32 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LIMIT, all).await.expect("in time");
    assert_eq!(waiting().await, 32);
    reconciling.abort();
}

/// A store with objects of 1 MiB: it answers what asks for their sizes, and sends nothing of them.
fn store_that_sends_nothing() -> std::io::Result<String> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    let endpoint = format!("http://{}", listener.local_addr()?);
    std::thread::spawn(move || {
        for mut connection in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut request = [0; 16 << 10];
                while connection.read(&mut request).is_ok_and(|bytes| bytes > 0) {
                    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 1048576\r\netag: \"1\"\r\n\
                                  last-modified: Mon, 23 Nov 2026 10:00:00 GMT\r\n\r\n";
                    let _ = connection.write_all(answer.as_bytes());
                }
            });
        }
    });
    Ok(endpoint)
}

#[tokio::test]
async fn slow_stores_of_a_namespace_leave_memory_to_the_others() {
    let endpoint = store_that_sends_nothing().unwrap();
    let stores = StorePolicy::new(None, [endpoint.parse::<Endpoint>().unwrap()].into_iter().collect());
    let client = client();
    let encoded = |text: &str| k8s_openapi::ByteString(text.as_bytes().to_vec());
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "store"}, "data": {
        "endpoint": encoded(&endpoint), "allow_http": encoded("true"), "region": encoded("us-east-1"),
        "access_key_id": encoded("key"), "secret_access_key": encoded("secret"),
    }});
    let secrets = Api::<k8s_openapi::api::core::v1::Secret>::namespaced(client.clone(), NAMESPACE);
    secrets
        .create(&PostParams::default(), &serde_json::from_value(secret).unwrap())
        .await
        .unwrap();
    let kernels = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kernels"}, "data": {"k.ptx": PTX}});
    let others: Namespace = serde_json::from_value(json!({"metadata": {"name": "others"}})).unwrap();
    let namespaces = Api::<Namespace>::all(client.clone());
    namespaces.create(&PostParams::default(), &others).await.unwrap();
    let config_maps = Api::<ConfigMap>::namespaced(client.clone(), "others");
    config_maps
        .create(&PostParams::default(), &serde_json::from_value(kernels).unwrap())
        .await
        .unwrap();

    // Memory for 56 objects, and more jobs than that.
    let intake = Arc::new(Intake::new(client.clone(), stores, LEAST_INPUT_BYTES));
    let (sender, mut waits) = tokio::sync::mpsc::unbounded_channel();
    let mut slow = tokio::task::JoinSet::new();
    for number in 0..80 {
        let mut job = with_input(&format!("slow-{number}"), "s3://bucket/a", "s3://bucket/input");
        job.spec.output.as_mut().unwrap().store.secret_ref = serde_json::from_value(json!({"name": "store"})).unwrap();
        let (intake, sender) = (intake.clone(), sender.clone());
        slow.spawn(async move {
            let report = |waiting: Waiting| {
                let _ = sender.send(waiting.reason);
            };
            intake.admit(NAMESPACE, &job.spec, None, report).await
        });
    }
    for _ in 0..72 {
        assert_eq!(waits.recv().await, Some("WaitingForStores"));
    }
    let other = job("other", |manifest| {
        manifest["spec"]["kernel"]["ptx"] = json!({"configMapKeyRef": {"name": "kernels", "key": "k.ptx"}});
    });
    let report = |waiting| panic!("{waiting:?}");
    let outcome = tokio::time::timeout(LIMIT, intake.admit("others", &other.spec, None, report)).await;
    assert!(matches!(outcome, Ok(Outcome::Accepted(_))), "{outcome:?}");
    assert!(slow.try_join_next().is_none());
}

#[tokio::test]
async fn what_was_refused_is_checked_again_only_when_something_has_changed() {
    let client = client();
    let config_maps = Api::<ConfigMap>::namespaced(client.clone(), NAMESPACE);
    let kernels = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kernels"}, "data": {"k.ptx": "int main() {}"}});
    let kernels: ConfigMap = serde_json::from_value(kernels).unwrap();
    config_maps.create(&PostParams::default(), &kernels).await.unwrap();
    let wrong = job("wrong", |manifest| {
        manifest["spec"]["kernel"]["ptx"] = json!({"configMapKeyRef": {"name": "kernels", "key": "k.ptx"}});
    });
    let intake = Intake::new(client.clone(), StorePolicy::default(), 0);
    let admit = async |before| match intake.admit(NAMESPACE, &wrong.spec, before, |_| {}).await {
        Outcome::Refused(verdict) => Some(verdict),
        Outcome::Accepted(_) => None,
        Outcome::Failed(error) => panic!("{error}"),
    };
    let first: Verdict = admit(None).await.unwrap();
    assert_eq!(first.refused.reason, "InvalidPtx");
    let mut remembered = first.clone();
    remembered.refused.message = "remembered".to_owned();
    assert_eq!(admit(Some(remembered.clone())).await.unwrap().refused.message, "remembered");
    let changed = json!({"data": {"k.ptx": "int main() { return 1; }"}});
    config_maps
        .patch("kernels", &PatchParams::default(), &Patch::Merge(changed))
        .await
        .unwrap();
    assert_eq!(
        admit(Some(remembered.clone())).await.unwrap().refused.message,
        first.refused.message
    );
    let right = json!({"data": {"k.ptx": PTX}});
    config_maps
        .patch("kernels", &PatchParams::default(), &Patch::Merge(right))
        .await
        .unwrap();
    assert!(admit(Some(remembered)).await.is_none());
}
