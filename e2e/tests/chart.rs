//! The chart on a real API server: every object is accepted, and no account has more rights than it needs.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::authentication::v1::BoundObjectReference;
use k8s_openapi::api::authorization::v1::{SelfSubjectRulesReview, SelfSubjectRulesReviewSpec};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec, ServiceAccount};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use sahasra_e2e::{ControlPlane, Options, Pool, PoolOptions, eventually, tools};

const NAMESPACE: &str = "sahasra-system";
const WITHIN: Duration = Duration::from_secs(20);

/// Applies the definitions and manifests/, as a user would. The harness has already applied the definitions under another field manager.
async fn install() -> ControlPlane {
    let control_plane = ControlPlane::start(Options::default()).await.expect("a control plane starts");
    let [definitions, manifests] = ["helm/sahasra/files/crds", "manifests"].map(|folder| {
        let path = tools::workspace_root().join(folder);
        path.into_os_string().into_string().expect("a path in UTF-8")
    });
    let applied = control_plane
        .kubectl(["apply", "--server-side", "--force-conflicts", "-f", &definitions, "-f", &manifests])
        .await
        .expect("kubectl runs");
    applied.success().expect("every manifest is accepted");
    control_plane
}

/// Rights of the client's identity in a namespace, as "verb group/resource".
async fn rights(client: Client, namespace: &str) -> BTreeSet<String> {
    let review = SelfSubjectRulesReview {
        spec: SelfSubjectRulesReviewSpec {
            namespace: Some(namespace.to_owned()),
        },
        ..SelfSubjectRulesReview::default()
    };
    let answer = Api::all(client).create(&PostParams::default(), &review).await.expect("a review");
    let status = answer.status.expect("a status");
    assert!(!status.incomplete, "the review is complete");
    let mut rights = BTreeSet::new();
    for rule in status.resource_rules {
        // "update group/resource=name" for a rule that is limited to one object.
        let names = rule.resource_names.unwrap_or_default();
        let of = |resource: &str| match names.as_slice() {
            [] => resource.to_owned(),
            names => format!("{resource}={}", names.join(",")),
        };
        for group in rule.api_groups.unwrap_or_default() {
            for resource in rule.resources.as_deref().unwrap_or_default() {
                rights.extend(rule.verbs.iter().map(|verb| format!("{verb} {group}/{}", of(resource))));
            }
        }
    }
    rights
}

/// Rights that the chart grants to a ServiceAccount beyond those of every ServiceAccount.
async fn given(control_plane: &ControlPlane, account: &str, namespace: &str) -> BTreeSet<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(control_plane.client().await.expect("client"), NAMESPACE);
    let nobody = ServiceAccount {
        metadata: ObjectMeta {
            generate_name: Some("nobody-".to_owned()),
            ..ObjectMeta::default()
        },
        ..ServiceAccount::default()
    };
    let nobody = accounts
        .create(&PostParams::default(), &nobody)
        .await
        .expect("an account")
        .metadata
        .name
        .expect("a name");
    let mut both = Vec::new();
    for name in [account, &nobody] {
        let kubeconfig = control_plane.kubeconfig_for(NAMESPACE, name).await.expect("an identity");
        both.push(rights(control_plane.client_as(&kubeconfig).await.expect("client"), namespace).await);
    }
    both[0].difference(&both[1]).cloned().collect()
}

/// Expands lines of the form "verb verb group/resource group/resource" to all combinations.
fn expected(lines: &[&str]) -> BTreeSet<String> {
    let mut rights = BTreeSet::new();
    for line in lines {
        let (resources, verbs): (Vec<&str>, Vec<&str>) = line.split_whitespace().partition(|word| word.contains('/'));
        for verb in &verbs {
            rights.extend(resources.iter().map(|resource| format!("{verb} {resource}")));
        }
    }
    rights
}

const OPERATOR_EVERYWHERE: [&str; 9] = [
    "get list watch sahasra.dev/gpuworkers",
    "patch sahasra.dev/gpuworkers/status",
    "get list watch patch sahasra.dev/burstjobs sahasra.dev/gpusessions sahasra.dev/vramleases",
    "patch sahasra.dev/burstjobs/status sahasra.dev/gpusessions/status sahasra.dev/vramleases/status",
    "create delete sahasra.dev/vramleases",
    "delete sahasra.dev/burstjobs",
    "get create update delete /configmaps",
    "get /secrets",
    "create patch events.k8s.io/events",
];
const OPERATOR_AT_HOME: [&str; 2] = [
    "get list watch create coordination.k8s.io/leases",
    "update coordination.k8s.io/leases=sahasra-operator",
];
const WORKER_EVERYWHERE: [&str; 3] = [
    "get create patch sahasra.dev/gpuworkers",
    "patch sahasra.dev/gpuworkers/status",
    "get /nodes",
];
const WORKER_AT_HOME: [&str; 1] = ["get create patch coordination.k8s.io/leases"];

