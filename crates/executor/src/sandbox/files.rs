//! Files that an executor may open, and further restrictions that Landlock enforces.
//!
//! An executor may read the files of engines (system libraries, the plugin, and with a GPU the driver's files and devices) and information
//! about the machine and itself, and may write to the folder of its namespace's compiled programs. It may execute nothing, except the
//! vendor's compilers for a GPU's plugin; they are in the sandbox too.
//!
//! A process in a Landlock domain cannot trace a process outside of it. Linux applies the same check to a process's memory, environment,
//! descriptors, root and maps in `/proc`, to `process_vm_readv` and to `pidfd_getfd`, so those are denied too. Every executor is in a
//! domain of its own. (Documentation/userspace-api/landlock.rst, "Ptrace restrictions".)

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::IntoRawFd;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, LandlockStatus, PathBeneath, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr,
    RulesetError, RulesetStatus, Scope, make_bitflags, path_beneath_rules,
};
use rustix::fs::{Mode, OFlags};

use super::reach::Reach;

/// Newest Landlock ABI whose rights were reviewed here. Rights that the kernel does not support yet are not requested.
const NEWEST: ABI = ABI::V9;

/// Libraries and the files that they look for.
const LIBRARIES: &[&str] = &[
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/local/lib64",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/usr/share/zoneinfo",
    // Package stores of distributions without the folders above.
    "/nix/store",
    "/gnu/store",
];
const MACHINE: &[&str] = &[
    "/sys/devices/system/cpu",
    "/sys/devices/system/node",
    "/sys/fs/cgroup",
    "/sys/kernel/mm/transparent_hugepage",
    "/dev/random",
    "/dev/urandom",
];
/// Information about the machine in `/proc`, where a rule applies only while the file is held open.
const MACHINE_IN_PROC: &[&str] = &[
    "/proc/self",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/version",
    "/proc/filesystems",
    "/proc/sys/vm",
];
const NOTHING: &[&str] = &["/dev/null", "/dev/zero"];
/// The driver of GPUs, and the files by which it finds them.
const DRIVER: &[&str] = &[
    "/sys/devices",
    "/sys/bus",
    "/sys/class",
    "/sys/module",
    "/usr/local/cuda",
    "/usr/local/nvidia",
    "/usr/share/nvidia",
    "/opt/cuda",
    "/run/opengl-driver",
];
const DRIVER_IN_PROC: &[&str] = &["/proc/devices", "/proc/modules", "/proc/driver"];
/// Names of the compilers that XLA starts.
const COMPILERS: &[&str] = &["ptxas", "nvlink", "fatbinary"];
/// Folders of the compilers unless they were installed with the plugin.
const TOOLKITS: &[&str] = &["/usr/local/cuda/bin", "/opt/cuda/bin", "/usr/bin"];
/// Dynamic loaders, by the ABIs of x86-64 and AArch64.
const LOADERS: &[&str] = &["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
/// Folder of the pipes of MPS unless CUDA_MPS_PIPE_DIRECTORY names another.
const MPS: &str = "/tmp/nvidia-mps";

const READ: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | ReadDir});
const RUN: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | Execute});
const DEVICE: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | ReadDir | WriteFile | IoctlDev});
const READ_WRITE: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | ReadDir | WriteFile | Truncate | MakeReg | RemoveFile});

/// Reason why files are not restricted.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// The kernel has Landlock but rejects the rules.
    #[error("Landlock: {0}")]
    Ruleset(#[from] RulesetError),
    #[error("failed to open {path}")]
    Missing { path: PathBuf, source: io::Error },
}

