//! Custom resources at the API server itself: it rejects invalid objects, sets defaults, protects fields and prints tables.

use std::fs;

use futures::StreamExt;
use sahasra_crds::BurstJob;
use sahasra_e2e::manifests::{RefusedBy, WrongManifest, wrong_manifests};
use sahasra_e2e::{ControlPlane, Shared, tools};
use sahasra_parameters::Program;

/// Number of kubectl processes that run at once.
const CONCURRENT: usize = 2;

/// A burst with all required fields and no others.
const SMALLEST: &str = r#"
apiVersion: sahasra.dev/v1alpha1
kind: BurstJob
metadata: {name: smallest}
spec:
  kernel:
    ptx: {inline: "// no code"}
    entry: empty
  chunks: {count: 10}
  slice: {vram: 1Mi}
"#;

async fn control_plane() -> Shared {
    ControlPlane::shared().await.expect("a control plane starts")
}

async fn namespace(control_plane: &ControlPlane) -> String {
    control_plane.create_namespace("admission").await.expect("a namespace")
}

fn refused_by(who: RefusedBy) -> Vec<WrongManifest> {
    let all = wrong_manifests().expect("the cases are well formed");
    all.into_iter().filter(|manifest| manifest.refused_by == who).collect()
}

/// Runs `kubectl apply --dry-run=server` on the documents in `text`; returns kubectl's message if it failed.
async fn refusal(control_plane: &ControlPlane, text: &str) -> Option<String> {
    let arguments = ["apply", "--dry-run=server", "-f", "-"];
    let output = control_plane.kubectl_with_input(arguments, text).await.expect("kubectl runs");
    (!output.is_success()).then_some(output.stderr)
}

async fn apply(control_plane: &ControlPlane, namespace: &str, text: &str) {
    let arguments = ["apply", "--server-side", "-n", namespace, "-f", "-"];
    control_plane
        .kubectl_with_input(arguments, text)
        .await
        .expect("kubectl runs")
        .success()
        .expect("applied");
}

/// Patches the object of [`SMALLEST`]; the error is kubectl's message.
async fn patch(control_plane: &ControlPlane, namespace: &str, subresource: Option<&str>, patch: &str) -> Result<(), String> {
    let mut arguments = vec!["patch", "burstjob", "smallest", "-n", namespace, "--type=merge", "-p", patch];
    arguments.extend(subresource.map(|_| "--subresource=status"));
    let output = control_plane.kubectl(arguments).await.expect("kubectl runs");
    if output.is_success() { Ok(()) } else { Err(output.stderr) }
}

#[tokio::test]
async fn an_invalid_manifest_is_rejected_at_apply_with_the_field_and_the_remedy() {
    let control_plane = &control_plane().await;
    let wrong = refused_by(RefusedBy::Apply);
    assert!(wrong.len() >= 40, "{} manifests", wrong.len());
    let mut refusals = futures::stream::iter(wrong)
        .map(async |manifest| {
            let refusal = refusal(control_plane, &manifest.text).await;
            (manifest, refusal)
        })
        .buffer_unordered(CONCURRENT);
    let mut unexpected = Vec::new();
    while let Some((manifest, refusal)) = refusals.next().await {
        match refusal {
            Some(text) if text.contains(&manifest.field) && text.contains(&manifest.says) => {}
            other => unexpected.push((manifest.name, manifest.field, manifest.says, other)),
        }
    }
    assert!(unexpected.is_empty(), "{unexpected:#?}");
}

#[tokio::test]
async fn manifests_that_only_the_operator_rejects_are_admitted() {
    let control_plane = &control_plane().await;
    let wrong = refused_by(RefusedBy::Accepted);
    assert!(wrong.len() >= 15, "{} manifests", wrong.len());
    let text: String = wrong.into_iter().map(|manifest| manifest.text).collect();
    assert_eq!(refusal(control_plane, &text).await, None);
}

#[tokio::test]
async fn the_valid_twin_of_every_invalid_manifest_is_admitted() {
    let control_plane = &control_plane().await;
    let wrong = wrong_manifests().expect("the cases are well formed");
    let text: String = wrong.into_iter().map(|manifest| manifest.twin).collect();
    assert_eq!(refusal(control_plane, &text).await, None);
}

