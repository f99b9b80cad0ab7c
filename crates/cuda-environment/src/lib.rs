//! The CUDA device that the environment of a process names. The drop-in libraries of CUDA (`libcuda.so.1`, `libnvidia-ml.so.1`) show the same one.

use std::num::NonZero;

use sahasra_client::{Gateway, Target, Token};
use sahasra_cuda_device::{CpuDevice, Device};
use sahasra_cuda_remote::RemoteDevice;

/// Version of CUDA that the libraries offer: 1000 × major + 10 × minor.
pub const CUDA_VERSION: i32 = 12_080;
/// Compute capability of the device, major and minor: its limits are those within which compilers emit what the PTX engine runs.
pub const CAPABILITY: (i32, i32) = (8, 0);
/// Bus of the device's position, in PCI domain 0. It is no device of this machine's bus; programs ask all the same.
pub const PCI_BUS: u8 = 1;

/// Variable that names the device.
const DEVICE: &str = "SAHASRA_CUDA";
/// Variable with a file of CA certificates in PEM format, with which the gateway's certificate is verified instead of the system's.
const AUTHORITIES: &str = "SAHASRA_CA_FILE";
/// Variable with the memory of a device in this process.
const MEMORY: &str = "SAHASRA_CUDA_MEMORY";
/// Variable with the number of threads of a device in this process.
const THREADS: &str = "SAHASRA_CUDA_THREADS";
/// Memory of a device in this process where the host's own is unknown, in bytes.
const DEFAULT_MEMORY: u64 = 4 << 30;

/// Returns the device that the environment names.
///
/// # Errors
/// The reason why there is none, with the variable to set.
pub fn device() -> Result<Box<dyn Device>, String> {
    let read = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let host = match read(DEVICE) {
        None => {
            return Err(format!(
                "no CUDA device: set {DEVICE}=cpu: to run CUDA programs on the CPU of this process"
            ));
        }
        Some(host) => host,
    };
    if host != "cpu:" {
        let target = session(&host).map_err(|reason| format!("{DEVICE}={host:?}: {reason}"))?;
        let device = RemoteDevice::connect(target).map_err(|reason| format!("{DEVICE}={host:?}: {reason}"))?;
        return Ok(Box::new(device));
    }
    let memory = match read(MEMORY) {
        None => host_memory().map_or(DEFAULT_MEMORY, |bytes| bytes / 2),
        Some(text) => bytes(&text).ok_or_else(|| format!("{MEMORY}={text:?} is not an amount of memory such as 8Gi"))?,
    };
    let threads = match read(THREADS) {
        None => std::thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN),
        Some(text) => text
            .parse()
            .map_err(|_| format!("{THREADS}={text:?} is not a number of threads, at least 1"))?,
    };
    Ok(Box::new(CpuDevice::new(memory, threads)))
}

/// The session that a value of [`DEVICE`] names: the URL of a gateway, followed by the session's namespace and name.
fn session(host: &str) -> Result<Target, String> {
    const FORM: &str =
        "expected cpu: or the URL of a gateway with a session's namespace and name, such as https://gateway.example/default/mine";
    let mut parts = host.rsplitn(3, '/');
    let (Some(name), Some(namespace), Some(url)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(FORM.to_owned());
    };
    if !url.contains("://") || [name, namespace].iter().any(|part| part.is_empty()) || url.ends_with('/') {
        return Err(FORM.to_owned());
    }
    let text = |error: sahasra_client::Error| error.to_string();
    let authorities = match std::env::var(AUTHORITIES) {
        Ok(path) if !path.is_empty() => {
            Some(std::fs::read_to_string(&path).map_err(|error| format!("failed to read {AUTHORITIES}={path}: {error}"))?)
        }
        _ => None,
    };
    let token = Token::find(url).map_err(text)?;
    let gateway = Gateway::new(url, token, authorities.as_deref()).map_err(text)?;
    Target::through(&gateway, namespace, name).map_err(text)
}

/// Bytes of an amount as Kubernetes writes it, with a binary suffix or none.
fn bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|character: char| !character.is_ascii_digit());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "Ki" => 10,
        "Mi" => 20,
        "Gi" => 30,
        "Ti" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift).filter(|bytes| *bytes > 0)
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
    fn amounts_of_memory_are_read() {
        assert_eq!(bytes("8Gi"), Some(8 << 30));
        assert_eq!(bytes("1024"), Some(1024));
        for wrong in ["", "Gi", "8G", "0", "-1", "99999999999Ti", "8Gi "] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }
}
