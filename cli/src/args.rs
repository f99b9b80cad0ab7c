//! Command-line arguments and environment variables; no other module reads either.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use sahasra_crds::VramQuantity;
use sahasra_service::args::duration;

use crate::exit::{CODES, CODES_OF_UP};

/// Borrow VRAM for a second: bursts of GPU kernels on this machine, without a cluster and without a GPU.
#[derive(Debug, Parser)]
#[command(
    name = "sahasra",
    version,
    after_help = "Begin with:\n  sahasra run examples/hyperparameter-search/     a burst of 1000 chunks, here and now\n  sahasra up                                      a pool that stays up, for kubectl\n  sahasra kernel check KERNEL.ptx                 what a kernel takes, and what can run it"
)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// What the parts log to standard error, such as `info` or `warn,sahasra_operator=debug`.
    #[arg(long, global = true, env = "SAHASRA_LOG", default_value = "off", value_parser = sahasra_service::logging::filter, value_name = "FILTER")]
    pub log: String,
}

/// What the program does.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the bursts of manifests in this process, show the results, give everything back.
    #[command(after_help = CODES)]
    Run(Box<RunArgs>),
    /// Keep a pool up on this machine that kubectl can use like a cluster; Ctrl-C ends it.
    #[command(after_help = CODES_OF_UP)]
    Up(Box<UpArgs>),
    /// Look at PTX, or compile CUDA C to it.
    #[command(subcommand)]
    Kernel(KernelCommand),
    /// Print a completion script for a shell: `source <(sahasra completion bash)`.
    Completion {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Runs chunks for an agent of this process, which starts it.
    #[command(hide = true, disable_help_flag = true)]
    Executor {
        /// As the agent gives them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

/// The devices that a pool on this machine has.
#[derive(Clone, Debug, ClapArgs)]
pub struct PoolArgs {
    /// VRAM that each device lends. Nothing is taken before a chunk uses it.
    #[arg(long, default_value = "8Gi", value_parser = vram, value_name = "AMOUNT")]
    pub vram: u64,
    /// Class of the devices, such as g5; several with commas, each gets a worker of its own.
    #[arg(long, value_delimiter = ',', value_parser = class, value_name = "CLASS")]
    pub class: Vec<String>,
    /// Use this machine's GPUs instead of playing devices on its CPU.
    #[arg(long, conflicts_with_all = ["vram", "class"])]
    pub gpu: bool,
    /// Folder below which jobs may name files and keep results under file:// URLs; nowhere when absent.
    #[arg(long, value_parser = folder, value_name = "FOLDER")]
    pub file_store_root: Option<PathBuf>,
}

/// Options of `sahasra run`.
#[derive(Clone, Debug, ClapArgs)]
pub struct RunArgs {
    /// Manifests: YAML or JSON files with one or more documents, folders of them, or - for standard input.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Namespace of what names none itself.
    #[arg(short, long, default_value = "default", value_parser = crate::manifests::namespace)]
    pub namespace: String,
    /// Devices of each worker.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64), value_name = "N", conflicts_with = "gpu")]
    pub devices: u32,
    /// The pool.
    #[command(flatten)]
    pub pool: PoolArgs,
    /// What is printed at the end: a summary, the finished BurstJobs, or the results of the chunks.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: RunOutput,
    /// Also write NAME.json (the finished BurstJob) and NAME.csv (its results; NAME.failed.csv with `results: Failed`) into this folder,
    /// which is created where it does not exist. Files of an earlier run under these names are replaced or removed.
    #[arg(long, value_name = "FOLDER")]
    pub results: Option<PathBuf>,
    /// Give everything back and end when it takes longer, such as 30s, 10m or 2h.
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub timeout: Option<Duration>,
}

/// What `sahasra run` prints at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum RunOutput {
    /// A summary for people.
    #[default]
    Table,
    /// The finished BurstJobs.
    Json,
    /// The finished BurstJobs.
    Yaml,
    /// Index, parameters and outputs of each chunk, or with `results: Failed` index and cause of each that failed; for one BurstJob at a time.
    Csv,
}

/// Options of `sahasra up`.
#[derive(Clone, Debug, ClapArgs)]
pub struct UpArgs {
    /// PJRT plugin, a library: sessions may then run XLA programs on its devices. When absent, and without --gpu:
    /// lib/pjrt_c_api_cpu_plugin.so in the folder above this program's, if it is there.
    #[arg(long, env = "SAHASRA_PJRT_PLUGIN", value_parser = plugin, value_name = "FILE")]
    pub pjrt_plugin: Option<PathBuf>,
    /// Folder in which XLA programs that were compiled are kept; in the user's state folder when absent.
    #[arg(long, env = "SAHASRA_PROGRAM_CACHE", value_name = "FOLDER")]
    pub program_cache: Option<PathBuf>,
    /// How many workers, each with one device.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64), value_name = "N", conflicts_with = "gpu")]
    pub workers: u32,
    /// Port on loopback; 0 takes any that is free.
    #[arg(long, default_value_t = 8000)]
    pub port: u16,
    /// The pool.
    #[command(flatten)]
    pub pool: PoolArgs,
    /// Where the kubeconfig is written, and removed at the end; in the user's state folder when absent. A file with other content is refused.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Where the token alone is written, for clients of the sessions, and removed at the end; token-PORT beside the kubeconfig when absent.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// What is done with kernels.
#[derive(Debug, Subcommand)]
pub enum KernelCommand {
    /// Say which engine can run a PTX, and what its kernels take.
    Check(CheckArgs),
    /// Compile CUDA C to PTX with NVRTC, where it is installed; no GPU is needed.
    Compile(CompileArgs),
}

/// Options of `sahasra kernel check`.
#[derive(Clone, Debug, ClapArgs)]
pub struct CheckArgs {
    /// PTX files.
    #[arg(required = true, value_name = "FILE.ptx")]
    pub files: Vec<PathBuf>,
    /// Form of the answer.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Structure,
    /// Fail (exit code 2) if this engine cannot run it. "not checked" is no failure: the file has a statement that this program does not know.
    #[arg(long, value_enum, default_value_t)]
    pub engine: Engine,
}

/// Form of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Structure {
    /// For people.
    #[default]
    Table,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

/// What runs kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// One of them.
    #[default]
    Any,
    /// The SIMT engine on CPUs.
    Cpu,
    /// The CUDA driver.
    Cuda,
}

/// Options of `sahasra kernel compile`.
#[derive(Clone, Debug, ClapArgs)]
pub struct CompileArgs {
    /// CUDA C source. Kernels are declared `extern "C" __global__`, so that they keep their names.
    #[arg(value_name = "FILE.cu")]
    pub file: PathBuf,
    /// Where the PTX goes; beside the source when absent, - for standard output.
    #[arg(short, long, value_name = "OUT.ptx")]
    pub output: Option<PathBuf>,
    /// Architecture to compile for: what runs it must be as new.
    #[arg(long, default_value = "sm_80")]
    pub arch: String,
    /// One more folder for #include.
    #[arg(short = 'I', long, value_name = "FOLDER")]
    pub include: Vec<PathBuf>,
    /// A macro: NAME or NAME=VALUE.
    #[arg(short = 'D', long, value_name = "MACRO")]
    pub define: Vec<String>,
    /// The NVRTC library, when it is not found by itself.
    #[arg(long, env = "SAHASRA_NVRTC", value_name = "PATH")]
    pub nvrtc: Option<PathBuf>,
}

/// Folder of the user's persistent state that is not configuration (XDG base directory specification).
pub fn state_folder() -> PathBuf {
    let absolute = |variable| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".local/state")));
    state.unwrap_or_else(std::env::temp_dir).join("sahasra")
}

