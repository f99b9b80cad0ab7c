//! Command-line arguments and environment variables; no other module reads either.

use std::{
    ffi::OsString,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use sahasra_crds::quantity::at_least_one_mebibyte;
use sahasra_error_chain::causes;
use sahasra_names::{Backend, is_dns_label};
use sahasra_service::args::duration;

use crate::exit::{CODES, CODES_OF_CONNECT, CODES_OF_EXEC, CODES_OF_UP};

/// Bursts of GPU kernels on slices of VRAM, on this machine, without a cluster and without a GPU.
#[derive(Debug, Parser)]
#[command(
    name = "sahasra",
    version,
    after_help = "Begin with:\n  sahasra run examples/hyperparameter-search/     a burst of 1000 chunks, here and now\n  sahasra up                                      a pool that stays up, for kubectl\n  sahasra serve                                   the devices of this machine, for CUDA programs on others\n  sahasra kernel check KERNEL.ptx                 what a kernel takes, and what can run it"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub command: Command,
    /// Level or filter of the log on standard error, such as `info` or `warn,sahasra_operator=debug`.
    #[arg(long, global = true, env = "SAHASRA_LOG_LEVEL", default_value = "off", value_parser = sahasra_service::logging::filter, value_name = "FILTER")]
    pub log_level: String,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the BurstJobs of manifests in this process and show their results.
    #[command(after_help = CODES)]
    Run(Box<RunArgs>),
    /// Serve a pool on this machine that kubectl can use like a cluster. Ctrl-C ends it.
    #[command(after_help = CODES_OF_UP)]
    Up(Box<UpArgs>),
    /// Serve the devices of this machine to CUDA programs on other machines. Ctrl-C ends it.
    #[command(after_help = CODES_OF_UP)]
    Serve(ServeArgs),
    /// Run the CUDA programs of this user on the devices of a server.
    #[command(after_help = CODES_OF_CONNECT)]
    Connect(ConnectArgs),
    /// Undo `sahasra connect`.
    Disconnect,
    /// Run a CUDA program in a GpuSession that is deleted when the program ends.
    #[command(after_help = CODES_OF_EXEC)]
    Exec(Box<ExecArgs>),
    /// Copy this program and the CUDA libraries into a folder, such as a volume that containers share.
    Install(InstallArgs),
    /// Describe PTX, or compile CUDA C to PTX.
    #[command(subcommand)]
    Kernel(KernelCommand),
    /// Print a completion script for a shell: `source <(sahasra completion bash)`.
    Completion { shell: clap_complete::Shell },
    /// Executor of an agent of this process, which starts it.
    #[command(hide = true, disable_help_flag = true)]
    Executor {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

/// The devices that a pool on this machine has.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct PoolArgs {
    /// Allocatable VRAM of each device. Memory is allocated only when a chunk uses it.
    #[arg(long, default_value = "8Gi", value_parser = at_least_one_mebibyte, value_name = "SIZE", allow_hyphen_values = true)]
    pub vram: u64,
    /// Classes of devices, such as g5 or g5,h100. Each class gets a worker.
    #[arg(long, value_delimiter = ',', value_parser = class, value_name = "CLASS")]
    pub class: Vec<String>,
    /// Use the GPUs of this machine instead of devices of the CPU backend.
    #[arg(long, conflicts_with_all = ["vram", "class"])]
    pub gpu: bool,
    /// Folder in which jobs may read and write files by file:// URLs [default: none].
    #[arg(long, value_parser = folder, value_name = "DIR")]
    pub file_store_root: Option<PathBuf>,
}

#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct RunArgs {
    /// Manifests: YAML or JSON files with one or more documents, folders of them, or - for standard input.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Namespace of objects whose manifest has none.
    #[arg(short, long, default_value = "default", value_parser = crate::manifests::namespace)]
    pub namespace: String,
    /// Number of devices of each worker.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64), value_name = "N", conflicts_with = "gpu")]
    pub devices: u32,
    #[command(flatten)]
    pub pool: PoolArgs,
    /// Output format: a summary, the finished BurstJobs, or the results of the chunks.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: RunOutput,
    /// Folder for NAME.json (the finished BurstJob) and NAME.csv (its results; NAME.failed.csv with `results: Failed`) of each job. Created
    /// if it does not exist. Files of an earlier run under these names are replaced or removed.
    #[arg(long, value_name = "DIR")]
    pub results: Option<PathBuf>,
    /// Time after which the bursts are stopped, such as 30s, 10m or 2h [default: none].
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub timeout: Option<Duration>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum RunOutput {
    /// A summary for the terminal.
    #[default]
    Table,
    /// The finished BurstJobs as JSON.
    Json,
    /// The finished BurstJobs as YAML.
    Yaml,
    /// Index, parameters and outputs of each chunk, or with `results: Failed` index and cause of each that failed; for one BurstJob at a time.
    Csv,
}

#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct ExecArgs {
    /// Gateway of the pool [default: that of `sahasra connect`, or else http://127.0.0.1:8000]. The token is found as Python clients find it:
    /// SAHASRA_TOKEN, SAHASRA_TOKEN_FILE, the files of `sahasra connect` and `sahasra up`, the kubeconfig, or the pod's service account.
    #[arg(long, env = "SAHASRA_GATEWAY", value_parser = gateway, value_name = "URL")]
    pub gateway: Option<String>,
    /// CA certificates in PEM format with which the gateway's certificate is verified [default: that of `sahasra connect`, or those of the
    /// system].
    #[arg(long, env = "SAHASRA_CA_FILE", value_parser = authorities, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// Namespace of the session.
    #[arg(short, long, default_value = "default", value_parser = crate::manifests::namespace)]
    pub namespace: String,
    /// Class of the device, such as h100 [default: any].
    #[arg(long, value_parser = class, value_name = "CLASS")]
    pub class: Option<String>,
    /// VRAM that the program may use.
    #[arg(long, default_value = "1Gi", value_parser = amount, value_name = "SIZE", allow_hyphen_values = true)]
    pub vram: String,
    /// Time to wait for a device.
    #[arg(long, default_value = "5m", value_parser = duration, value_name = "DURATION")]
    pub wait: Duration,
    /// Time without a CUDA call after which the session ends [default: that of a GpuSession, 30m].
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub idle_timeout: Option<Duration>,
    /// Time after which the session ends [default: that of a GpuSession, 8h].
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub ttl: Option<Duration>,
    /// Folder with libcuda.so.1 and the other libraries of this version [default: lib/sahasra in the folder above that of this program].
    #[arg(long, env = "SAHASRA_CUDA_LIBRARIES", value_name = "DIR")]
    pub libraries: Option<PathBuf>,
    /// The program and its arguments, after `--`.
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct ServeArgs {
    /// Address and port to listen on. 0.0.0.0 is every address of this machine, port 0 a free port.
    #[arg(short, long, env = "SAHASRA_LISTEN", default_value = "0.0.0.0:8000", value_name = "ADDRESS")]
    pub listen: SocketAddr,
    /// Folder with the token and the certificate. Created with new ones if it does not exist [default: serve in the user's state folder].
    #[arg(long, env = "SAHASRA_CREDENTIALS_DIR", value_name = "DIR")]
    pub credentials_dir: Option<PathBuf>,
    /// Allocatable memory of the CPU backend's device, which a machine without GPUs has [default: half of the machine's memory].
    #[arg(long, value_parser = at_least_one_mebibyte, value_name = "SIZE", allow_hyphen_values = true)]
    pub vram: Option<u64>,
    /// Fail to start if the kernel lacks Landlock or seccomp, which isolate clients' programs from this machine.
    #[arg(long)]
    pub require_sandbox: bool,
}

#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct ConnectArgs {
    /// HOST:PORT as `sahasra serve` prints it, or the URL of a gateway.
    #[arg(value_name = "SERVER")]
    pub server: String,
    /// File with the token [default: the first line of standard input].
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// CA certificates in PEM format with which the certificate of a gateway is verified [default: those of the system; the certificate of
    /// `sahasra serve` is verified by its token].
    #[arg(long, env = "SAHASRA_CA_FILE", value_parser = authorities, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
}

