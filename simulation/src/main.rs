//! Runs seeds of the whole-system simulation. `--help` describes the arguments.

use std::process::ExitCode;

use clap::Parser;

mod arguments;
mod isolation;
mod seed;
mod shrink;

fn main() -> ExitCode {
    let arguments = arguments::Arguments::parse();
    isolation::without_randomised_addresses();
    arguments.run()
}
