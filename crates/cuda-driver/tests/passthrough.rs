//! Programs in C on the built libraries, with a library that stands for the driver of this machine.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// A folder with the drop-in libraries, one with a driver, and programs.
struct Fixture {
    folder: TempDir,
    /// Folder with the drop-in libraries.
    libraries: PathBuf,
    /// Folder with the driver's libraries.
    driver: PathBuf,
}

fn compile(source: &str, options: &[&str], output: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/passthrough").join(source);
    let compiled = Command::new("cc")
        .args(["-O1", "-Wall", "-Werror", "-o"])
        .args([output, &source])
        .args(options)
        .output()
        .expect("a C compiler is installed");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (libraries, driver) = (folder.path().join("sahasra"), folder.path().join("driver"));
        for folder in [&libraries, &driver] {
            std::fs::create_dir(folder).expect("a folder");
        }
        place_libraries(&libraries, |built, name| std::os::unix::fs::symlink(built, name).expect("a link"));
        for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
            compile(
                "driver.c",
                &["-shared", "-fPIC", &format!("-Wl,-soname,{name}")],
                &driver.join(name),
            );
        }
        compile("program.c", &["-ldl"], &folder.path().join("opens"));
        let link = format!("-L{}", libraries.display());
        compile("program.c", &["-DLINKED", &link, "-l:libcuda.so.1"], &folder.path().join("links"));
        Self { folder, libraries, driver }
    }

    /// A call of a program, in an environment that names no device.
    fn program(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.folder.path().join(name));
        command
            .args(arguments)
            .env_clear()
            .env("HOME", self.folder.path())
            .env("SAHASRA_CUDA_MEMORY", "64Mi");
        command
    }

    fn preloading(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = self.program(name, arguments);
        command.env("LD_PRELOAD", self.libraries.join("libsahasra-cuda.so"));
        command
    }
}

/// Places the built libraries into a folder, under the names by which programs open them.
fn place_libraries(folder: &Path, place: impl Fn(&Path, &Path)) {
    let test = std::env::current_exe().expect("the test is a file");
    let built = test.parent().expect("a file is in a folder");
    for (library, name) in [
        ("libsahasra_cuda_driver.so", "libcuda.so.1"),
        ("libsahasra_cuda_driver.so", "libcuda.so"),
        ("libsahasra_nvml.so", "libnvidia-ml.so.1"),
        ("libsahasra_nvml.so", "libnvidia-ml.so"),
        ("libsahasra_cuda_driver.so", "libsahasra-cuda.so"),
    ] {
        place(&built.join(library), &folder.join(name));
    }
}

/// What a program prints. It must succeed.
fn printed(mut command: Command) -> (String, String) {
    let Output { status, stdout, stderr } = command.output().expect("it runs");
    let (printed, told) = (
        String::from_utf8_lossy(&stdout).into_owned(),
        String::from_utf8_lossy(&stderr).into_owned(),
    );
    assert!(status.success(), "{command:?}: {status}\n{printed}{told}");
    (printed, told)
}

const ON_DRIVER: &str = "driver: cuInit 0\ninit 0, count 0 3\n";
const ON_SAHASRA: &str = "init 0, count 0 1\n";

#[test]
fn calls_reach_the_driver_of_this_machine_unchanged() {
    let fixture = Fixture::new();
    let mut command = fixture.preloading("opens", &["libcuda.so.1", "calls"]);
    command.env("SAHASRA_CUDA_DRIVER", &fixture.driver);
    let (output, told) = printed(command);
    let launch = "driver: cuLaunchKernel 0x1 2 3 4 5 6 7 8 0x9 0xa 0xb\n719\n";
    let expected = [
        "driver: cuMemsetD32_v2 1 2 3 4 5 6 7 0.5 1.5 2.5 3.5 4.5 5.5 6.5 7.5 8.5\n-7\n",
        launch,
        launch,
        "driver: cuGetProcAddress_v2 cuFutureThing 13010 2\n0\n",
        "driver: cuFutureThing -1 text\n42\n",
        "driver: cuGetProcAddress_v2 cuNothing 13010 0\n0 1\n",
        "0 1\n",
        // A function that this driver lacks.
        "500\n",
        ON_DRIVER,
    ];
    assert_eq!(output, expected.concat());
    assert_eq!(told, "sahasra: the driver of this machine has no cuMemFree_v2\n");
}

