//! Tests of the harness itself against a real API server, on which the other tests rely.

use std::path::PathBuf;
use std::time::Duration;

use futures::StreamExt;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, core::GroupVersionKind};
use sahasra_e2e::audit::Tally;
use sahasra_e2e::{ControlPlane, Options, Process, Signal, Specification, eventually, is_alive, tools};
use serde_json::json;

/// Environment variable that is set for the one test that another test runs as a child process.
const CHILD_VARIABLE: &str = "SAHASRA_E2E_CHILD";
const WITHIN: Duration = Duration::from_secs(20);

fn own(file: &str) -> PathBuf {
    tools::workspace_root().join("e2e/tests/harness").join(file)
}

fn widget_options() -> Options {
    Options::default().custom_resource_definitions([own("widgets.yaml")])
}

fn widget_resource() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("harness.sahasra.dev", "v1", "Widget"))
}

fn widget(name: &str, size: i64) -> DynamicObject {
    DynamicObject::new(name, &widget_resource()).data(json!({ "spec": { "size": size } }))
}

async fn widgets(control_plane: &ControlPlane) -> Api<DynamicObject> {
    Api::namespaced_with(control_plane.client().await.expect("client"), "default", &widget_resource())
}

async fn start() -> ControlPlane {
    ControlPlane::start(widget_options()).await.expect("a control plane starts")
}

#[tokio::test]
async fn the_workspaces_kinds_are_accepted_by_a_real_api_server() {
    let control_plane = ControlPlane::shared().await.expect("a control plane starts");
    let output = control_plane.kubectl(["get", "crds", "-o", "name"]).await.expect("kubectl runs");
    let names = output.success().expect("kubectl lists");
    for kind in ["burstjobs", "gpusessions", "gpuworkers", "vramleases"] {
        assert!(names.contains(&format!("/{kind}.sahasra.dev")), "{kind} is missing in:\n{names}");
    }
}

#[tokio::test]
async fn objects_are_created_and_watched_and_their_status_follows_the_schema() {
    let control_plane = start().await;
    let widgets = widgets(&control_plane).await;
    let version = widgets
        .list(&ListParams::default())
        .await
        .expect("list")
        .metadata
        .resource_version
        .expect("a version");
    let mut events = widgets.watch(&WatchParams::default(), &version).await.expect("watch").boxed();

    widgets.create(&PostParams::default(), &widget("first", 3)).await.expect("create");
    let status = Patch::Merge(json!({ "status": { "seen": 7 } }));
    let seen = widgets
        .patch_status("first", &PatchParams::default(), &status)
        .await
        .expect("patch the status");
    assert_eq!(seen.data["status"]["seen"], 7);

    let mut observed = Vec::new();
    while observed.len() < 2 {
        match events.next().await.expect("the watch goes on").expect("an event") {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => observed.push(object.data["status"]["seen"].clone()),
            other => panic!("unexpected {other:?}"),
        }
    }
    assert_eq!(observed, [json!(null), json!(7)]);

    let refused = widgets
        .create(&PostParams::default(), &widget("empty", 0))
        .await
        .expect_err("below the minimum");
    assert!(refused.to_string().contains("spec.size"), "{refused}");
}

#[tokio::test]
async fn a_service_account_has_exactly_its_rbac_rights() {
    let control_plane = start().await;
    let painter = own("painter.yaml");
    control_plane
        .kubectl(["apply", "-f", painter.to_str().expect("a path")])
        .await
        .expect("kubectl runs")
        .success()
        .expect("applied");
    widgets(&control_plane)
        .await
        .create(&PostParams::default(), &widget("first", 3))
        .await
        .expect("create");

    let kubeconfig = control_plane.kubeconfig_for("default", "painter").await.expect("a kubeconfig");
    let who = control_plane
        .kubectl_as(&kubeconfig, ["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"])
        .await;
    assert_eq!(
        who.expect("kubectl runs").success().expect("whoami"),
        "system:serviceaccount:default:painter"
    );

    let client = control_plane.client_as(&kubeconfig).await.expect("client");
    let widgets: Api<DynamicObject> = Api::namespaced_with(client, "default", &widget_resource());
    let patch = Patch::Merge(json!({ "spec": { "size": 4 } }));
    widgets
        .patch("first", &PatchParams::default(), &patch)
        .await
        .expect("patching is allowed");
    for refused in [
        widgets
            .patch_status("first", &PatchParams::default(), &Patch::Merge(json!({ "status": { "seen": 1 } })))
            .await,
        widgets.create(&PostParams::default(), &widget("second", 3)).await,
    ] {
        match refused.expect_err("RBAC refuses") {
            kube::Error::Api(status) => assert_eq!(status.code, 403, "{status:?}"),
            other => panic!("unexpected {other}"),
        }
    }
}