#[test]
fn invalid_parameters_are_rejected_by_the_compiler_with_the_field_and_the_remedy() {
    let wrong = refused_by(RefusedBy::Accepted);
    let wrong: Vec<_> = wrong.iter().filter(|manifest| manifest.field.starts_with("spec.chunks")).collect();
    assert!(wrong.len() >= 9, "{} manifests", wrong.len());
    for manifest in wrong {
        let job: BurstJob = sahasra_crds::yaml::parse(&manifest.text).expect("a BurstJob");
        let error = Program::compile(&job.spec.chunks).expect_err(&manifest.name);
        assert_eq!(error.path, manifest.field, "{}: {error}", manifest.name);
        assert!(error.message.contains(&manifest.says), "{}: {error}", manifest.name);

        let right: BurstJob = sahasra_crds::yaml::parse(&manifest.twin).expect("a BurstJob");
        Program::compile(&right.spec.chunks).expect(&manifest.name);
    }
}

#[tokio::test]
async fn only_suspend_priority_slices_and_cleanup_of_a_burst_are_mutable() {
    let control_plane = &control_plane().await;
    let namespace = namespace(control_plane).await;
    apply(control_plane, &namespace, SMALLEST).await;

    for (field, change) in [
        ("kernel", r#"{"kernel": {"entry": "other"}}"#),
        ("chunks", r#"{"chunks": {"count": 11}}"#),
        ("slice", r#"{"slice": {"vram": "2Mi"}}"#),
        ("lease", r#"{"lease": {"ttlSeconds": 61}}"#),
        ("retryPolicy", r#"{"retryPolicy": {"maxRetries": 4}}"#),
        ("chunkTimeoutSeconds", r#"{"chunkTimeoutSeconds": 61}"#),
        ("maxFailedChunks", r#"{"maxFailedChunks": 1}"#),
        ("aggregate", r#"{"aggregate": {"none": {}}}"#),
        ("output", r#"{"output": {"store": {"url": "file:///results"}}}"#),
    ] {
        let refusal = patch(control_plane, &namespace, None, &format!(r#"{{"spec": {change}}}"#)).await;
        let refusal = refusal.expect_err(field);
        assert!(
            refusal.contains(&format!("spec.{field}: Forbidden: {field} is immutable")),
            "{refusal}"
        );
    }
    for change in [
        r#"{"suspend": true}"#,
        r#"{"priority": 7}"#,
        r#"{"slices": {"min": 2, "max": 5}}"#,
        r#"{"slices": {"max": null}}"#,
        r#"{"ttlSecondsAfterFinished": 60}"#,
        r#"{"ttlSecondsAfterFinished": null}"#,
    ] {
        let patched = patch(control_plane, &namespace, None, &format!(r#"{{"spec": {change}}}"#)).await;
        patched.expect(change);
    }
}

#[tokio::test]
async fn the_purpose_of_a_lease_a_session_and_a_worker_is_immutable() {
    let control_plane = &control_plane().await;
    let namespace = namespace(control_plane).await;
    for (kind, spec, field, change, harmless) in [
        (
            "VramLease",
            "owner: {name: a}\n  slice: {vram: 1Gi}",
            "owner",
            r#"{"owner": {"name": "b"}}"#,
            r#"{"slices": {"max": 9}}"#,
        ),
        (
            "VramLease",
            "slice: {vram: 1Gi}",
            "slice",
            r#"{"slice": {"class": "g5"}}"#,
            r#"{"ttlSeconds": 90}"#,
        ),
        (
            "GpuSession",
            "vram: 1Gi",
            "vram",
            r#"{"vram": "2Gi"}"#,
            r#"{"idleTimeoutSeconds": 60}"#,
        ),
        ("GpuSession", "vram: 1Gi", "class", r#"{"class": "g5"}"#, r#"{"ttlSeconds": 9000}"#),
        (
            "GpuSession",
            "vram: 1Gi",
            "engine",
            r#"{"engine": "ptx"}"#,
            r#"{"ttlSeconds": 9000}"#,
        ),
        (
            "GpuWorker",
            "nodeName: a",
            "nodeName",
            r#"{"nodeName": "b"}"#,
            r#"{"nodeName": "a"}"#,
        ),
    ] {
        // A worker is cluster-scoped, so its name must be unique among the tests.
        let name = format!("{namespace}-{}", field.to_lowercase());
        let text = format!("apiVersion: sahasra.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec:\n  {spec}\n");
        apply(control_plane, &namespace, &text).await;
        let patch = async |change: &str| {
            let patch = format!(r#"{{"spec": {change}}}"#);
            let arguments = ["patch", kind, &name, "-n", &namespace, "--type=merge", "-p", &patch];
            control_plane.kubectl(arguments).await.expect("kubectl runs")
        };
        let refused = patch(change).await;
        let expected = format!("spec.{field}: Forbidden: {field} is immutable: create another {kind} instead");
        assert!(!refused.is_success() && refused.stderr.contains(&expected), "{refused}");
        patch(harmless).await.success().expect(harmless);
        let delete = ["delete", kind, &name, "-n", &namespace];
        control_plane
            .kubectl(delete)
            .await
            .expect("kubectl runs")
            .success()
            .expect("deleted");
    }
}

#[tokio::test]
async fn a_coordinator_of_a_lower_term_cannot_write_the_status() {
    let control_plane = &control_plane().await;
    let namespace = namespace(control_plane).await;
    apply(control_plane, &namespace, SMALLEST).await;
    let at_term = async |term: i64| {
        let status = format!(r#"{{"status": {{"term": {term}}}}}"#);
        patch(control_plane, &namespace, Some("status"), &status).await
    };
    at_term(2).await.expect("a first term");
    at_term(2).await.expect("the same term");
    let refusal = at_term(1).await.expect_err("an earlier term");
    assert!(
        refusal.contains("status.term") && refusal.contains("another coordinator has taken over"),
        "{refusal}"
    );
    at_term(3).await.expect("a later term");
}

#[tokio::test]
async fn defaults_replace_absent_and_null_fields() {
    let control_plane = &control_plane().await;
    let namespace = namespace(control_plane).await;
    let with_null = SMALLEST.replace("{count: 10}", "{count: 10, seed: null}");
    apply(control_plane, &namespace, &with_null).await;
    let arguments = ["get", "burstjob", "smallest", "-n", &namespace, "-o", "json"];
    let text = control_plane
        .kubectl(arguments)
        .await
        .expect("kubectl runs")
        .success()
        .expect("found");
    let object: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let expected = serde_json::json!({
        "kernel": {
            "ptx": {"inline": "// no code"},
            "entry": "empty",
            "grid": [1, 1, 1],
            "block": [1, 1, 1],
            "dynamicSharedBytes": 0,
            "args": [],
        },
        "chunks": {"count": 10, "seed": 0},
        "slice": {"vram": "1Mi"},
        "slices": {"min": 1},
        "lease": {"ttlSeconds": 60},
        "retryPolicy": {"maxRetries": 3, "initialBackoffSeconds": 1, "maxBackoffSeconds": 16},
        "chunkTimeoutSeconds": 60,
        "maxFailedChunks": 0,
        "suspend": false,
        "priority": 0,
        "results": "All",
    });
    assert_eq!(object["spec"], expected);
}

#[tokio::test]
async fn columns_are_legible_at_120_characters() {
    let control_plane = &control_plane().await;
    let namespace = namespace(control_plane).await;
    let folder = tools::workspace_root().join("e2e/tests/admission");
    let objects = fs::read_to_string(folder.join("objects.yaml")).expect("the objects");
    apply(control_plane, &namespace, &objects).await;
    let status = [
        "apply",
        "--server-side",
        "--force-conflicts",
        "--subresource=status",
        "-n",
        &namespace,
        "-f",
        "-",
    ];
    let output = control_plane.kubectl_with_input(status, &objects).await.expect("kubectl runs");
    output.success().expect("statuses applied");

    let mut printed = String::new();
    for (kind, short) in [
        ("burstjobs", "bj"),
        ("vramleases", "vl"),
        ("gpuworkers", "gw"),
        ("gpusessions", "gs"),
    ] {
        let get = async |kind: &str| {
            let output = control_plane
                .kubectl(["get", kind, "-l", "sample=columns", "-n", &namespace])
                .await
                .expect("kubectl runs");
            without_age(&output.success().expect("listed"))
        };
        let table = get(kind).await;
        assert_eq!(get(short).await, table, "the short name {short}");
        printed += &format!("$ kubectl get {kind}\n{table}\n");
    }
    let expected = fs::read_to_string(folder.join("columns.txt")).expect("the columns");
    assert!(printed == expected, "e2e/tests/admission/columns.txt should be:\n{printed}");
    for category in ["all", "sahasra"] {
        let output = control_plane
            .kubectl(["get", category, "-n", &namespace, "-o", "name"])
            .await
            .expect("kubectl runs");
        let names = output.success().expect("listed");
        for kind in ["burstjob", "vramlease", "gpuworker", "gpusession"] {
            assert!(
                names.contains(&format!("{kind}.sahasra.dev/")),
                "{kind} is not in {category}:\n{names}"
            );
        }
    }
}

/// A table without its last column, which is the age.
fn without_age(table: &str) -> String {
    let age = table.lines().next().and_then(|header| header.find("AGE")).expect("a column AGE");
    // An age has at most four characters, such as 119m or 100d.
    assert!(age + 4 <= 120, "{} characters wide:\n{table}", age + 4);
    let cut = |line: &str| line.chars().take(age).collect::<String>();
    table.lines().map(|line| format!("{}\n", cut(line).trim_end())).collect()
}
