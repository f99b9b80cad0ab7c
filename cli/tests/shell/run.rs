//! `sahasra run` as a child process: output, exit codes, signals, and that nothing is left behind.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::program::{Limit, Sahasra, signal, text, wait};
use serde_json::Value;

/// PTX whose chunks never end.
const ENDLESS: &str = include_str!("../../../e2e/tests/data/kernels/endless.ptx");
/// PTX that computes a chain of steps from the chunk's index; with 0 steps its output is the index.
const STEPS: &str = include_str!("../../../e2e/tests/data/kernels/steps.ptx");

fn burst(name: &str, ptx: &str, entry: &str, chunks: u64, more: &str) -> String {
    let ptx: String = ptx.lines().map(|line| format!("        {line}\n")).collect();
    format!(
        "apiVersion: sahasra.dev/v1alpha1\nkind: BurstJob\nmetadata: {{name: {name}}}\nspec:\n  kernel:\n    ptx:\n      inline: |\n{ptx}    \
         entry: {entry}\n    block: [1]\n    args: [{{output: {{type: u32}}}}, {{chunkIndex: {{type: u32}}}}{}]\n  \
         chunks: {{count: {chunks}}}\n  slice: {{vram: 4Mi}}\n{more}",
        if entry == "steps" {
            ", {scalar: {type: u32, value: 3}}"
        } else {
            ""
        }
    )
}

fn written(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, text).expect("written");
    path
}

#[test]
fn the_example_finds_its_best_configuration_and_releases_its_slices() {
    let folder = tempfile::tempdir().expect("a folder");
    let results = folder.path().join("results");
    let output = Sahasra::new(["run", "examples/hyperparameter-search/", "--devices", "2", "--results"])
        .arg(&results)
        .output();
    let (shown, news) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{shown}\n{news}");
    for expected in [
        "BurstJob default/hyperparameter-search: complete",
        "1000 succeeded, 0 failed",
        "at chunk 70",
        "learningRate",
        "All slices are released:",
    ] {
        assert!(shown.contains(expected), "{expected} is missing in:\n{shown}");
    }
    let lent: Vec<&str> = shown.lines().filter(|line| line.starts_with("local-0")).collect();
    assert_eq!(lent.len(), 2, "{shown}");
    assert!(
        lent.iter().all(|line| line.split_whitespace().rev().take(2).eq(["0", "0"])),
        "{shown}"
    );
    // Without a terminal, progress is plain lines.
    assert!(
        news.contains("of 1000 chunks done") && !news.contains('\r') && !news.contains('\x1b'),
        "{news}"
    );

    let job: Value = serde_json::from_slice(&fs::read(results.join("hyperparameter-search.json")).expect("kept")).expect("JSON");
    assert_eq!(job["status"]["chunks"]["succeeded"], 1000);
    let csv = fs::read_to_string(results.join("hyperparameter-search.csv")).expect("kept");
    assert_eq!(csv.lines().count(), 1001);
    let best = &job["status"]["aggregate"]["best"][0];
    let row = csv
        .lines()
        .find(|row| row.starts_with(&format!("{},", best["index"])))
        .expect("the best chunk's row");
    let loss: f32 = row.rsplit(',').next().and_then(|loss| loss.parse().ok()).expect("a loss");
    assert_eq!(best["value"].as_f64().map(|value| value as f32), Some(loss));
}

#[test]
fn only_results_in_json_yaml_or_csv_go_to_standard_output() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = written(
        folder.path(),
        "burst.yaml",
        &burst("steps", STEPS, "steps", 20, "  aggregate: {sum: {output: 0}}\n"),
    );
    let json = Sahasra::new(["run", "-o", "json"]).arg(&file).output();
    assert_eq!(json.status.code(), Some(0), "{}", text(&json.stderr));
    let job: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!((&job["kind"], &job["status"]["state"]), (&"BurstJob".into(), &"Complete".into()));
    let yaml = Sahasra::new(["run", "-o", "yaml"]).arg(&file).output();
    let other: Value = sahasra_crds::yaml::parse(&text(&yaml.stdout)).expect("YAML");
    assert_eq!(other["status"]["aggregate"], job["status"]["aggregate"]);
    let csv = Sahasra::new(["run", "-o", "csv"]).arg(&file).output();
    let rows = text(&csv.stdout);
    assert_eq!(rows.lines().next(), Some("index,output0"));
    assert_eq!(rows.lines().count(), 21);
    let sum: f64 = rows
        .lines()
        .skip(1)
        .filter_map(|row| row.split(',').nth(1)?.parse::<f64>().ok())
        .sum();
    assert_eq!(job["status"]["aggregate"]["values"][0].as_f64(), Some(sum));
    assert!(text(&csv.stderr).contains("All slices are released:"));
}

