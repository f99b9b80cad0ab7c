//! What runs inside the cluster.

use sahasra_e2e::{ControlPlane, EXISTING_CLUSTER_VARIABLE, Options};

/// The cluster that this process runs in; its kinds come from the chart.
async fn cluster() -> ControlPlane {
    assert!(
        std::env::var_os(EXISTING_CLUSTER_VARIABLE).is_some(),
        "these tests run in a cluster: use e2e/node/run"
    );
    let no_kinds: [&str; 0] = [];
    ControlPlane::start(Options::default().custom_resource_definitions(no_kinds))
        .await
        .expect("the cluster answers")
}

async fn kubectl(cluster: &ControlPlane, arguments: &str) -> String {
    cluster
        .kubectl(arguments.split(' '))
        .await
        .expect("kubectl runs")
        .success()
        .expect("kubectl succeeds")
}

#[tokio::test]
#[ignore = "runs inside the cluster that the_whole_node starts"]
async fn a_pod_of_a_local_image_runs_to_its_end_as_nobody() {
    let cluster = cluster().await;
    kubectl(
        &cluster,
        "run hello --image=localhost/busybox:e2e --image-pull-policy=Never --restart=Never -- -c id",
    )
    .await;
    kubectl(&cluster, "wait --for=jsonpath={.status.phase}=Succeeded pod/hello --timeout=60s").await;
    assert_eq!(
        kubectl(&cluster, "logs hello").await,
        "uid=65532(nonroot) gid=65532(nonroot) groups=65532(nonroot)\n"
    );
    kubectl(&cluster, "delete pod hello --wait").await;
}
