//! The CUDA device that the environment of a process names. The drop-in libraries of CUDA (`libcuda.so.1`, `libnvidia-ml.so.1`) show the same one.

use std::num::NonZero;
use std::time::Duration;

use sahasra_client::{Gateway, Target, Token};
use sahasra_cuda_device::{CpuDevice, Device};
use sahasra_cuda_remote::RemoteDevice;
use sahasra_error_chain::causes;

/// Version of CUDA that the libraries offer: 1000 × major + 10 × minor.
pub const CUDA_VERSION: i32 = 12_080;
/// Compute capability of the device, major and minor: its limits are those within which compilers emit what the PTX engine runs.
pub const CAPABILITY: (i32, i32) = (8, 0);
/// Bus of the device's position, in PCI domain 0. It is no device of this machine's bus; programs ask all the same.
pub const PCI_BUS: u8 = 1;

/// Variable that names the device.
const DEVICE: &str = "SAHASRA_CUDA";
/// Value of [`DEVICE`] for the CPU of this process.
const IN_PROCESS: &str = "cpu:";
/// Variable with a file of CA certificates in PEM format, with which the gateway's certificate is verified instead of the system's.
const AUTHORITIES: &str = "SAHASRA_CA_FILE";
/// Variable that is `1` if the session's worker is reached itself, from inside the cluster, instead of through the gateway.
const DIRECT: &str = "SAHASRA_CUDA_DIRECT";
/// Variable with a file of CA certificates in PEM format, with which a worker's certificate is verified if it has one.
const WORKER_AUTHORITIES: &str = "SAHASRA_WORKER_CA_FILE";
/// Variable with the memory of a device in this process.
const MEMORY: &str = "SAHASRA_CUDA_MEMORY";
/// Variable with the number of threads of a device in this process.
const THREADS: &str = "SAHASRA_CUDA_THREADS";
/// Memory of a device in this process where the host's own is unknown, in bytes.
const DEFAULT_MEMORY: u64 = 4 << 30;

/// Time to wait for a gateway's description of a session.
const DESCRIPTION: Duration = Duration::from_secs(10);

/// A device, as far as it is known without using it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Name for people.
    pub name: String,
    /// Identifier that programs see.
    pub uuid: [u8; 16],
    /// Memory in bytes.
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
    if host == IN_PROCESS {
        return Ok(Box::new(cpu()?));
    }
    let connected = session(&host).and_then(|session| RemoteDevice::connect(session.target()?));
    let device = connected.map_err(|reason| format!("{DEVICE}={host:?}: {reason}"))?;
    Ok(Box::new(device))
}

/// Describes the device that the environment names. A session is described by its gateway: only one program at a time can connect to it.
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
            memory_bytes: properties.memory_bytes,
            used_bytes: 0,
        });
    }
    let described = session(&host).and_then(|session| session.describe());
    described.map_err(|reason| format!("{DEVICE}={host:?}: {reason}"))
}

fn read(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn host() -> Result<String, String> {
    read(DEVICE).ok_or_else(|| {
        format!("no CUDA device: set {DEVICE}={IN_PROCESS} to run CUDA programs on the CPU of this process, or run them with sahasra exec")
    })
}

/// The CPU of this process.
fn cpu() -> Result<CpuDevice, String> {
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
    Ok(CpuDevice::new(memory, threads))
}

/// A session that a value of [`DEVICE`] names.
struct Session {
    gateway: Gateway,
    token: Token,
    namespace: String,
    name: String,
}

impl Session {
    fn target(&self) -> Result<Target, String> {
        let text = |error| causes(&error);
        let Some(direct) = read(DIRECT) else {
            return Target::through(&self.gateway, &self.namespace, &self.name).map_err(text);
        };
        if direct != "1" {
            return Err(format!("{DIRECT}={direct:?}: expected 1 or nothing"));
        }
        let object = self.object()?;
        let endpoint = object["status"]["endpoint"].as_str();
        let endpoint = endpoint.ok_or("the session has no endpoint yet: it waits for a device")?;
        let authorities = certificates(WORKER_AUTHORITIES)?;
        let target = Target::direct(endpoint, self.token.clone(), authorities.as_deref(), &self.namespace, &self.name);
        let target = match authorities {
            // The certificate of all workers is for this name.
            Some(_) => target.and_then(|target| target.named("sahasra-worker")),
            None => target,
        };
        Ok(target.map_err(text)?.explained_by(&self.gateway, &self.namespace, &self.name))
    }

    /// The session's object.
    fn object(&self) -> Result<serde_json::Value, String> {
        let (gateway, namespace, name) = (self.gateway.clone(), self.namespace.clone(), self.name.clone());
        let found = sahasra_client::spawn(async move { gateway.session(&namespace, &name).await });
        let found = found.map_err(|error| causes(&error))?.wait_for(DESCRIPTION);
        let object = found.ok_or("the gateway does not answer")?.map_err(|error| causes(&error))?;
        match sahasra_client::session_end(&object) {
            Some(end) => Err(causes(&end)),
            None => Ok(object),
        }
    }

    fn describe(&self) -> Result<Description, String> {
        let object = self.object()?;
        let memory = object["spec"]["vram"].as_str().and_then(bytes);
        Ok(Description {
            name: sahasra_cuda_device::CPU_NAME.to_owned(),
            uuid: sahasra_cuda_device::CPU_UUID,
            memory_bytes: memory.ok_or("the session's vram is no amount of memory")?,
            used_bytes: object["status"]["storedTensorBytes"].as_u64().unwrap_or(0),
        })
    }
}

/// The session that a value of [`DEVICE`] names: the URL of a gateway, followed by the session's namespace and name.
fn session(host: &str) -> Result<Session, String> {
    const FORM: &str =
        "expected cpu: or the URL of a gateway with a session's namespace and name, such as https://gateway.example/default/mine";
    let mut parts = host.rsplitn(3, '/');
    let (Some(name), Some(namespace), Some(url)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(FORM.to_owned());
    };
    if !url.contains("://") || [name, namespace].iter().any(|part| part.is_empty()) || url.ends_with('/') {
        return Err(FORM.to_owned());
    }
    let text = |error: sahasra_client::Error| causes(&error);
    let authorities = certificates(AUTHORITIES)?;
    let token = Token::find(url).map_err(text)?;
    let gateway = Gateway::new(url, token.clone(), authorities.as_deref()).map_err(text)?;
    Ok(Session {
        gateway,
        token,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}

/// Content of the file that a variable names.
fn certificates(variable: &str) -> Result<Option<String>, String> {
    let read = read(variable).map(|path| {
        let text = std::fs::read_to_string(&path);
        text.map_err(|error| format!("failed to read {variable}={path}: {error}"))
    });
    read.transpose()
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
        "Pi" => 50,
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

    #[test]
    fn a_session_is_the_url_of_a_gateway_and_two_names() {
        // A token, so that none is looked for.
        // SAFETY: no other test of this program reads or writes the environment.
        unsafe { std::env::set_var("SAHASRA_TOKEN", "secret") };
        let named = session("https://gateway.example/pool/team/mine").unwrap();
        assert_eq!(named.gateway.url(), "https://gateway.example/pool");
        assert_eq!((named.namespace.as_str(), named.name.as_str()), ("team", "mine"));
        for wrong in [
            "gpu",
            "team/mine",
            "gateway:8000/team/mine",
            "http://gateway",
            "http://gateway/team/",
            "http://gateway//mine",
            "http:///a/b",
        ] {
            assert!(session(wrong).is_err(), "{wrong}");
        }
    }
}
