//! Command line of `sahasra-worker`. The only module that reads environment variables.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use sahasra_crds::VramQuantity;
use sahasra_service::{args::duration, logging::LogFormat, tls::Files};
use sahasra_store::StoreArgs;

use crate::devices::{CpuEngine, DeviceConfig};

/// Owns one node's devices and lends slices of their memory.
#[derive(Debug, Parser)]
#[command(name = "sahasra-worker", version)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What the program does.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serves the node's devices.
    Agent(Box<AgentArguments>),
    /// Runs chunks for an agent, which starts it; see `executor --help`.
    #[command(disable_help_flag = true)]
    Executor {
        /// As the agent gives them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<std::ffi::OsString>,
    },
}

/// When the CPU engine is a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum CpuEngineChoice {
    /// When no GPU was found.
    #[default]
    WithoutGpu,
    /// Beside the GPUs too.
    Always,
    /// Never.
    Never,
}

fn mebibytes(text: &str) -> Result<u64, String> {
    let quantity: VramQuantity = text.parse().map_err(|error| format!("{error}"))?;
    let bytes = quantity.bytes().map_err(|error| error.to_string())?;
    if bytes < 1 << 20 {
        return Err("must be at least 1Mi".to_owned());
    }
    Ok(bytes)
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse::<f64>();
    let time = number.ok().and_then(|_| duration(&format!("{text}s")).ok());
    time.filter(|time| *time <= Duration::from_secs(86_400))
        .ok_or_else(|| format!("invalid number of seconds {text:?}: expected more than 0 and at most 86400"))
}

/// Options of the agent.
#[derive(Clone, Debug, ClapArgs)]
pub struct AgentArguments {
    /// Node that the agent serves; names its GpuWorker.
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,
    /// Namespace of its heartbeat Lease.
    #[arg(long, env = "POD_NAMESPACE", default_value = "sahasra-system")]
    pub namespace: String,
    /// Address to serve on.
    #[arg(long, default_value = "127.0.0.1:8471")]
    pub listen: SocketAddr,
    /// URL at which operator, gateway and clients reach it; from --listen when absent, https:// where there is a certificate.
    #[arg(long)]
    pub advertise_address: Option<String>,
    /// Certificate chain, PEM: everything is served through TLS then. Read again when it changes.
    #[arg(long, env = "SAHASRA_TLS_CERTIFICATE", requires = "tls_key", value_name = "FILE")]
    pub tls_certificate: Option<PathBuf>,
    /// Its private key, PEM; read again when it changes.
    #[arg(long, env = "SAHASRA_TLS_KEY", requires = "tls_certificate", value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// Certificates of the authority of operators, PEM: only who shows a certificate of it may take, renew and release slices, run
    /// chunks and ask what there is. Whoever reaches the port may when absent. Read again when it changes.
    #[arg(long, env = "SAHASRA_TLS_CLIENT_AUTHORITY", requires = "tls_certificate", value_name = "FILE")]
    pub tls_client_authority: Option<PathBuf>,
    /// Serve without an API server: no GpuWorker, no heartbeat.
    #[arg(long)]
    pub no_kubernetes: bool,
    /// Kubeconfig; the pod's own service account when absent.
    #[arg(long, env = "KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Seconds between heartbeats.
    #[arg(long, default_value = "5", value_parser = seconds)]
    pub heartbeat_interval_seconds: Duration,
    /// Least seconds between writes of the status.
    #[arg(long, default_value = "5", value_parser = seconds)]
    pub status_interval_seconds: Duration,
    /// Seconds that running chunks have to end once the agent is told to stop.
    #[arg(long, default_value = "20", value_parser = seconds)]
    pub shutdown_grace_seconds: Duration,
    /// YAML file with a list `classes` of {class, model, nodeLabels, memory}: the first that fits a device names its class, and
    /// how much of it is lent.
    #[arg(long)]
    pub class_table: Option<PathBuf>,
    /// Which stores jobs may name.
    #[command(flatten)]
    pub stores: StoreArgs,
    /// PJRT plugin, a library: sessions may then run XLA programs on the devices that it drives.
    #[arg(long, env = "SAHASRA_PJRT_PLUGIN")]
    pub pjrt_plugin: Option<PathBuf>,
    /// Folder in which programs that engine xla has compiled are kept, each namespace's apart from the others': its later sessions
    /// here need not compile them again. In a session's memory alone when absent.
    #[arg(long, env = "SAHASRA_PROGRAM_CACHE", value_name = "FOLDER")]
    pub program_cache: Option<PathBuf>,
    /// Most that is kept there, such as 2Gi: what was used longest ago goes.
    #[arg(long, default_value = "2Gi", value_parser = mebibytes)]
    pub program_cache_size: u64,
    /// Do not look for GPUs.
    #[arg(long)]
    pub no_cuda: bool,
    /// When the CPU engine is a device.
    #[arg(long, value_enum, default_value_t)]
    pub cpu_engine: CpuEngineChoice,
    /// How many devices the CPU engine plays.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub cpu_devices: u32,
    /// Memory that each of them lends, such as 4Gi; half of the machine's, divided among them, when absent.
    #[arg(long, value_parser = mebibytes)]
    pub cpu_memory: Option<u64>,
    /// Threads of each; one a core when absent.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub cpu_threads: Option<u32>,
    /// Memory of a GPU that each session's process takes there beside its slice, such as 600Mi; what a context was measured to take when
    /// absent. A session that would exceed the device with it is refused.
    #[arg(long, value_parser = mebibytes)]
    pub session_context_memory: Option<u64>,
    /// Namespaces whose bursts one device serves at the same time; more take turns.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub executors_per_device: u32,
    /// Refuse to start where the kernel lacks what executors are walled in with (Landlock, seccomp), instead of a warning.
    #[arg(long)]
    pub require_executor_walls: bool,
    /// Seconds after which an executor without work ends.
    #[arg(long, default_value = "60", value_parser = seconds)]
    pub executor_idle_seconds: Duration,
    /// What is logged, as for RUST_LOG: `info`, `info,sahasra_worker=debug`.
    #[arg(long, env = "RUST_LOG", default_value = "info", value_parser = sahasra_service::logging::filter)]
    pub log: String,
    /// Form of log lines.
    #[arg(long, value_enum, default_value_t)]
    pub log_format: LogFormat,
    /// The token that an operator has to show, where one program starts both.
    #[arg(skip)]
    pub operator_token: Option<String>,
}