#[test]
fn a_preloaded_library_is_the_one_that_programs_open_or_link() {
    let fixture = Fixture::new();
    for (name, arguments) in [("opens", &["libcuda.so.1"][..]), ("opens", &["libcuda.so"]), ("links", &[])] {
        // The loader must not find the driver by its name, which is here, too.
        let mut command = fixture.preloading(name, arguments);
        command.env("LD_LIBRARY_PATH", &fixture.driver).env("SAHASRA_CUDA", "cpu:");
        assert_eq!(printed(command).0, ON_SAHASRA, "{name} {arguments:?}");
        let mut command = fixture.preloading(name, arguments);
        command.env("SAHASRA_CUDA_DRIVER", fixture.driver.join("libcuda.so.1"));
        assert_eq!(printed(command).0, ON_DRIVER, "{name} {arguments:?}");
    }
}

#[test]
fn nvml_follows_the_same_rule() {
    let fixture = Fixture::new();
    for name in ["libnvidia-ml.so.1", "libnvidia-ml.so"] {
        let arguments = ["libcuda.so.1", "nvml", name];
        let mut command = fixture.preloading("opens", &arguments);
        command.env("SAHASRA_CUDA_DRIVER", fixture.driver.join("libcuda.so.1"));
        assert_eq!(printed(command).0, "driver: nvmlInit_v2\nnvml 0 0 3 driver's text of 9\n");
        let mut command = fixture.preloading("opens", &arguments);
        command.env("LD_LIBRARY_PATH", &fixture.driver).env("SAHASRA_CUDA", "cpu:");
        assert_eq!(printed(command).0, "nvml 0 0 1 there is no device, or its driver is not loaded\n");
    }
}

#[test]
fn a_library_in_the_search_path_passes_calls_to_the_next_one_and_never_to_itself() {
    let fixture = Fixture::new();
    let copies = fixture.folder.path().join("copies");
    std::fs::create_dir(&copies).expect("a folder");
    place_libraries(&copies, |built, name| {
        std::fs::copy(built, name).expect("a copy");
    });
    let search_path = |folders: &[&Path]| std::env::join_paths(folders).expect("paths");
    // A link to the library itself, a copy of it, and a file that is no library come before the driver.
    let broken = fixture.folder.path().join("broken");
    std::fs::create_dir(&broken).expect("a folder");
    std::fs::write(broken.join("libcuda.so.1"), "no library").expect("written");
    let mut command = fixture.program("opens", &["libcuda.so.1"]);
    command.env(
        "LD_LIBRARY_PATH",
        search_path(&[&fixture.libraries, &copies, &broken, &fixture.driver]),
    );
    assert_eq!(printed(command).0, ON_DRIVER);

    let mut command = fixture.program("opens", &["libcuda.so.1"]);
    command
        .env("LD_LIBRARY_PATH", search_path(&[&fixture.libraries, &copies]))
        .env("SAHASRA_CUDA_DRIVER", &copies);
    let (output, told) = printed(command);
    assert_eq!(output, "init 100, count 3 -1\n");
    let searched = format!("looked for libcuda.so.1 in SAHASRA_CUDA_DRIVER={} (", copies.display());
    assert!(told.contains("set SAHASRA_CUDA=cpu:") && told.contains(&searched), "{told}");

    let mut command = fixture.program("opens", &["libcuda.so.1"]);
    command
        .env("LD_LIBRARY_PATH", &fixture.libraries)
        .env("SAHASRA_CUDA_DRIVER", broken.join("libcuda.so.1"));
    let (output, told) = printed(command);
    assert_eq!(output, "init 100, count 3 -1\n");
    assert!(told.contains("failed to load") && told.contains("broken/libcuda.so.1"), "{told}");
}

#[test]
fn a_host_file_takes_the_place_of_the_driver() {
    let fixture = Fixture::new();
    let configuration = fixture.folder.path().join(".config/scuda");
    std::fs::create_dir_all(&configuration).expect("a folder");
    std::fs::write(configuration.join("host"), "cpu:\n").expect("written");
    let mut command = fixture.preloading("opens", &["libcuda.so.1"]);
    command.env("SAHASRA_CUDA_DRIVER", &fixture.driver);
    assert_eq!(printed(command).0, ON_SAHASRA);
}
