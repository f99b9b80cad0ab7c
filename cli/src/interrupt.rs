//! Ctrl-C, SIGTERM and SIGHUP: the first signal starts a shutdown that releases all slices, the second ends the process at once.

use std::io;

use sahasra_service::shutdown::{EndSignal, EndSignals};
use tokio::sync::oneshot;

use crate::{exit::Exit, output};

/// Installs the signal handlers. The future waits for the first signal and returns its exit code. Executors end with this process, however it
/// ends.
pub fn listen() -> io::Result<impl Future<Output = Exit>> {
    let mut signals = EndSignals::listen()?;
    let (first, came) = oneshot::channel();
    tokio::spawn(async move {
        let mut first = Some(first);
        loop {
            let signal = signals.next().await;
            if ends_at_once(first.is_none(), signal) {
                output::say("stopped at once: executors exit with this process");
                std::process::exit(i32::from(of(signal).code()));
            }
            if let Some(first) = first.take() {
                let _ = first.send(of(signal));
            }
        }
    });
    Ok(async {
        match came.await {
            Ok(exit) => exit,
            // Unreachable while the runtime exists: the task that receives signals never ends.
            Err(_) => std::future::pending().await,
        }
    })
}

/// Whether a signal ends the process without a shutdown. A SIGHUP never does: when a terminal is closed, both the kernel and the shell send
/// one.
pub fn ends_at_once(ending: bool, signal: EndSignal) -> bool {
    ending && signal != EndSignal::HangUp
}

pub fn of(signal: EndSignal) -> Exit {
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
