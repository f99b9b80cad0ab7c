//! `sahasra`: see the library of the same crate.

use std::process::ExitCode;

fn main() -> ExitCode {
    sahasra_cli::main("sahasra", std::env::args_os())
}
