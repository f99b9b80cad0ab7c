//! The command line and the environment variables. No other module reads them.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Parser, Subcommand};
use sahasra_service::{
    args::duration,
    logging::LogFormat,
    tls::{Identity, ServerName, Trust},
};
use sahasra_store::StoreArgs;

use crate::fault::Step;

/// Reconciles BurstJobs, VramLeases and GpuWorkers; lends the VRAM of the worker-agents.
///
/// Where the cluster is comes from the KUBECONFIG environment variable, ~/.kube/config, or the pod's ServiceAccount. The namespace of the Leases
/// must exist.
#[derive(Clone, Debug, Parser)]
#[command(name = "sahasra-operator", version)]
pub struct Args {
    /// What to do instead of being the operator.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Address of /workers, /metrics, /healthz and /readyz.
    #[arg(long, env = "SAHASRA_LISTEN", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// Name of this process among its replicas: holder of the leader Lease. In a cluster, the pod's name.
    #[arg(long, env = "SAHASRA_IDENTITY", default_value = "sahasra-operator")]
    pub identity: String,
    /// Namespace of the leader Lease and of the agents' heartbeat Leases.
    #[arg(long, env = "SAHASRA_NAMESPACE", default_value = "sahasra-system")]
    pub namespace: String,
    /// A worker whose heartbeat has stood still for so long is stale; time in which the API server does not answer does not count.
    #[arg(long, env = "SAHASRA_WORKER_TIMEOUT", default_value = "15s", value_parser = duration)]
    pub worker_timeout: Duration,
    /// How long a session's slice lasts without a client while no operator renews it; 5 s at the least.
    #[arg(long, env = "SAHASRA_SESSION_LEASE", default_value = "60s", value_parser = duration)]
    pub session_lease: Duration,
    /// Lease duration of the leader election: a leader that cannot renew its Lease goes on for 19/20 of it; then another may lead.
    #[arg(long, env = "SAHASRA_LEADER_TIMEOUT", default_value = "20s", value_parser = duration)]
    pub leader_timeout: Duration,
    /// Certificates of the authority that workers' certificates are of, PEM; read again when they change. Needed where workers speak TLS.
    #[arg(long, env = "SAHASRA_WORKER_AUTHORITY", value_name = "FILE")]
    pub worker_authority: Option<PathBuf>,
    /// Name that a worker's certificate has to be for, where one certificate serves all of them; the host of its URL when absent.
    #[arg(long, env = "SAHASRA_WORKER_SERVER_NAME", requires = "worker_authority", value_name = "NAME", value_parser = server_name)]
    pub worker_server_name: Option<ServerName<'static>>,
    /// Certificate that is shown to workers which ask for one, PEM; read again when it changes.
    #[arg(
        long,
        env = "SAHASRA_WORKER_CLIENT_CERTIFICATE",
        requires = "worker_authority",
        requires = "worker_client_key",
        value_name = "FILE"
    )]
    pub worker_client_certificate: Option<PathBuf>,
    /// Its private key, PEM; read again when it changes.
    #[arg(
        long,
        env = "SAHASRA_WORKER_CLIENT_KEY",
        requires = "worker_client_certificate",
        value_name = "FILE"
    )]
    pub worker_client_key: Option<PathBuf>,
    /// Which stores jobs may name.
    #[command(flatten)]
    pub stores: StoreArgs,
    /// Most MiB of PTX and inputs from ConfigMaps and stores that all bursts together hold in this process; more wait. 56 at the least.
    #[arg(long, env = "SAHASRA_INPUT_MEMORY_MIB", value_name = "MIB", default_value_t = crate::INPUT_BYTES >> 20, value_parser = clap::value_parser!(u64).range(56..=1 << 20))]
    pub input_memory_mib: u64,
    /// Which events are logged, such as `info,sahasra_operator=debug`.
    #[arg(long, env = "SAHASRA_LOG", default_value = "info", value_parser = sahasra_service::logging::filter)]
    pub log: String,
    /// Form of a log line.
    #[arg(long, env = "SAHASRA_LOG_FORMAT", value_enum, default_value_t)]
    pub log_format: LogFormat,
    /// For tests: the process kills itself right after the first such step.
    #[arg(long, env = "SAHASRA_FAIL_AT", value_enum, hide = true)]
    pub fail_at: Option<Step>,
}

/// A command that ends.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Succeed once no BurstJob, GpuSession or VramLease holds VRAM; fail and name them when some still do. The chart runs it before an uninstall.
    UninstallCheck {
        /// How long to wait for objects that are being given back.
        #[arg(long, default_value = "30s", value_parser = duration)]
        within: Duration,
    },
}

impl Args {
    /// The authority that the workers' certificates are verified with, and the operator's own certificate. `None` without
    /// `--worker-authority`.
    pub fn trust(&self) -> Option<Trust> {
        let identity = self.worker_client_certificate.clone().zip(self.worker_client_key.clone());
        Some(Trust {
            authority: self.worker_authority.clone()?,
            server_name: self.worker_server_name.clone(),
            identity: identity.map(|(certificate, key)| Identity { certificate, key }),
            protocol: "h2",
        })
    }
}

fn server_name(text: &str) -> Result<ServerName<'static>, String> {
    ServerName::try_from(text.to_owned()).map_err(|_| "write a DNS name or an IP address".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }

    #[test]
    fn who_is_trusted_is_given_whole_or_not_at_all() {
        let parse = |more: &[&str]| Args::try_parse_from(std::iter::once(&"sahasra-operator").chain(more));
        assert!(parse(&[]).unwrap().trust().is_none());
        let authority = ["--worker-authority", "ca.crt", "--worker-server-name"];
        let trust = parse(&[&authority[..], &["sahasra-worker"]].concat()).unwrap().trust().unwrap();
        assert!(trust.identity.is_none() && trust.server_name.is_some_and(|name| name.to_str() == "sahasra-worker"));
        let identity = ["--worker-client-certificate", "tls.crt", "--worker-client-key", "tls.key"];
        assert!(
            parse(&[&identity[..], &authority[..2]].concat())
                .unwrap()
                .trust()
                .unwrap()
                .identity
                .is_some()
        );
        for half in [
            &identity[..],
            &identity[..2],
            &["--worker-server-name", "name"],
            &[&authority[..], &["no name"]].concat(),
        ] {
            assert!(parse(half).is_err(), "{half:?}");
        }
    }
}