#[tokio::test]
async fn the_operator_and_the_agents_have_exactly_the_rights_that_they_need() {
    let control_plane = install().await;

    for (account, everywhere, at_home) in [
        ("sahasra-operator", &OPERATOR_EVERYWHERE[..], &OPERATOR_AT_HOME[..]),
        ("sahasra-worker", &WORKER_EVERYWHERE[..], &WORKER_AT_HOME[..]),
    ] {
        let mut rights = expected(everywhere);
        assert_eq!(given(&control_plane, account, "default").await, rights, "{account} elsewhere");
        rights.extend(expected(at_home));
        assert_eq!(given(&control_plane, account, NAMESPACE).await, rights, "{account} at home");
    }
}

/// A client with a token that is bound to the agent's pod on `node`, as the kubelet requests it.
async fn agent_on(control_plane: &ControlPlane, node: &str) -> Client {
    control_plane.create_node(node, &[]).await.expect("a node");
    let client = control_plane.client().await.expect("client");
    let daemon_set = Api::<DaemonSet>::namespaced(client.clone(), NAMESPACE)
        .get("sahasra-worker")
        .await
        .expect("the agents");
    let mut agent = pod(&format!("agent-on-{node}"), daemon_set.spec.expect("a spec").template);
    agent.spec.as_mut().expect("a spec").node_name = Some(node.to_owned());
    let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
    let agent = pods.create(&PostParams::default(), &agent).await.expect("the agent's pod").metadata;
    let bound = BoundObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: agent.name,
        uid: agent.uid,
    };
    let kubeconfig = control_plane.bound_kubeconfig_for(NAMESPACE, "sahasra-worker", bound).await;
    control_plane
        .client_as(&kubeconfig.expect("a token bound to the pod"))
        .await
        .expect("client")
}

fn worker(node: &str) -> DynamicObject {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("sahasra.dev", "v1alpha1", "GpuWorker"));
    DynamicObject::new(node, &resource).data(serde_json::json!({"spec": {"nodeName": node}}))
}

fn lease(name: &str) -> Lease {
    Lease {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        ..Lease::default()
    }
}

/// Checks that a request was rejected with 403, and that the message contains `says`: the node, or what the token lacks.
fn forbidden<T: std::fmt::Debug>(outcome: kube::Result<T>, says: &str) {
    match outcome {
        Err(kube::Error::Api(status)) if status.code == 403 => assert!(status.message.contains(says), "{}", status.message),
        other => panic!("not forbidden: {other:?}"),
    }
}

