//! `kubectl sahasra`: the same program under the name by which kubectl finds it.

use std::process::ExitCode;

fn main() -> ExitCode {
    sahasra_cli::main("kubectl sahasra", std::env::args_os())
}
