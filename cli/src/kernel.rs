//! `sahasra kernel`: describes and compiles kernels, without a pool.

use crate::{args::KernelCommand, exit::Exit};

mod check;
mod compile;
mod describe;
mod nvrtc;

pub fn run(command: &KernelCommand) -> Exit {
    match command {
        KernelCommand::Check(arguments) => check::run(arguments),
        KernelCommand::Compile(arguments) => compile::run(arguments),
    }
}
