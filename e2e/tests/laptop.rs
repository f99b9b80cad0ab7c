//! The embedded control plane gives the same results for the same manifests as a real one.

use std::{
    path::{Path, PathBuf},
    process::{Output, Stdio},
    time::Duration,
};

use sahasra_e2e::{Pool, PoolOptions, Signal, signal, tools};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, ChildStdout, Command},
    time::timeout,
};

/// Timeout for a machine under load.
const WITHIN: Duration = Duration::from_secs(240);

/// Runs a command to its end and returns its output.
async fn output(mut command: Command) -> Output {
    let running = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let ended = timeout(WITHIN, running).await;
    ended
        .unwrap_or_else(|_| panic!("{:?} has not ended after {WITHIN:?}", command.as_std()))
        .expect("it runs")
}

/// Runs an example with `sahasra run`; returns the finished job and the results of its chunks.
async fn embedded(name: &str, folder: &Path) -> (Value, String) {
    let program = tools::binaries().await.expect("binaries").join("sahasra");
    let mut command = Command::new(program);
    command
        .args(["run", &format!("examples/{name}/"), "--devices", "2", "--results"])
        .arg(folder)
        .current_dir(tools::workspace_root());
    let output = output(command).await;
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "sahasra run examples/{name}/: {said}");
    let read = |extension: &str| std::fs::read_to_string(folder.join(format!("{name}.{extension}"))).expect("kept");
    (serde_json::from_str(&read("json")).expect("JSON"), read("csv"))
}

#[tokio::test]
async fn examples_have_the_same_status_and_results_on_the_embedded_and_on_a_real_control_plane() {
    let agent = ["--no-cuda", "--cpu-device-memory", "4200Mi", "--heartbeat-interval", "1s"];
    let pool = Pool::start(PoolOptions::default().agents(2).agent_arguments(agent))
        .await
        .expect("Sahasra starts");
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["hyperparameter-search", "monte-carlo", "saxpy"] {
        let apply = ["apply", "--server-side", "-f", &format!("examples/{name}/")];
        pool.control_plane
            .kubectl(apply)
            .await
            .expect("kubectl runs")
            .success()
            .expect("applied");
        let real = pool.completed("default", name, WITHIN).await.expect("it completes");
        let real_results = pool.results(&real).await.expect("results");
        let (embedded, embedded_results) = embedded(name, folder.path()).await;

        assert!(real.data["spec"].is_object());
        assert_eq!(embedded["spec"], real.data["spec"], "{name}: defaults are the same");
        for field in [
            "aggregate",
            "chunks",
            "completedIndexes",
            "failedIndexes",
            "kernelDigest",
            "failures",
            "state",
            "reason",
            "results",
        ] {
            let (embedded, real) = (&embedded["status"][field], &real.data["status"][field]);
            assert_eq!(embedded, real, "{name}: .status.{field}");
        }
        assert_eq!(embedded_results, real_results, "{name}: results.csv");
    }
}

/// A running `sahasra up`.
struct Up {
    process: Child,
    kubeconfig: PathBuf,
    output: tokio::io::Lines<BufReader<ChildStdout>>,
    folder: tempfile::TempDir,
}

impl Up {
    async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let kubeconfig = folder.path().join("kubeconfig");
        let mut process = Command::new(tools::binaries().await.expect("binaries").join("sahasra"))
            .args(["up", "--port", "0", "--workers", "4", "--kubeconfig"])
            .arg(&kubeconfig)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("sahasra runs");
        let mut output = BufReader::new(process.stdout.take().expect("output")).lines();
        let welcome = timeout(WITHIN, output.next_line()).await.expect("it comes up");
        let welcome = welcome.expect("output").expect("a welcome");
        assert!(welcome.starts_with("Sahasra is up on 127.0.0.1:"), "{welcome}");
        Self {
            process,
            kubeconfig,
            output,
            folder,
        }
    }

    /// Runs kubectl in the repository's root; returns its output.
    async fn kubectl(&self, arguments: &str) -> String {
        let mut command = Command::new(tools::kubectl().await.expect("kubectl"));
        command
            .args(arguments.split_whitespace())
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HOME", self.kubeconfig.parent().expect("a folder"))
            .current_dir(tools::workspace_root());
        let output = output(command).await;
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(output.status.success(), "kubectl {arguments}: {said}");
        said
    }

    /// Ends the process with SIGINT, as Ctrl-C does; returns the rest of its output.
    async fn end(mut self) -> String {
        let id = self.process.id().expect("it runs");
        signal(id, Signal::INT).expect("signalled");
        let mut said = String::new();
        let ended = timeout(WITHIN, async {
            while let Some(line) = self.output.next_line().await.expect("output") {
                said.push_str(&format!("{line}\n"));
            }
            self.process.wait().await.expect("it ends")
        });
        let ended = ended.await;
        let status = ended.unwrap_or_else(|_| panic!("it does not end: {said}"));
        assert!(status.success(), "{status}: {said}");
        said
    }
}

