//! Results reach standard output and the folder of `--results` completely, or else the exit code and a message report the failure.

use std::{
    fs::{self, File},
    path::Path,
    process::Stdio,
};

use crate::program::{Sahasra, text};
use serde_json::Value;

/// PTX that computes a chain of steps from the chunk's index; with 0 steps its output is the index.
const STEPS: &str = include_str!("../../../e2e/tests/data/kernels/steps.ptx");
/// PTX whose chunks never end.
const ENDLESS: &str = include_str!("../../../e2e/tests/data/kernels/endless.ptx");
/// PTX that traps at one index.
const TRAP_AT: &str = include_str!("../../../e2e/tests/data/kernels/trap_at.ptx");

/// A burst in a namespace, with `more` fields in its spec.
fn burst(namespace: &str, name: &str, entry: &str, chunks: u64, more: &Value) -> Value {
    let scalar = |value: u32| serde_json::json!({"scalar": {"type": "u32", "value": value}});
    let mut args = vec![
        serde_json::json!({"output": {"type": "u32"}}),
        serde_json::json!({"chunkIndex": {"type": "u32"}}),
    ];
    let ptx = match entry {
        "steps" => {
            args.push(scalar(3));
            STEPS
        }
        "trap_at" => {
            args.push(scalar(5));
            TRAP_AT
        }
        _ => ENDLESS,
    };
    let mut spec = serde_json::json!({
        "kernel": {"ptx": {"inline": ptx}, "entry": entry, "block": [1], "args": args},
        "chunks": {"count": chunks},
        "slice": {"vram": "4Mi"},
    });
    let fields = more.as_object().expect("fields").clone();
    spec.as_object_mut().expect("fields").extend(fields);
    serde_json::json!({
        "apiVersion": "sahasra.dev/v1alpha1", "kind": "BurstJob", "metadata": {"name": name, "namespace": namespace}, "spec": spec,
    })
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn output_that_cannot_be_written_fails() {
    let folder = tempfile::tempdir().expect("a folder");
    let manifest = folder.path().join("burst.json");
    fs::write(
        &manifest,
        burst("default", "b", "steps", 20, &Value::Object(Default::default())).to_string(),
    )
    .expect("written");
    for arguments in [&["run", "-o", "csv"][..], &["run", "-o", "json"], &["run"], &["kernel", "check"]] {
        let kernel = "e2e/tests/data/kernels/steps.ptx";
        let file = if arguments[0] == "kernel" { Path::new(kernel) } else { &manifest };
        let full = File::options().write(true).open("/dev/full").expect("/dev/full");
        let mut command = Sahasra::new(arguments).arg(file).command();
        let output = command.stdout(full).stderr(Stdio::piped()).output().expect("sahasra runs");
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {told}");
        assert!(
            told.contains("failed to write to standard output: No space left on device"),
            "{told}"
        );
    }
}

#[test]
fn a_folder_that_is_not_writable_is_rejected_before_anything_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    fs::write(&file, "mine").expect("written");
    let endless = burst("default", "b", "endless", 4, &Value::Object(Default::default())).to_string();
    for (path, cause) in [
        (file.as_path(), "File exists"),
        (Path::new("/proc/nope"), "No such file or directory"),
    ] {
        let run = Sahasra::new(["run", "-", "--timeout", "2s", "--results"]).arg(path);
        let output = run.output_with_input(&endless);
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(&format!("--results {}: {cause}", path.display())), "{told}");
        assert!(told.contains("name a folder that you can write to"), "{told}");
    }
    assert_eq!(fs::read_to_string(&file).expect("it is there"), "mine");
}

#[test]
fn bursts_whose_results_would_overwrite_each_other_are_rejected() {
    let folder = tempfile::tempdir().expect("a folder");
    let none = Value::Object(Default::default());
    let two = format!(
        "{}\n{}",
        burst("one", "same", "steps", 3, &none),
        burst("two", "same", "steps", 4, &none)
    );
    let output = Sahasra::new(["run", "-", "--results"]).arg(folder.path()).output_with_input(&two);
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(
        told.contains("BurstJob one/same and two/same would both write same.json") && told.contains("metadata.name"),
        "{told}"
    );
    assert!(names(folder.path()).is_empty());
    let output = Sahasra::new(["run", "-"]).output_with_input(&two);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn a_run_that_is_stopped_leaves_no_results_of_an_earlier_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let none = Value::Object(Default::default());
    let run = |entry: &str| {
        let run = Sahasra::new(["run", "-", "--timeout", "10s", "--results"]).arg(folder.path());
        run.output_with_input(&burst("default", "same", entry, 3, &none).to_string())
    };
    assert_eq!(run("steps").status.code(), Some(0));
    assert_eq!(names(folder.path()), ["same.csv", "same.json"]);
    let output = run("endless");
    assert_eq!(output.status.code(), Some(124), "{}", text(&output.stderr));
    assert_eq!(names(folder.path()), ["same.json"]);
    let job: Value = serde_json::from_slice(&fs::read(folder.path().join("same.json")).expect("kept")).expect("JSON");
    assert_eq!(job["status"]["state"], "Running", "{job}");
}

#[test]
fn the_list_of_failed_chunks_is_handed_over() {
    let folder = tempfile::tempdir().expect("a folder");
    for (allowed, code) in [(1, 0), (0, 1)] {
        let failed = serde_json::json!({"results": "Failed", "maxFailedChunks": allowed});
        let run = Sahasra::new(["run", "-", "-o", "csv", "--results"]).arg(folder.path());
        let output = run.output_with_input(&burst("default", "b", "trap_at", 8, &failed).to_string());
        assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
        assert_eq!(text(&output.stdout), "index,code\n5,Trap\n");
        assert_eq!(names(folder.path()), ["b.failed.csv", "b.json"]);
        let kept = fs::read_to_string(folder.path().join("b.failed.csv")).expect("kept");
        assert_eq!(kept, "index,code\n5,Trap\n");
    }
}

#[test]
fn chunks_that_fail_are_never_shown_as_done() {
    let limited = serde_json::json!({"retryPolicy": {"maxRetries": 0}, "chunkTimeoutSeconds": 1, "maxFailedChunks": 2});
    let manifest = burst("default", "b", "endless", 4, &limited).to_string();
    for _ in 0..3 {
        let output = Sahasra::new(["run", "-"]).output_with_input(&manifest);
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{told}");
        for line in told.lines().filter(|line| line.contains("chunks done")) {
            assert!(line.contains("   0 of 4 chunks done"), "{told}");
        }
    }
}
