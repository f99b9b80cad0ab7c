//! The libraries that Cargo built with this test, under the names by which programs find them.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Versions of the runtime.
pub(crate) const VERSIONS: [u32; 2] = [12, 13];
/// Variables of the CPU device.
pub(crate) const CPU: &[(&str, &str)] = &[
    ("SAHASRA_CUDA", "cpu:"),
    ("SAHASRA_CUDA_MEMORY", "64Mi"),
    ("SAHASRA_CUDA_THREADS", "2"),
];

/// A folder with the libraries.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    /// Folder with both versions of the runtime, and the driver.
    pub(crate) fn new() -> Self {
        let folder = Self::without_driver();
        symlink(built("cuda_driver"), folder.path().join("libcuda.so.1")).expect("the folder is empty");
        folder
    }

    /// Folder with both versions of the runtime.
    pub(crate) fn without_driver() -> Self {
        let folder = Self(tempfile::tempdir().expect("a temporary folder can be made"));
        for version in VERSIONS {
            let name = format!("libcudart.so.{version}");
            symlink(built(&format!("cuda_runtime_{version}")), folder.path().join(name)).expect("the folder is empty");
        }
        folder
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Compiles the program in C for a version. Returns its path.
    pub(crate) fn program(&self, version: u32) -> PathBuf {
        self.compile("program", version)
    }

    /// Compiles a program in C by its name. Returns its path.
    pub(crate) fn compile(&self, name: &str, version: u32) -> PathBuf {
        let program = self.path().join(format!("{name}-{version}"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/library/{name}.c"));
        let output = Command::new("cc")
            .args(["-Wall", "-Werror", "-O1", "-pthread", &format!("-DVERSION={version}"), "-o"])
            .args([&program, &source])
            .arg("-L")
            .arg(self.path())
            .arg(format!("-l:libcudart.so.{version}"))
            .output()
            .expect("cc links Rust programs, so it is there");
        assert!(output.status.success(), "{}", text(&output.stderr));
        program
    }

    /// Runs a program with these libraries.
    pub(crate) fn run(&self, program: &Path, argument: &str, variables: &[(&str, &str)]) -> Output {
        let mut command = Command::new(program);
        for name in ["SAHASRA_CUDA", "SAHASRA_CUDA_MEMORY", "SAHASRA_CUDA_THREADS"] {
            command.env_remove(name);
        }
        command
            .arg(argument)
            .env("LD_LIBRARY_PATH", self.path())
            .envs(variables.iter().copied());
        command.output().expect("the program was compiled")
    }
}

/// A library that Cargo built with this test.
pub(crate) fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test is a file");
    let path = test.parent().expect("a file is in a folder").join(format!("libsahasra_{name}.so"));
    assert!(path.exists(), "{}", path.display());
    path
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
