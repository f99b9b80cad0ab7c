//! The CUDA device that the environment of a process names. The drop-in libraries of CUDA (`libcuda.so.1`, `libnvidia-ml.so.1`) show the same one.

mod pool;
mod variables;

use std::num::NonZero;
use std::path::{Path, PathBuf};

use sahasra_cuda_device::{CpuDevice, Device};

use pool::Pool;
use variables::{bytes, is_on, read};

/// Version of CUDA that the libraries offer: 1000 × major + 10 × minor.
pub const CUDA_VERSION: i32 = 12_080;
/// Compute capability of the PTX engine, major and minor: its limits are those within which compilers emit what the PTX engine runs.
pub const CAPABILITY: (i32, i32) = (8, 0);
/// Bus of the device's position, in PCI domain 0. It is no device of this machine's bus; programs ask all the same.
pub const PCI_BUS: u8 = 1;

/// Variable that names the device.
const DEVICE: &str = "SAHASRA_CUDA";
/// Files with a value for [`DEVICE`], in the user's folder of configurations. The second is that of SCUDA.
const HOST_FILES: [&str; 2] = ["sahasra/host", "scuda/host"];
/// Value of [`DEVICE`] for the CPU of this process.
const IN_PROCESS: &str = "cpu:";
/// Variable with the memory of a device in this process, or of a session that the library creates.
const MEMORY: &str = "SAHASRA_CUDA_MEMORY";
/// Variable with the number of threads of a device in this process.
const THREADS: &str = "SAHASRA_CUDA_THREADS";
/// Variable that is `1` if the library writes a summary of the device's use to stderr when the process exits.
const SUMMARY: &str = "SAHASRA_CUDA_SUMMARY";
/// Memory of a device in this process where the host's own is unknown, in bytes.
const DEFAULT_MEMORY: u64 = 4 << 30;

/// A device, as far as it is known without using it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Display name.
    pub name: String,
    /// Identifier that programs see.
    pub uuid: [u8; 16],
    /// Compute capability, major and minor.
    pub capability: (i32, i32),
    pub memory_bytes: u64,
    /// Memory that is in use by all processes, in bytes, as far as it is known.
    pub used_bytes: u64,
}

/// Returns the device that the environment names.
///
/// # Errors
/// The reason why there is none, with the variable to set.
pub fn device() -> Result<Box<dyn Device>, String> {
    let host = host()?;
    is_on(SUMMARY, false)?;
    if host == IN_PROCESS {
        return Ok(Box::new(cpu()?));
    }
    let connected = Pool::find(&host).and_then(Pool::device);
    connected.map_err(|reason| format!("{DEVICE}={host:?}: {reason}"))
}

/// Describes the device that the environment names. A session is described by its gateway: only one program at a time can connect to it. The
/// gateway does not know what device it has; name, identifier and capability are those of the CPU engine until a program has connected.
///
/// # Errors
/// The reason why there is none, with the variable to set.
pub fn describe() -> Result<Description, String> {
    let host = host()?;
    if host == IN_PROCESS {
        let device = cpu()?;
        let properties = device.properties();
        return Ok(Description {
            name: properties.name.clone(),
            uuid: properties.uuid,
            capability: CAPABILITY,
            memory_bytes: properties.memory_bytes,
            used_bytes: 0,
        });
    }
    let described = Pool::find(&host).and_then(|pool| pool.describe());
    described.map_err(|reason| format!("{DEVICE}={host:?}: {reason}"))
}

/// Whether the environment asks for a summary of the device's use. [`device`] fails if the variable has another value.
pub fn wants_summary() -> bool {
    is_on(SUMMARY, false).unwrap_or(false)
}

/// Whether the environment names a device, be it a valid name or not. Otherwise the drivers of this machine have a say.
pub fn names_a_device() -> bool {
    host().is_ok()
}

/// Value of [`DEVICE`], or the first line of a host file.
fn host() -> Result<String, String> {
    if let Some(host) = read(DEVICE) {
        return Ok(host);
    }
    let home = read("HOME").map(PathBuf::from);
    let configuration = read("XDG_CONFIG_HOME").map(PathBuf::from).or_else(|| Some(home?.join(".config")));
    let found = configuration.and_then(|folder| host_in(&folder));
    found.ok_or_else(|| {
        format!(
            "no CUDA device: set {DEVICE}={IN_PROCESS} to run CUDA programs on the CPU of this process, run them with sahasra exec, or connect \
             to a server with sahasra connect"
        )
    })
}

/// First line of the first host file in a folder of configurations.
fn host_in(folder: &Path) -> Option<String> {
    HOST_FILES.iter().find_map(|file| {
        let text = std::fs::read_to_string(folder.join(file)).ok()?;
        let line = text.lines().next()?.trim();
        (!line.is_empty()).then(|| line.to_owned())
    })
}

/// The CPU of this process.
fn cpu() -> Result<CpuDevice, String> {
    let memory = match read(MEMORY) {
        None => host_memory().map_or(DEFAULT_MEMORY, |bytes| bytes / 2),
        Some(text) => bytes(MEMORY, &text)?,
    };
    let threads = match read(THREADS) {
        None => std::thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN),
        Some(text) => text
            .parse()
            .map_err(|_| format!("{THREADS}={text:?} is not a number of threads, at least 1"))?,
    };
    Ok(CpuDevice::new(memory, threads))
}

/// Memory of the host in bytes.
fn host_memory() -> Option<u64> {
    // SAFETY: reads two constants of the system.
    let (pages, page) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    u64::try_from(pages).ok()?.checked_mul(u64::try_from(page).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_host_file_with_a_line_counts() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(host_in(folder.path()), None);
        for (name, text, expected) in [
            ("scuda", "gpu.example:14833\n", "gpu.example:14833"),
            ("sahasra", "", "gpu.example:14833"),
            (
                "sahasra",
                " https://gateway.example/team/mine \nmore\n",
                "https://gateway.example/team/mine",
            ),
        ] {
            std::fs::create_dir_all(folder.path().join(name)).unwrap();
            std::fs::write(folder.path().join(name).join("host"), text).unwrap();
            assert_eq!(host_in(folder.path()).as_deref(), Some(expected));
        }
    }
}
