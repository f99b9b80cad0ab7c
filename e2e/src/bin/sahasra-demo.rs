//! `make demo`.

use std::{error::Error, process::ExitCode};

#[tokio::main]
async fn main() -> ExitCode {
    let Err(error) = sahasra_e2e::demo::run().await else {
        return ExitCode::SUCCESS;
    };
    eprintln!("\nthe demonstration failed: {error}");
    let mut source = error.source();
    while let Some(cause) = source {
        eprintln!("  because: {cause}");
        source = cause.source();
    }
    ExitCode::FAILURE
}
