//! The program `sahasra-worker`; the library `sahasra_worker` holds its code.

use std::process::ExitCode;

fn main() -> ExitCode {
    sahasra_worker::main(std::env::args_os())
}
