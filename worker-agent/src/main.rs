//! `sahasra-worker`: see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    sahasra_worker::main(std::env::args_os())
}
