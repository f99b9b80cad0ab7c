//! A Kubernetes control plane of one's own: etcd, kube-apiserver and kube-controller-manager as child processes.
//!
//! It listens on loopback ports reserved for it, keeps everything in a temporary folder, authorises by RBAC, logs every
//! write and is ready in about three seconds. Several run at once. It goes when it is dropped or when its process dies.

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

/// Kubeconfig of a cluster that exists and is to be used instead of starting one.
pub const EXISTING_CLUSTER_VARIABLE: &str = "SAHASRA_E2E_KUBECONFIG";
/// How long a written marker may take to reach the audit log.
const AUDIT_WITHIN: Duration = Duration::from_secs(10);

/// Why a control plane did not start or did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum ControlPlaneError {
    /// The temporary folder or a file in it could not be written.
    #[error("write the control plane's folder")]
    Directory(#[source] std::io::Error),
    /// A certificate or kubeconfig could not be made.
    #[error("make certificates")]
    Certificate(#[from] CertificateError),
    /// No port was free.
    #[error("reserve a port")]
    Port(#[from] PortError),
    /// A program could not be found or built.
    #[error("find the programs of the control plane")]
    Tool(#[from] ToolError),
    /// A server could not be started or stopped.
    #[error("run the control plane")]
    Process(#[from] ProcessError),
    /// A command failed.
    #[error("run a command")]
    Command(#[from] CommandError),
    /// The API server refused or did not answer.
    #[error("call the API server")]
    Api(#[source] Box<kube::Error>),
    /// A kubeconfig could not be read back.
    #[error("read a kubeconfig")]
    Kubeconfig(#[source] Box<kube::config::KubeconfigError>),
    /// It was not ready in time.
    #[error("{what} was not ready after {waited:?}: {last}")]
    NotReady {
        /// What was waited for.
        what: &'static str,
        /// How long.
        waited: Duration,
        /// What it said last.
        last: String,
    },
    /// The chart has no workload of a kind that is needed.
    #[error("the chart renders no {kind} with a serviceAccountName")]
    Chart {
        /// The workload's kind.
        kind: &'static str,
    },
    /// The audit log could not be read.
    #[error("read the audit log")]
    Audit(#[from] AuditError),
    /// The embedded one could not be served.
    #[error("serve the embedded control plane")]
    Embedded(#[from] sahasra_local::ServeError),
    /// An existing cluster is in use, whose parts are not the test's to command.
    #[error("{operation} needs a control plane of the test's own; {EXISTING_CLUSTER_VARIABLE} is set")]
    NotOwned {
        /// What was asked for.
        operation: &'static str,
    },
}

impl From<kube::Error> for ControlPlaneError {
    fn from(error: kube::Error) -> Self {
        Self::Api(Box::new(error))
    }
}

/// How to start a control plane.
#[derive(Debug, Clone)]
pub struct Options {
    custom_resource_definitions: Vec<PathBuf>,
    controller_manager: bool,
    durable: bool,
}

impl Default for Options {
    /// With the chart's CRDs (`helm/sahasra/files/crds`) and a controller manager; etcd leaves its writes to the page cache.
    fn default() -> Self {
        Self {
            custom_resource_definitions: vec![tools::workspace_root().join("helm/sahasra/files/crds")],
            controller_manager: true,
            durable: false,
        }
    }
}

impl Options {
    /// With these CRD files or folders instead of the chart's. They are applied before the controller manager
    /// starts: its garbage collector learns late (up to half a minute) of kinds that come after it.
    #[must_use]
    pub fn custom_resource_definitions<P: Into<PathBuf>>(mut self, paths: impl IntoIterator<Item = P>) -> Self {
        self.custom_resource_definitions = paths.into_iter().map(Into::into).collect();
        self
    }

    /// Without a controller manager: no garbage collection, no namespace deletion, no default ServiceAccounts, one second
    /// sooner and 100 MB smaller.
    #[must_use]
    pub fn without_controller_manager(mut self) -> Self {
        self.controller_manager = false;
        self
    }

    /// With an etcd that waits for the disk at every write, as one of a cluster does: for measurements. Tests need not survive a
    /// power cut, and are faster without.
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

/// What there is besides when the control plane is this process's own.
#[derive(Debug)]
struct Owned {
    // In the order in which they are dropped: clients before what they talk to.
    controller_manager: Option<Process>,
    api_server: Process,
    etcd: Process,
    audit: AuditLog,
    _ports: [Port; 3],
}

impl ControlPlane {
    /// The control plane that all tests of this test binary share, started by the first that asks; for tests that keep to
    /// their own namespace ([`ControlPlane::create_namespace`]) and start no operator.
    ///
    /// # Errors
    /// As for [`ControlPlane::start`].
    pub async fn shared() -> Result<Shared, ControlPlaneError> {
        static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
        SHARED.get_or_try_init(|| Self::start(Options::default())).await.map(Shared)
    }

    /// Kubeconfig of an administrator.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Its folder: `logs/`, `audit.log`, kubeconfigs. It is removed at the end unless the test fails.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Where logs go: give it to the processes of the test too.
    #[must_use]
    pub fn log_directory(&self) -> PathBuf {
        self.directory.path().join("logs")
    }

    /// URL of the API server.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Whether deleted owners' children are collected: a controller manager runs, or the cluster is an existing one.
    #[must_use]
    pub fn collects_garbage(&self) -> bool {
        self.owned.as_ref().is_none_or(|owned| owned.controller_manager.is_some())
    }

    /// Runs kubectl as administrator in the workspace's root folder.
    ///
    /// # Errors
    /// When it cannot be run; a failure of kubectl itself is in the [`Output`].
    pub async fn kubectl<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Result<Output, CommandError> {
        kubectl::run(&self.kubectl, &self.kubeconfig, arguments, "").await
    }

    /// Runs kubectl as administrator with `input` on its standard input: `["apply", "-f", "-"]`.
    ///
    /// # Errors
    /// As for [`ControlPlane::kubectl`].
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
    /// As for [`ControlPlane::kubectl`].
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

    /// Suspends the API server (`SIGSTOP`) for as long as `outage` lasts: connections stay, nothing is answered. Unlike a restart its length
    /// does not depend on the machine.
    ///
    /// # Errors
    /// When the control plane is not this process's own.
    pub async fn without_api_server(&self, outage: Duration) -> Result<(), ControlPlaneError> {
        let owned = self.owned.as_ref().ok_or(ControlPlaneError::NotOwned {
            operation: "suspending the API server",
        })?;
        owned.api_server.signal(Signal::STOP)?;
        tokio::time::sleep(outage).await;
        Ok(owned.api_server.signal(Signal::CONT)?)
    }

    /// SIGKILLs the API server and leaves etcd; clients see connections refused until [`ControlPlane::start_api_server`].
    ///
    /// # Errors
    /// When the control plane is not this process's own.
    pub async fn stop_api_server(&mut self) -> Result<(), ControlPlaneError> {
        let owned = self.owned.as_mut().ok_or(ControlPlaneError::NotOwned {
            operation: "stopping the API server",
        })?;
        Ok(owned.api_server.kill().await?)
    }

    /// Starts the API server again, on the same port and with the same data, and waits until it is ready.
    ///
    /// # Errors
    /// When it does not start.
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

    /// The audit log as far as it is written; see [`ControlPlane::audited_writes`].
    ///
    /// # Errors
    /// When the control plane is not this process's own.
    pub fn audit(&self) -> Result<&AuditLog, ControlPlaneError> {
        let owned = self.owned.as_ref().ok_or(ControlPlaneError::NotOwned {
            operation: "reading the audit log",
        })?;
        Ok(&owned.audit)
    }

    /// The writes that `wanted` accepts, among all that were answered before this call.
    ///
    /// # Errors
    /// When the log cannot be read or does not catch up.
    pub async fn audited_writes(&self, wanted: impl Fn(&Write) -> bool) -> Result<Vec<Write>, ControlPlaneError> {
        let audit = self.audit()?;
        // A dry run stores nothing but is logged; once it is in the log, so is what was answered before it was asked.
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

    /// Keeps the folder, but for etcd's data, when this is dropped, and says where it is. Panicking tests do by themselves.
    pub fn keep(&self) {
        self.directory.keep();
    }

    /// Writes the end of every log of this control plane to stderr.
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
        // Processes that a test is about report themselves when it panics.
        if std::thread::panicking() {
            self.directory.keep();
        }
    }
}

/// A test's hold of the control plane that it shares with others.
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
        // What is shared is never dropped: the failing test itself keeps it.
        if std::thread::panicking() {
            self.0.keep();
        }
    }
}