#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct InstallArgs {
    /// Folder for bin/sahasra and lib/sahasra/libcuda.so.1 and others.
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Folder with libcuda.so.1 and the other libraries of this version [default: lib/sahasra in the folder above that of this program].
    #[arg(long, env = "SAHASRA_CUDA_LIBRARIES", value_name = "DIR")]
    pub libraries: Option<PathBuf>,
}

#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct UpArgs {
    /// Library of a PJRT plugin, with which sessions may run XLA programs [default, without --gpu: lib/pjrt_c_api_cpu_plugin.so in the
    /// folder above that of this program, if it exists].
    #[arg(long, env = "SAHASRA_PJRT_PLUGIN", value_parser = plugin, value_name = "FILE")]
    pub pjrt_plugin: Option<PathBuf>,
    /// Folder for compiled XLA programs [default: in the user's state folder].
    #[arg(long, env = "SAHASRA_PROGRAM_CACHE_DIR", value_name = "DIR")]
    pub program_cache_dir: Option<PathBuf>,
    /// Number of workers, each with one device.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64), value_name = "N", conflicts_with = "gpu")]
    pub workers: u32,
    /// Port on loopback. 0 selects a free port.
    #[arg(long, default_value_t = 8000, value_parser = port, allow_hyphen_values = true)]
    pub port: u16,
    #[command(flatten)]
    pub pool: PoolArgs,
    /// Kubeconfig to write, and to remove at the end [default: in the user's state folder]. A file with other content is not overwritten.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Token file to write for clients of sessions, and to remove at the end [default: token-PORT beside the kubeconfig].
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KernelCommand {
    /// Show which backends can run a PTX file, and the parameters of its kernels.
    Check(CheckArgs),
    /// Compile CUDA C to PTX with NVRTC. Needs no GPU.
    Compile(CompileArgs),
}