/// Folders that environment variables name as CUDA installations.
pub fn cuda_homes() -> Vec<PathBuf> {
    ["CUDA_HOME", "CUDA_PATH"]
        .iter()
        .filter_map(std::env::var_os)
        .map(PathBuf::from)
        .collect()
}

/// Folder of the Python virtual environment that is active in the shell.
pub fn virtual_environment() -> Option<PathBuf> {
    std::env::var_os("VIRTUAL_ENV").map(PathBuf::from)
}

fn vram(text: &str) -> Result<u64, String> {
    let quantity: VramQuantity = text.parse().map_err(|error| format!("{error}"))?;
    let bytes = quantity.bytes().map_err(|error| error.to_string())?;
    if bytes < 1 << 20 {
        return Err("a device lends at least 1Mi".to_owned());
    }
    Ok(bytes)
}

fn folder(text: &str) -> Result<PathBuf, String> {
    let folder = PathBuf::from(text);
    match folder.is_dir() {
        true => Ok(folder),
        false => Err("no such folder: create it, or name another".to_owned()),
    }
}

/// An empty value means no plugin, such as that of an environment variable that is set but empty.
fn plugin(text: &str) -> Result<PathBuf, String> {
    let plugin = PathBuf::from(text);
    match text.is_empty() || plugin.is_file() {
        true => Ok(plugin),
        false => Err("no such file: name the library of a PJRT plugin, such as pjrt_c_api_cpu_plugin.so".to_owned()),
    }
}

fn class(text: &str) -> Result<String, String> {
    if crate::manifests::is_label(text) {
        Ok(text.to_owned())
    } else {
        Err("a class is 1 to 63 of a-z, 0-9 and -, with a letter or digit at both ends".to_owned())
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
    fn amounts_and_classes_are_checked() {
        assert_eq!(vram("8Gi"), Ok(8 << 30));
        assert_eq!(class("g5"), Ok("g5".to_owned()));
        for wrong in ["8", "8GB", "0Mi", "1Ki"] {
            assert!(vram(wrong).is_err(), "{wrong}");
        }
        let told = vram("99999999Ti").unwrap_err();
        assert!(told.contains("too large: the maximum is 16777215Ti"), "{told}");
        for wrong in ["", "G5", "-a", "a-", "a_b"] {
            assert!(class(wrong).is_err(), "{wrong}");
        }
    }
}
