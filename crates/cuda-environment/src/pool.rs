//! A pool as the environment names it, and the session on it.

use std::sync::Arc;
use std::time::Duration;

use sahasra_client::{CudaSession, Error, Gateway, Pending, Target, Token};
use sahasra_cuda_device::{CPU_NAME, CPU_UUID, Device, Failure, HostBlock, Properties, Queue, with_signals_blocked};
use sahasra_cuda_remote::RemoteDevice;
use sahasra_error_chain::causes;
use serde_json::Value;

use crate::variables::{certificates, duration, is_on, read, session_bytes};
use crate::{CAPABILITY, Description, IN_PROCESS, MEMORY};

/// Variable with a file of CA certificates in PEM format, with which the gateway's certificate is verified instead of the system's.
const AUTHORITIES: &str = "SAHASRA_CA_FILE";
/// Variable that is `1` if the session's worker is reached itself, from inside the cluster, instead of through the gateway.
const DIRECT: &str = "SAHASRA_CUDA_DIRECT";
/// Variable that is `0` if copies go over the connection even if the session is on this machine.
const SHARED_MEMORY: &str = "SAHASRA_CUDA_SHARED_MEMORY";
/// Variable with a file of CA certificates in PEM format, with which a worker's certificate is verified if it has one.
const WORKER_AUTHORITIES: &str = "SAHASRA_WORKER_CA_FILE";
/// Name for which the certificate of all workers is valid, unless [`WORKER_NAME`] has another.
const DEFAULT_WORKER_NAME: &str = "sahasra-worker";
const WORKER_NAME: &str = "SAHASRA_WORKER_SERVER_NAME";
/// Variables of a session that the library creates: its namespace, the class of its device, and the time to wait for one.
const NAMESPACE: &str = "SAHASRA_NAMESPACE";
const CLASS: &str = "SAHASRA_CUDA_CLASS";
const WAIT: &str = "SAHASRA_CUDA_WAIT";
/// Memory of a session that the library creates.
const SESSION_MEMORY: &str = "1Gi";
/// Time to wait for a device.
const SESSION_WAIT: Duration = Duration::from_secs(300);
/// Time to wait for a device without a message.
const SILENT_WAIT: Duration = Duration::from_secs(3);
/// Time without a client and without work after which a session that the library created ends: longer than the time for which it waits for its
/// client.
const DISCONNECTED: Duration = Duration::from_secs(2 * sahasra_cuda_remote::GRACE.as_secs());
/// Time to wait for an answer of the gateway.
const ANSWER: Duration = Duration::from_secs(10);

/// A gateway, and the session on it that the library uses.
pub(crate) struct Pool {
    gateway: Gateway,
    token: Token,
    /// Namespace and name of the session; `None` if the library creates one.
    session: Option<(String, String)>,
    /// Whether copies may go through memory that is shared with the session.
    shares_memory: bool,
}

impl Pool {
    /// The pool that a value of `SAHASRA_CUDA` names: a gateway's URL, which a session's namespace and name may follow, or its host and port.
    pub(crate) fn find(host: &str) -> Result<Self, String> {
        let (url, session) = parse(host)?;
        let shares_memory = is_on(SHARED_MEMORY, true)?;
        let authorities = certificates(AUTHORITIES)?;
        let token = Token::find(&url).map_err(|error| causes(&error))?;
        let gateway = Gateway::find(&url, authorities.as_deref()).map_err(|error| causes(&error))?;
        Ok(Self {
            gateway,
            token,
            session,
            shares_memory,
        })
    }

    /// Connects to the session, which is created first if there is none.
    pub(crate) fn device(self) -> Result<Box<dyn Device>, String> {
        if let Some(exposure) = self.gateway.exposure() {
            eprintln!("sahasra: {exposure}");
        }
        match self.session.clone() {
            Some((namespace, name)) => Ok(Box::new(self.connect(&namespace, &name)?)),
            None => Ok(Box::new(OwnSession::create(self)?)),
        }
    }

    /// Describes the session, or the one that would be created.
    pub(crate) fn describe(&self) -> Result<Description, String> {
        let (memory_bytes, used_bytes) = match &self.session {
            Some((namespace, name)) => {
                let object = self.object(namespace, name)?;
                let vram = object["spec"]["vram"].as_str().unwrap_or_default();
                let used_bytes = object["status"]["storedTensorBytes"].as_u64().unwrap_or(0);
                (session_bytes("spec.vram", vram)?, used_bytes)
            }
            None => (session_bytes(MEMORY, &session_memory()?)?, 0),
        };
        Ok(Description {
            name: CPU_NAME.to_owned(),
            uuid: CPU_UUID,
            capability: CAPABILITY,
            memory_bytes,
            used_bytes,
        })
    }

