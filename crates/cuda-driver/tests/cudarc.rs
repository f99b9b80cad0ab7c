//! An unmodified program on cudarc finds the library as it finds a GPU's driver.

use std::process::Command;

#[path = "../examples/saxpy.rs"]
mod saxpy;

#[test]
#[ignore = "run by a_program_on_cudarc_runs, where cudarc finds the library"]
fn program() {
    saxpy::main().unwrap();
}

#[test]
fn a_program_on_cudarc_runs() {
    let folder = tempfile::tempdir().unwrap();
    let test = std::env::current_exe().unwrap();
    let library = test.parent().unwrap().join("libsahasra_cuda_driver.so");
    for name in ["libcuda.so.1", "libcuda.so"] {
        std::os::unix::fs::symlink(&library, folder.path().join(name)).unwrap();
    }
    let output = Command::new(&test)
        .args(["--exact", "program", "--ignored", "--nocapture"])
        .env("LD_LIBRARY_PATH", folder.path())
        .env("SAHASRA_CUDA", "cpu:")
        .output()
        .unwrap();
    let texts = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{texts}");
    assert!(texts.contains("Sahasra CPU: 2 * 999 + 1 = 1999"), "{texts}");
}
