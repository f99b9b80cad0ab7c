//! The Python package's tests against a real API server: operator, gateway and workers are processes, and sessions run XLA programs.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use sahasra_e2e::{Pool, PoolOptions, Server, WorkerCertificates, tools};
use tokio::process::Command;

/// Timeout of the Python tests, which take a minute on an idle machine.
const WITHIN: Duration = Duration::from_secs(1800);
/// Timeout for the release of slices, which is immediate.
const FREE_WITHIN: Duration = Duration::from_secs(60);

/// Runs a build program of the workspace; returns the path that it prints, or `None` if it can build nothing here.
async fn made_by(program: &str) -> Option<PathBuf> {
    let output = Command::new(tools::workspace_root().join(program))
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .await
        .expect("it runs");
    assert!(output.status.success(), "{program} failed: see the lines above");
    let path = String::from_utf8(output.stdout).expect("a path");
    (!path.trim().is_empty()).then(|| PathBuf::from(path.trim()))
}

/// Writes to stderr past the test harness, which captures the output of passing tests.
fn say(text: &str) {
    // An error is ignored, because stderr may be closed.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Returns the interpreter with the package, and the PJRT plugin for sessions.
async fn environment() -> Option<(PathBuf, PathBuf)> {
    let named = std::env::var_os("SAHASRA_PJRT_PLUGIN").filter(|path| !path.is_empty());
    let plugin = match named {
        Some(path) => Some(PathBuf::from(path)),
        None => made_by("crates/pjrt/plugin").await,
    };
    let Some(plugin) = plugin else {
        say("SKIPPED: the Python package's tests on a real control plane: no PJRT plugin is known for this machine");
        return None;
    };
    let Some(python) = made_by("python/environment").await else {
        say("SKIPPED: the Python package's tests on a real control plane: no JAX is known for this machine's Python");
        return None;
    };
    Some((python, plugin))
}

/// Runs the Python tests; returns exit status and output.
async fn pytest(python: &Path, plugin: &Path, pool: &Pool, gateway: &Server, token: &str) -> (ExitStatus, String) {
    let agents = pool
        .agents
        .iter()
        .filter_map(|agent| agent.process.pid())
        .map(|pid| pid.to_string());
    let log = pool.control_plane.log_directory().join("pytest.log");
    let said = std::fs::File::create(&log).expect("a log");
    let mut tests = Command::new(python);
    tests
        .args(["-P", "-m", "pytest", "-q", "--durations=5"])
        .current_dir(tools::workspace_root().join("python"))
        .env("SAHASRA_E2E_URL", gateway.url())
        .env("SAHASRA_E2E_CLASS", "cpu")
        .env("SAHASRA_E2E_KUBECONFIG", pool.control_plane.kubeconfig())
        .env("SAHASRA_E2E_AGENTS", agents.collect::<Vec<_>>().join(" "))
        .env(
            "SAHASRA_E2E_CA_FILE",
            pool.certificates.as_ref().expect("certificates").path("ca.crt"),
        )
        .env("SAHASRA_E2E_SERVER_NAME", WorkerCertificates::NAME)
        .env("SAHASRA_TOKEN", token)
        .env("SAHASRA_E2E_KUBECTL", tools::kubectl().await.expect("kubectl"))
        .env("SAHASRA_E2E_BIN_DIR", tools::binaries().await.expect("binaries"))
        .env("SAHASRA_PJRT_PLUGIN", plugin)
        .stdin(Stdio::null())
        .stdout(said.try_clone().expect("a log"))
        .stderr(said)
        .kill_on_drop(true);
    let mut tests = tests.spawn().expect("they run");
    let ended = tokio::time::timeout(WITHIN, tests.wait()).await;
    let said = || String::from_utf8_lossy(&std::fs::read(&log).unwrap_or_default()).into_owned();
    let status = ended.unwrap_or_else(|_| panic!("they have not ended after {WITHIN:?}: {}", said()));
    (status.expect("they run"), said())
}

#[tokio::test]
async fn the_python_package_passes_its_tests_on_a_real_control_plane() {
    let Some((python, plugin)) = environment().await else { return };
    let agent = ["--no-cuda", "--cpu-device-memory", "4Gi", "--pjrt-plugin"];
    let agent = agent.into_iter().map(str::to_owned).chain([plugin.display().to_string()]);
    // Workers use TLS: some tests connect to them directly, the others through the gateway.
    let options = PoolOptions::default().agents(2).agent_arguments(agent).tls();
    let mut pool = Pool::start(options).await.expect("Sahasra starts");
    let operator = pool.operator.url();
    let known = pool.certificates.as_ref().expect("certificates").gateway_arguments();
    let arguments: Vec<&str> = ["--operator-url", &operator]
        .into_iter()
        .chain(known.iter().map(String::as_str))
        .collect();
    let gateway = Server::gateway(&pool.control_plane, &arguments).await.expect("it starts");
    let token = pool.control_plane.editor("default").await.expect("an account");
    pool.control_plane.let_list_workers("default").await.expect("it is bound");

    let (status, said) = pytest(&python, &plugin, &pool, &gateway, &token).await;
    assert!(status.success(), "{said}");
    let summary = said.lines().rev().find(|line| line.contains(" passed")).unwrap_or_default();
    assert!(!summary.is_empty(), "{said}");
    say(&format!("the Python package's tests on a real control plane: {summary}"));
    pool.nothing_held(FREE_WITHIN).await.expect("everything is given back");
    pool.nothing_forbidden().await.expect("the chart's rights suffice");
}
