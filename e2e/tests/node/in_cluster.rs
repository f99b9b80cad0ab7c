//! Tests that run inside the cluster.

use std::process::{Command, Stdio};
use std::time::Duration;

use sahasra_e2e::bursts::Burst;
use sahasra_e2e::{ControlPlane, EXISTING_CLUSTER_VARIABLE, NAMESPACE, Options, eventually, tools};

/// Timeout for pods to start and a burst of some seconds to run on a machine under load. Images are already present.
pub(crate) const WITHIN: Duration = Duration::from_secs(180);

/// The cluster in which this process runs; its CRDs come from the chart.
pub(crate) struct Cluster(ControlPlane);

impl Cluster {
    pub(crate) async fn find() -> Self {
        assert!(
            std::env::var_os(EXISTING_CLUSTER_VARIABLE).is_some(),
            "these tests run in a cluster: use e2e/node/run"
        );
        let no_kinds: [&str; 0] = [];
        Self(
            ControlPlane::start(Options::default().custom_resource_definitions(no_kinds))
                .await
                .expect("the cluster answers"),
        )
    }

    pub(crate) async fn kubectl(&self, arguments: &str) -> String {
        self.0
            .kubectl(arguments.split(' '))
            .await
            .expect("kubectl runs")
            .success()
            .unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) async fn run(&self, program: std::path::PathBuf, arguments: &[&str]) -> String {
        let (done, said) = self.outcome(&program, arguments).await;
        assert!(done, "{} {arguments:?} failed: {said}", program.display());
        said
    }

    /// Runs a program; returns whether it succeeded, and its output.
    async fn outcome(&self, program: &std::path::Path, arguments: &[&str]) -> (bool, String) {
        let output = Command::new(program)
            .args(arguments)
            .current_dir(tools::workspace_root())
            .env("KUBECONFIG", self.0.kubeconfig())
            .env("KUBECTL", tools::kubectl().await.expect("kubectl"))
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .expect("it can be run");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Cluster {
    /// The cluster is removed a moment after a failure, so its state is written to stderr before.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for arguments in [
            "get pods,burstjobs,vramleases,gpuworkers -A -o wide",
            "get events -A --sort-by=.lastTimestamp",
            "describe pods -n sahasra-system",
            "logs -n sahasra-system --tail=40 --prefix -l app.kubernetes.io/part-of=sahasra",
            "get burstjobs -A -o yaml",
        ] {
            let mut command = Command::new("kubectl");
            command.args(arguments.split(' ')).env("KUBECONFIG", self.0.kubeconfig());
            eprintln!("--- kubectl {arguments}");
            // A failure of the report must not hide the failure that it reports.
            let _ = command.stdout(std::io::stderr()).status();
        }
    }
}

#[tokio::test]
#[ignore = "runs inside the cluster that the_whole_node starts"]
async fn a_pod_of_a_local_image_runs_to_completion_as_a_non_root_user() {
    let cluster = Cluster::find().await;
    cluster
        .kubectl("run hello --image=localhost/busybox:e2e --image-pull-policy=Never --restart=Never -- -c id")
        .await;
    cluster
        .kubectl("wait --for=jsonpath={.status.phase}=Succeeded pod/hello --timeout=60s")
        .await;
    assert_eq!(
        cluster.kubectl("logs hello").await,
        "uid=65532(nonroot) gid=65532(nonroot) groups=65532(nonroot)\n"
    );
    cluster.kubectl("delete pod hello --wait").await;
}

#[tokio::test]
#[ignore = "runs inside the cluster that the_whole_node starts"]
async fn the_installed_chart_runs_a_burst_to_its_verified_best_and_leaves_no_lease_when_uninstalled() {
    let cluster = Cluster::find().await;
    let helm = tools::helm().await.expect("helm");
    // The kernel is the same outside a container. If it supports the complete sandbox there, the container runtime's seccomp profile must not
    // prevent it in pods.
    let worker = tools::binaries().await.expect("binaries").join("sahasra-worker");
    let features: serde_json::Value = serde_json::from_str(&cluster.run(worker, &["executor", "check-sandbox"]).await).expect("JSON");
    let has_sandbox = features["Ok"]["landlock"].as_u64() >= Some(3) && features["Ok"]["seccomp"] == true;
    if !has_sandbox {
        eprintln!("SKIPPED: this kernel has {features}, so that no sandbox is required of agents in pods");
    }
    let required = format!("worker.requireSandbox={has_sandbox}");
    let images = "operator.image.repository=localhost/sahasra-operator,operator.image.tag=e2e,\
                  worker.image.repository=localhost/sahasra-worker,worker.image.tag=e2e";
    let install = [
        "install",
        "sahasra",
        "helm/sahasra",
        "--namespace",
        NAMESPACE,
        "--create-namespace",
        "--set",
        images,
        "--set",
        &required,
    ];
    cluster.run(helm.clone(), &install).await;
    cluster
        .kubectl("rollout status -n sahasra-system deployment/sahasra-operator --timeout=120s")
        .await;
    cluster
        .kubectl("rollout status -n sahasra-system daemonset/sahasra-worker --timeout=120s")
        .await;
    cluster.kubectl("wait --for=create gpuworkers/node0 --timeout=30s").await;
    cluster.kubectl("wait --for=condition=Ready gpuworkers/node0 --timeout=30s").await;
    let log = cluster.kubectl("logs -n sahasra-system daemonset/sahasra-worker").await;
    assert_eq!(log.contains("executors are sandboxed"), has_sandbox, "{log}");

    cluster.kubectl("apply --server-side -f examples/hyperparameter-search/").await;
    cluster
        .kubectl("wait --for=condition=Complete burstjob/hyperparameter-search --timeout=180s")
        .await;
    let check = tools::workspace_root().join("examples/check");
    println!("{}", cluster.run(check, &["hyperparameter-search"]).await);

    // The uninstall check rejects an uninstall while a burst runs, which would be left without an operator.
    let uninstall = ["uninstall", "sahasra", "--namespace", NAMESPACE, "--wait", "--timeout=120s"];
    let running = Burst::of("endless", "default", "running", 1).expect("a burst");
    let running = running.with("chunkTimeoutSeconds", serde_json::json!(86_400));
    running.apply(&cluster.0).await.expect("applied");
    cluster
        .kubectl("wait --for=condition=Admitted burstjob/running --timeout=60s")
        .await;
    let (done, said) = cluster.outcome(&helm, &uninstall).await;
    assert!(!done, "uninstalled under a running burst: {said}");
    let log = cluster.kubectl("logs -n sahasra-system job/sahasra-uninstall-check").await;
    assert!(log.contains("BurstJob default/running"), "{log}");
    let state = cluster.kubectl("get burstjob running -o jsonpath={.status.state}").await;
    assert_eq!(state, "Running");

    cluster
        .kubectl("delete burstjobs --all --all-namespaces --wait --timeout=60s")
        .await;
    let none = async || cluster.kubectl("get vramleases -A -o name").await.is_empty().then_some(());
    assert!(eventually(WITHIN, none).await.is_some(), "a lease outlives its burst");

    cluster.run(helm, &uninstall).await;
    let gone = async || cluster.kubectl("get pods -n sahasra-system -o name").await.is_empty().then_some(());
    assert!(eventually(WITHIN, gone).await.is_some(), "pods outlive the chart");
    // The CRDs and the users' objects stay after an uninstall; none of these objects may hold VRAM.
    assert_eq!(cluster.kubectl("get vramleases,gpusessions,burstjobs -A -o name").await, "");
}
