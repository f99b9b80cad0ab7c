//! Entry point of the operator's binary. The library of the same crate implements the operator.

use sahasra_operator::{args::Args, run};

fn main() -> anyhow::Result<()> {
    let args: Args = sahasra_service::args::parse(None, std::env::args_os());
    let _log = sahasra_service::logging::start(&args.log_level, args.log_format);
    // Two worker threads: one for a burst's coordinator and its streams, one for API writes and other bursts.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run(args))
}
