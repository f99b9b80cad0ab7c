//! Address of a session, and options of a connection to it.

use std::time::Duration;

use sahasra_wire::session::compression::Mode as Compression;

use crate::{
    Error, Gateway,
    credentials::Token,
    rest,
    transport::{Peer, Route},
};

#[derive(Clone, Debug)]
pub struct Target {
    pub(crate) peer: Peer,
    pub(crate) route: Route,
    pub(crate) token: Token,
    pub(crate) path: String,
    pub(crate) gateway: Option<(Gateway, String, String)>,
    /// Namespace and name (`session`) and location (`worker`), for error messages.
    pub(crate) session: String,
    pub(crate) worker: String,
}

impl Target {
    /// A session that is reached through a gateway, over a WebSocket. Fails if the namespace or the name is not valid in a URL path.
    pub fn through(gateway: &Gateway, namespace: &str, name: &str) -> Result<Self, Error> {
        Ok(Self {
            peer: gateway.peer.clone(),
            route: Route::WebSocket,
            token: gateway.token.clone(),
            path: rest::stream_path(namespace, name)?,
            gateway: Some((gateway.clone(), namespace.to_owned(), name.to_owned())),
            session: format!("{namespace}/{name}"),
            worker: String::new(),
        })
    }

    /// A session that is reached directly at the worker, whose URL is the session's `status.endpoint`. TLS is verified as in
    /// [`Gateway::new`]. Fails like [`Gateway::new`], or if the namespace or the name is not valid in a URL path.
    pub fn direct(endpoint: &str, token: Token, authorities_pem: Option<&str>, namespace: &str, name: &str) -> Result<Self, Error> {
        Ok(Self {
            worker: format!("at {endpoint}"),
            peer: Peer::new(endpoint, authorities_pem)?,
            route: Route::Direct,
            token,
            path: rest::stream_path(namespace, name)?,
            gateway: None,
            session: format!("{namespace}/{name}"),
        })
    }

    /// Sets the name for which the worker's certificate must be valid, regardless of the endpoint. Endpoints are IP addresses, and one
    /// certificate may serve all workers. Fails with [`Error::Configuration`] when `server_name` is invalid.
    pub fn named(self, server_name: &str) -> Result<Self, Error> {
        Ok(Self {
            peer: self.peer.named(server_name)?,
            ..self
        })
    }

    /// Sets the name of the worker for error messages, such as `node-0/cpu-0`.
    pub fn on(mut self, worker: &str) -> Self {
        worker.clone_into(&mut self.worker);
        self
    }

    /// Sets a gateway that the client queries for the reason when the session ends.
    pub fn explained_by(mut self, gateway: &Gateway, namespace: &str, name: &str) -> Self {
        self.gateway = Some((gateway.clone(), namespace.to_owned(), name.to_owned()));
        self
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whether to replace another connected client, whose tensors and programs are then freed.
    pub replace: bool,
    /// Time for which this client's tensors and programs are kept after its connection broke, at most 10 minutes. 60 s by default.
    pub grace: Duration,
    /// Timeout for the first connection, during which the worker may not know the session yet. 30 s by default.
    pub connect: Duration,
    /// Timeout for a gateway that sends nothing while a caller waits: after it, the connection counts as broken even if neither side closed
    /// it. 25 s by default. A shorter [`Options::grace`] reduces it, but not below 10 s. The client pings a silent gateway after 5 s, or
    /// after half of this timeout if that is less. The gateway pings every 20 s, and its pings arrive even if answers wait on a slow
    /// connection.
    pub silence: Duration,
    /// Number of frames that may be outstanding to this client. 4096 by default.
    pub window_frames: u32,
    /// Payload bytes that may be outstanding to this client. 64 MiB by default.
    pub window_bytes: u64,
    /// Tensor bytes that may wait to be processed by the executor before a call that adds more blocks. 256 MiB by default.
    pub queued_bytes: u64,
    pub compression: Compression,
    /// Whether to share memory with a session on this machine, for CUDA copies. `false` by default.
    pub shares_memory: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            replace: false,
            grace: Duration::from_secs(60),
            connect: Duration::from_secs(30),
            silence: Duration::from_secs(25),
            window_frames: 4096,
            window_bytes: 64 << 20,
            queued_bytes: 256 << 20,
            compression: Compression::default(),
            shares_memory: false,
        }
    }
}