#[tokio::test]
async fn the_audit_log_counts_every_write_by_user_verb_and_resource() {
    let control_plane = start().await;
    let painter = own("painter.yaml");
    control_plane
        .kubectl(["apply", "-f", painter.to_str().expect("a path")])
        .await
        .expect("kubectl runs")
        .success()
        .expect("applied");
    let administrator = widgets(&control_plane).await;
    let kubeconfig = control_plane.kubeconfig_for("default", "painter").await.expect("a kubeconfig");
    let client = control_plane.client_as(&kubeconfig).await.expect("client");
    let painter: Api<DynamicObject> = Api::namespaced_with(client, "default", &widget_resource());

    for index in 0..5 {
        administrator
            .create(&PostParams::default(), &widget(&format!("w{index}"), 1))
            .await
            .expect("create");
    }
    for size in 2..5 {
        let patch = Patch::Merge(json!({ "spec": { "size": size } }));
        painter.patch("w0", &PatchParams::default(), &patch).await.expect("patch");
    }
    let status = Patch::Merge(json!({ "status": { "seen": 1 } }));
    administrator
        .patch_status("w1", &PatchParams::default(), &status)
        .await
        .expect("patch the status");
    painter
        .patch_status("w1", &PatchParams::default(), &status)
        .await
        .expect_err("RBAC refuses");
    administrator.delete("w4", &Default::default()).await.expect("delete");
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    administrator.create(&dry_run, &widget("never", 1)).await.expect("a dry run");
    administrator.list(&ListParams::default()).await.expect("list");

    let all = control_plane
        .audited_writes(|write| write.resource == "widgets")
        .await
        .expect("the audit log");
    let refused: Vec<_> = all.iter().filter(|write| write.code == 403).collect();
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert_eq!((refused[0].target().as_str(), refused[0].name.as_str()), ("widgets/status", "w1"));
    assert!(refused[0].is_by("default", "painter"));

    let stored: Vec<_> = all.into_iter().filter(|write| write.is_stored()).collect();
    let tally = Tally::of(&stored);
    assert_eq!(tally.count("create", "widgets"), 5, "{tally}");
    assert_eq!(tally.count("patch", "widgets"), 3, "{tally}");
    assert_eq!(tally.count("patch", "widgets/status"), 1, "{tally}");
    assert_eq!(tally.count("delete", "widgets"), 1, "{tally}");
    assert_eq!(tally.total(), 10, "{tally}");
    assert_eq!(
        stored.iter().filter(|write| write.is_by("default", "painter")).count(),
        3,
        "{tally}"
    );
    assert_eq!(stored.iter().filter(|write| write.name == "w3").count(), 1, "{tally}");
}

#[tokio::test]
async fn a_killed_api_server_rejects_connections_and_restarts_with_its_data() {
    let mut control_plane = start().await;
    let widgets = widgets(&control_plane).await;
    widgets.create(&PostParams::default(), &widget("kept", 3)).await.expect("create");
    let kubeconfig = control_plane.kubeconfig().to_owned();

    control_plane.stop_api_server().await.expect("it stops");
    assert!(widgets.get("kept").await.is_err(), "nobody answers");

    control_plane.start_api_server().await.expect("it starts again");
    assert_eq!(
        widgets.get("kept").await.expect("the old client works again").data["spec"]["size"],
        3
    );
    assert_eq!(control_plane.kubeconfig(), kubeconfig);
}

