//! Bursts from `kubectl apply` to the release of the last slice, on a pool of two agents with 1050 slices of 8 MiB.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use kube::api::DynamicObject;
use sahasra_e2e::bursts::{Burst, number};
use sahasra_e2e::manifests::{RefusedBy, wrong_manifests};
use sahasra_e2e::{Pool, PoolOptions, SharedPool, Turn, eventually, tools, true_condition};
use serde_json::Value;
use tokio::process::Command;

/// Memory of an agent: 150 slices of 28 MiB, or 525 of 8 MiB.
const MEMORY: &str = "4200Mi";
/// Timeout for a machine under load.
const WITHIN: Duration = Duration::from_secs(240);
/// Timeout for the release of slices, which is immediate.
const FREE_WITHIN: Duration = Duration::from_secs(30);

#[path = "bursts/writes.rs"]
mod writes;

static POOL: SharedPool = SharedPool::new(|| {
    let agent = ["--no-cuda", "--cpu-device-memory", MEMORY, "--heartbeat-interval", "1s"];
    PoolOptions::default().agents(2).agent_arguments(agent)
});

async fn pool() -> Turn {
    POOL.borrow().await.expect("Sahasra starts")
}

async fn kubectl(pool: &Pool, arguments: &str) -> String {
    let output = pool.control_plane.kubectl(arguments.split(' ')).await.expect("kubectl runs");
    output.success().expect("kubectl succeeds")
}

/// Applies an example as described in its README, and waits for it with kubectl.
async fn run_example(pool: &Pool, name: &str) -> DynamicObject {
    kubectl(pool, &format!("apply --server-side -f examples/{name}/")).await;
    let timeout = WITHIN.as_secs();
    kubectl(pool, &format!("wait --for=condition=Complete burstjob/{name} --timeout={timeout}s")).await;
    let job = pool
        .control_plane
        .object("BurstJob", "default", name)
        .await
        .expect("the API server answers");
    job.expect("a finished job stays")
}

/// Runs the example's own check, which recomputes its results on the host with another program.
async fn check_example(pool: &Pool, name: &str) {
    let output = Command::new(tools::workspace_root().join("examples/check"))
        .arg(name)
        .env("KUBECONFIG", pool.control_plane.kubeconfig())
        .env("KUBECTL", tools::kubectl().await.expect("kubectl"))
        .output()
        .await
        .expect("the check runs");
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "examples/check {name}: {said}");
}

async fn delete_job(pool: &Pool, name: &str) {
    kubectl(pool, &format!("delete burstjob {name} --timeout=60s")).await;
}

#[tokio::test]
async fn a_thousand_training_runs_find_the_same_verified_best_twice_and_release_everything() {
    let mut pool = pool().await;
    let mut outcomes = Vec::new();
    for _ in 0..2 {
        pool.operator
            .metric("gpu_leases_active")
            .await
            .expect("a scrape, from which the peak counts");
        let job = run_example(&pool, "hyperparameter-search").await;
        let peak = pool.operator.metric("sahasra_operator_slices_active_peak").await.expect("a scrape");
        assert!(peak >= Some(1000.0), "peak of slices: {peak:?}");
        assert_eq!(number(&job, "/status/slices/peak"), 1000);
        assert_eq!(number(&job, "/status/chunks/succeeded"), 1000);
        assert_eq!(number(&job, "/status/slices/held"), 0);
        check_example(&pool, "hyperparameter-search").await;
        pool.nothing_held(FREE_WITHIN).await.expect("everything is given back");

        let described = kubectl(&pool, "describe burstjob hyperparameter-search").await;
        for condition in ["Accepted", "Admitted", "Complete"] {
            assert!(described.contains(condition), "{condition} is not in:\n{described}");
        }
        let events = described
            .split("Events:")
            .nth(1)
            .expect("events")
            .lines()
            .filter(|line| line.contains("sahasra-operator"));
        let events = events.count();
        assert!((1..=6).contains(&events), "{events} events:\n{described}");

        let aggregate = job.data["status"]["aggregate"].to_string();
        let results = pool.results(&job).await.expect("results");
        assert_eq!(results.lines().count(), 1001);
        outcomes.push((aggregate, results));
        delete_job(&pool, "hyperparameter-search").await;
    }
    assert_eq!(outcomes[0].0, outcomes[1].0);
    assert!(outcomes[0].1 == outcomes[1].1, "the results differ");
    pool.nothing_held(FREE_WITHIN).await.expect("everything is given back");
    pool.nothing_forbidden().await.expect("the chart's rights suffice");
}

#[tokio::test]
async fn the_other_examples_agree_with_their_host_checks() {
    let mut pool = pool().await;
    for name in ["monte-carlo", "saxpy"] {
        run_example(&pool, name).await;
        check_example(&pool, name).await;
        delete_job(&pool, name).await;
    }
    pool.nothing_held(FREE_WITHIN).await.expect("everything is given back");
}

