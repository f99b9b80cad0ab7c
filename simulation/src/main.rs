//! Runs seeds of the whole-system simulation. `--help` describes the arguments.

use std::process::ExitCode;

mod arguments;
mod isolation;
mod shrink;

fn main() -> ExitCode {
    let arguments = match arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    isolation::without_randomised_addresses();
    arguments.run()
}