#[tokio::test]
async fn waiting_for_an_object_ends_when_it_is_accepted_or_else_reports_its_state() {
    let control_plane = ControlPlane::shared().await.expect("a control plane starts");
    let lease = r#"{"apiVersion": "sahasra.dev/v1alpha1", "kind": "VramLease", "metadata": {"name": "held", "namespace": "default",
        "finalizers": ["sahasra.dev/e2e"]}, "spec": {"slice": {"vram": "1Gi"}, "slices": {"min": 1, "max": 1}, "ttlSeconds": 60}}"#;
    control_plane.apply(lease).await.expect("applied");
    let held = control_plane
        .object("VramLease", "default", "held")
        .await
        .expect("the API server answers");
    assert!(held.is_some_and(|object| object.metadata.finalizers.is_some()));

    control_plane
        .kubectl(["delete", "vramlease", "held", "--wait=false"])
        .await
        .expect("kubectl runs")
        .success()
        .expect("deleted");
    let short = Duration::from_millis(200);
    let still = control_plane
        .wait_until("VramLease", "default", "held", short, |object| object.is_none())
        .await;
    let still = still.expect_err("its finalizer holds it").to_string();
    assert!(still.contains("VramLease held is {"), "{still}");

    let release = [
        "patch",
        "vramlease",
        "held",
        "--type=merge",
        "-p",
        r#"{"metadata": {"finalizers": null}}"#,
    ];
    let (gone, released) = tokio::join!(
        control_plane.wait_until("VramLease", "default", "held", WITHIN, |object| object.is_none()),
        control_plane.kubectl(release),
    );
    released.expect("kubectl runs").success().expect("patched");
    assert!(gone.expect("it goes").is_none());
}

#[tokio::test]
async fn children_of_a_deleted_owner_are_collected() {
    let control_plane = start().await;
    assert!(
        control_plane.collects_garbage(),
        "KUBEBUILDER_ASSETS has no kube-controller-manager"
    );
    let widgets = widgets(&control_plane).await;
    let owner = widgets.create(&PostParams::default(), &widget("owner", 1)).await.expect("create");
    let mut child = widget("child", 1);
    child.metadata.owner_references = Some(vec![
        serde_json::from_value(json!({
            "apiVersion": "harness.sahasra.dev/v1", "kind": "Widget", "name": "owner", "uid": owner.metadata.uid,
        }))
        .expect("an owner reference"),
    ]);
    widgets.create(&PostParams::default(), &child).await.expect("create");

    widgets.delete("owner", &Default::default()).await.expect("delete");
    let gone = eventually(WITHIN, async || widgets.get_opt("child").await.ok().filter(Option::is_none)).await;
    assert!(gone.is_some(), "the child is still there");
}

#[tokio::test]
async fn two_control_planes_run_at_once_and_leave_nothing_behind() {
    let options = || widget_options().without_controller_manager();
    let (first, second) = tokio::join!(ControlPlane::start(options()), ControlPlane::start(options()));
    let (first, second) = (first.expect("one"), second.expect("another"));
    assert_ne!(first.server(), second.server());
    assert!(!first.collects_garbage());
    widgets(&first)
        .await
        .create(&PostParams::default(), &widget("here", 1))
        .await
        .expect("create");
    assert!(widgets(&second).await.get_opt("here").await.expect("get").is_none());

    let folders = [first.directory().to_owned(), second.directory().to_owned()];
    drop(first);
    assert!(
        widgets(&second).await.list(&ListParams::default()).await.is_ok(),
        "the other goes on"
    );
    drop(second);
    assert!(folders.iter().all(|folder| !folder.exists()), "{folders:?}");
}

async fn sleeper(directory: &std::path::Path) -> Process {
    let script = "trap 'echo ending; exit 3' TERM; echo started; while :; do sleep 0.05; done";
    let process = Specification::new("sleeper", "/bin/sh", directory)
        .arguments(["-c", script])
        .start()
        .await
        .expect("it starts");
    says_started(&process).await;
    process
}

