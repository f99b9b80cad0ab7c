//! kubectl prints the same for the embedded control plane as for a real one.

use std::fs;

use sahasra_e2e::manifests::{RefusedBy, wrong_manifests};
use sahasra_e2e::{ControlPlane, Embedded, Output, Shared, tools};

/// A session with all required fields and no others.
const SESSION: &str = "apiVersion: sahasra.dev/v1alpha1\nkind: GpuSession\nmetadata: {name: a}\nspec: {vram: 1Gi}\n";

async fn embedded() -> Embedded {
    Embedded::start().await.expect("an embedded control plane")
}

async fn real() -> Shared {
    ControlPlane::shared().await.expect("a control plane starts")
}

/// Runs kubectl, which must succeed; returns its output.
async fn kubectl(embedded: &Embedded, command: &str, input: &str) -> String {
    let output = embedded.kubectl_with_input(command.split(' '), input).await.expect("kubectl runs");
    output.success().expect(command)
}

/// Sorted lines: a real server reports the errors of a rejection in random order.
fn sorted_lines(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

/// A table without its last column, which is the age.
fn without_age(table: &str) -> String {
    let age = table.lines().next().and_then(|header| header.find("AGE")).expect("a column AGE");
    let cut = |line: &str| line.chars().take(age).collect::<String>();
    table.lines().map(|line| format!("{}\n", cut(line).trim_end())).collect()
}

#[tokio::test]
async fn columns_equal_those_of_a_real_control_plane() {
    let embedded = embedded().await;
    let folder = tools::workspace_root().join("e2e/tests/admission");
    let objects = fs::read_to_string(folder.join("objects.yaml")).expect("the objects");
    kubectl(&embedded, "apply --server-side -f -", &objects).await;
    kubectl(
        &embedded,
        "apply --server-side --force-conflicts --subresource=status -f -",
        &objects,
    )
    .await;
    let mut printed = String::new();
    for (kind, short) in [
        ("burstjobs", "bj"),
        ("vramleases", "vl"),
        ("gpuworkers", "gw"),
        ("gpusessions", "gs"),
    ] {
        let table = without_age(&kubectl(&embedded, &format!("get {kind} -l sample=columns"), "").await);
        assert_eq!(
            without_age(&kubectl(&embedded, &format!("get {short}"), "").await),
            table,
            "the short name {short}"
        );
        printed += &format!("$ kubectl get {kind}\n{table}\n");
    }
    let expected = fs::read_to_string(folder.join("columns.txt")).expect("the columns");
    assert!(printed == expected, "e2e/tests/admission/columns.txt should be:\n{printed}");
    for category in ["all", "sahasra"] {
        let names = kubectl(&embedded, &format!("get {category} -o name"), "").await;
        for kind in ["burstjob", "vramlease", "gpuworker", "gpusession"] {
            assert!(
                names.contains(&format!("{kind}.sahasra.dev/")),
                "{kind} is not in {category}:\n{names}"
            );
        }
    }
}

#[tokio::test]
async fn invalid_manifests_are_rejected_with_the_same_messages() {
    let (embedded, real) = (embedded().await, real().await);
    let mut differing = Vec::new();
    for manifest in wrong_manifests().expect("manifests") {
        let apply = ["apply", "--dry-run=server", "-f", "-"];
        let here = embedded.kubectl_with_input(apply, &manifest.text).await.expect("kubectl runs");
        if manifest.refused_by == RefusedBy::Accepted {
            here.success().expect("only the operator sees what is wrong");
            continue;
        }
        let there = real.kubectl_with_input(apply, &manifest.text).await.expect("kubectl runs");
        let said = |output: &Output| output.stderr.replace(embedded.server(), "SERVER").replace(real.server(), "SERVER");
        let (here, there) = (said(&here), said(&there));
        if sorted_lines(&here) != sorted_lines(&there) {
            differing.push((manifest.name, here, there));
        }
    }
    assert!(differing.is_empty(), "{differing:#?}");
}

#[tokio::test]
async fn valid_manifests_are_admitted() {
    let embedded = embedded().await;
    let wrong = wrong_manifests().expect("manifests");
    let right: String = wrong.into_iter().map(|manifest| manifest.twin).collect();
    kubectl(&embedded, "apply --dry-run=server -f -", &right).await;
}

#[tokio::test]
async fn kinds_are_explained_with_the_same_text() {
    let (embedded, real) = (embedded().await, real().await);
    for path in [
        "burstjobs",
        "burstjob.spec.chunks",
        "burstjob.spec.kernel.args",
        "vramlease.spec",
        "gpuworker.status.devices",
        "gs.spec.vram",
        "gpusessions --recursive",
    ] {
        let arguments: Vec<&str> = std::iter::once("explain").chain(path.split(' ')).collect();
        let here = embedded.kubectl(&arguments).await.expect("kubectl runs").success().expect(path);
        let there = real.kubectl(&arguments).await.expect("kubectl runs").success().expect(path);
        assert_eq!(here, there, "{path}");
    }
}

#[tokio::test]
async fn client_side_apply_creates_configures_and_removes_fields() {
    let embedded = embedded().await;
    let with_class = SESSION.replace("{vram: 1Gi}", "{vram: 1Gi, idleTimeoutSeconds: 60}");
    for (manifest, said) in [
        (&with_class, "gpusession.sahasra.dev/a created\n"),
        (&with_class, "gpusession.sahasra.dev/a unchanged\n"),
        (&SESSION.to_owned(), "gpusession.sahasra.dev/a configured\n"),
    ] {
        assert_eq!(kubectl(&embedded, "apply -f -", manifest).await, said);
    }
    let timeout = kubectl(&embedded, "get gs a -o jsonpath={.spec.idleTimeoutSeconds}", "").await;
    assert_eq!(timeout, "1800", "the default is back");
    let config_map = |data: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\ndata: {{{data}}}\n");
    for (data, said) in [("k: v, l: w", "created"), ("k: v, l: w", "unchanged"), ("k: x", "configured")] {
        let printed = kubectl(&embedded, "apply -f -", &config_map(data)).await;
        assert_eq!(printed, format!("configmap/c {said}\n"));
    }
    let data = kubectl(&embedded, "get cm c -o jsonpath={.data}", "").await;
    assert_eq!(data, r#"{"k":"x"}"#);
    // Server-side apply takes over the fields that client-side apply wrote.
    let taken_over = kubectl(&embedded, "apply --server-side -f -", &config_map("k: z")).await;
    assert_eq!(taken_over, "configmap/c serverside-applied\n");
}

#[tokio::test]
async fn objects_are_created_labelled_patched_awaited_described_and_deleted() {
    let embedded = embedded().await;
    assert_eq!(
        kubectl(&embedded, "create -f -", SESSION).await,
        "gpusession.sahasra.dev/a created\n"
    );
    let again = embedded
        .kubectl_with_input(["create", "-f", "-"], SESSION)
        .await
        .expect("kubectl runs");
    assert!(
        again.stderr.contains("(AlreadyExists)") && again.stderr.contains("gpusessions.sahasra.dev \"a\" already exists"),
        "{again}"
    );
    assert_eq!(
        kubectl(&embedded, "label gs a team=one", "").await,
        "gpusession.sahasra.dev/a labeled\n"
    );
    assert_eq!(
        kubectl(&embedded, "annotate gs a note=x", "").await,
        "gpusession.sahasra.dev/a annotated\n"
    );
    let patch = r#"{"spec":{"ttlSeconds":3600}}"#;
    assert_eq!(
        kubectl(&embedded, &format!("patch gs a --type=merge -p {patch}"), "").await,
        "gpusession.sahasra.dev/a patched\n"
    );
    let condition = r#"{"type":"Ready","status":"True","reason":"R","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}"#;
    let status = format!(r#"{{"status":{{"conditions":[{condition}]}}}}"#);
    let waiting = kubectl(&embedded, "wait --for=condition=Ready --timeout=30s gs/a", "");
    let patching = async {
        kubectl(&embedded, &format!("patch gs a --subresource=status --type=merge -p {status}"), "").await;
    };
    let (waited, ()) = tokio::join!(waiting, patching);
    assert_eq!(waited, "gpusession.sahasra.dev/a condition met\n");
    let uid = kubectl(&embedded, "get gs a -o jsonpath={.metadata.uid}", "").await;
    let event = "apiVersion: v1\nkind: Event\nmetadata: {name: a.1, namespace: default}\nreason: Placed\ntype: Normal\nmessage: on gpu3\n\
                 involvedObject: {apiVersion: sahasra.dev/v1alpha1, kind: GpuSession, name: a, namespace: default, uid: UID}\n\
                 source: {component: sahasra-operator}\nfirstTimestamp: 2026-01-01T00:00:00Z\nlastTimestamp: 2026-01-01T00:00:00Z\ncount: 1\n";
    kubectl(&embedded, "create -f -", &event.replace("UID", &uid)).await;
    let described = kubectl(&embedded, "describe gs a", "").await;
    for text in [
        "Name:         a",
        "team=one",
        "Ttl Seconds:           3600",
        "Placed",
        "sahasra-operator",
        "on gpu3",
    ] {
        assert!(described.contains(text), "{text} in\n{described}");
    }
    let events = kubectl(&embedded, "get events", "").await;
    assert!(events.contains("gpusession/a") && events.contains("on gpu3"), "{events}");
    let yaml = kubectl(&embedded, "get gs a -o yaml", "").await;
    assert!(yaml.contains("kind: GpuSession") && yaml.contains("ttlSeconds: 3600"), "{yaml}");
    assert!(!yaml.contains("managedFields"), "{yaml}");
    let wide = kubectl(&embedded, "get gs a -o wide", "").await;
    assert!(wide.contains("CLASS") && wide.contains("BYTES"), "{wide}");
    assert_eq!(
        kubectl(&embedded, "delete gs a --timeout=30s", "").await,
        "gpusession.sahasra.dev \"a\" deleted from default namespace\n"
    );
    let gone = embedded.kubectl(["get", "gs", "a"]).await.expect("kubectl runs");
    assert_eq!(
        gone.stderr,
        "Error from server (NotFound): gpusessions.sahasra.dev \"a\" not found\n"
    );
}

#[tokio::test]
async fn clients_without_the_token_are_rejected() {
    let embedded = embedded().await;
    let stranger = embedded
        .kubectl(["get", "nodes", "--token", "stranger"])
        .await
        .expect("kubectl runs");
    assert!(stranger.stderr.contains("You must be logged in to the server"), "{stranger}");
    let stranger = embedded
        .kubectl(["get", "--raw", "/readyz", "--token", "stranger"])
        .await
        .expect("kubectl runs");
    assert_eq!(stranger.success().expect("health is everybody's"), "ok");
}

#[tokio::test]
async fn built_in_kinds_have_their_columns() {
    let embedded = embedded().await;
    let objects = "apiVersion: v1\nkind: Namespace\nmetadata: {name: team}\n---\n\
                   apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: team}\ndata: {k: v}\n---\n\
                   apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: team}\nstringData: {k: v}\n";
    kubectl(&embedded, "create -f -", objects).await;
    let node = "apiVersion: v1\nkind: Node\nmetadata: {name: node-a, labels: {node-role.kubernetes.io/gpu: \"\"}}\n";
    kubectl(&embedded, "create -f -", node).await;
    let lease = "apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {name: l, namespace: team}\nspec: {holderIdentity: me}\n";
    kubectl(&embedded, "create -f -", lease).await;
    for (command, expected) in [
        ("get ns team", "NAME   STATUS\nteam   Active\n"),
        ("get cm -n team", "NAME   DATA\nc      1\n"),
        ("get secrets -n team", "NAME   TYPE     DATA\ns      Opaque   1\n"),
        ("get nodes", "NAME     STATUS    ROLES\nnode-a   Unknown   gpu\n"),
        ("get leases -n team", "NAME   HOLDER\nl      me\n"),
    ] {
        let table = kubectl(&embedded, command, "").await;
        assert_eq!(without_age(&table), expected, "{command}");
    }
    kubectl(&embedded, "delete namespace team --timeout=30s", "").await;
    assert_eq!(kubectl(&embedded, "get cm -A -o name", "").await, "");
}

#[tokio::test]
async fn kubectl_makes_objects_of_its_own() {
    let embedded = embedded().await;
    assert_eq!(kubectl(&embedded, "create namespace team", "").await, "namespace/team created\n");
    let create = "create configmap c -n team --from-literal=k=v --from-file=LICENSE";
    assert_eq!(kubectl(&embedded, create, "").await, "configmap/c created\n");
    let create = "create secret generic s -n team --from-literal=k=v";
    assert_eq!(kubectl(&embedded, create, "").await, "secret/s created\n");
    assert_eq!(kubectl(&embedded, "get cm c -n team -o jsonpath={.data.k}", "").await, "v");
    assert!(
        kubectl(&embedded, "get cm c -n team -o jsonpath={.data.LICENSE}", "")
            .await
            .contains("Apache License")
    );
    assert_eq!(kubectl(&embedded, "get secret s -n team -o jsonpath={.data.k}", "").await, "dg==");
    let again = embedded.kubectl(["create", "namespace", "team"]).await.expect("kubectl runs");
    assert!(again.stderr.contains("namespaces \"team\" already exists"), "{again}");
}
