//! Command line of `sahasra-worker`. The only module that reads environment variables.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum, builder::BoolishValueParser};
use sahasra_crds::quantity::at_least_one_mebibyte;
use sahasra_service::{args::duration, logging::LogFormat, tls::Files};
use sahasra_store::StoreArgs;

/// Default number of namespaces whose bursts one device serves at the same time.
pub const MAX_EXECUTORS_PER_DEVICE: u32 = 8;
/// Maximum number of devices of the CPU backend.
const MAX_CPU_DEVICES: i64 = 64;

/// Agent of one node: grants slices of the memory of its devices, and runs chunks and sessions on them.
#[derive(Debug, Parser)]
#[command(name = "sahasra-worker", version)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

/// Commands of the program.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serves the node's devices.
    Agent(Box<AgentArguments>),
    /// Internal: process that the agent starts for chunks, a session or a probe; see `executor --help`.
    #[command(disable_help_flag = true)]
    Executor {
        /// Arguments, set by the agent.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<std::ffi::OsString>,
    },
}

/// Options of the agent.
#[derive(Clone, Debug, ClapArgs)]
pub struct AgentArguments {
    /// Name of the node, and of its GpuWorker.
    #[arg(long, env = "SAHASRA_NODE_NAME", value_name = "NAME")]
    pub node_name: String,
    /// Namespace of the heartbeat Lease.
    #[arg(long, env = "SAHASRA_NAMESPACE", default_value = "sahasra-system")]
    pub namespace: String,
    /// Address to listen on.
    #[arg(long, env = "SAHASRA_LISTEN", default_value = "127.0.0.1:8471", value_name = "ADDRESS")]
    pub listen: SocketAddr,
    /// URL at which operator, gateway and clients reach the agent [default: the address of --listen, https:// with a certificate].
    #[arg(long, env = "SAHASRA_ADVERTISE_URL", value_name = "URL")]
    pub advertise_url: Option<String>,
    /// Certificate chain in PEM; enables TLS. Reloaded when it changes.
    #[arg(long, env = "SAHASRA_TLS_CERT_FILE", requires = "tls_private_key_file", value_name = "FILE")]
    pub tls_cert_file: Option<PathBuf>,
    /// Private key of the certificate in PEM. Reloaded when it changes.
    #[arg(long, env = "SAHASRA_TLS_PRIVATE_KEY_FILE", requires = "tls_cert_file", value_name = "FILE")]
    pub tls_private_key_file: Option<PathBuf>,
    /// CA of operators in PEM: only callers with a certificate of this CA may acquire, renew and release slices, run chunks and read the
    /// inventory. Without it every caller may. Reloaded when it changes.
    #[arg(long, env = "SAHASRA_CLIENT_CA_FILE", requires = "tls_cert_file", value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,
    /// Run without an API server: no GpuWorker, no heartbeat.
    #[arg(long, env = "SAHASRA_NO_KUBERNETES", value_parser = BoolishValueParser::new())]
    pub no_kubernetes: bool,
    /// Kubeconfig [default: the service account of the pod].
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Interval of heartbeats.
    #[arg(long, env = "SAHASRA_HEARTBEAT_INTERVAL", default_value = "5s", value_parser = duration, value_name = "DURATION")]
    pub heartbeat_interval: Duration,
    /// Shortest interval between two updates of the status.
    #[arg(long, env = "SAHASRA_STATUS_UPDATE_INTERVAL", default_value = "5s", value_parser = duration, value_name = "DURATION")]
    pub status_update_interval: Duration,
    /// Time that running chunks have to end after the agent received a signal to stop.
    #[arg(long, env = "SAHASRA_DRAIN_TIMEOUT", default_value = "20s", value_parser = duration, value_name = "DURATION")]
    pub drain_timeout: Duration,
    /// YAML file with a list `classes` of {class, model, nodeLabels, memory}: the first entry that matches a device sets its class, and its
    /// allocatable memory.
    #[arg(long, env = "SAHASRA_DEVICE_CLASSES_FILE", value_name = "FILE")]
    pub device_classes_file: Option<PathBuf>,
    /// Stores that jobs may name.
    #[command(flatten)]
    pub stores: StoreArgs,
    /// Library of a PJRT plugin: sessions on the devices that it supports may run XLA programs.
    #[arg(long, env = "SAHASRA_PJRT_PLUGIN", value_name = "FILE")]
    pub pjrt_plugin: Option<PathBuf>,
    /// Folder for compiled programs of engine xla, one subfolder for each namespace [default: programs are kept in the memory of a session].
    #[arg(long, env = "SAHASRA_PROGRAM_CACHE_DIR", value_name = "DIR")]
    pub program_cache_dir: Option<PathBuf>,
    /// Maximum size of this folder. The least recently used programs are removed.
    #[arg(long, env = "SAHASRA_PROGRAM_CACHE_LIMIT", default_value = "2Gi", value_parser = at_least_one_mebibyte, value_name = "SIZE")]
    pub program_cache_limit: u64,
    /// Devices that the agent offers.
    #[command(flatten)]
    pub devices: DeviceArguments,
    /// Fail to start, instead of a warning, if the kernel lacks a part of the sandbox of executors (Landlock, seccomp).
    #[arg(long, env = "SAHASRA_REQUIRE_SANDBOX", value_parser = BoolishValueParser::new())]
    pub require_sandbox: bool,
    /// Time after which an executor without work ends.
    #[arg(long, env = "SAHASRA_EXECUTOR_IDLE_TIMEOUT", default_value = "60s", value_parser = duration, value_name = "DURATION")]
    pub executor_idle_timeout: Duration,
    /// Level or filter of the log, such as `info` or `info,sahasra_worker=debug`.
    #[arg(long, env = "SAHASRA_LOG_LEVEL", default_value = "info", value_parser = sahasra_service::logging::filter, value_name = "FILTER")]
    pub log_level: String,
    /// Format of the log.
    #[arg(long, env = "SAHASRA_LOG_FORMAT", value_enum, default_value_t)]
    pub log_format: LogFormat,
    /// Token that an operator must present, where one program starts both.
    #[arg(skip)]
    pub operator_token: Option<String>,
}

