//! The embedded control plane over HTTPS, and kubectl for it.

use std::ffi::OsStr;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use tokio_util::sync::{CancellationToken, DropGuard};

use crate::api_server::ApiServer;
use crate::control_plane::ControlPlaneError;
use crate::directory::Directory;
use crate::kubectl::{self, CommandError, Output};
use crate::tools;

/// Token of the only user.
const TOKEN: &str = "embedded-administrator";

/// An embedded control plane that listens on a loopback port of its own until it is dropped.
#[derive(Debug)]
pub struct Embedded {
    control_plane: sahasra_local::ControlPlane,
    server: String,
    kubeconfig: PathBuf,
    kubectl: PathBuf,
    directory: Directory,
    _shutdown: DropGuard,
}

impl Embedded {
    /// Starts an embedded control plane that takes timestamps from this machine's clock.
    ///
    /// # Errors
    /// When no port is free, kubectl cannot be found or the kubeconfig cannot be written.
    pub async fn start() -> Result<Self, ControlPlaneError> {
        let directory = Directory::create().map_err(ControlPlaneError::Directory)?;
        let kubectl = tools::kubectl().await?;
        let options = sahasra_local::Options {
            clock: std::sync::Arc::new(k8s_openapi::jiff::Timestamp::now),
            ..sahasra_local::Options::default()
        };
        let control_plane = sahasra_local::ControlPlane::new(options);
        let any_port = (Ipv4Addr::LOCALHOST, 0).into();
        let served = ApiServer::bind(&control_plane, any_port, TOKEN.to_owned()).await?;
        let kubeconfig = directory.path().join("kubeconfig");
        std::fs::write(&kubeconfig, served.kubeconfig("default")).map_err(ControlPlaneError::Directory)?;
        let server = served.url();
        let shutdown = CancellationToken::new();
        tokio::spawn(served.serve(shutdown.clone()));
        Ok(Self {
            control_plane,
            server,
            kubeconfig,
            kubectl,
            directory,
            _shutdown: shutdown.drop_guard(),
        })
    }

    /// The control plane itself.
    #[must_use]
    pub fn control_plane(&self) -> &sahasra_local::ControlPlane {
        &self.control_plane
    }

    /// URL of the API server.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Runs kubectl as the administrator in the workspace's root folder, with `input` on standard input.
    ///
    /// # Errors
    /// When kubectl cannot be run; a failure of kubectl itself is in the [`Output`].
    pub async fn kubectl_with_input<A: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = A>,
        input: &str,
    ) -> Result<Output, CommandError> {
        // A discovery cache of its own, because ports are reused by later control planes.
        let cache = format!("--cache-dir={}", self.directory.path().join("cache").display());
        let arguments = std::iter::once(cache.into()).chain(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        kubectl::run(&self.kubectl, &self.kubeconfig, arguments, input).await
    }

    /// Runs kubectl without input.
    ///
    /// # Errors
    /// The errors of [`Embedded::kubectl_with_input`].
    pub async fn kubectl<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Result<Output, CommandError> {
        self.kubectl_with_input(arguments, "").await
    }
}