async fn says_started(process: &Process) {
    let said = eventually(WITHIN, async || (process.log_tail(1) == "started").then_some(())).await;
    assert!(said.is_some(), "{}", process.log_tail(10));
}

#[tokio::test]
async fn a_process_is_killed_restarted_and_terminated_and_its_log_keeps_all_of_it() {
    let directory = tempfile::tempdir().expect("a folder");
    let mut process = sleeper(directory.path()).await;
    let first = process.pid().expect("it runs");
    process.kill().await.expect("killed");
    assert!(!process.is_running() && !is_alive(first));

    process.start().await.expect("it starts again");
    assert_ne!(process.pid(), Some(first));
    says_started(&process).await;
    let status = process.terminate(WITHIN).await.expect("it ends by itself");
    assert_eq!(status.code(), Some(3));
    assert_eq!(process.log_tail(10), "started\n--- start 2 ---\nstarted\nending");
}

#[tokio::test]
async fn the_children_of_a_process_are_found_and_can_be_killed_separately() {
    let directory = tempfile::tempdir().expect("a folder");
    let script = "sleep 1000 & wait $!; echo child ended with $?";
    let mut process = Specification::new("parent", "/bin/sh", directory.path())
        .arguments(["-c", script])
        .start()
        .await
        .expect("it starts");
    let found = async || Some(process.children()).filter(|children| children.len() == 1 && children[0].command == "sleep 1000");
    let children = eventually(WITHIN, found).await.expect("its child");
    sahasra_e2e::signal(children[0].pid, Signal::KILL).expect("killed");
    assert_eq!(process.wait(WITHIN).await.expect("the parent ends by itself").code(), Some(0));
    assert_eq!(process.log_tail(1), "child ended with 137");
}

#[tokio::test]
async fn a_process_that_ends_before_it_is_ready_is_an_error_that_names_it_and_its_log() {
    let directory = tempfile::tempdir().expect("a folder");
    let port = sahasra_e2e::Port::reserve().expect("a port");
    let specification = Specification::new("failing", "/bin/sh", directory.path()).arguments(["-c", "echo no such flag; exit 2"]);
    let error = specification
        .ready_at(format!("{}/readyz", port.url()))
        .start()
        .await
        .expect_err("it ends");
    let text = error.to_string();
    assert!(
        text.contains("failing ended with exit status: 2") && text.contains("failing.log"),
        "{text}"
    );
}

/// Runs as a child process of another test: starts a process from a thread that ends, prints its id, and is then killed.
#[test]
#[ignore = "run by children_outlive_the_thread_that_started_them_but_not_the_process"]
fn child_process_of_a_test() {
    if std::env::var_os(CHILD_VARIABLE).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("a folder");
    let path = directory.path().to_owned();
    let starter = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(sleeper(&path))
    });
    let process = starter.join().expect("the thread ends");
    println!("child {}", process.pid().expect("it runs"));
    // Waits to be killed by the parent, which does so after reading the line above.
    loop {
        std::thread::park();
    }
}

#[tokio::test]
async fn children_outlive_the_thread_that_started_them_but_not_the_process() {
    use std::io::BufRead;
    let mut test = std::process::Command::new(std::env::current_exe().expect("this executable"))
        .args(["--exact", "child_process_of_a_test", "--ignored", "--nocapture"])
        .env(CHILD_VARIABLE, "1")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("it starts");
    let lines = std::io::BufReader::new(test.stdout.take().expect("its output")).lines();
    let pid = lines
        .map_while(Result::ok)
        .find_map(|line| line.rsplit_once("child ")?.1.parse::<u32>().ok());
    let pid = pid.expect("it says the child's id");
    assert!(is_alive(pid), "the thread that started it has ended, the process has not");

    test.kill().expect("kill");
    test.wait().expect("wait");
    assert!(
        eventually(WITHIN, async || (!is_alive(pid)).then_some(())).await.is_some(),
        "{pid} is left behind"
    );
}
