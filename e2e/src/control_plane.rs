//! A Kubernetes control plane for one test: etcd, kube-apiserver and kube-controller-manager as child processes.
//!
//! The control plane listens on reserved loopback ports, keeps its data in a temporary folder, authorises by RBAC, logs every write and is
//! ready in about three seconds. Several control planes can run at once. It ends when it is dropped, or when the test process ends.

mod access;
mod objects;
mod start;

use std::ffi::OsStr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use rustix::process::Signal;
use tokio::sync::OnceCell;

pub use self::objects::{condition, true_condition};
use crate::audit::{AuditError, AuditLog, Write};
use crate::certificates::CertificateError;
use crate::directory::Directory;
use crate::eventually::eventually;
use crate::kubectl::{self, CommandError, Output};
use crate::ports::{Port, PortError};
use crate::process::{Process, ProcessError};
use crate::tools::{self, ToolError};

/// Environment variable with the kubeconfig of an existing cluster, which tests use instead of starting a control plane.
pub const EXISTING_CLUSTER_VARIABLE: &str = "SAHASRA_E2E_KUBECONFIG";
/// Timeout for a marker to appear in the audit log.
const AUDIT_WITHIN: Duration = Duration::from_secs(10);

/// A control plane did not start or a request to it failed.
#[derive(Debug, thiserror::Error)]
pub enum ControlPlaneError {
    /// The temporary folder or a file in it could not be written.
    #[error("write the control plane's folder")]
    Directory(#[source] std::io::Error),
    #[error("make certificates")]
    Certificate(#[from] CertificateError),
    #[error("reserve a port")]
    Port(#[from] PortError),
    #[error("find the programs of the control plane")]
    Tool(#[from] ToolError),
    #[error("run the control plane")]
    Process(#[from] ProcessError),
    #[error("run a command")]
    Command(#[from] CommandError),
    /// The API server rejected a request or did not answer.
    #[error("call the API server")]
    Api(#[source] Box<kube::Error>),
    #[error("read a kubeconfig")]
    Kubeconfig(#[source] Box<kube::config::KubeconfigError>),
    /// A condition was not met in time.
    #[error("{what} was not ready after {waited:?}: {last}")]
    NotReady {
        what: &'static str,
        waited: Duration,
        /// Last observed state.
        last: String,
    },
    /// The chart has no workload of a kind that the tests need.
    #[error("the chart renders no {kind} with a serviceAccountName")]
    Chart {
        /// Kind of the workload.
        kind: &'static str,
    },
    #[error("read the audit log")]
    Audit(#[from] AuditError),
    /// The embedded control plane could not be served.
    #[error("serve the embedded control plane")]
    Embedded(#[from] crate::ServeError),
    /// An existing cluster is in use, whose servers a test must not control.
    #[error("{operation} needs a control plane of the test's own; {EXISTING_CLUSTER_VARIABLE} is set")]
    NotOwned {
        /// Operation that the test requested.
        operation: &'static str,
    },
}

impl From<kube::Error> for ControlPlaneError {
    fn from(error: kube::Error) -> Self {
        Self::Api(Box::new(error))
    }
}

/// Options of a control plane.
#[derive(Debug, Clone)]
pub struct Options {
    custom_resource_definitions: Vec<PathBuf>,
    controller_manager: bool,
    durable: bool,
}

impl Default for Options {
    /// Default options: the chart's CRDs (`helm/sahasra/files/crds`), a controller manager, and an etcd that does not wait for the disk.
    fn default() -> Self {
        Self {
            custom_resource_definitions: vec![tools::workspace_root().join("helm/sahasra/files/crds")],
            controller_manager: true,
            durable: false,
        }
    }
}

impl Options {
    /// Applies these CRD files or folders instead of the chart's. CRDs are applied before the controller manager starts, because its garbage
    /// collector takes up to half a minute to notice kinds that are created later.
    #[must_use]
    pub fn custom_resource_definitions<P: Into<PathBuf>>(mut self, paths: impl IntoIterator<Item = P>) -> Self {
        self.custom_resource_definitions = paths.into_iter().map(Into::into).collect();
        self
    }

    /// Starts no controller manager: no garbage collection, no namespace deletion and no default ServiceAccounts, but the start is one second
    /// faster and takes 100 MB less memory.
    #[must_use]
    pub fn without_controller_manager(mut self) -> Self {
        self.controller_manager = false;
        self
    }

    /// Starts an etcd that waits for the disk at every write, as in a cluster: for measurements. Tests need not survive a power cut and are
    /// faster without.
    #[must_use]
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }
}

/// A running control plane, or the existing cluster that [`EXISTING_CLUSTER_VARIABLE`] names.
#[derive(Debug)]
pub struct ControlPlane {
    kubeconfig: PathBuf,
    server: String,
    kubectl: PathBuf,
    markers: AtomicU64,
    owned: Option<Owned>,
    directory: Directory,
}

/// Servers and resources of a control plane that this process started.
#[derive(Debug)]
struct Owned {
    // Fields are in the order of dropping: clients before the servers that they use.
    controller_manager: Option<Process>,
    api_server: Process,
    etcd: Process,
    audit: AuditLog,
    _ports: [Port; 3],
}

impl ControlPlane {
    /// Returns the control plane that all tests of this test binary share, starting it on first use. For tests that use only their own
    /// namespace ([`ControlPlane::create_namespace`]) and start no operator.
    ///
    /// # Errors
    /// The errors of [`ControlPlane::start`].
    pub async fn shared() -> Result<Shared, ControlPlaneError> {
        static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
        SHARED.get_or_try_init(|| Self::start(Options::default())).await.map(Shared)
    }

    /// Kubeconfig of an administrator.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Folder of the control plane: `logs/`, `audit.log`, kubeconfigs. Removed at the end unless the test fails.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Folder of logs, also for processes that a test starts itself.
    #[must_use]
    pub fn log_directory(&self) -> PathBuf {
        self.directory.path().join("logs")
    }

    /// URL of the API server.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Whether dependents of deleted owners are collected: a controller manager runs, or the cluster is an existing one.
    #[must_use]
    pub fn collects_garbage(&self) -> bool {
        self.owned.as_ref().is_none_or(|owned| owned.controller_manager.is_some())
    }

    /// Runs kubectl as administrator in the workspace's root folder.
    ///
    /// # Errors
    /// When kubectl cannot be run; a failure of kubectl itself is in the [`Output`].
    pub async fn kubectl<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Result<Output, CommandError> {
        kubectl::run(&self.kubectl, &self.kubeconfig, arguments, "").await
    }

    /// Runs kubectl as administrator with `input` on its standard input, such as for `["apply", "-f", "-"]`.
    ///
    /// # Errors
    /// The errors of [`ControlPlane::kubectl`].
    pub async fn kubectl_with_input<A: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = A>,
        input: &str,
    ) -> Result<Output, CommandError> {
        kubectl::run(&self.kubectl, &self.kubeconfig, arguments, input).await
    }

    /// Runs kubectl with another kubeconfig, such as one of [`ControlPlane::kubeconfig_for`].
    ///
    /// # Errors
    /// The errors of [`ControlPlane::kubectl`].
    pub async fn kubectl_as<A: AsRef<OsStr>>(
        &self,
        kubeconfig: &Path,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<Output, CommandError> {
        kubectl::run(&self.kubectl, kubeconfig, arguments, "").await
    }

    /// Applies the CRDs in `path` (a file or a folder) and waits until they are served.
    ///
    /// # Errors
    /// When kubectl fails.
    pub async fn apply_crds(&self, path: &Path) -> Result<(), ControlPlaneError> {
        let path = path.as_os_str();
        let apply = [OsStr::new("apply"), "--server-side".as_ref(), "-f".as_ref(), path];
        self.kubectl(apply).await?.success()?;
        let wait = [
            OsStr::new("wait"),
            "--for=condition=Established".as_ref(),
            "--timeout=30s".as_ref(),
            "-f".as_ref(),
            path,
        ];
        self.kubectl(wait).await?.success()?;
        Ok(())
    }

    /// Suspends the API server (`SIGSTOP`) for `outage`: connections stay open, and no request is answered. Unlike that of a restart, the
    /// length of the outage does not depend on the machine.
    ///
    /// # Errors
    /// When the control plane was not started by this process.
    pub async fn without_api_server(&self, outage: Duration) -> Result<(), ControlPlaneError> {
        let owned = self.owned.as_ref().ok_or(ControlPlaneError::NotOwned {
            operation: "suspending the API server",
        })?;
        owned.api_server.signal(Signal::STOP)?;
        tokio::time::sleep(outage).await;
        Ok(owned.api_server.signal(Signal::CONT)?)
    }

    /// Kills the API server with SIGKILL; etcd keeps running. Connections are refused until [`ControlPlane::start_api_server`].
    ///
    /// # Errors
    /// When the control plane was not started by this process.
    pub async fn stop_api_server(&mut self) -> Result<(), ControlPlaneError> {
        let owned = self.owned.as_mut().ok_or(ControlPlaneError::NotOwned {
            operation: "stopping the API server",
        })?;
        Ok(owned.api_server.kill().await?)
    }

    /// Restarts the API server on the same port and with the same data, and waits until it is ready.
    ///
    /// # Errors
    /// When the API server does not start, or the control plane was not started by this process.
    pub async fn start_api_server(&mut self) -> Result<(), ControlPlaneError> {
        let owned = self.owned.as_mut().ok_or(ControlPlaneError::NotOwned {
            operation: "starting the API server",
        })?;
        owned.api_server.spawn()?;
        let ready = start::api_server_ready(&self.kubeconfig, &mut owned.api_server).await;
        if ready.is_err() {
            owned.api_server.report();
        }
        ready
    }

    /// The audit log as written so far; [`ControlPlane::audited_writes`] waits for it to be complete.
    ///
    /// # Errors
    /// When the control plane was not started by this process.
    pub fn audit(&self) -> Result<&AuditLog, ControlPlaneError> {
        let owned = self.owned.as_ref().ok_or(ControlPlaneError::NotOwned {
            operation: "reading the audit log",
        })?;
        Ok(&owned.audit)
    }

    /// Returns the writes that `wanted` accepts, among all that were answered before this call.
    ///
    /// # Errors
    /// When the log cannot be read, or the marker does not appear in it in time.
    pub async fn audited_writes(&self, wanted: impl Fn(&Write) -> bool) -> Result<Vec<Write>, ControlPlaneError> {
        let audit = self.audit()?;
        // A dry run is logged but stores nothing. Once it is in the log, all writes answered before it are as well.
        let marker = format!("audit-marker-{}", self.markers.fetch_add(1, Ordering::Relaxed));
        let config_map = ConfigMap {
            metadata: ObjectMeta {
                name: Some(marker.clone()),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        };
        let config_maps: Api<ConfigMap> = Api::namespaced(self.client().await?, "default");
        config_maps
            .create(
                &PostParams {
                    dry_run: true,
                    ..PostParams::default()
                },
                &config_map,
            )
            .await?;
        let caught_up = eventually(AUDIT_WITHIN, async || {
            audit
                .writes(|write| write.dry_run && write.name == marker)
                .ok()
                .filter(|found| !found.is_empty())
        });
        caught_up.await.ok_or(AuditError::Behind { within: AUDIT_WITHIN })?;
        Ok(audit.writes(|write| wanted(write) && !write.name.starts_with("audit-marker-"))?)
    }

    /// Keeps the folder except etcd's data when the control plane is dropped, and prints its path. A test that panics does this automatically.
    pub fn keep(&self) {
        self.directory.keep();
    }

    /// Writes the log tails of this control plane's servers to stderr.
    pub fn report(&self) {
        if let Some(owned) = &self.owned {
            for process in [Some(&owned.etcd), Some(&owned.api_server), owned.controller_manager.as_ref()] {
                process.inspect(|process| process.report());
            }
        }
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        // No reports here: the processes under test report themselves when the test panics.
        if std::thread::panicking() {
            self.directory.keep();
        }
    }
}

/// A test's reference to the control plane that all tests of the binary share.
#[derive(Debug)]
pub struct Shared(&'static ControlPlane);

impl Deref for Shared {
    type Target = ControlPlane;

    fn deref(&self) -> &ControlPlane {
        self.0
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The shared control plane is never dropped, so the folder is kept by the failing test's reference.
        if std::thread::panicking() {
            self.0.keep();
        }
    }
}
