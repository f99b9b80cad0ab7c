//! `sahasra up`: a pool that stays up, for kubectl and for clients of the gateway.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use sahasra_access::Access;
use sahasra_crds::GpuSession;
use sahasra_executor_protocol::program_cache::ProgramCache;
use sahasra_gateway::Gateway;
use sahasra_operator::{http as operator_http, leader::LeaderError};
use sahasra_service::server;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{
    args::{UpArgs, state_folder},
    exit::Exit,
    interrupt, leak_check, output,
    pool::{Devices, PROGRAM_CACHE_BYTES, Pool, PoolError, PoolSettings, WorkerSettings},
    run::{delete_all, delete_every},
};

mod access;
mod front;
mod plugin;

use access::{AccessError, Files, LockedFile};
use front::TlsIfSpoken;
use plugin::Serves;

/// Drain timeout of open requests and streams at shutdown.
pub(crate) const DRAIN: Duration = Duration::from_millis(500);
/// Timeout for the end of all sessions at shutdown: an executor has 100 ms before it is killed.
const SESSIONS_END: Duration = Duration::from_secs(2);
/// Time that the gateway still answers after the end of sessions: a client whose executor was killed before it could send the reason reconnects
/// within 20 ms, and learns the reason from the gateway.
const EXPLAIN: Duration = Duration::from_millis(300);
const POLL_EVERY: Duration = Duration::from_millis(20);

