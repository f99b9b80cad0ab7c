//! `sahasra kernel`, `completion`, `--help` and `--version`, run as child processes.

use std::process::{Command, Output};

use serde_json::Value;

use crate::program::{Sahasra, root, text};

fn sahasra(arguments: &[&str]) -> Output {
    Sahasra::new(arguments).output()
}

#[test]
fn a_kernel_is_described_with_parameters_registers_and_memory() {
    let output = sahasra(&["kernel", "check", "examples/hyperparameter-search/eval_config.ptx", "-o", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let described: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(described["target"], "sm_80");
    assert_eq!(described["backends"]["cpu"]["runs"], true);
    assert_eq!(described["backends"]["cuda"]["devices"], "compute capability 8.0 or newer");
    let entry = &described["entries"][0];
    assert_eq!(entry["name"], "eval_config");
    let parameters: Vec<(&str, u64, u64)> = (entry["parameters"].as_array().expect("parameters").iter())
        .map(|parameter| {
            (
                parameter["type"].as_str().unwrap_or_default(),
                parameter["bytes"].as_u64().unwrap_or_default(),
                parameter["offset"].as_u64().unwrap_or_default(),
            )
        })
        .collect();
    assert_eq!(parameters, [("u64", 8, 0), ("f32", 4, 8), ("u32", 4, 12), ("f32", 4, 16)]);
    assert!(entry["registers"]["b32"].as_u64().is_some_and(|count| count > 10), "{entry}");
    assert!(entry["sharedBytes"].as_u64().is_some_and(|bytes| bytes > 0), "{entry}");
    assert!(entry["constantBytes"].as_u64().is_some_and(|bytes| bytes > 5000), "{entry}");

    let table = text(&sahasra(&["kernel", "check", "examples/saxpy/saxpy.ptx"]).stdout);
    for expected in ["cpu       yes", "cuda      yes", ".entry saxpy", "u64"] {
        assert!(table.contains(expected), "{expected} is missing in:\n{table}");
    }
}

#[test]
fn a_rejection_by_the_cpu_engine_is_reported_and_fails_only_if_that_backend_is_required() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("k.ptx");
    std::fs::write(
        &file,
        ".version 8.8\n.target sm_90a\n.address_size 64\n.entry k(.param .u64 a)\n{\nwgmma.fence.sync.aligned;\nret;\n}\n",
    )
    .expect("written");
    let path = file.to_str().expect("a path");
    let any = sahasra(&["kernel", "check", path]);
    assert_eq!(any.status.code(), Some(0));
    let table = text(&any.stdout);
    assert!(
        table.contains("line 6: `wgmma.fence.sync.aligned")
            && table.contains("9.0 and no other")
            && table.contains("cuda      not checked"),
        "{table}"
    );
    assert!(table.contains("u64"), "the signature is shown all the same:\n{table}");
    assert_eq!(sahasra(&["kernel", "check", path, "--backend", "cpu"]).status.code(), Some(2));
    assert_eq!(sahasra(&["kernel", "check", path, "--backend", "cuda"]).status.code(), Some(0));
}

#[test]
fn text_that_is_not_ptx_is_rejected_with_file_and_line() {
    let output = sahasra(&["kernel", "check", "README.md", "examples/saxpy/missing.ptx"]);
    assert_eq!(output.status.code(), Some(2));
    let complaint = text(&output.stderr);
    assert!(
        complaint.contains("README.md: line ") && complaint.contains("missing.ptx: No such file"),
        "{complaint}"
    );
}

#[test]
fn without_nvrtc_the_remedy_is_printed() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = Command::new(env!("CARGO_BIN_EXE_sahasra"))
        .args(["kernel", "compile", "examples/saxpy/saxpy.cu", "-o", "-", "--nvrtc-library"])
        .arg(folder.path().join("libnvrtc.so"))
        .current_dir(root())
        .output()
        .expect("sahasra runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("failed to load "), "{}", text(&output.stderr));

    // An empty environment: no CUDA_HOME, no virtual environment, no python3 on the path.
    let output = Command::new(env!("CARGO_BIN_EXE_sahasra"))
        .args(["kernel", "compile", "examples/saxpy/saxpy.cu", "-o", "-"])
        .current_dir(root())
        .env_clear()
        .output()
        .expect("sahasra runs");
    // On a machine with the CUDA toolkit, the compilation succeeds instead.
    if output.status.success() {
        assert!(text(&output.stdout).contains(".entry saxpy"));
    } else {
        let complaint = text(&output.stderr);
        assert!(
            complaint.contains("NVRTC was not found") && complaint.contains("pip install nvidia-cuda-nvrtc"),
            "{complaint}"
        );
    }
}

#[test]
fn help_version_and_completions_are_printed() {
    let help = text(&sahasra(&["--help"]).stdout);
    for expected in [
        "run",
        "up",
        "kernel",
        "completion",
        "Begin with:",
        "sahasra run examples/hyperparameter-search/",
    ] {
        assert!(help.contains(expected), "{expected} is missing in:\n{help}");
    }
    assert!(!help.contains("executor"), "what is for agents alone is not shown:\n{help}");
    let help = text(&sahasra(&["run", "--help"]).stdout);
    assert!(help.contains("130  Ctrl-C"), "{help}");
    let help = text(&sahasra(&["up", "--help"]).stdout);
    assert!(help.contains("0    stopped by a signal") && !help.contains("130"), "{help}");
    assert_eq!(sahasra(&["run", "FILE", "--gpu", "--devices", "2"]).status.code(), Some(2));
    let version = text(&sahasra(&["--version"]).stdout);
    assert_eq!(version, format!("sahasra {}\n", env!("CARGO_PKG_VERSION")));
    let script = text(&sahasra(&["completion", "bash"]).stdout);
    assert!(script.contains("_sahasra()") && script.contains("kernel"), "{script}");
    let help = Command::new(env!("CARGO_BIN_EXE_kubectl-sahasra"))
        .arg("--help")
        .output()
        .expect("kubectl-sahasra runs");
    assert!(text(&help.stdout).contains("Usage: kubectl sahasra"), "{}", text(&help.stdout));
    assert_eq!(sahasra(&["kernel"]).status.code(), Some(2));
}
