//! Messages of `sahasra up`, and arguments that it rejects.

use std::{io::Read, process::Stdio};

use crate::program::{Limit, Sahasra, signal, text, wait};

#[test]
fn a_file_that_is_not_a_plugin_is_rejected() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = Sahasra::new([
        "up",
        "--port",
        "0",
        "--workers",
        "1",
        "--vram",
        "64Mi",
        "--pjrt-plugin",
        "/etc/passwd",
    ])
    .arg("--kubeconfig")
    .arg(folder.path().join("kubeconfig"))
    .output();
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(
        told.contains("--pjrt-plugin /etc/passwd: ") && told.contains("pjrt_c_api_cpu_plugin.so"),
        "{told}"
    );
    assert!(!text(&output.stdout).contains("Sessions run JAX"), "{}", text(&output.stdout));
    assert_eq!(folder.path().read_dir().expect("a folder").count(), 0, "nothing is left");
}

#[test]
fn an_invalid_log_filter_is_rejected_with_the_flag_and_an_example() {
    for wrong in ["asd", "foo=bar=baz"] {
        let output = Sahasra::new(["up", "--port", "0", "--log-level", wrong]).output();
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(
            told.contains("--log-level") && told.contains("info,sahasra_operator=debug"),
            "{told}"
        );
    }
}

#[test]
fn an_invalid_value_of_an_environment_variable_is_rejected_with_the_variable() {
    let mut command = Sahasra::new(["up", "--port", "0"]).command();
    let output = command.env("SAHASRA_LOG_LEVEL", "loud").output().expect("sahasra runs");
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("--log-level") && told.contains("SAHASRA_LOG_LEVEL"), "{told}");
    let mut command = Sahasra::new(["kernel", "check", "missing.ptx"]).command();
    let output = command.env("SAHASRA_LOG_LEVEL", "").output().expect("sahasra runs");
    let told = text(&output.stderr);
    assert!(told.starts_with("sahasra: missing.ptx: No such file"), "{told}");
}

#[test]
fn a_program_cache_that_cannot_be_created_is_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut child = Sahasra::new([
        "up",
        "--port",
        "0",
        "--workers",
        "1",
        "--program-cache-dir",
        "/proc/x",
        "--kubeconfig",
    ])
    .arg(folder.path().join("kubeconfig"))
    .command()
    .stdout(Stdio::null())
    .stderr(Stdio::piped())
    .spawn()
    .expect("sahasra runs");
    let _limit = Limit::of(&child);
    wait("a kubeconfig", || folder.path().join("kubeconfig").exists().then_some(()));
    signal(child.id(), "TERM");
    let mut told = String::new();
    child.stderr.take().expect("output").read_to_string(&mut told).expect("output");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    assert!(told.contains("failed to open --program-cache-dir /proc/x: "), "{told}");
}

#[test]
fn a_kubeconfig_in_a_folder_that_does_not_exist_is_rejected() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("missing");
    for option in ["--kubeconfig", "--token-file"] {
        let output = Sahasra::new(["up", "--port", "0", "--workers", "1", option])
            .arg(missing.join("file"))
            .command()
            .env("XDG_STATE_HOME", folder.path())
            .output()
            .expect("sahasra runs");
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains(&format!("{} of {option} not found", missing.display())), "{told}");
        assert!(!missing.exists());
    }
}

#[test]
fn paths_are_printed_for_other_shells() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_sahasra"))
        .args(["up", "--port", "0", "--workers", "1", "--kubeconfig", "kc", "--token-file", "tok"])
        .current_dir(folder.path())
        .stdout(Stdio::piped())
        .spawn()
        .expect("sahasra runs");
    let _limit = Limit::of(&child);
    wait("a token", || folder.path().join("tok").exists().then_some(()));
    signal(child.id(), "TERM");
    let mut told = String::new();
    child.stdout.take().expect("output").read_to_string(&mut told).expect("output");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    let folder = folder.path().display();
    for line in [
        format!("export KUBECONFIG={folder}/kc\n"),
        format!("export SAHASRA_TOKEN_FILE={folder}/tok\n"),
        format!("$(cat {folder}/tok)"),
    ] {
        assert!(told.contains(&line), "{line} is missing in:\n{told}");
    }
}
