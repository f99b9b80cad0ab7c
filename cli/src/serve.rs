//! `sahasra serve`: the devices of this machine for CUDA programs and sessions on other machines, without Kubernetes.
//!
//! The parts are those of `sahasra up`, with one worker. All that is served is served through TLS with a token.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    path::Path,
};

use sahasra_access::Access;
use sahasra_gateway::Gateway;
use sahasra_local::CredentialsError;
use sahasra_operator::http as operator_http;
use sahasra_service::server;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{
    args::{ServeArgs, state_folder},
    exit::Exit,
    interrupt, leak_check, output,
    pool::{Devices, Pool, PoolError, PoolSettings, WorkerSettings},
    up::{DRAIN, close, end_sessions, operator_ended},
};

mod front;
mod identity;

use identity::{Identity, IdentityError};

/// Connections of one address that are not streams of sessions, so that no other machine can take all.
const CONNECTIONS_PER_ADDRESS: usize = 256;

#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error("{0} is in use, perhaps by another `sahasra serve`: stop it, or set another port with --listen (0 selects a free port)")]
    InUse(SocketAddr),
    #[error("failed to listen on {address}: specify an address of this machine with --listen, or 0.0.0.0 for all")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("failed to install signal handlers")]
    Signals(#[source] io::Error),
    #[error("failed to start the gateway")]
    Gateway(#[source] prometheus::Error),
    #[error("failed to use the certificate")]
    Certificate(#[from] CredentialsError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Pool(#[from] PoolError),
}

pub(crate) fn run(arguments: &ServeArgs) -> Exit {
    crate::on_runtime(async {
        match stay(arguments).await {
            Ok(exit) => exit,
            Err(error) => Exit::Failed.because(&sahasra_service::causes(&error)),
        }
    })
}

async fn stay(arguments: &ServeArgs) -> Result<Exit, ServeError> {
    let interrupt = interrupt::listen().map_err(ServeError::Signals)?;
    let address = arguments.listen;
    let listener = TcpListener::bind(address).await.map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => ServeError::InUse(address),
        _ => ServeError::Listen { address, source },
    })?;
    let address = listener.local_addr().map_err(|source| ServeError::Listen { address, source })?;
    let folder = arguments.credentials_dir.clone().unwrap_or_else(|| state_folder().join("serve"));
    // The printed commands are for other folders too.
    let folder = std::path::absolute(&folder).unwrap_or(folder);
    let identity = Identity::open(&folder)?;
    let acceptor = identity.certificate.acceptor()?;
    let pool = Pool::start(settings(arguments, &identity.token)).await?;
    let stop = CancellationToken::new();
    let routes = operator_http::routes(pool.operator.clone(), pool.readiness.clone());
    let api = pool.control_plane.service().guarded(&identity.token);
    let gateway = Gateway::new(
        kube::Client::new(api, "default"),
        Access::token(identity.token.as_str()),
        // The operator serves `/workers`; these requests never reach the gateway.
        None,
        // No TLS: the worker is on loopback.
        None,
        sahasra_gateway::Limits::default(),
        stop.clone(),
    )
    .map_err(ServeError::Gateway)?;
    let front = warp::service(front::routes(routes, gateway.api_routes(), &identity.token));
    let limits = server::Limits {
        connections_per_address: CONNECTIONS_PER_ADDRESS,
        drain_timeout: DRAIN,
        ..server::Limits::default()
    };
    let serving = tokio::spawn(server::serve(listener, acceptor, front, limits, stop.clone()));
    let printed = welcome(&pool, address, &identity.token_file).await;

    let exit = tokio::select! {
        exit = interrupt => exit,
        () = pool.stop.cancelled() => Exit::Failed.because(&operator_ended(pool.ended.get())),
    };
    output::say("\nshutting down: ending all sessions (Ctrl-C again exits at once)");
    end_sessions(&pool).await;
    stop.cancel();
    pool.control_plane.close_watches();
    let _ = serving.await;
    let _ = tokio::time::timeout(DRAIN, gateway.streams_ended()).await;
    Ok(close(pool, exit).await.max(printed))
}

fn settings(arguments: &ServeArgs, token: &str) -> PoolSettings {
    let worker = WorkerSettings {
        class: None,
        devices: Devices::Found,
        vram_bytes: arguments.vram,
    };
    PoolSettings {
        workers: vec![worker],
        token: Some(token.to_owned()),
        has_remote_clients: true,
        require_sandbox: arguments.require_sandbox,
        ..PoolSettings::default()
    }
}

async fn welcome(pool: &Pool, address: SocketAddr, token_file: &Path) -> Exit {
    let devices = pool.ledger().await.map(|ledger| leak_check::table(&ledger)).unwrap_or_default();
    let (host, port) = (reached_at(address.ip()), address.port());
    let (server, token_file) = (format!("{host}:{port}"), token_file.display());
    let host = host.trim_matches(['[', ']']);
    output::print(&format!(
        "Sahasra serves {server} on {address}; Ctrl-C ends it.\n\n{devices}\n\
         To connect CUDA programs of another machine, run there, and paste the token in {token_file}:\n\n\
         \x20 sahasra connect {server}\n\n\
         or, with ssh to this machine:\n\n\
         \x20 ssh {host} cat {token_file} | sahasra connect {server}\n\n\
         The token names the certificate of this server, and gives every right on this pool. To withdraw it, remove its folder and start again.\n"
    ))
}

/// Address at which other machines reach a listener at `address`: for all addresses of this machine, that of its route to others, or its
/// name if it has none.
fn reached_at(address: IpAddr) -> String {
    let toward = match address {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 9)),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => SocketAddr::from((Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), 9)),
        address => return host(address),
    };
    // Connecting a datagram socket sends nothing. The addresses are those that are reserved for documentation.
    let chosen = UdpSocket::bind((address, 0)).and_then(|socket| {
        socket.connect(toward)?;
        socket.local_addr()
    });
    match chosen {
        Ok(chosen) if !chosen.ip().is_unspecified() => host(chosen.ip()),
        _ => rustix::system::uname().nodename().to_string_lossy().into_owned(),
    }
}

/// An address as the host of a URL.
fn host(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_for_clients_is_one_of_this_machine() {
        assert_eq!(reached_at("127.0.0.1".parse().unwrap()), "127.0.0.1");
        assert_eq!(reached_at("::1".parse().unwrap()), "[::1]");
        for every in ["0.0.0.0", "::"] {
            let reached = reached_at(every.parse().unwrap());
            assert!(![every, "[::]", ""].contains(&reached.as_str()), "{every}: {reached}");
        }
    }
}