/// Condition for devices of the CPU backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum CpuMode {
    /// Only if no GPU is found.
    #[default]
    Fallback,
    /// In addition to GPUs.
    Always,
    Never,
}

/// Devices that the agent offers.
#[derive(Clone, Debug, ClapArgs)]
pub struct DeviceArguments {
    /// Do not use GPUs.
    #[arg(long, env = "SAHASRA_NO_CUDA", value_parser = BoolishValueParser::new())]
    pub no_cuda: bool,
    /// When the agent offers devices of the CPU backend.
    #[arg(long, env = "SAHASRA_CPU_BACKEND", value_enum, default_value_t)]
    pub cpu_backend: CpuMode,
    /// Number of devices of the CPU backend.
    #[arg(long, env = "SAHASRA_CPU_DEVICES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=MAX_CPU_DEVICES), value_name = "N")]
    pub cpu_devices: u32,
    /// Memory of each device of the CPU backend [default: half of the machine's memory, divided by their number].
    #[arg(long, env = "SAHASRA_CPU_DEVICE_MEMORY", value_parser = at_least_one_mebibyte, value_name = "SIZE")]
    pub cpu_device_memory: Option<u64>,
    /// Threads of each device of the CPU backend [default: the number of cores].
    #[arg(long, env = "SAHASRA_CPU_DEVICE_THREADS", value_parser = clap::value_parser!(u32).range(1..=1024), value_name = "N")]
    pub cpu_device_threads: Option<u32>,
    /// GPU memory that the process of a session needs in addition to its slice [default: the measured size of a context]. A session that
    /// would exceed the device with it is rejected. Each further context of engine cuda takes as much of the slice.
    #[arg(long, env = "SAHASRA_GPU_CONTEXT_MEMORY", value_parser = at_least_one_mebibyte, value_name = "SIZE")]
    pub gpu_context_memory: Option<u64>,
    /// Maximum number of namespaces whose bursts one device serves at the same time. Further namespaces take turns.
    #[arg(
        long,
        env = "SAHASRA_MAX_EXECUTORS_PER_DEVICE",
        default_value_t = MAX_EXECUTORS_PER_DEVICE,
        value_parser = clap::value_parser!(u32).range(1..=64),
        value_name = "N"
    )]
    pub max_executors_per_device: u32,
}

impl Default for DeviceArguments {
    fn default() -> Self {
        Self {
            no_cuda: false,
            cpu_backend: CpuMode::default(),
            cpu_devices: 1,
            cpu_device_memory: None,
            cpu_device_threads: None,
            gpu_context_memory: None,
            max_executors_per_device: 4,
        }
    }
}

impl AgentArguments {
    /// Returns the URL at which operator, gateway and clients reach the agent. `bound` is the default.
    pub fn endpoint(&self, bound: SocketAddr) -> String {
        let scheme = if self.tls_cert_file.is_some() { "https" } else { "http" };
        self.advertise_url.clone().unwrap_or_else(|| format!("{scheme}://{bound}"))
    }

    /// Returns the files of the agent's certificate, or `None` without one.
    pub fn tls(&self) -> Option<Files> {
        Some(Files {
            certificate: self.tls_cert_file.clone()?,
            key: self.tls_private_key_file.clone()?,
            client_authority: self.client_ca_file.clone(),
        })
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
        let certified = parse(&["--tls-cert-file", "tls.crt", "--tls-private-key-file", "tls.key"]).unwrap();
        assert_eq!(
            (certified.endpoint(bound).as_str(), certified.tls().is_some()),
            ("https://127.0.0.1:8471", true)
        );
        // A TLS option that would protect nothing on its own is rejected, so that nobody relies on it.
        for half in [
            &["--tls-cert-file", "tls.crt"],
            &["--tls-private-key-file", "tls.key"],
            &["--client-ca-file", "ca.crt"],
        ] {
            assert!(parse(half).is_err(), "{half:?}");
        }
    }

    #[test]
    fn each_option_has_the_variable_of_its_name() {
        let command = Arguments::command();
        let agent = command.find_subcommand("agent").unwrap();
        assert_eq!(sahasra_contract::options::deviating_variables(agent), [""; 0]);
    }
}