#[tokio::test]
async fn an_agent_writes_only_the_worker_and_the_heartbeat_of_its_own_node() {
    let control_plane = install().await;
    let (one, other) = (agent_on(&control_plane, "node-a").await, agent_on(&control_plane, "node-b").await);
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("sahasra.dev", "v1alpha1", "GpuWorker"));
    let workers = |client: &Client| Api::<DynamicObject>::all_with(client.clone(), &resource);
    let leases = |client: &Client| Api::<Lease>::namespaced(client.clone(), NAMESPACE);
    let (create, patch) = (PostParams::default(), PatchParams::default());
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };

    // A new policy takes effect a moment after it was accepted.
    let in_force = async || workers(&one).create(&dry_run, &worker("node-b")).await.err();
    assert!(eventually(WITHIN, in_force).await.is_some(), "the policy never took effect");

    for (client, node) in [(&one, "node-a"), (&other, "node-b")] {
        workers(client).create(&create, &worker(node)).await.expect("its own worker");
        let heartbeat = lease(&format!("sahasra-worker-{node}"));
        leases(client).create(&create, &heartbeat).await.expect("its own heartbeat");
        let status = Patch::Merge(serde_json::json!({"status": {"endpoint": "http://192.0.2.7:8471"}}));
        workers(client).patch_status(node, &patch, &status).await.expect("its own status");
        let renewed = Patch::Merge(serde_json::json!({"spec": {"holderIdentity": "boot"}}));
        leases(client)
            .patch(&format!("sahasra-worker-{node}"), &patch, &renewed)
            .await
            .expect("its own renewal");
    }
    let administrator = control_plane.client().await.expect("client");
    leases(&administrator)
        .create(&create, &lease("sahasra-operator"))
        .await
        .expect("the leader's Lease");

    let endpoint = Patch::Merge(serde_json::json!({"status": {"endpoint": "http://192.0.2.66:8471"}}));
    let holder = Patch::Merge(serde_json::json!({"spec": {"holderIdentity": "nobody"}}));
    let owner = Patch::Merge(serde_json::json!({"metadata": {"labels": {"taken": "over"}}}));
    let says = "an agent on node node-a";
    forbidden(workers(&one).patch_status("node-b", &patch, &endpoint).await, says);
    forbidden(workers(&one).patch("node-b", &patch, &owner).await, says);
    forbidden(workers(&one).create(&create, &worker("node-c")).await, says);
    forbidden(leases(&one).patch("sahasra-worker-node-b", &patch, &holder).await, says);
    forbidden(leases(&one).patch("sahasra-operator", &patch, &holder).await, says);
    forbidden(leases(&one).create(&create, &lease("another")).await, says);

    // A token of the account that is not bound to a pod has no node name as a claim.
    let unbound = control_plane.kubeconfig_for(NAMESPACE, "sahasra-worker").await.expect("a token");
    let unbound = control_plane.client_as(&unbound).await.expect("client");
    let says = "token names no node";
    forbidden(workers(&unbound).patch_status("node-a", &patch, &endpoint).await, says);
    forbidden(leases(&unbound).patch("sahasra-operator", &patch, &holder).await, says);
    // The policy applies to agents only: other users can write what RBAC allows them.
    leases(&administrator)
        .patch("sahasra-operator", &patch, &holder)
        .await
        .expect("an administrator");
}

const LEASE: &str = "
apiVersion: sahasra.dev/v1alpha1
kind: VramLease
metadata: {name: reserved, namespace: default}
spec: {slice: {vram: 64Mi}, slices: {min: 2, max: 4}}
";

/// Exact rights also suffice: operator and agent run with the chart's rights here.
#[tokio::test]
async fn a_lease_is_granted_and_released_with_the_charts_rights() {
    let pool = Pool::start(PoolOptions::default().agents(1))
        .await
        .expect("an operator and an agent start");
    let control_plane = &pool.control_plane;
    let applied = control_plane
        .kubectl_with_input(["apply", "--server-side", "-f", "-"], LEASE)
        .await
        .expect("kubectl runs");
    applied.success().expect("the lease is accepted");
    for arguments in [
        "wait --for=condition=Granted vramlease/reserved --timeout=60s",
        "delete vramlease/reserved --wait --timeout=60s",
    ] {
        let output = control_plane.kubectl(arguments.split(' ')).await.expect("kubectl runs");
        output.success().expect("it happens in time");
    }
    let agents = pool.agents.iter().map(|agent| (agent, "sahasra_agent_slices_allocated"));
    for (server, slices) in agents.chain([(&pool.operator, "gpu_leases_active")]) {
        let held = server.metric(slices).await.expect("metrics");
        assert_eq!(held, Some(0.0), "{} holds something", server.url());
    }
}

#[tokio::test]
async fn the_clusters_own_roles_cover_the_kinds() {
    let control_plane = install().await;
    let roles: Api<ClusterRole> = Api::all(control_plane.client().await.expect("client"));
    for (role, verb, wanted) in [
        ("view", "list", true),
        ("view", "create", false),
        ("edit", "create", true),
        ("admin", "delete", true),
    ] {
        let covers = || async {
            let rules = roles.get(role).await.expect("the cluster has its roles").rules.unwrap_or_default();
            let ours = rules
                .iter()
                .filter(|rule| rule.resources.iter().flatten().any(|resource| resource == "burstjobs"));
            let verbs: BTreeSet<&String> = ours.flat_map(|rule| &rule.verbs).collect();
            // The role is aggregated, and has this verb or not as expected.
            (!verbs.is_empty() && verbs.iter().any(|has| *has == verb) == wanted).then_some(())
        };
        assert!(eventually(WITHIN, covers).await.is_some(), "{role}: {verb} should be {wanted}");
    }
}

