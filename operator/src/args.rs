//! The command line and the environment: the only reader of both.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::Parser;
use sahasra_service::logging::LogFormat;

use crate::fault::Step;

/// Reconciles BurstJobs, VramLeases and GpuWorkers; lends the VRAM of the worker-agents.
#[derive(Clone, Debug, Parser)]
#[command(name = "sahasra-operator", version)]
pub struct Args {
    /// Address of /workers, /metrics, /healthz and /readyz.
    #[arg(long, env = "SAHASRA_LISTEN", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// Name of this process among its replicas: holder of the leader Lease. In a cluster, the pod's name.
    #[arg(long, env = "SAHASRA_IDENTITY", default_value = "sahasra-operator")]
    pub identity: String,
    /// Namespace of the leader Lease and of the agents' heartbeat Leases.
    #[arg(long, env = "SAHASRA_NAMESPACE", default_value = "sahasra-system")]
    pub namespace: String,
    /// A worker whose heartbeat has stood still for so long is stale.
    #[arg(long, env = "SAHASRA_WORKER_TIMEOUT", default_value = "15s", value_parser = duration)]
    pub worker_timeout: Duration,
    /// How long a session's slice lasts without a client while no operator renews it; 5 s at the least.
    #[arg(long, env = "SAHASRA_SESSION_LEASE", default_value = "60s", value_parser = duration)]
    pub session_lease: Duration,
    /// How long a leader that fell silent keeps its office.
    #[arg(long, env = "SAHASRA_LEADER_TIMEOUT", default_value = "15s", value_parser = duration)]
    pub leader_timeout: Duration,
    /// Folder below which jobs may name files and keep results under file:// URLs; nowhere when absent.
    #[arg(long, env = "SAHASRA_FILE_STORE_ROOT")]
    pub file_store_root: Option<PathBuf>,
    /// Which events are logged, such as `info,sahasra_operator=debug`.
    #[arg(long, env = "SAHASRA_LOG", default_value = "info")]
    pub log: String,
    /// Form of a log line.
    #[arg(long, env = "SAHASRA_LOG_FORMAT", value_enum, default_value_t)]
    pub log_format: LogFormat,
    /// For tests: the process kills itself right after the first such step.
    #[arg(long, env = "SAHASRA_FAIL_AT", value_enum, hide = true)]
    pub fail_at: Option<Step>,
}

/// `250ms`, `15s`, `2m`.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no duration: write a whole number with ms, s or m, such as 15s");
    let at = text.find(|character: char| !character.is_ascii_digit()).ok_or_else(wrong)?;
    let number: u64 = text[..at].parse().map_err(|_| wrong())?;
    let duration = match &text[at..] {
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        "m" => Duration::from_secs(number.checked_mul(60).ok_or_else(wrong)?),
        _ => return Err(wrong()),
    };
    if duration.is_zero() { Err(wrong()) } else { Ok(duration) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_carry_a_unit() {
        assert_eq!(duration("15s"), Ok(Duration::from_secs(15)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for wrong in ["15", "s", "0s", "1h", "-1s", ""] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }
}