/// Restricts this thread and all threads and processes that it starts. Returns the Landlock ABI version in force, 0 without Landlock.
///
/// # Errors
/// [`FilesError`]. A kernel without Landlock is no error.
pub fn restrict(reach: &Reach) -> Result<u32, FilesError> {
    let ruleset = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?;
    let mut ruleset = ruleset
        .add_rules(path_beneath_rules(LIBRARIES, READ))?
        .add_rules(path_beneath_rules(MACHINE, READ))?
        .add_rules(path_beneath_rules(std::env::current_exe(), READ))?
        .add_rules(path_beneath_rules(library_path(), READ))?
        .add_rules(path_beneath_rules(NOTHING, DEVICE))?;
    ruleset = hold_open(ruleset, MACHINE_IN_PROC, READ)?;
    if reach.gpu {
        ruleset = driver(ruleset)?;
    }
    if let Some(plugin) = &reach.plugin {
        ruleset = ruleset.add_rules(path_beneath_rules(of_plugin(plugin), READ))?;
        if reach.has_compilers() {
            ruleset = ruleset.add_rules(path_beneath_rules(compilers(plugin), RUN))?;
            ruleset = ruleset.add_rules(path_beneath_rules(LOADERS, RUN))?;
        }
    }
    for path in reach.program_cache.iter().chain(&reach.scratch) {
        let folder = rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let folder = folder.map_err(|error| FilesError::Missing {
            path: path.clone(),
            source: error.into(),
        })?;
        ruleset = ruleset.add_rule(PathBeneath::new(folder, READ_WRITE))?;
    }
    let status = ruleset.restrict_self()?;
    Ok(match (status.ruleset, status.landlock) {
        (RulesetStatus::NotEnforced, _) => 0,
        (_, LandlockStatus::Available { effective_abi, .. }) => effective_abi as u32,
        (_, _) => 0,
    })
}

/// Adds rules for files in `/proc`. The kernel may drop their inodes when memory is short, and no rule covers a newly created one.
/// Therefore the files stay open, as `O_PATH` descriptors, for the life of the process.
fn hold_open(mut ruleset: RulesetCreated, paths: &[&str], access: BitFlags<AccessFs>) -> Result<RulesetCreated, FilesError> {
    for path in paths {
        let Ok(place) = rustix::fs::open(*path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) else {
            continue;
        };
        let is_folder = fs::metadata(path).is_ok_and(|about| about.is_dir());
        let access = if is_folder { access } else { access & AccessFs::from_file(NEWEST) };
        ruleset = ruleset.add_rule(PathBeneath::new(&place, access))?;
        let _ = place.into_raw_fd();
    }
    Ok(ruleset)
}

/// Rules for the files that NVIDIA's driver needs, according to its documentation or to other projects' rules for it.
fn driver(ruleset: RulesetCreated) -> Result<RulesetCreated, FilesError> {
    let devices = entries(Path::new("/dev"), |name| name.starts_with("nvidia") || name == "dxg");
    let pipes = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY").map_or_else(|| PathBuf::from(MPS), PathBuf::from);
    let pipe_access = READ_WRITE | make_bitflags!(AccessFs::{MakeSock | MakeFifo | ResolveUnix});
    let ruleset = ruleset
        .add_rules(path_beneath_rules(DRIVER, READ))?
        .add_rules(path_beneath_rules(devices, DEVICE))?
        .add_rules(path_beneath_rules(["/dev/shm"], READ_WRITE))?
        .add_rules(path_beneath_rules([pipes], pipe_access))?
        .add_rules(path_beneath_rules(["/run/nvidia-persistenced"], READ | AccessFs::ResolveUnix))?;
    let ruleset = hold_open(ruleset, DRIVER_IN_PROC, READ)?;
    // The driver sets the names of its threads by writing to their files.
    hold_open(ruleset, &["/proc/self/task"], READ | AccessFs::WriteFile)
}

/// Libraries in the folders of LD_LIBRARY_PATH. Other files in those folders stay inaccessible, because naming a folder there need not
/// grant access to all of it.
fn library_path() -> Vec<PathBuf> {
    let folders = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    std::env::split_paths(&folders)
        .filter(|folder| folder.is_absolute())
        .flat_map(|folder| libraries(&folder))
        .collect()
}

fn libraries(folder: &Path) -> Vec<PathBuf> {
    entries(folder, |name| name.ends_with(".so") || name.contains(".so."))
}

fn entries(folder: &Path, which: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().and_then(OsStr::to_str).is_some_and(&which))
        .collect()
}