    fn connect(&self, namespace: &str, name: &str) -> Result<RemoteDevice, String> {
        let target = self.target(namespace, name)?;
        // Threads that it starts leave signals to those of the program.
        with_signals_blocked(|| RemoteDevice::connect(target, self.shares_memory))
    }

    fn target(&self, namespace: &str, name: &str) -> Result<Target, String> {
        let text = |error| causes(&error);
        if !is_on(DIRECT, false)? {
            return Target::through(&self.gateway, namespace, name).map_err(text);
        }
        let object = self.object(namespace, name)?;
        let endpoint = object["status"]["endpoint"].as_str();
        let endpoint = endpoint.ok_or("the session has no endpoint yet: it waits for a device")?;
        let authorities = certificates(WORKER_AUTHORITIES)?;
        let target = Target::direct(endpoint, self.token.clone(), authorities.as_deref(), namespace, name);
        let target = target.and_then(|target| match authorities {
            Some(_) => target.named(read(WORKER_NAME).as_deref().unwrap_or(DEFAULT_WORKER_NAME)),
            None => Ok(target),
        });
        Ok(target.map_err(text)?.explained_by(&self.gateway, namespace, name))
    }

    /// A session's object.
    fn object(&self, namespace: &str, name: &str) -> Result<Value, String> {
        let (gateway, namespace, name) = (self.gateway.clone(), namespace.to_owned(), name.to_owned());
        let object = answer(ANSWER, async move { gateway.session(&namespace, &name).await })?;
        match sahasra_client::session_end(&object) {
            Some(end) => Err(causes(&end)),
            None => Ok(object),
        }
    }
}

/// The device of a session that the library has created, and deletes when the process exits.
struct OwnSession {
    device: RemoteDevice,
    pool: Pool,
    namespace: String,
    name: String,
}

impl OwnSession {
    fn create(pool: Pool) -> Result<Self, String> {
        let namespace = read(NAMESPACE).unwrap_or_else(|| "default".to_owned());
        let wait = match read(WAIT) {
            None => SESSION_WAIT,
            Some(text) => duration(WAIT, &text)?,
        };
        let memory = session_memory()?;
        let session = CudaSession {
            prefix: "cuda",
            program: program(),
            vram: memory.clone(),
            class: read(CLASS),
            disconnect_timeout: Some(DISCONNECTED),
            ..CudaSession::default()
        };
        let (gateway, place) = (pool.gateway.clone(), namespace.clone());
        let name = answer(ANSWER, async move { gateway.create_cuda_session(&place, &session).await })?;
        let (gateway, place, placed) = (pool.gateway.clone(), namespace.clone(), name.clone());
        let placed = spawn(async move { gateway.session_placed(&place, &placed, wait).await });
        let connected = placed
            .and_then(|placed| placement(&placed, wait, &memory))
            .and_then(|()| pool.connect(&namespace, &name));
        match connected {
            Ok(device) => Ok(Self {
                device,
                pool,
                namespace,
                name,
            }),
            Err(reason) => {
                delete(&pool.gateway, &namespace, &name);
                Err(reason)
            }
        }
    }
}

impl Device for OwnSession {
    fn properties(&self) -> &Properties {
        self.device.properties()
    }

    fn open(&self) -> Result<Arc<dyn Queue>, Failure> {
        self.device.open()
    }

    fn allocate_host(&self, bytes: usize, alignment: usize) -> Option<HostBlock> {
        self.device.allocate_host(bytes, alignment)
    }

    fn summary(&self) -> Option<String> {
        self.device.summary()
    }

    fn close(&self) {
        self.device.close();
        delete(&self.pool.gateway, &self.namespace, &self.name);
    }
}

/// Memory of a session that the library creates.
fn session_memory() -> Result<String, String> {
    let Some(text) = read(MEMORY) else {
        return Ok(SESSION_MEMORY.to_owned());
    };
    session_bytes(MEMORY, &text).map(|_| text)
}

/// Name of the file of this process's program.
fn program() -> String {
    let path = std::env::current_exe().ok();
    let name = path.as_deref().and_then(|path| path.file_name());
    name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Starts a request to the gateway. Threads that it starts leave signals to those of the program.
fn spawn<T: Send + 'static>(request: impl Future<Output = Result<T, Error>> + Send + 'static) -> Result<Pending<T>, String> {
    with_signals_blocked(|| sahasra_client::spawn(request)).map_err(|error| causes(&error))
}

