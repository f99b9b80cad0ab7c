//! Looking at kernels and making them: nothing here needs a pool.

use crate::{args::KernelCommand, exit::Exit};

mod check;
mod compile;
mod describe;
mod nvrtc;

/// Does what is asked for.
pub fn run(command: &KernelCommand) -> Exit {
    match command {
        KernelCommand::Check(arguments) => check::run(arguments),
        KernelCommand::Compile(arguments) => compile::run(arguments),
    }
}