#[test]
fn results_up_to_the_limit_are_handed_over_whole() {
    // 131,072 records of 4 bytes are 512 KiB, the maximum that a ConfigMap keeps. As text they are three times as long.
    const CHUNKS: u64 = 131_072;
    let folder = tempfile::tempdir().expect("a folder");
    let file = written(folder.path(), "burst.yaml", &burst("steps", STEPS, "steps", CHUNKS, ""));
    let results = folder.path().join("results");
    let output = Sahasra::new(["run", "-o", "csv", "--results"]).arg(&results).arg(&file).output();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    assert_eq!(printed.lines().count() as u64, CHUNKS + 1);
    assert!(printed.starts_with("index,output0\n0,"));
    assert!(printed.lines().last().is_some_and(|row| row.starts_with("131071,")));
    assert_eq!(fs::read_to_string(results.join("steps.csv")).expect("kept"), printed);
}

#[test]
fn missing_results_are_a_failure() {
    let folder = tempfile::tempdir().expect("a folder");
    let job = burst("steps", STEPS, "steps", 20, "  ttlSecondsAfterFinished: 0\n");
    let file = written(folder.path(), "burst.yaml", &job);
    let output = Sahasra::new(["run", "--results"])
        .arg(folder.path().join("results"))
        .arg(&file)
        .output();
    let kept = folder.path().join("results/steps.csv").exists();
    // The job may be deleted before it is observed: either its results are present, or the exit code reports that they are not.
    assert_eq!(output.status.code(), Some(if kept { 0 } else { 1 }), "{}", text(&output.stderr));
}

#[test]
fn consecutive_json_objects_are_accepted() {
    let yaml = [burst("one", STEPS, "steps", 3, ""), burst("two", STEPS, "steps", 3, "")];
    let json: Vec<String> = yaml
        .iter()
        .map(|manifest| sahasra_crds::yaml::parse::<Value>(manifest).expect("YAML").to_string())
        .collect();
    let output = Sahasra::new(["run", "-", "-o", "json"]).output_with_input(&json.join("\n"));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let list: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let items = list["items"].as_array().expect("a list");
    let mut names: Vec<&str> = items.iter().filter_map(|job| job["metadata"]["name"].as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["one", "two"]);
}

#[test]
fn manifests_are_read_from_standard_input() {
    let manifest = burst("piped", STEPS, "steps", 3, "");
    let output = Sahasra::new(["run", "-", "-o", "json", "--namespace", "team"]).output_with_input(&manifest);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let job: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        (&job["metadata"]["name"], &job["metadata"]["namespace"]),
        (&"piped".into(), &"team".into())
    );
}

