//! Tests on a complete node: kubelet, containerd and the scheduler on this machine, in Linux namespaces of their own.
//!
//! `the_whole_node` checks whether this machine supports this, builds the images and runs this same executable inside the cluster, with the
//! tests of `cuda` and `in_cluster` one after the other. On a machine that does not support it the test prints the reason and passes, unless
//! `SAHASRA_E2E_NODE=require`.

#[path = "node/cuda.rs"]
mod cuda;
#[path = "node/in_cluster.rs"]
mod in_cluster;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use sahasra_e2e::tools;

/// Environment variable for the tests on a node. `require`: fail on a machine that cannot run a node. `skip`: do not try.
const NODE_VARIABLE: &str = "SAHASRA_E2E_NODE";

fn skip(reason: &str) {
    // Written past the capture of a passing test's output, so that skipped tests are noticed.
    let _ = writeln!(std::io::stderr(), "\n*** SKIPPED: the whole node tier did not run: {reason} ***\n");
}

fn folder(name: &str) -> std::path::PathBuf {
    tools::workspace_root().join("e2e/node").join(name)
}

fn run(command: &mut Command) -> (bool, String) {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .expect("it can be run");
    (
        output.status.success(),
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned(),
    )
}

#[tokio::test]
async fn the_whole_node() {
    let wish = std::env::var(NODE_VARIABLE).unwrap_or_default();
    if wish == "skip" {
        return skip("SAHASRA_E2E_NODE=skip");
    }
    let (able, reason) = run(&mut Command::new(folder("prerequisites")));
    if !able {
        assert_ne!(wish, "require", "the whole node tier cannot run: {reason}");
        return skip(&reason);
    }

    // Built outside the cluster, which has neither the caches of cargo and Go nor, for the first build, a network.
    tools::helm().await.expect("helm");
    tools::kubectl().await.expect("kubectl");
    let binaries = tools::binaries().await.expect("the operator and the agent");
    let images = binaries.join("e2e-images");
    let libraries = tempfile::tempdir().expect("a folder");
    for (library, name) in [("cuda_driver", "libcuda.so.1"), ("nvml", "libnvidia-ml.so.1")] {
        let library = binaries.join("deps").join(format!("libsahasra_{library}.so"));
        std::os::unix::fs::symlink(library, libraries.path().join(name)).expect("a link");
    }
    let (made, mut paths) = run(Command::new(folder("images")).args([binaries.as_path(), images.as_path(), libraries.path()]));
    assert!(made, "the images could not be made");
    let program = binaries.join("examples/cuda_program");
    assert!(
        program.is_file(),
        "{} is missing: run cargo build --workspace --example cuda_program",
        program.display()
    );
    let archive = images.join("cuda-program.tar");
    let mut image = Command::new(folder("image"));
    image.arg(&archive).args(["localhost/cuda-program:e2e", "--libraries"]);
    let (made, _) = run(image.arg(format!("{}=/usr/local/bin/cuda_program", program.display())));
    assert!(made, "the image of the program could not be made");
    paths.push_str(&format!("\n{}", archive.display()));

    let executable = std::env::current_exe().expect("this executable");
    let status = cluster(&executable, &binaries, &paths.replace('\n', " "))
        .status()
        .expect("the cluster can be started");
    assert!(status.success(), "the tests inside the cluster ended with {status}: see above");
}

fn cluster(executable: &Path, binaries: &Path, images: &str) -> Command {
    let mut command = Command::new(folder("cluster"));
    command
        .arg(executable)
        .args(["--ignored", "--test-threads=1", "--nocapture"])
        .env("IMAGES", images)
        .env("SAHASRA_E2E_BIN_DIR", binaries)
        .stdin(Stdio::null());
    command
}