#[tokio::test]
async fn a_thousand_chunks_complete_on_three_hundred_slices() {
    let mut pool = pool().await;
    // The operator knows of released slices from the agents' inventories, which may be a moment behind the last burst of another test.
    let heard = eventually(Duration::from_secs(30), async || {
        let leased = kubectl(&pool, "get gpuworkers -o jsonpath={.items[*].status.summary.leasedMiB}").await;
        (leased == "0 0").then_some(())
    });
    heard.await.expect("both workers report that nothing is lent");
    let burst = Burst::of_steps("default", "elastic", 1000, 1000).expect("a burst");
    let burst = burst.with("slice", serde_json::json!({"vram": "28Mi"}));
    burst.apply(&pool.control_plane).await.expect("applied");
    let job = pool.completed("default", "elastic", WITHIN).await.expect("it completes");
    assert_eq!(number(&job, "/status/slices/peak"), 300, "two agents of {MEMORY}");
    pool.every_index_counted_once(&job, 1000, 1000).await.expect("exact accounting");
    pool.nothing_held(FREE_WITHIN).await.expect("everything is given back");
}

#[tokio::test]
async fn a_burst_waits_with_a_reason_and_starts_when_slices_become_free() {
    let mut pool = pool().await;
    // There are more chunks than devices, so that no device is idle, whichever stream opens first.
    let holder = Burst::of("endless", "default", "holder", 20).expect("a burst");
    let holder = holder.with("slice", serde_json::json!({"vram": "4000Mi"}));
    holder.apply(&pool.control_plane).await.expect("applied");
    let held = |job: Option<&DynamicObject>| job.is_some_and(|job| number(job, "/status/slices/held") == 2);
    pool.control_plane
        .wait_until("BurstJob", "default", "holder", WITHIN, held)
        .await
        .expect("it holds both devices");

    let burst = Burst::of_steps("default", "waiter", 100, 10).expect("a burst");
    let burst = burst.with("slice", serde_json::json!({"vram": "300Mi"}));
    burst.apply(&pool.control_plane).await.expect("applied");
    let waits = |job: Option<&DynamicObject>| {
        job.is_some_and(|job| condition(job, "Admitted").is_some_and(|admitted| admitted["status"] == "False"))
    };
    let job = pool
        .control_plane
        .wait_until("BurstJob", "default", "waiter", WITHIN, waits)
        .await
        .expect("it says why it waits");
    let admitted = condition(job.as_ref().expect("a job"), "Admitted").expect("Admitted").clone();
    assert_eq!(admitted["reason"], "WaitingForSlices");
    let message = admitted["message"].as_str().expect("a message");
    assert!(
        message.contains("node-0") && message.contains("node-1"),
        "why not, for each device: {message}"
    );

    delete_job(&pool, "holder").await;
    let job = pool.completed("default", "waiter", WITHIN).await.expect("it completes");
    pool.every_index_counted_once(&job, 100, 10).await.expect("exact accounting");
    pool.nothing_held(FREE_WITHIN).await.expect("everything is given back");
}

fn condition<'a>(object: &'a DynamicObject, kind: &str) -> Option<&'a Value> {
    let conditions = object.data.pointer("/status/conditions")?.as_array()?;
    conditions.iter().find(|condition| condition["type"] == kind)
}

#[tokio::test]
async fn the_operator_rejects_invalid_references_by_name_within_a_second() {
    let pool = pool().await;
    let namespace = pool.control_plane.create_namespace("accepted").await.expect("a namespace");
    let wrong: Vec<_> = wrong_manifests()
        .expect("manifests")
        .into_iter()
        .filter(|wrong| wrong.refused_by == RefusedBy::Accepted)
        .collect();
    assert!(wrong.len() >= 15, "{} manifests", wrong.len());
    let mut slowest = Duration::ZERO;
    for manifest in wrong {
        let arguments = ["apply", "--server-side", "-n", &namespace, "-f", "-"];
        let applied = pool
            .control_plane
            .kubectl_with_input(arguments, &manifest.text)
            .await
            .expect("kubectl runs");
        applied.success().expect("the API server takes it");
        let began = Instant::now();
        let judged = |job: Option<&DynamicObject>| job.is_some_and(|job| condition(job, "Accepted").is_some());
        let job = pool
            .control_plane
            .wait_until("BurstJob", &namespace, &manifest.name, WITHIN, judged)
            .await;
        let job = job.unwrap_or_else(|error| panic!("{}: {error}", manifest.name)).expect("a job");
        let took = began.elapsed();
        let accepted = condition(&job, "Accepted").expect("judged");
        let message = accepted["message"].as_str().unwrap_or_default();
        assert_eq!(accepted["status"], "False", "{}: {accepted}", manifest.name);
        assert!(
            message.contains(&manifest.field) && message.contains(&manifest.says),
            "{}: {message:?} should name {:?} and say {:?}",
            manifest.name,
            manifest.field,
            manifest.says
        );
        assert_eq!(job.data["status"]["state"], "Pending", "{}", manifest.name);
        // Measured from the answer to `kubectl apply` to the condition in a new watch.
        assert!(took < Duration::from_secs(1), "{} was refused after {took:?}", manifest.name);
        slowest = slowest.max(took);
    }
    println!("slowest refusal: {slowest:?}");
}

