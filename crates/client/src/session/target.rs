//! Where a session is, and how it is spoken to.

use std::time::Duration;

use sahasra_wire::session::compression::Mode as Compression;

use crate::{
    Error, Gateway,
    credentials::Token,
    rest,
    transport::{Peer, Way},
};

/// Where a session is.
#[derive(Clone, Debug)]
pub struct Target {
    pub(crate) peer: Peer,
    pub(crate) way: Way,
    pub(crate) token: Token,
    pub(crate) path: String,
    pub(crate) gateway: Option<(Gateway, String, String)>,
    /// Namespace and name, and where it is, for errors.
    pub(crate) session: String,
    pub(crate) worker: String,
}

impl Target {
    /// Through a gateway, over a WebSocket.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn through(gateway: &Gateway, namespace: &str, name: &str) -> Result<Self, Error> {
        Ok(Self {
            peer: gateway.peer.clone(),
            way: Way::WebSocket,
            token: gateway.token.clone(),
            path: rest::stream_path(namespace, name)?,
            gateway: Some((gateway.clone(), namespace.to_owned(), name.to_owned())),
            session: format!("{namespace}/{name}"),
            worker: String::new(),
        })
    }

    /// Straight to the worker at this URL, the `status.endpoint` of the session; verified as in [`Gateway::new`].
    ///
    /// # Errors
    /// [`Error::Configuration`], [`Error::Invalid`].
    pub fn direct(endpoint: &str, token: Token, authorities_pem: Option<&str>, namespace: &str, name: &str) -> Result<Self, Error> {
        Ok(Self {
            worker: format!("at {endpoint}"),
            peer: Peer::new(endpoint, authorities_pem)?,
            way: Way::Direct,
            token,
            path: rest::stream_path(namespace, name)?,
            gateway: None,
            session: format!("{namespace}/{name}"),
        })
    }

    /// Has the worker's certificate be for this name, whatever its endpoint says: endpoints are addresses, and one certificate may serve
    /// all workers.
    ///
    /// # Errors
    /// [`Error::Configuration`] when it is no name.
    pub fn named(self, server_name: &str) -> Result<Self, Error> {
        Ok(Self {
            peer: self.peer.named(server_name)?,
            ..self
        })
    }

    /// What the session's worker is called in errors, such as `node-0/cpu-0`.
    #[must_use]
    pub fn on(mut self, worker: &str) -> Self {
        worker.clone_into(&mut self.worker);
        self
    }

    /// Asks this gateway, too, why the session is no more.
    #[must_use]
    pub fn explained_by(mut self, gateway: &Gateway, namespace: &str, name: &str) -> Self {
        self.gateway = Some((gateway.clone(), namespace.to_owned(), name.to_owned()));
        self
    }
}

/// How a session is spoken to.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Begin although another client is connected: what it had is freed.
    pub replace: bool,
    /// How long what this client has in the session is kept after its connection broke, 10 minutes at most.
    pub grace: Duration,
    /// How long the first connection may take: the worker may still be about to learn of the session.
    pub connect: Duration,
    /// Timeout for a gateway from which nothing comes while somebody waits: the connection counts as broken, though nobody closed it. 25 s by
    /// default. An [`Options::grace`] that is shorter lowers it, to no less than 10 s. The client pings a silent gateway after 5 s, or half this
    /// timeout where that is less; the gateway pings every 20 s, which arrives even where answers wait on a slow line.
    pub silence: Duration,
    /// Frames that may be on their way here.
    pub window_frames: u32,
    /// Bytes of payload that may be on their way here.
    pub window_bytes: u64,
    /// Bytes of tensors that may wait for the executor before a call that adds more waits itself.
    pub queued_bytes: u64,
    /// When tensors are compressed on their way, in either direction.
    pub compression: Compression,
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
        }
    }
}