#[derive(Debug, thiserror::Error)]
enum UpError {
    #[error("port {0} is in use, perhaps by another `sahasra up`: stop it, or set --port (0 selects a free port)")]
    PortTaken(u16),
    #[error("failed to listen on port {port}")]
    Listen { port: u16, source: io::Error },
    #[error("failed to install signal handlers")]
    Signals(#[source] io::Error),
    #[error("failed to start the gateway")]
    Gateway(#[source] prometheus::Error),
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error("invalid --pjrt-plugin {}: {reason}: specify the library of a PJRT plugin, such as pjrt_c_api_cpu_plugin.so", path.display())]
    Plugin { path: PathBuf, reason: String },
    #[error("failed to read the current directory")]
    Folder(#[source] io::Error),
    #[error(transparent)]
    Access(#[from] AccessError),
}

pub(crate) fn run(arguments: &UpArgs) -> Exit {
    crate::on_runtime(async {
        match stay(arguments).await {
            Ok(exit) => exit,
            Err(error @ UpError::Plugin { .. }) => Exit::Refused.because(&sahasra_service::causes(&error)),
            Err(error) => Exit::Failed.because(&sahasra_service::causes(&error)),
        }
    })
}

/// Absolute paths of the kubeconfig and of the token file: they are printed for other shells, which have other current folders.
fn paths(arguments: &UpArgs, port: u16) -> io::Result<(PathBuf, PathBuf)> {
    let kubeconfig = match &arguments.kubeconfig {
        Some(path) => std::path::absolute(path)?,
        None => state_folder().join(format!("kubeconfig-{port}")),
    };
    let token_file = match &arguments.token_file {
        Some(path) => std::path::absolute(path)?,
        None => kubeconfig.with_file_name(token_name(port)),
    };
    Ok((kubeconfig, token_file))
}

fn token_name(port: u16) -> String {
    format!("token-{port}")
}

async fn stay(arguments: &UpArgs) -> Result<Exit, UpError> {
    let interrupt = interrupt::listen().map_err(UpError::Signals)?;
    // The port is taken first, so that a second `sahasra up` on the same port does not touch the files of the first.
    let listener = listen(arguments.port).await?;
    let port = arguments.port;
    let address = listener.local_addr().map_err(|source| UpError::Listen { port, source })?;
    let credentials = access::credentials()?;
    let (kubeconfig, token_file) = paths(arguments, address.port()).map_err(UpError::Folder)?;
    if arguments.kubeconfig.is_none() {
        LockedFile::create_folder(&kubeconfig)?;
    }
    let mut files = Files::take(&kubeconfig, &token_file)?;
    let settings = settings(arguments, &credentials.token);
    let plugin = settings.pjrt_plugin.clone();
    if let Some(folder) = &arguments.program_cache_dir
        && let Err(error) = ProgramCache::open(folder, PROGRAM_CACHE_BYTES)
    {
        let folder = folder.display();
        output::complain(&format!(
            "failed to open --program-cache-dir {folder}: {error}: compiled programs are kept in memory only"
        ));
    }
    let pool = match Pool::start(settings).await {
        Ok(pool) => pool,
        Err(error) => {
            files.remove(&credentials.token);
            return Err(error.into());
        }
    };
    let serves = Serves::ask(&pool, plugin).await;
    // A plugin that the user named must serve; without one that does, a pool still runs kernels.
    let ready = match &serves {
        Serves::Fails { plugin, reason } if named_plugin(arguments).is_some() => Err(UpError::Plugin {
            path: plugin.clone(),
            reason: reason.clone(),
        }),
        _ => files.write(&credentials, address).map_err(UpError::Access),
    };
    if let Err(error) = ready {
        files.remove(&credentials.token);
        pool.stop().await;
        return Err(error);
    }
    let stop = CancellationToken::new();
    let operator = &pool.operator;
    let routes = operator_http::routes(operator.clone(), pool.readiness.clone());
    let api = pool.control_plane.service().guarded(&credentials.token);
    let gateway = Gateway::new(
        kube::Client::new(api.clone(), "default"),
        Access::token(credentials.token.as_str()),
        // The operator serves `/workers`, without a token; these requests never reach the gateway.
        None,
        // No TLS: the workers are on loopback.
        None,
        sahasra_gateway::Limits::default(),
        stop.clone(),
    )
    .map_err(UpError::Gateway)?;
    let front = warp::service(front::routes(routes, gateway.api_routes(), api, &files.token_file.path));
    let limits = server::Limits {
        drain_timeout: DRAIN,
        ..server::Limits::default()
    };
    let handshake = TlsIfSpoken(credentials.acceptor);
    let serving = tokio::spawn(server::serve(listener, handshake, front, limits, stop.clone()));
    let printed = welcome(&pool, address, &serves, &files.kubeconfig.path, &files.token_file.path).await;

    let exit = tokio::select! {
        exit = interrupt => exit,
        () = pool.stop.cancelled() => Exit::Failed.because(&operator_ended(pool.ended.get())),
    };
    output::say("\nshutting down: releasing all slices (Ctrl-C again exits at once)");
    end_sessions(&pool).await;
    stop.cancel();
    pool.control_plane.close_watches();
    let _ = serving.await;
    let _ = tokio::time::timeout(DRAIN, gateway.streams_ended()).await;
    files.remove(&credentials.token);
    Ok(close(pool, exit).await.max(printed))
}

/// Deletes what is left, prints the leak check and stops the pool. Returns the exit code of a command that runs until `exit` ends it: a signal is
/// success.
pub(crate) async fn close(pool: Pool, exit: Exit) -> Exit {
    delete_all(&pool).await;
    let (text, proven) = leak_check::of(&pool).await;
    let printed = output::print(&format!("\n{text}"));
    pool.stop().await;
    let exit = if matches!(exit, Exit::Interrupted | Exit::Terminated | Exit::HungUp) {
        Exit::Success
    } else {
        exit
    };
    exit.max(printed).max(proven)
}

/// Deletes all sessions and waits until they have ended, while their streams still work: so their clients learn that they are over. A client
/// whose connection breaks tries to resume it for its whole grace period.
pub(crate) async fn end_sessions(pool: &Pool) {
    if delete_every::<GpuSession>(&pool.client).await == 0 {
        return;
    }
    let ended = async {
        while delete_every::<GpuSession>(&pool.client).await > 0 {
            tokio::time::sleep(POLL_EVERY).await;
        }
    };
    if tokio::time::timeout(SESSIONS_END, ended).await.is_err() {
        output::complain("timed out ending sessions: their clients may wait for their grace period");
    }
    tokio::time::sleep(EXPLAIN).await;
}

/// Message for the end of the operator, with a remedy where the cause has one.
pub(crate) fn operator_ended(reason: Option<&LeaderError>) -> String {
    match reason {
        Some(error @ LeaderError::Silent { .. }) => format!(
            "operator stopped: {error}; the machine was suspended or is overloaded: restart it, with fewer --workers if it is overloaded"
        ),
        Some(error) => format!("operator stopped: {error}"),
        None => "operator stopped: set --log-level info for details".to_owned(),
    }
}

async fn listen(port: u16) -> Result<TcpListener, UpError> {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
        Ok(listener) => Ok(listener),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(UpError::PortTaken(port)),
        Err(source) => Err(UpError::Listen { port, source }),
    }
}

fn settings(arguments: &UpArgs, token: &str) -> PoolSettings {
    let gpu = arguments.pool.gpu;
    let worker = |number: usize| WorkerSettings {
        // Workers get the given classes in turn.
        class: (!arguments.pool.class.is_empty()).then(|| arguments.pool.class[number % arguments.pool.class.len()].clone()),
        devices: if gpu { Devices::Gpus } else { Devices::Cpu(1) },
        vram_bytes: Some(arguments.pool.vram),
    };
    let count = if gpu { 1 } else { arguments.workers as usize };
    // The plugin that is installed with the program is for CPUs and cannot use a GPU.
    let installed = || {
        std::env::current_exe()
            .ok()
            .filter(|_| !gpu)
            .and_then(|program| plugin::installed(&program))
    };
    PoolSettings {
        workers: (0..count).map(worker).collect(),
        file_store_root: arguments.pool.file_store_root.clone(),
        pjrt_plugin: named_plugin(arguments).cloned().or_else(installed),
        program_cache: Some(
            arguments
                .program_cache_dir
                .clone()
                .unwrap_or_else(|| state_folder().join("programs")),
        ),
        token: Some(token.to_owned()),
        has_remote_clients: false,
        require_sandbox: false,
    }
}

fn named_plugin(arguments: &UpArgs) -> Option<&PathBuf> {
    arguments.pjrt_plugin.as_ref().filter(|plugin| !plugin.as_os_str().is_empty())
}

async fn welcome(pool: &Pool, address: SocketAddr, serves: &Serves, kubeconfig: &Path, token_file: &Path) -> Exit {
    let devices = pool.ledger().await.map(|ledger| leak_check::table(&ledger)).unwrap_or_default();
    let python = for_python(token_file, &state_folder().join(token_name(address.port())));
    let (sessions, kubeconfig, token_file) = (serves.line(), kubeconfig.display(), token_file.display());
    output::print(&format!(
        "Sahasra is up on {address}; Ctrl-C ends it.\n\n{devices}\n\
         kubectl reaches it with this kubeconfig:\n\n\
         \x20 export KUBECONFIG={kubeconfig}\n\
         \x20 kubectl get gpuworkers\n\
         \x20 kubectl apply --server-side -f examples/hyperparameter-search/\n\
         \x20 kubectl wait --for=condition=Complete burstjob/hyperparameter-search --timeout=2m\n\
         \x20 kubectl get burstjobs\n\n\
         {sessions}\n\
         REST API for sessions and bursts, with the token in {token_file}:\n\n\
         \x20 curl -H \"Authorization: Bearer $(cat {token_file})\" http://{address}/v1/namespaces/default/sessions\n\n\
         {python}\
         Status and metrics need no token on this machine:\n\n\
         \x20 curl http://{address}/workers\n\
         \x20 curl http://{address}/metrics\n"
    ))
}

/// Lines for Python clients, if they do not find the token by themselves at `default`.
fn for_python(token_file: &Path, default: &Path) -> String {
    if token_file == default {
        return String::new();
    }
    format!(
        "Python clients find this token with:\n\n\x20 export SAHASRA_TOKEN_FILE={}\n\n",
        token_file.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_operator_is_reported_with_its_reason() {
        let silent = LeaderError::Silent {
            lasts: Duration::from_secs(57),
            cause: "connection refused".to_owned(),
        };
        let told = operator_ended(Some(&silent));
        assert!(
            told.starts_with("operator stopped: leadership lost: failed to renew the Lease sahasra-operator for 57s: connection refused;"),
            "{told}"
        );
        assert!(told.contains("suspended"), "{told}");
        let told = operator_ended(Some(&LeaderError::Deposed("other".to_owned())));
        assert_eq!(told, "operator stopped: leadership lost to other");
    }

    #[test]
    fn the_path_of_a_token_that_python_clients_do_not_find_is_printed() {
        let default = Path::new("/home/me/.local/state/sahasra/token-8000");
        assert_eq!(for_python(default, default), "");
        let told = for_python(Path::new("/tmp/token-8000"), default);
        assert!(told.contains("export SAHASRA_TOKEN_FILE=/tmp/token-8000\n"), "{told}");
    }
}