#[tokio::test]
async fn a_missing_config_map_is_waited_for() {
    let mut pool = pool().await;
    let namespace = pool.control_plane.create_namespace("late").await.expect("a namespace");
    let example = tools::workspace_root().join("examples/monte-carlo");
    let job = std::fs::read_to_string(example.join("monte-carlo.yaml")).expect("the job");
    let config_map = std::fs::read_to_string(example.join("estimate-pi-configmap.yaml")).expect("the ConfigMap");
    let apply = ["apply", "--server-side", "-n", &namespace, "-f", "-"];
    pool.control_plane
        .kubectl_with_input(apply, &job)
        .await
        .expect("kubectl runs")
        .success()
        .expect("applied");
    let refused = |job: Option<&DynamicObject>| {
        job.is_some_and(|job| condition(job, "Accepted").is_some_and(|accepted| accepted["status"] == "False"))
    };
    pool.control_plane
        .wait_until("BurstJob", &namespace, "monte-carlo", WITHIN, refused)
        .await
        .expect("it says what is missing");
    pool.control_plane
        .kubectl_with_input(apply, &config_map)
        .await
        .expect("kubectl runs")
        .success()
        .expect("applied");
    pool.completed(&namespace, "monte-carlo", WITHIN)
        .await
        .expect("it completes once the ConfigMap is there");
    pool.nothing_held(FREE_WITHIN).await.expect("everything is given back");
}

#[tokio::test]
async fn columns_show_progress_and_outcome() {
    let mut pool = pool().await;
    let namespace = pool.control_plane.create_namespace("columns").await.expect("a namespace");
    let done = Burst::of_steps(&namespace, "done", 100, 1).expect("a burst");
    done.apply(&pool.control_plane).await.expect("applied");
    pool.completed(&namespace, "done", WITHIN).await.expect("it completes");
    let failed = Burst::of("trap_at", &namespace, "failed", 1).expect("a burst").scalar(0);
    failed.apply(&pool.control_plane).await.expect("applied");
    pool.ended(&namespace, "failed", WITHIN).await.expect("it fails");
    // Slices so large that only one fits on each device.
    let running = Burst::of("endless", &namespace, "running", 2).expect("a burst");
    let running = running.with("slice", serde_json::json!({"vram": "4000Mi"}));
    running.apply(&pool.control_plane).await.expect("applied");
    let held = |object: Option<&DynamicObject>| object.is_some_and(|object| number(object, "/status/slices") == 2);
    pool.control_plane
        .wait_until("VramLease", &namespace, "running", WITHIN, held)
        .await
        .expect("the lease is shown");
    let runs = |object: Option<&DynamicObject>| {
        object.is_some_and(|object| number(object, "/status/slices/held") == 2 && number(object, "/status/chunks/running") == 2)
    };
    pool.control_plane
        .wait_until("BurstJob", &namespace, "running", WITHIN, runs)
        .await
        .expect("progress is shown");
    for index in 0..pool.agents.len() {
        let loaded = |worker: Option<&DynamicObject>| {
            worker.is_some_and(|worker| {
                number(worker, "/status/summary/leasedMiB") == 4000 && number(worker, "/status/summary/activeExecutions") == 1
            })
        };
        pool.control_plane
            .wait_until("GpuWorker", "", &format!("node-{index}"), WITHIN, loaded)
            .await
            .expect("the load is shown");
    }
    let session = serde_json::json!({
        "apiVersion": "sahasra.dev/v1alpha1",
        "kind": "GpuSession",
        "metadata": {"namespace": namespace, "name": "asked-for"},
        "spec": {"class": "cpu", "vram": "64Mi", "engine": "ptx"},
    });
    let ready = |session: Option<&DynamicObject>| session.is_some_and(|session| true_condition(session, "Ready").is_some());
    let mut printed = String::new();
    for kind in ["burstjobs", "vramleases", "gpuworkers", "gpusessions"] {
        if kind == "gpusessions" {
            // The name of the session's lease contains a random uid, so the session is created after the other objects have been printed.
            pool.control_plane.apply(&session.to_string()).await.expect("applied");
            pool.control_plane
                .wait_until("GpuSession", &namespace, "asked-for", WITHIN, ready)
                .await
                .expect("it is ready");
        }
        let mut table = kubectl(&pool, &format!("get {kind} -n {namespace}")).await;
        if kind == "gpusessions" {
            // The session may be placed on either node, since both have about the same load.
            table = table.replace("node-1", "node-0");
        }
        printed += &format!("$ kubectl get {kind}\n{}\n", without_age(&table));
    }
    let path = tools::workspace_root().join("e2e/tests/bursts/columns.txt");
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(printed == expected, "e2e/tests/bursts/columns.txt should be:\n{printed}");
    kubectl(&pool, &format!("delete gpusession asked-for -n {namespace} --timeout=60s")).await;
    delete_job_in(&pool, &namespace, "running").await;
    pool.nothing_held(FREE_WITHIN).await.expect("everything is given back");
}

