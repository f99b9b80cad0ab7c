//! Starts the servers of a control plane and waits until they are ready.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;

use super::access::{client_from, config_from};
use super::{ControlPlane, ControlPlaneError, EXISTING_CLUSTER_VARIABLE, Options, Owned};
use crate::audit::{self, AuditLog};
use crate::certificates::{Authority, write_kubeconfig};
use crate::directory::Directory;
use crate::eventually::eventually;
use crate::ports::Port;
use crate::process::{POLL_INTERVAL, Process, Specification};
use crate::tools::{self, ControlPlaneTools};

/// Timeout of the start, which usually takes three seconds and up to ten times as long on a loaded machine with two cores.
const READY_WITHIN: Duration = Duration::from_secs(90);

/// `GOGC` of the servers: they collect garbage less often than by default, which takes 40 % off the processor time of an API server's start, for
/// 100 MB of memory.
const GARBAGE_COLLECTION: (&str, &str) = ("GOGC", "400");

/// Controllers that tests without nodes rely on. The others would only watch objects and use memory.
const CONTROLLERS: &str = "garbage-collector-controller,namespace-controller,serviceaccount-controller,\
    serviceaccount-token-controller,clusterrole-aggregation-controller,root-ca-certificate-publisher-controller";

impl ControlPlane {
    /// Starts a control plane and applies the CRDs; or applies the CRDs to the existing cluster that [`EXISTING_CLUSTER_VARIABLE`] names.
    ///
    /// The programs are built on first use, which takes minutes and is reported on stderr.
    ///
    /// # Errors
    /// When a program cannot be found or built, does not start, or is not ready in time; the log tails of the servers are written to stderr.
    pub async fn start(options: Options) -> Result<Self, ControlPlaneError> {
        let existing = std::env::var_os(EXISTING_CLUSTER_VARIABLE).filter(|path| !path.is_empty());
        let directory = Directory::create().map_err(ControlPlaneError::Directory)?;
        let kubectl = tools::kubectl().await?;
        let mut control_plane = match existing {
            Some(kubeconfig) => Self::join(kubeconfig.into(), kubectl, directory).await?,
            None => Self::start_servers(kubectl, directory, options.durable).await?,
        };
        if let Err(error) = control_plane.complete(&options).await {
            control_plane.report();
            control_plane.directory.keep();
            return Err(error);
        }
        Ok(control_plane)
    }

    async fn join(kubeconfig: PathBuf, kubectl: PathBuf, directory: Directory) -> Result<Self, ControlPlaneError> {
        let server = config_from(&kubeconfig).await?.cluster_url.to_string();
        Ok(Self {
            kubeconfig,
            server,
            kubectl,
            markers: AtomicU64::new(0),
            owned: None,
            directory,
        })
    }

    /// Starts etcd and the API server without waiting in between: the API server itself waits for etcd.
    async fn start_servers(kubectl: PathBuf, directory: Directory, durable: bool) -> Result<Self, ControlPlaneError> {
        let programs = tools::control_plane().await?;
        let root = directory.path().to_owned();
        let authority = Authority::create(&root)?;
        let (client_port, peer_port, api_port) = (Port::reserve()?, Port::reserve()?, Port::reserve()?);
        let server = format!("https://{}", api_port.address());

        let kubeconfig = root.join("admin.kubeconfig");
        let controller_manager = root.join("controller-manager.kubeconfig");
        write_kubeconfig(&kubeconfig, &server, &authority, "admin", Some("system:masters"))?;
        write_kubeconfig(&controller_manager, &server, &authority, "system:kube-controller-manager", None)?;
        std::fs::write(root.join("audit-policy.json"), audit::POLICY).map_err(ControlPlaneError::Directory)?;

        let mut etcd = etcd(&programs, &root, &client_port, &peer_port);
        if !durable {
            etcd = etcd.argument("--unsafe-no-fsync");
        }
        let etcd = etcd.start().await?;
        let api_server = api_server(&programs, &authority, &root, &client_port, &api_port).start().await?;
        let audit = AuditLog::new(root.join("audit.log"));
        let ports = [client_port, peer_port, api_port];
        let owned = Owned {
            controller_manager: None,
            api_server,
            etcd,
            audit,
            _ports: ports,
        };
        Ok(Self {
            kubeconfig,
            server,
            kubectl,
            markers: AtomicU64::new(0),
            owned: Some(owned),
            directory,
        })
    }

    async fn complete(&mut self, options: &Options) -> Result<(), ControlPlaneError> {
        if let Some(owned) = &mut self.owned {
            api_server_ready(&self.kubeconfig, &mut owned.api_server).await?;
        }
        for path in &options.custom_resource_definitions {
            self.apply_crds(path).await?;
        }
        if self.owned.is_some() && options.controller_manager {
            self.start_controller_manager().await?;
        }
        Ok(())
    }

