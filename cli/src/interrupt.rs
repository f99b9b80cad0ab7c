//! Ctrl-C, SIGTERM and SIGHUP: the first signal starts a shutdown that releases all slices, the second ends the process at once.

use std::{io, sync::mpsc, thread, time::Duration};

use sahasra_service::shutdown::{EndSignal, EndSignals};
use tokio::{
    runtime::{Builder, Runtime},
    sync::oneshot,
};

use crate::{exit::Exit, output};

/// Timeout for writing why the process ends: standard error may be a full pipe.
const SAY_WITHIN: Duration = Duration::from_millis(200);

/// Installs the signal handlers. The future waits for the first signal and returns its exit code. Executors end with this process, however it
/// ends.
///
/// The signals have a thread and a runtime of their own, so that they end the process even if every thread of the caller's runtime is blocked,
/// such as in a write to a full pipe.
pub(crate) fn listen() -> io::Result<impl Future<Output = Exit>> {
    let runtime = Builder::new_current_thread().enable_io().build()?;
    // Handlers are installed before this function returns.
    let signals = {
        let _entered = runtime.enter();
        EndSignals::listen()?
    };
    let (first, came) = oneshot::channel();
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || watch(&runtime, signals, first))?;
    Ok(async {
        match came.await {
            Ok(exit) => exit,
            // Unreachable: the thread that receives signals never ends.
            Err(_) => std::future::pending().await,
        }
    })
}

fn watch(runtime: &Runtime, mut signals: EndSignals, first: oneshot::Sender<Exit>) {
    let mut first = Some(first);
    loop {
        let signal = runtime.block_on(signals.next());
        if ends_at_once(first.is_none(), signal) {
            let (said, written) = mpsc::channel::<()>();
            thread::spawn(move || {
                output::say("stopped at once: executors exit with this process");
                drop(said);
            });
            let _ = written.recv_timeout(SAY_WITHIN);
            sahasra_service::logging::flush(SAY_WITHIN);
            std::process::exit(i32::from(of(signal).code()));
        }
        if let Some(first) = first.take() {
            let _ = first.send(of(signal));
        }
    }
}

/// Whether a signal ends the process without a shutdown. A SIGHUP never does: when a terminal is closed, both the kernel and the shell send
/// one.
pub(crate) fn ends_at_once(ending: bool, signal: EndSignal) -> bool {
    ending && signal != EndSignal::HangUp
}

pub(crate) fn of(signal: EndSignal) -> Exit {
    match signal {
        EndSignal::Interrupt => Exit::Interrupted,
        EndSignal::Terminate => Exit::Terminated,
        EndSignal::HangUp => Exit::HungUp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_signal_ends_the_process_at_once_except_for_a_second_hangup() {
        for signal in [EndSignal::Interrupt, EndSignal::Terminate, EndSignal::HangUp] {
            assert!(!ends_at_once(false, signal), "{signal:?}");
            assert_eq!(ends_at_once(true, signal), signal != EndSignal::HangUp, "{signal:?}");
        }
    }
}
