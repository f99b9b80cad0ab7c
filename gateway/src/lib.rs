//! Gateway for clients outside the cluster: a REST API, and the byte streams of sessions as WebSockets.
//!
//! ```text
//!                  ┌─ /v1/.. sessions, bursts ── caller's token ──► kube-apiserver: RBAC decides
//! client ── HTTP ──┼─ /workers ── may the caller list gpuworkers? ─► operator
//!   (TLS)          └─ ../stream ── WebSocket ═══ caller's token ═══► worker-agent ─► session executor
//! ```
//!
//! The gateway has no rights and no identity of its own: it holds no token, and every call to the API server or to a worker carries the
//! caller's token. So the gateway cannot be tricked into anything that its caller could not do directly, and an attacker inside the gateway
//! gets only the tokens that pass through it.
//!
//! - `route` parses the path of a request; `query`, [`token`] and `refusal` serve every route.
//! - `objects`, `wait`, `results` and `workers` are the REST routes; `conditions` are what they look for; `api` sends their calls to the API
//!   server.
//! - [`stream`] relays bytes between a client's WebSocket and a worker's upgraded HTTP/1.1 connection.
//! - `body` reads request bodies within limits; `drain` discards what a peer still sends after a rejection.
//! - [`tls`] guards the listener. `service` combines all of them into a warp filter, which `sahasra up` embeds.

use std::time::Duration;

use anyhow::Context as _;
use futures::future::OptionFuture;
use sahasra_access::Access;
use sahasra_service::{
    answer::Answer,
    server, shutdown,
    tls::{Connector, Files, RENEW_EVERY, Trust},
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

mod api;
pub mod args;
mod body;
mod conditions;
mod drain;
mod metrics;
mod objects;
mod openapi;
mod query;
mod refusal;
mod results;
mod route;
mod service;
pub mod stream;
pub mod tls;
pub mod token;
mod wait;
mod workers;

pub use service::{Gateway, Limits};

use args::Args;
use refusal::Refusal;
use tls::PlainOrTls;
use workers::Operator;

/// Answer to a request without a valid token.
pub fn unauthorized(message: String) -> Answer {
    Refusal::Unauthorized(message).answer()
}

/// Drain timeout of open requests and streams at shutdown: shorter than the 30 s termination grace period of a pod.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves until the process receives a termination signal.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let stop = shutdown::on_signal().context("failed to install signal handlers")?;
    let files = args.tls_cert_file.clone().zip(args.tls_private_key_file.clone());
    let files = files.map(|(certificate, key)| Files {
        certificate,
        key,
        client_authority: None,
    });
    // An invalid TLS configuration must fail before any client can connect to the port.
    let handshake = PlainOrTls::new(args.listen, files, tls::STALLED_FOR)?;
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("failed to listen on {}", args.listen))?;
    serve(args, Limits::default(), handshake, listener, stop).await
}

/// Serves the connections of `listener`, each after its `handshake`, until `stop` is cancelled.
pub async fn serve(
    args: Args,
    limits: Limits,
    handshake: PlainOrTls,
    listener: TcpListener,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let config = api::config(&args).await?;
    let client = sahasra_kubernetes::client(config.clone()).context("failed to create the API client")?;
    let access = Access::of_api_server(config).context("failed to create the client of access reviews")?;
    let operator = args.operator_url.as_ref().map(Operator::new).transpose()?;
    let workers = args.worker_ca_file.as_ref().map(|authority| {
        Connector::new(Trust {
            authority: authority.clone(),
            server_name: args.worker_server_name.clone(),
            identity: None,
            protocol: "http/1.1",
        })
    });
    let workers = workers.transpose().context("failed to load --worker-ca-file")?;
    let limits = Limits {
        streams: args.max_streams,
        ..limits
    };
    let gateway = Gateway::new(client, access, operator, workers.clone(), limits, stop.clone()).context("failed to register metrics")?;
    let address = listener.local_addr().context("failed to read the local address")?;
    tracing::info!(%address, tls = args.tls_cert_file.is_some(), "started");
    let limits = server::Limits {
        connections: args.max_connections,
        drain_timeout: DRAIN_TIMEOUT,
        ..server::Limits::default()
    };
    let renewing = OptionFuture::from(workers.as_ref().map(|workers| workers.renew(RENEW_EVERY)));
    // The server ends at shutdown, the others never.
    tokio::select! {
        () = server::serve(listener, handshake.clone(), warp::service(gateway.routes()), limits, stop) => {}
        () = gateway.watch_api_server() => {}
        () = handshake.renew(RENEW_EVERY) => {}
        Some(()) = renewing => {}
    }
    if tokio::time::timeout(DRAIN_TIMEOUT, gateway.streams_ended()).await.is_err() {
        tracing::info!("closed open streams at shutdown");
    }
    Ok(())
}