/// Waits for the answer of a request to the gateway. Signals reach the program meanwhile.
fn answer<T: Send + 'static>(time: Duration, request: impl Future<Output = Result<T, Error>> + Send + 'static) -> Result<T, String> {
    answered(spawn(request)?.wait_for(time))
}

fn answered<T>(answer: Option<Result<T, Error>>) -> Result<T, String> {
    answer.ok_or("the gateway did not answer in time")?.map_err(|error| causes(&error))
}

/// Waits until a session is placed, and says so on stderr if that takes long.
fn placement(placed: &Pending<Value>, wait: Duration, memory: &str) -> Result<(), String> {
    let placement = placed.wait_for(SILENT_WAIT).or_else(|| {
        if wait > SILENT_WAIT {
            let time = humantime::format_duration(wait);
            eprintln!("sahasra: waiting up to {time} for a device with {memory} of memory ({WAIT} sets the time, {MEMORY} the memory)");
        }
        placed.wait_for(wait + ANSWER)
    });
    answered(placement).map(drop)
}

fn delete(gateway: &Gateway, namespace: &str, name: &str) {
    let (gateway, namespace, name) = (gateway.clone(), namespace.to_owned(), name.to_owned());
    // A session that could not be deleted ends when it has been idle for too long.
    let _: Result<(), String> = answer(ANSWER, async move { gateway.delete_session(&namespace, &name).await });
}

/// URL of the gateway, and namespace and name of the session, of a value of `SAHASRA_CUDA`.
fn parse(host: &str) -> Result<(String, Option<(String, String)>), String> {
    const FORM: &str = "expected cpu:, the host and port or the URL of a gateway, or such a URL with a session's namespace and name, as in \
                        https://gateway.example/default/mine";
    if let Some(more) = host.strip_prefix(IN_PROCESS) {
        return Err(format!(
            "{IN_PROCESS} is the CPU of this process and takes nothing after it: set {IN_PROCESS}, or https://cpu:{more} for a gateway on a host \
             named cpu"
        ));
    }
    let with_scheme = if host.contains("://") {
        host.to_owned()
    } else {
        let scheme = if is_this_machine(host) { "http" } else { "https" };
        format!("{scheme}://{host}")
    };
    let (scheme, rest) = with_scheme.split_once("://").ok_or(FORM)?;
    let rest = rest.trim_end_matches('/');
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    if authority.is_empty() || (authority == host && !authority.contains(':')) {
        return Err(FORM.to_owned());
    }
    if path.is_empty() {
        return Ok((format!("{scheme}://{authority}"), None));
    }
    let mut parts = path.rsplitn(3, '/');
    let (Some(name), Some(namespace)) = (parts.next(), parts.next()) else {
        return Err(FORM.to_owned());
    };
    let prefix = parts.next().map(|prefix| format!("/{prefix}")).unwrap_or_default();
    if name.is_empty() || namespace.is_empty() {
        return Err(FORM.to_owned());
    }
    Ok((
        format!("{scheme}://{authority}{prefix}"),
        Some((namespace.to_owned(), name.to_owned())),
    ))
}

/// Whether a host with a port is this machine, to which a token may go without TLS.
fn is_this_machine(host: &str) -> bool {
    let authority = host.split('/').next().unwrap_or_default();
    let name = authority.rsplit_once(':').map_or(authority, |(name, _)| name);
    let address = name.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    name == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_a_gateway_and_perhaps_a_session() {
        let session = |namespace: &str, name: &str| Some((namespace.to_owned(), name.to_owned()));
        for (host, url, named) in [
            ("gpu.example:14833", "https://gpu.example:14833", None),
            ("127.0.0.1:8000", "http://127.0.0.1:8000", None),
            ("[::1]:8000", "http://[::1]:8000", None),
            ("localhost:8000/team/mine", "http://localhost:8000", session("team", "mine")),
            ("https://gateway.example/", "https://gateway.example", None),
            ("http://[::1]:8000/team/mine", "http://[::1]:8000", session("team", "mine")),
            (
                "https://gateway.example/pool/team/mine",
                "https://gateway.example/pool",
                session("team", "mine"),
            ),
            ("gpu.example:14833/team/mine", "https://gpu.example:14833", session("team", "mine")),
        ] {
            assert_eq!(parse(host), Ok((url.to_owned(), named)), "{host}");
        }
        for wrong in [
            "gpu",
            "",
            "http://",
            "http://gateway/team",
            "http://gateway//mine",
            "http:///a/b",
            "team/mine",
            "cpu:1",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}: {:?}", parse(wrong));
        }
        let reason = parse("cpu:1").unwrap_err();
        assert!(reason.contains("set cpu:, or https://cpu:1"), "{reason}");
    }
}