/// Returns the kubectl commands in the indented block that begins with `sahasra up` in a page of the documentation, without comments.
fn documented(page: &str) -> Vec<String> {
    let text = std::fs::read_to_string(tools::workspace_root().join(page)).expect("a page");
    let block = text.split_once("sahasra up --workers 4\n").expect("the page shows sahasra up").1;
    let lines = block.lines().take_while(|line| !line.starts_with('#'));
    let commands = lines.filter_map(|line| line.strip_prefix("    kubectl "));
    commands
        .map(|command| command.split(" #").next().unwrap_or_default().trim().to_owned())
        .collect()
}

#[tokio::test]
async fn the_documented_commands_work_on_sahasra_up() {
    for page in ["README.md", "docs/guide/laptop.md"] {
        let up = Up::start().await;
        let commands = documented(page);
        assert!(commands.len() >= 4, "{page}: {commands:?}");
        for command in commands {
            let said = up.kubectl(&command).await;
            match command.split(' ').next() {
                Some("wait") => assert!(said.contains("condition met"), "{said}"),
                Some("describe") => assert!(said.contains("AllChunksDone") && said.contains("Best:"), "{said}"),
                Some("get") if command.ends_with("gpuworkers") => assert_eq!(said.lines().count(), 5, "{said}"),
                Some("get") => assert!(said.contains("Complete"), "{said}"),
                _ => {}
            }
        }
        let said = up.end().await;
        assert!(said.contains("All slices are released:"), "{said}");
    }
}

#[tokio::test]
async fn lists_are_applied_and_rights_are_reported_on_sahasra_up() {
    let up = Up::start().await;
    let config_map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kernels"}, "data": {"k.ptx": "1"}});
    let lease = json!({
        "apiVersion": "sahasra.dev/v1alpha1", "kind": "VramLease", "metadata": {"name": "slice"}, "spec": {"slice": {"vram": "64Mi"}},
    });
    let file = up.folder.path().join("list.json");
    let list = |data: &str| {
        let mut config_map = config_map.clone();
        config_map["data"]["k.ptx"] = data.into();
        let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": [config_map, lease]});
        std::fs::write(&file, list.to_string()).expect("written");
    };
    let of_list = async |verb: &str| up.kubectl(&format!("{verb} -f {}", file.display())).await;
    for (data, verb, config_map, lease) in [
        ("1", "apply", "created", "created"),
        ("1", "apply", "unchanged", "unchanged"),
        ("2", "apply", "configured", "unchanged"),
        (
            "2",
            "apply --server-side --force-conflicts",
            "serverside-applied",
            "serverside-applied",
        ),
    ] {
        list(data);
        let said = of_list(verb).await;
        assert_eq!(
            said,
            format!("configmap/kernels {config_map}\nvramlease.sahasra.dev/slice {lease}\n"),
            "{verb}"
        );
    }
    assert_eq!(up.kubectl("get cm kernels -o jsonpath={.data}").await, r#"{"k.ptx":"2"}"#);
    up.kubectl("wait --for=condition=Granted --timeout=120s vramlease/slice").await;
    let said = of_list("delete --timeout=120s").await;
    assert!(said.contains("\"kernels\" deleted") && said.contains("\"slice\" deleted"), "{said}");

    for right in [
        "create burstjobs.sahasra.dev",
        "delete gpusessions.sahasra.dev/mine -n team",
        "get secrets",
    ] {
        assert_eq!(up.kubectl(&format!("auth can-i {right}")).await, "yes\n", "{right}");
    }
    up.end().await;
}