#[test]
fn a_manifest_that_the_api_rejects_is_reported_with_file_document_and_field() {
    let folder = tempfile::tempdir().expect("a folder");
    let good = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n---\n";
    let bad = burst("b", STEPS, "steps", 3, "  retryPolicy: {maxRetries: -1}\n");
    let file = written(folder.path(), "two.yaml", &format!("{good}{bad}"));
    let output = Sahasra::new(["run"]).arg(&file).output();
    let complaint = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{complaint}");
    assert!(
        complaint.contains("two.yaml, document 2: BurstJob.sahasra.dev \"b\" is invalid: spec.retryPolicy.maxRetries: Invalid value: -1"),
        "{complaint}"
    );
    assert!(complaint.contains("field: spec.retryPolicy.maxRetries"), "{complaint}");
    assert_eq!(text(&output.stdout), "");

    // An unknown field is rejected, as with kubectl.
    let file = written(
        folder.path(),
        "typo.yaml",
        &burst("b", STEPS, "steps", 3, "  retryPolcy: {maxRetries: 1}\n"),
    );
    let output = Sahasra::new(["run"]).arg(&file).output();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("unknown field \"spec.retryPolcy\""),
        "{}",
        text(&output.stderr)
    );

    let file = written(folder.path(), "none.yaml", "kind: BurstJob\n");
    let output = Sahasra::new(["run"]).arg(&file).output();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("none.yaml, document 1: apiVersion not set"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn an_error_that_only_the_operator_detects_ends_the_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = written(folder.path(), "entry.yaml", &burst("b", STEPS, "nothing", 3, ""));
    let output = Sahasra::new(["run"]).arg(&file).output();
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    let shown = text(&output.stdout) + &text(&output.stderr);
    assert!(shown.contains("rejected: EntryNotFound: spec.kernel.entry:"), "{shown}");

    let missing = burst("b", STEPS, "steps", 3, "").replace("inline: |", "configMapKeyRef: {name: absent, key: k.ptx}\n#");
    let missing: String = missing
        .lines()
        .filter(|line| !line.starts_with("        "))
        .map(|line| format!("{line}\n"))
        .collect();
    let file = written(folder.path(), "missing.yaml", &missing);
    let output = Sahasra::new(["run"]).arg(&file).output();
    let shown = text(&output.stdout) + &text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{shown}");
    assert!(shown.contains("ConfigMapNotFound"), "{shown}");
}

#[test]
fn a_failed_burst_has_its_own_exit_code_and_releases_its_slices() {
    let folder = tempfile::tempdir().expect("a folder");
    let trap = include_str!("../../../e2e/tests/data/kernels/trap_at.ptx");
    let manifest = burst("b", trap, "trap_at", 8, "").replace(
        "{chunkIndex: {type: u32}}",
        "{chunkIndex: {type: u32}}, {scalar: {type: u32, value: 5}}",
    );
    let file = written(folder.path(), "trap.yaml", &manifest);
    let output = Sahasra::new(["run"]).arg(&file).output();
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{shown}{}", text(&output.stderr));
    assert!(
        shown.contains("FAILED: Trap: 1 chunk failed, maxFailedChunks allows 0: chunk 5")
            && shown.contains("chunk 5 after 1 attempt: ")
            && shown.contains("All slices are released:"),
        "{shown}"
    );
}

#[test]
fn a_burst_that_no_device_can_serve_ends_the_run_with_the_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = written(folder.path(), "big.yaml", &burst("b", STEPS, "steps", 3, "").replace("4Mi", "64Mi"));
    let output = Sahasra::new(["run", "--vram", "32Mi"]).arg(&file).output();
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{shown}{}", text(&output.stderr));
    assert!(shown.contains("cannot start here: needs 1 slice of 64Mi"), "{shown}");
    assert!(shown.contains("--vram"), "{shown}");
}

#[test]
fn classes_that_manifests_ask_for_are_played_unless_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let manifest = burst("b", STEPS, "steps", 3, "").replace("slice: {vram: 4Mi}", "slice: {vram: 4Mi, class: h100}");
    let file = written(folder.path(), "class.yaml", &manifest);
    let output = Sahasra::new(["run"]).arg(&file).output();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("h100"), "{}", text(&output.stdout));
    let output = Sahasra::new(["run", "--class", "g5"]).arg(&file).output();
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stdout));
}

#[test]
fn a_lease_is_granted_and_released() {
    let manifest = "apiVersion: sahasra.dev/v1alpha1\nkind: VramLease\nmetadata: {name: mine}\n\
                    spec: {owner: {}, slice: {vram: 512Mi}, slices: {min: 2, max: 4}, ttlSeconds: 60}\n";
    let output = Sahasra::new(["run", "-"]).output_with_input(manifest);
    let news = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{news}");
    assert!(news.contains("VramLease default/mine: granted"), "{news}");
    assert!(text(&output.stdout).contains("All slices are released:"));
}

#[test]
fn two_bursts_are_a_list_and_csv_is_rejected_before_anything_starts() {
    let manifest = format!(
        "{}---\n{}",
        burst("one", STEPS, "steps", 3, ""),
        burst("two", STEPS, "steps", 4, "")
    );
    let output = Sahasra::new(["run", "-", "-o", "json"]).output_with_input(&manifest);
    let list: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let names: Vec<_> = list["items"]
        .as_array()
        .expect("items")
        .iter()
        .map(|job| job["metadata"]["name"].clone())
        .collect();
    assert_eq!(names, ["one", "two"]);
    let output = Sahasra::new(["run", "-", "-o", "csv"]).output_with_input(&manifest);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("there are 2"), "{}", text(&output.stderr));
}

