//! The operator's binary: see the library of the same crate.

use clap::Parser;
use sahasra_operator::{args::Args, run};

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    sahasra_service::logging::start(&args.log, args.log_format);
    // Two threads: a burst's coordinator and its streams on one, API writes and other bursts on the other.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run(args))
}
