//! What lags behind does no harm: an operator that acts on an old version of an object leaves nothing behind.

use std::{sync::Arc, time::Duration};

use kube::{Api, api::PostParams};
use sahasra_crds::{BurstJob, VramLease};
use sahasra_local::{ControlPlane, Options};
use sahasra_operator::{
    Operator, Settings,
    agents::AgentClient,
    burst::{
        coordinator::{Coordinator, CoordinatorError},
        observe::observe,
        validate::validate,
    },
    fault::Faults,
};
use sahasra_service::clock::Clock;
use sahasra_simulation::kernel;
use sahasra_store::StorePolicy;
use serde_json::json;
use tokio::sync::watch;

const NAMESPACE: &str = "default";

#[tokio::test]
async fn a_coordinator_that_starts_on_an_old_version_of_its_job_leaves_no_lease() {
    let client = ControlPlane::new(Options::default()).client(NAMESPACE);
    let settings = Settings {
        identity: "one".to_owned(),
        namespace: NAMESPACE.to_owned(),
        worker_timeout: Duration::from_secs(15),
        leader_timeout: Duration::from_secs(15),
        session_lease: Duration::from_secs(60),
        input_bytes: sahasra_operator::INPUT_BYTES,
        stores: StorePolicy::default(),
        faults: Faults::default(),
    };
    let operator = Operator::new(client.clone(), AgentClient::default(), Clock::default(), settings).unwrap();
    let jobs = Api::<BurstJob>::namespaced(client.clone(), NAMESPACE);
    let job = json!({
        "apiVersion": "sahasra.dev/v1alpha1",
        "kind": "BurstJob",
        "metadata": {"name": "finished"},
        "spec": {
            "kernel": {
                "ptx": {"inline": kernel::PTX},
                "entry": kernel::ENTRY,
                "block": [1],
                "args": [
                    {"output": {"type": "u32"}},
                    {"chunkIndex": {"type": "u32"}},
                    {"scalar": {"type": "u32", "value": 0}},
                ],
            },
            "chunks": {"count": 1},
            "slice": {"vram": "64Mi"},
        },
    });
    let old = jobs
        .create(&PostParams::default(), &serde_json::from_value(job).unwrap())
        .await
        .unwrap();
    // An earlier coordinator has finished it meanwhile.
    let status = json!({"status": {"term": 1}});
    let written = jobs
        .patch_status("finished", &kube::api::PatchParams::default(), &kube::api::Patch::Merge(status))
        .await;
    written.unwrap();

    let context = operator.context().clone();
    let observed = observe(&client, &context.stores, NAMESPACE, &old.spec).await.unwrap();
    let burst = validate(&old.spec, &observed).unwrap_or_else(|invalid| panic!("{}: {}", invalid.path, invalid.message));
    let (_shows, job) = watch::channel(Arc::new(old));
    let outcome = Coordinator::new(context, job, burst).run().await;

    assert!(matches!(outcome, Err(CoordinatorError::Conflict(_))), "{outcome:?}");
    let leases = Api::<VramLease>::namespaced(client, NAMESPACE);
    let left = leases.list(&kube::api::ListParams::default()).await.unwrap().items;
    assert!(left.is_empty(), "{left:?}");
}