/// The namespace enforces the Pod Security Standard `restricted`. No controller creates pods here, so the test itself sends them, as dry
/// runs.
#[tokio::test]
async fn the_pods_obey_the_restricted_pod_security_standard() {
    let control_plane = install().await;
    let client = control_plane.client().await.expect("client");
    let deployment = Api::<Deployment>::namespaced(client.clone(), NAMESPACE)
        .get("sahasra-operator")
        .await
        .expect("the operator");
    let daemon_set = Api::<DaemonSet>::namespaced(client.clone(), NAMESPACE)
        .get("sahasra-worker")
        .await
        .expect("the agents");
    let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let operator = pod("operator", deployment.spec.expect("a spec").template);
    pods.create(&dry_run, &operator).await.expect("the operator's pod is admitted");
    let worker = pod("worker", daemon_set.spec.expect("a spec").template);
    pods.create(&dry_run, &worker).await.expect("the agent's pod is admitted");

    let mut privileged = worker;
    privileged.spec.as_mut().expect("a spec").host_pid = Some(true);
    pods.create(&dry_run, &privileged).await.expect_err("the standard is enforced");
}

/// The gateway is off by default. Rendered with it, the chart's objects are accepted, and its account has no rights.
#[tokio::test]
async fn the_gateway_has_no_rights_and_its_pod_has_no_token() {
    let control_plane = install().await;
    let helm = tools::helm().await.expect("helm");
    let set = "gateway.enabled=true,gateway.tls.secretName=gateway-tls,gateway.ingress.enabled=true,gateway.ingress.host=gpu.example.com";
    let files = ["deployment", "ingress", "network-policy", "service", "service-account"];
    let rendered = tokio::process::Command::new(helm)
        .args([
            "template",
            "sahasra",
            "helm/sahasra",
            "--namespace",
            NAMESPACE,
            "--kube-version",
            "1.34.0",
            "--set",
            set,
        ])
        .args(files.map(|file| format!("--show-only=templates/gateway/{file}.yaml")))
        .current_dir(tools::workspace_root())
        .output()
        .await
        .expect("helm runs");
    assert!(rendered.status.success(), "{}", String::from_utf8_lossy(&rendered.stderr));
    let rendered = String::from_utf8(rendered.stdout).expect("text");
    let applied = control_plane
        .kubectl_with_input(["apply", "--server-side", "-f", "-"], &rendered)
        .await;
    applied.expect("kubectl runs").success().expect("every object is accepted");

    for namespace in ["default", NAMESPACE] {
        assert_eq!(
            given(&control_plane, "sahasra-gateway", namespace).await,
            BTreeSet::new(),
            "in {namespace}"
        );
    }
    let client = control_plane.client().await.expect("client");
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let deployment = deployments.get("sahasra-gateway").await.expect("the gateway");
    let template = deployment.spec.expect("a spec").template;
    let spec = template.spec.clone().expect("a pod");
    assert_eq!(spec.automount_service_account_token, Some(false));
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
    let made = pods.create(&dry_run, &pod("gateway", template)).await.expect("the pod is admitted");
    let volumes = made.spec.expect("a pod").volumes.unwrap_or_default();
    let names: Vec<&str> = volumes.iter().map(|volume| volume.name.as_str()).collect();
    assert_eq!(names, ["tls", "api-server"], "no token is mounted");
}

fn pod(name: &str, template: PodTemplateSpec) -> Pod {
    Pod {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        spec: template.spec,
        ..Pod::default()
    }
}

/// Runs helm as the control plane's administrator; returns whether it succeeded, and its output.
async fn helm(control_plane: &ControlPlane, arguments: &str) -> (bool, String) {
    let output = tokio::process::Command::new(tools::helm().await.expect("helm"))
        .args(arguments.split(' '))
        .arg("--kubeconfig")
        .arg(control_plane.kubeconfig())
        .args(["--namespace", NAMESPACE])
        .current_dir(tools::workspace_root())
        .output()
        .await
        .expect("helm runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

#[tokio::test]
async fn an_upgrade_that_would_remove_the_definitions_is_rejected_so_that_a_rollback_works() {
    let none = Options::default().custom_resource_definitions(Vec::<std::path::PathBuf>::new());
    let control_plane = ControlPlane::start(none).await.expect("a control plane starts");
    let (done, said) = helm(&control_plane, "install sahasra helm/sahasra --create-namespace").await;
    assert!(done, "{said}");
    let (done, said) = helm(&control_plane, "upgrade sahasra helm/sahasra --set crds.install=false").await;
    assert!(
        !done && said.contains("crds.install: this release brought the definitions"),
        "{said}"
    );
    for arguments in ["upgrade sahasra helm/sahasra --set operator.logLevel=debug", "rollback sahasra 1"] {
        let (done, said) = helm(&control_plane, arguments).await;
        assert!(done, "{arguments}: {said}");
    }
}
