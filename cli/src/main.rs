//! The program `sahasra`; its code is in the library of this crate.

use std::process::ExitCode;

fn main() -> ExitCode {
    sahasra_cli::main("sahasra", std::env::args_os())
}
