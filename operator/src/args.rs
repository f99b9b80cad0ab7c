//! The command line and the environment variables. No other module reads them.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Parser, Subcommand};
use sahasra_crds::{quantity::at_least_one_mebibyte, vram_lease::MIN_LEASE_SECONDS};
use sahasra_service::{
    args::{duration, server_name},
    logging::LogFormat,
    tls::{Identity, ServerName, Trust},
};
use sahasra_store::StoreArgs;

use crate::fault::Step;

/// Reconciles BurstJobs, GpuSessions, VramLeases and GpuWorkers.
///
/// Connects to the cluster of the KUBECONFIG environment variable, of ~/.kube/config, or of the Pod's ServiceAccount.
#[derive(Clone, Debug, Parser)]
#[command(name = "sahasra-operator", version)]
pub struct Args {
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Address of /workers, /metrics, /healthz and /readyz.
    #[arg(long, env = "SAHASRA_LISTEN", default_value = "127.0.0.1:8080", value_name = "ADDRESS")]
    pub listen: SocketAddr,
    /// Identity of this replica: holder of the leader election Lease. In a cluster, the name of the Pod.
    #[arg(
        long,
        env = "SAHASRA_LEADER_ELECT_IDENTITY",
        default_value = "sahasra-operator",
        value_name = "NAME"
    )]
    pub leader_elect_identity: String,
    /// Namespace of the leader election Lease and of the agents' heartbeat Leases. Must exist.
    #[arg(long, env = "SAHASRA_NAMESPACE", default_value = "sahasra-system")]
    pub namespace: String,
    /// Time without a heartbeat after which a worker is stale. Time in which the API server does not respond does not count.
    #[arg(long, env = "SAHASRA_HEARTBEAT_TIMEOUT", default_value = "15s", value_parser = duration, value_name = "DURATION")]
    pub heartbeat_timeout: Duration,
    /// TTL of a session's slices: they expire after this time without a client and without renewal by an operator. At least 5s.
    #[arg(long, env = "SAHASRA_SESSION_LEASE_TTL", default_value = "60s", value_parser = session_lease_ttl, value_name = "DURATION")]
    pub session_lease_ttl: Duration,
    /// Lease duration of the leader election. A leader that cannot renew its Lease continues for 19/20 of it.
    #[arg(
        long,
        env = "SAHASRA_LEADER_ELECT_LEASE_DURATION",
        default_value = "20s",
        value_parser = duration,
        value_name = "DURATION"
    )]
    pub leader_elect_lease_duration: Duration,
    /// CA of the workers' certificates in PEM, required if workers use TLS. Reloaded when it changes.
    #[arg(long, env = "SAHASRA_WORKER_CA_FILE", value_name = "FILE")]
    pub worker_ca_file: Option<PathBuf>,
    /// Name in the workers' certificate, if one certificate serves all of them [default: the host of the worker's URL].
    #[arg(long, env = "SAHASRA_WORKER_SERVER_NAME", requires = "worker_ca_file", value_name = "NAME", value_parser = server_name)]
    pub worker_server_name: Option<ServerName<'static>>,
    /// Client certificate in PEM for workers that request one. Reloaded when it changes.
    #[arg(
        long,
        env = "SAHASRA_WORKER_CLIENT_CERT_FILE",
        requires = "worker_ca_file",
        requires = "worker_client_key_file",
        value_name = "FILE"
    )]
    pub worker_client_cert_file: Option<PathBuf>,
    /// Private key of the client certificate in PEM. Reloaded when it changes.
    #[arg(
        long,
        env = "SAHASRA_WORKER_CLIENT_KEY_FILE",
        requires = "worker_client_cert_file",
        value_name = "FILE"
    )]
    pub worker_client_key_file: Option<PathBuf>,
    /// Stores that jobs may name.
    #[command(flatten)]
    pub stores: StoreArgs,
    /// Memory for PTX and inputs of all bursts together, between 56Mi and 1Ti. Bursts beyond it wait.
    #[arg(long, env = "SAHASRA_INPUT_MEMORY_LIMIT", value_name = "SIZE", default_value = "192Mi", value_parser = input_memory)]
    pub input_memory_limit: u64,
    /// Level or filter of the log, such as `info` or `info,sahasra_operator=debug`.
    #[arg(long, env = "SAHASRA_LOG_LEVEL", default_value = "info", value_parser = sahasra_service::logging::filter, value_name = "FILTER")]
    pub log_level: String,
    /// Format of the log.
    #[arg(long, env = "SAHASRA_LOG_FORMAT", value_enum, default_value_t)]
    pub log_format: LogFormat,
    /// Step after whose first occurrence the process kills itself. For tests.
    #[arg(long, env = "SAHASRA_FAILPOINT", value_enum, hide = true)]
    pub failpoint: Option<Step>,
}

/// Commands that end.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Succeed once no BurstJob, GpuSession or VramLease holds VRAM; fail and name them when some still do. The chart runs it before an uninstall.
    UninstallCheck {
        /// Time to wait for objects that are being released.
        #[arg(long, default_value = "30s", value_parser = duration, value_name = "DURATION")]
        timeout: Duration,
    },
}

impl Args {
    /// The CA with which the workers' certificates are verified, and the operator's own certificate. `None` without
    /// `--worker-ca-file`.
    pub fn trust(&self) -> Option<Trust> {
        let identity = self.worker_client_cert_file.clone().zip(self.worker_client_key_file.clone());
        Some(Trust {
            authority: self.worker_ca_file.clone()?,
            server_name: self.worker_server_name.clone(),
            identity: identity.map(|(certificate, key)| Identity { certificate, key }),
            protocol: "h2",
        })
    }
}

fn input_memory(text: &str) -> Result<u64, String> {
    match at_least_one_mebibyte(text)? {
        bytes @ 0x380_0000..=0x100_0000_0000 => Ok(bytes),
        _ => Err("must be between 56Mi and 1Ti".to_owned()),
    }
}

fn session_lease_ttl(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        ttl if ttl < Duration::from_secs(MIN_LEASE_SECONDS) => Err(format!("must be at least {MIN_LEASE_SECONDS}s")),
        ttl => Ok(ttl),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Args::command().debug_assert();
        assert_eq!(sahasra_contract::options::deviating_variables(&Args::command()), [""; 0]);
        assert_eq!(Args::parse_from(["sahasra-operator"]).input_memory_limit, crate::INPUT_BYTES);
    }

    #[test]
    fn the_ttl_of_sessions_has_a_minimum() {
        assert_eq!(session_lease_ttl("5s"), Ok(Duration::from_secs(5)));
        assert!(session_lease_ttl("4999ms").is_err());
    }

    #[test]
    fn the_memory_of_inputs_has_bounds() {
        assert_eq!(input_memory("56Mi"), Ok(56 << 20));
        assert_eq!(input_memory("1Ti"), Ok(1 << 40));
        for wrong in ["55Mi", "2Ti", "192"] {
            assert!(input_memory(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn trust_options_must_be_complete() {
        let parse = |more: &[&str]| Args::try_parse_from(std::iter::once(&"sahasra-operator").chain(more));
        assert!(parse(&[]).unwrap().trust().is_none());
        let authority = ["--worker-ca-file", "ca.crt", "--worker-server-name"];
        let trust = parse(&[&authority[..], &["sahasra-worker"]].concat()).unwrap().trust().unwrap();
        assert!(trust.identity.is_none() && trust.server_name.is_some_and(|name| name.to_str() == "sahasra-worker"));
        let identity = ["--worker-client-cert-file", "tls.crt", "--worker-client-key-file", "tls.key"];
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