#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct CheckArgs {
    /// PTX files.
    #[arg(required = true, value_name = "FILE.ptx")]
    pub files: Vec<PathBuf>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Structure,
    /// Fail (exit code 2) if this backend cannot run the file [default: if no backend can]. "not checked" is not a failure: the file has a
    /// statement that this program does not know.
    #[arg(long)]
    pub backend: Option<Backend>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Structure {
    #[default]
    Table,
    Json,
    Yaml,
}

#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct CompileArgs {
    /// CUDA C source. Kernels are declared `extern "C" __global__`, so that they keep their names.
    #[arg(value_name = "FILE.cu")]
    pub file: PathBuf,
    /// PTX file to write, or - for standard output [default: beside the source].
    #[arg(short, long, value_name = "OUT.ptx")]
    pub output: Option<PathBuf>,
    /// Architecture to compile for. Devices must be at least as new.
    #[arg(long, default_value = "sm_80")]
    pub arch: String,
    /// Additional folder for #include.
    #[arg(short = 'I', long, value_name = "DIR")]
    pub include: Vec<PathBuf>,
    /// A macro: NAME or NAME=VALUE.
    #[arg(short = 'D', long, value_name = "MACRO")]
    pub define: Vec<String>,
    /// NVRTC library [default: found in the usual places].
    #[arg(long, env = "SAHASRA_NVRTC_LIBRARY", value_name = "FILE")]
    pub nvrtc_library: Option<PathBuf>,
}

/// Folder of the user's persistent state that is not configuration (XDG base directory specification).
pub(crate) fn state_folder() -> PathBuf {
    let absolute = |variable| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".local/state")));
    state.unwrap_or_else(std::env::temp_dir).join("sahasra")
}

/// Folders that environment variables name as CUDA installations.
pub(crate) fn cuda_homes() -> Vec<PathBuf> {
    ["CUDA_HOME", "CUDA_PATH"]
        .iter()
        .filter_map(std::env::var_os)
        .map(PathBuf::from)
        .collect()
}

/// Folder of the Python virtual environment that is active in the shell.
pub(crate) fn virtual_environment() -> Option<PathBuf> {
    std::env::var_os("VIRTUAL_ENV").map(PathBuf::from)
}

fn folder(text: &str) -> Result<PathBuf, String> {
    let folder = PathBuf::from(text);
    match folder.is_dir() {
        true => Ok(folder),
        false => Err("directory not found: create it, or specify another".to_owned()),
    }
}

/// An empty value means no plugin, such as that of an environment variable that is set but empty.
fn plugin(text: &str) -> Result<PathBuf, String> {
    let plugin = PathBuf::from(text);
    match text.is_empty() || plugin.is_file() {
        true => Ok(plugin),
        false => Err("file not found: specify the library of a PJRT plugin, such as pjrt_c_api_cpu_plugin.so".to_owned()),
    }
}

/// An amount of memory, as it is written.
fn amount(text: &str) -> Result<String, String> {
    at_least_one_mebibyte(text).map(|_| text.to_owned())
}

fn port(text: &str) -> Result<u16, String> {
    let number = text.parse();
    number.map_err(|_| format!("expected a number from 1 to {}, or 0 for a free port", u16::MAX))
}

fn gateway(text: &str) -> Result<String, String> {
    sahasra_client::gateway_url(text)
        .map(|_| text.to_owned())
        .map_err(|error| causes(&error))
}

/// A file that has CA certificates.
fn authorities(text: &str) -> Result<PathBuf, String> {
    let read = sahasra_client::read_authorities(Path::new(text));
    let told = |error| format!("{}: specify a file with CA certificates in PEM format", causes(&error));
    read.map(|_| PathBuf::from(text)).map_err(told)
}

fn class(text: &str) -> Result<String, String> {
    if is_dns_label(text) {
        Ok(text.to_owned())
    } else {
        Err("invalid class: expected 1 to 63 of a-z, 0-9 and -, with a letter or digit at both ends".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn an_invalid_value_is_told_with_its_option_and_what_is_expected() {
        for (option, value, expected) in [
            ("--vram", "x", "such as 512Mi"),
            ("--gateway", "x", "as in http://x"),
            ("--gateway", "ftp://x", "neither http nor https"),
            ("--ca-file", "/nonexistent", "failed to read the file"),
            ("--ca-file", "/dev/null", "specify a file with CA certificates in PEM format"),
            ("--wait", "x", "such as 15s"),
        ] {
            let told = Args::try_parse_from(["sahasra", "exec", option, value, "--", "program"])
                .unwrap_err()
                .to_string();
            assert!(
                told.contains(option) && told.contains(value) && told.contains(expected),
                "{option}: {told}"
            );
        }
        for port in ["x", "-1", "65536"] {
            let told = Args::try_parse_from(["sahasra", "up", "--port", port]).unwrap_err().to_string();
            assert!(
                told.contains("--port") && told.contains(port) && told.contains("a number from 1 to 65535"),
                "{told}"
            );
        }
    }

    #[test]
    fn classes_are_checked() {
        assert_eq!(class("g5"), Ok("g5".to_owned()));
        for wrong in ["", "G5", "-a", "a-", "a_b"] {
            assert!(class(wrong).is_err(), "{wrong}");
        }
    }
}
