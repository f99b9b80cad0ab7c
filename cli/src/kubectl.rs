//! The program `kubectl-sahasra`, which is `sahasra` under the name by which kubectl finds the plugin `kubectl sahasra`.

use std::process::ExitCode;

fn main() -> ExitCode {
    sahasra_cli::main("kubectl sahasra", std::env::args_os())
}
