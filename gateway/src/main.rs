//! The gateway's program; its code is in the library of this crate.

use sahasra_gateway::{args::Args, run};

fn main() -> anyhow::Result<()> {
    let args: Args = sahasra_service::args::parse(None, std::env::args_os());
    let _log = sahasra_service::logging::start(&args.log_level, args.log_format);
    // Two threads, so that a busy stream of one session does not delay other streams and requests.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run(args))
}