async fn delete_job_in(pool: &Pool, namespace: &str, name: &str) {
    kubectl(pool, &format!("delete burstjob {name} -n {namespace} --timeout=60s")).await;
}

/// A table without its last column, which is the age.
fn without_age(table: &str) -> String {
    let age = table.lines().next().and_then(|header| header.find("AGE")).unwrap_or(usize::MAX);
    let cut = |line: &str| line.chars().take(age).collect::<String>();
    table.lines().map(|line| format!("{}\n", cut(line).trim_end())).collect()
}

#[tokio::test]
async fn workers_and_metrics_have_the_shape_that_users_rely_on() {
    let mut pool = pool().await;
    let workers = pool.operator.get_json("/workers").await.expect("an answer");
    let workers = workers.as_array().expect("a list");
    assert_eq!(workers.len(), 2);
    for (index, worker) in workers.iter().enumerate() {
        let fields: BTreeSet<&str> = worker.as_object().expect("an object").keys().map(String::as_str).collect();
        let expected = [
            "id",
            "status",
            "active_executions",
            "tensor_count",
            "stored_tensor_bytes",
            "last_seen",
        ];
        assert_eq!(fields, BTreeSet::from(expected));
        assert_eq!(worker["id"], format!("node-{index}"));
        assert_eq!(worker["status"], "healthy");
        for figure in ["active_executions", "tensor_count", "stored_tensor_bytes"] {
            assert_eq!(worker[figure], 0, "{figure}");
        }
        let seen = worker["last_seen"]
            .as_str()
            .expect("a time")
            .parse::<k8s_openapi::jiff::Timestamp>();
        seen.expect("RFC 3339");
    }
    // A failing burst, so that the error counter has a label. Bursts of other tests on this pool may have failed before.
    let traps = |page: &str| -> f64 {
        let line = page.lines().find_map(|line| line.strip_prefix("gpu_submit_errors{code=\"Trap\"} "));
        line.and_then(|count| count.parse().ok()).unwrap_or_default()
    };
    let before = traps(&pool.operator.get("/metrics").await.expect("metrics"));
    let burst = Burst::of("trap_at", "default", "shape", 10).expect("a burst").scalar(3);
    burst.apply(&pool.control_plane).await.expect("applied");
    pool.ended("default", "shape", WITHIN).await.expect("it ends");
    delete_job(&pool, "shape").await;
    let page = pool.operator.get("/metrics").await.expect("metrics");
    for (name, kind) in [
        ("gpu_leases_active", "gauge"),
        ("sahasra_operator_slices_active_peak", "gauge"),
        ("sahasra_operator_slices_granted_total", "counter"),
        ("sahasra_operator_slices_released_total", "counter"),
        ("gpu_submit_total", "counter"),
        ("gpu_submit_errors", "counter"),
        ("chunks_done", "counter"),
        ("chunks_retry_total", "counter"),
        ("gpu_vram_allocated_bytes", "gauge"),
        ("sahasra_operator_reconcile_duration_seconds", "histogram"),
    ] {
        assert!(page.contains(&format!("# TYPE {name} {kind}\n")), "{name} is no {kind} in:\n{page}");
    }
    assert_eq!(traps(&page), before + 1.0, "{page}");
    let page = pool.agents[0].get("/metrics").await.expect("metrics");
    for name in [
        "sahasra_agent_slices_allocated",
        "sahasra_agent_vram_allocated_bytes",
        "sahasra_agent_chunks_running",
    ] {
        assert!(page.contains(&format!("# TYPE {name} gauge\n")), "{name} is not in:\n{page}");
    }
    let names = |page: &str| -> std::collections::BTreeSet<String> {
        let names = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
        names.filter(|name| !name.starts_with("process_")).map(str::to_owned).collect()
    };
    let of_operator = names(&pool.operator.get("/metrics").await.expect("metrics"));
    let common: Vec<_> = names(&page).intersection(&of_operator).cloned().collect();
    assert_eq!(common, [""; 0], "names with two meanings");
    pool.nothing_held(FREE_WITHIN).await.expect("everything is given back");
}