    async fn start_controller_manager(&mut self) -> Result<(), ControlPlaneError> {
        let Some(program) = tools::control_plane().await?.controller_manager else {
            return Ok(());
        };
        let process = controller_manager(&program, self.directory()).start().await?;
        if let Some(owned) = &mut self.owned {
            owned.controller_manager = Some(process);
        }
        // The controllers run once the namespace `default` has its ServiceAccount.
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client().await?, "default");
        let started = Instant::now();
        let found = eventually(READY_WITHIN, async || accounts.get_opt("default").await.ok().flatten()).await;
        found.map(drop).ok_or_else(|| ControlPlaneError::NotReady {
            what: "kube-controller-manager",
            waited: started.elapsed(),
            last: "namespace default has no ServiceAccount".to_owned(),
        })
    }
}

/// Waits until the API server answers `/readyz` with 200 to the administrator.
pub(super) async fn api_server_ready(kubeconfig: &Path, process: &mut Process) -> Result<(), ControlPlaneError> {
    let client = client_from(kubeconfig).await?;
    let started = Instant::now();
    loop {
        let request = http::Request::get("/readyz").body(Vec::new()).map_err(kube::Error::HttpError)?;
        let last = match client.request_text(request).await {
            Ok(_) => return Ok(()),
            Err(error) => error.to_string(),
        };
        let waited = started.elapsed();
        if !process.is_running() {
            return Err(ControlPlaneError::NotReady {
                what: "kube-apiserver",
                waited,
                last: "it has ended".to_owned(),
            });
        }
        if waited > READY_WITHIN {
            return Err(ControlPlaneError::NotReady {
                what: "kube-apiserver",
                waited,
                last,
            });
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn go_server(name: &str, program: &Path, root: &Path) -> Specification {
    let (variable, percentage) = GARBAGE_COLLECTION;
    Specification::new(name, program, &root.join("logs"))
        .quiet()
        .environment(variable, percentage)
}

fn etcd(tools: &ControlPlaneTools, root: &Path, client: &Port, peer: &Port) -> Specification {
    go_server("etcd", &tools.etcd, root)
        .arguments(["--name", "e2e", "--log-level", "error", "--data-dir"])
        .argument(root.join("etcd"))
        .arguments(["--listen-client-urls", &client.url(), "--advertise-client-urls", &client.url()])
        .arguments(["--listen-peer-urls", &peer.url(), "--initial-advertise-peer-urls", &peer.url()])
        .arguments(["--initial-cluster", &format!("e2e={}", peer.url())])
}

fn api_server(tools: &ControlPlaneTools, authority: &Authority, root: &Path, etcd: &Port, port: &Port) -> Specification {
    let file = |flag: &str, name: &str| format!("--{flag}={}", authority.path(name).display());
    go_server("kube-apiserver", &tools.api_server, root)
        .argument(format!("--etcd-servers={}", etcd.url()))
        .arguments(["--bind-address=127.0.0.1".to_owned(), format!("--secure-port={port}")])
        // An address of TEST-NET-1: no node uses the service address, and the API server does not accept a loopback address here.
        .arguments(["--advertise-address=192.0.2.1", "--endpoint-reconciler-type=none"])
        .arguments([
            "--service-cluster-ip-range=10.96.0.0/16",
            "--allow-privileged=true",
            "--profiling=false",
        ])
        .arguments([
            file("tls-cert-file", "apiserver.crt"),
            file("tls-private-key-file", "apiserver.key"),
        ])
        .argument(file("client-ca-file", "ca.crt"))
        .arguments([
            "--authorization-mode=Node,RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
        ])
        .argument(file("service-account-key-file", "service-account.pub"))
        .argument(file("service-account-signing-key-file", "service-account.key"))
        .argument(format!("--audit-policy-file={}", root.join("audit-policy.json").display()))
        .argument(format!("--audit-log-path={}", root.join("audit.log").display()))
        // A single file, because the reader does not handle rotation.
        .arguments(["--audit-log-maxsize=4096", "--audit-log-mode=blocking"])
}

fn controller_manager(program: &Path, root: &Path) -> Specification {
    let kubeconfig = root.join("controller-manager.kubeconfig");
    go_server("kube-controller-manager", program, root)
        .argument(format!("--kubeconfig={}", kubeconfig.display()))
        .argument(format!(
            "--service-account-private-key-file={}",
            root.join("service-account.key").display()
        ))
        .argument(format!("--root-ca-file={}", root.join("ca.crt").display()))
        .argument(format!("--controllers={CONTROLLERS}"))
        // No test reads from the controller manager's own port. At the default rate limit the first ServiceAccount takes five seconds.
        .arguments(["--secure-port=0", "--leader-elect=false", "--use-service-account-credentials=true"])
        .arguments(["--kube-api-qps=500", "--kube-api-burst=1000"])
}