/// A plugin and the libraries that it may load: those beside it and, if it was installed as a Python package, its own package, the vendor's
/// packages, and library folders that packaging tools put beside packages. Other folders are not included as a whole: a plugin may lie in a
/// user's home.
fn of_plugin(plugin: &Path) -> Vec<PathBuf> {
    let mut found = vec![plugin.to_owned()];
    for plugin in [plugin, &real(plugin)] {
        found.extend(plugin.parent().map(libraries).unwrap_or_default());
        let Some(packages) = packages(plugin) else { continue };
        let own = plugin.strip_prefix(packages).ok().and_then(|inside| inside.iter().next());
        found.extend(own.map(|own| packages.join(own)));
        found.push(packages.join("nvidia"));
        found.extend(entries(packages, |name| name.ends_with(".libs")));
    }
    found
}

/// Path of the plugin with symbolic links resolved: files beside a plugin are looked up beside both paths.
fn real(plugin: &Path) -> PathBuf {
    plugin.canonicalize().unwrap_or_else(|_| plugin.to_owned())
}

/// Folder of Python packages that contains the plugin.
fn packages(plugin: &Path) -> Option<&Path> {
    let mut folders = plugin.ancestors();
    folders.find(|folder| {
        folder
            .file_name()
            .is_some_and(|name| name == "site-packages" || name == "dist-packages")
    })
}

/// Compilers that a GPU's plugin may start: those of the vendor's packages beside the plugin, and those installed on the machine.
fn compilers(plugin: &Path) -> Vec<PathBuf> {
    let real = real(plugin);
    let vendors = [plugin, &real]
        .into_iter()
        .filter_map(packages)
        .map(|packages| packages.join("nvidia"));
    let bundled = vendors.flat_map(|vendor| entries(&vendor, |_| true)).map(|part| part.join("bin"));
    let folders = bundled.chain(TOOLKITS.iter().map(PathBuf::from));
    folders
        .flat_map(|folder| COMPILERS.iter().map(move |name| folder.join(name)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    #[test]
    fn of_a_plugin_in_somebodys_home_no_more_than_libraries_is_reached() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        for name in ["plugin.so", "libother.so.1", ".ssh/id_ed25519", "letter.txt"] {
            touch(&at(name));
        }
        let mut found = of_plugin(&at("plugin.so"));
        found.sort();
        found.dedup();
        assert_eq!(found, [at("libother.so.1"), at("plugin.so")]);
    }

    #[test]
    fn of_a_plugin_in_a_python_package_the_vendors_libraries_are_reached() {
        let root = tempfile::tempdir().unwrap();
        let packages = root.path().join("lib/python3.13/site-packages");
        let plugin = packages.join("jax_plugins/xla_cuda13/xla_cuda_plugin.so");
        for path in [&plugin, &packages.join("numpy.libs/libblas.so"), &packages.join("secrets/key.pem")] {
            touch(path);
        }
        let found = of_plugin(&plugin);
        for reached in [
            &plugin,
            &packages.join("jax_plugins"),
            &packages.join("nvidia"),
            &packages.join("numpy.libs"),
        ] {
            assert!(found.contains(reached), "{reached:?}: {found:?}");
        }
        assert!(!found.iter().any(|path| path.ends_with("secrets") || *path == packages));
    }

    #[test]
    fn of_the_vendors_programs_compilers_alone_are_started() {
        let root = tempfile::tempdir().unwrap();
        let packages = root.path().join("lib/python3.13/site-packages");
        let tools = packages.join("nvidia/cuda_nvcc/bin");
        for name in ["ptxas", "cuobjdump"] {
            touch(&tools.join(name));
        }
        let found = compilers(&packages.join("jax_plugins/xla_cuda13/xla_cuda_plugin.so"));
        assert!(found.contains(&tools.join("ptxas")) && found.contains(&PathBuf::from("/usr/local/cuda/bin/ptxas")));
        assert!(!found.contains(&tools.join("cuobjdump")));
        assert!(
            !compilers(Path::new("/home/me/plugin.so"))
                .iter()
                .any(|path| path.starts_with("/home"))
        );
    }
}