#[test]
fn an_interrupt_releases_every_slice_and_reports_it() {
    for (name, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let (mut child, mut news, _limit) = endless();
        let executors = wait("executors run", || {
            let executors = crate::program::descendants(child.id());
            (!executors.is_empty()).then_some(executors)
        });
        signal(child.id(), name);
        let status = child.wait().expect("it ends");
        let mut rest = String::new();
        news.read_to_string(&mut rest).expect("news");
        let mut shown = String::new();
        child.stdout.take().expect("output").read_to_string(&mut shown).expect("output");
        assert_eq!(status.code(), Some(code), "{rest}");
        assert!(rest.contains("interrupted: releasing all slices"), "{rest}");
        assert!(rest.contains("BurstJob default/b: stopped with 0 of 4 chunks done"), "{rest}");
        assert!(shown.contains("All slices are released:"), "{shown}{rest}");
        wait("no executor is left", || {
            executors.iter().all(|id| !crate::program::is_alive(*id)).then_some(())
        });
    }
}

#[test]
fn a_second_interrupt_ends_at_once_and_leaves_no_process() {
    let (mut child, _news, _limit) = endless();
    let executors = wait("executors run", || {
        let executors = crate::program::descendants(child.id());
        (!executors.is_empty()).then_some(executors)
    });
    // The two signals differ, because a pending signal that is sent again is delivered once.
    signal(child.id(), "INT");
    signal(child.id(), "TERM");
    let status = child.wait().expect("it ends");
    assert!(matches!(status.code(), Some(130 | 143)), "{status}");
    wait("no executor is left", || {
        executors.iter().all(|id| !crate::program::is_alive(*id)).then_some(())
    });
}

#[test]
fn a_timeout_releases_every_slice() {
    let output =
        Sahasra::new(["run", "-", "--timeout", "1s"]).output_with_input(&burst("b", ENDLESS, "endless", 4, "  slices: {max: 2}\n"));
    assert_eq!(output.status.code(), Some(124), "{}", text(&output.stderr));
    assert!(
        text(&output.stderr).contains("timed out: releasing all slices"),
        "{}",
        text(&output.stderr)
    );
    assert!(
        text(&output.stdout).contains("All slices are released:"),
        "{}",
        text(&output.stdout)
    );
}

/// A run whose chunks never end, returned when it holds slices.
fn endless() -> (std::process::Child, BufReader<std::process::ChildStderr>, Limit) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = written(
        folder.path(),
        "endless.yaml",
        &burst("b", ENDLESS, "endless", 4, "  slices: {max: 2}\n"),
    );
    let mut command: Command = Sahasra::new(["run"]).arg(&file).command();
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("sahasra runs");
    let limit = Limit::of(&child);
    let mut news = BufReader::new(child.stderr.take().expect("news"));
    let mut line = String::new();
    while !line.starts_with("2 slices held") {
        line.clear();
        assert!(news.read_line(&mut line).expect("news") > 0, "it ended: {line}");
    }
    (child, news, limit)
}

#[test]
fn a_wrong_namespace_is_reported_in_one_line_before_anything_starts() {
    let manifest = burst("b", STEPS, "steps", 3, "");
    let output = Sahasra::new(["run", "-", "-n", "Bad_ns"]).output_with_input(&manifest);
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(
        told.contains("'Bad_ns' for '--namespace <NAMESPACE>': write lower case letters, digits and '-'"),
        "{told}"
    );
    let named = manifest.replace("{name: b}", "{name: b, namespace: Bad_ns}");
    let output = Sahasra::new(["run", "-"]).output_with_input(&named);
    let told = text(&output.stderr);
    assert_eq!((output.status.code(), told.lines().count()), (Some(2), 1), "{told}");
    assert!(
        told.contains("standard input, document 1: metadata.namespace: Invalid value: \"Bad_ns\": write lower case"),
        "{told}"
    );
}