impl AgentArguments {
    /// Returns the URL at which operator, gateway and clients reach the agent. `bound` is the default.
    pub fn endpoint(&self, bound: SocketAddr) -> String {
        let scheme = if self.tls_certificate.is_some() { "https" } else { "http" };
        self.advertise_address.clone().unwrap_or_else(|| format!("{scheme}://{bound}"))
    }

    /// Returns the files of the agent's certificate, or `None` without one.
    pub fn tls(&self) -> Option<Files> {
        Some(Files {
            certificate: self.tls_certificate.clone()?,
            key: self.tls_key.clone()?,
            client_authority: self.tls_client_authority.clone(),
        })
    }

    /// Returns which devices the agent offers.
    pub fn devices(&self) -> DeviceConfig {
        DeviceConfig {
            cuda: !self.no_cuda,
            cpu: match self.cpu_engine {
                CpuEngineChoice::WithoutGpu => CpuEngine::WithoutGpu,
                CpuEngineChoice::Always => CpuEngine::Always,
                CpuEngineChoice::Never => CpuEngine::Never,
            },
            cpu_devices: self.cpu_devices,
            cpu_memory_bytes: self.cpu_memory,
            cpu_threads: self.cpu_threads,
            executors_per_device: self.executors_per_device,
            ..DeviceConfig::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn an_agent_with_a_certificate_says_so_in_its_address_and_names_who_may_come() {
        let parse = |more: &[&str]| {
            let first = ["sahasra-worker", "agent", "--node-name", "node"];
            Arguments::try_parse_from(first.iter().chain(more)).map(|arguments| match arguments.command {
                Command::Agent(arguments) => arguments,
                Command::Executor { .. } => unreachable!(),
            })
        };
        let bound = "127.0.0.1:8471".parse().unwrap();
        let plain = parse(&[]).unwrap();
        assert_eq!(
            (plain.endpoint(bound).as_str(), plain.tls().is_some()),
            ("http://127.0.0.1:8471", false)
        );
        let certified = parse(&["--tls-certificate", "tls.crt", "--tls-key", "tls.key"]).unwrap();
        assert_eq!(
            (certified.endpoint(bound).as_str(), certified.tls().is_some()),
            ("https://127.0.0.1:8471", true)
        );
        // A TLS option that would protect nothing on its own is rejected, so that nobody relies on it.
        for half in [
            &["--tls-certificate", "tls.crt"],
            &["--tls-key", "tls.key"],
            &["--tls-client-authority", "ca.crt"],
        ] {
            assert!(parse(half).is_err(), "{half:?}");
        }
    }

    #[test]
    fn amounts_and_times_are_checked() {
        assert_eq!(mebibytes("4Gi"), Ok(4 << 30));
        for wrong in ["4", "4GB", "1Ki", "0Mi"] {
            assert!(mebibytes(wrong).is_err(), "{wrong}");
        }
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "NaN", "1e9", "soon"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
