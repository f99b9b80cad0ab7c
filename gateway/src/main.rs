//! The gateway's binary: see the library of the same crate.

use clap::Parser;
use sahasra_gateway::{args::Args, run};

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    sahasra_service::logging::start(&args.log, args.log_format);
    // Two threads: bytes of one session's stream are copied on one while another's, or a list, goes on.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run(args))
}
