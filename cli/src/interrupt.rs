//! Ctrl-C, SIGTERM and SIGHUP: the first signal starts a shutdown that releases all slices, the second ends the process at once.

use std::io;

use sahasra_service::shutdown::{EndSignal, EndSignals};
use tokio::sync::watch;

use crate::{exit::Exit, output};

#[derive(Clone, Debug)]
pub struct Interrupt(watch::Receiver<Option<Exit>>);

impl Interrupt {
    /// Installs the signal handlers. Executors end with this process, however it ends.
    pub fn listen() -> io::Result<Self> {
        let mut signals = EndSignals::listen()?;
        let (told, hears) = watch::channel(None);
        tokio::spawn(async move {
            let mut ending = false;
            loop {
                let signal = signals.next().await;
                if ends_at_once(ending, signal) {
                    output::say("stopped at once: executors exit with this process");
                    std::process::exit(i32::from(of(signal).code()));
                }
                if !ending {
                    told.send_replace(Some(of(signal)));
                    ending = true;
                }
            }
        });
        Ok(Self(hears))
    }

    /// Waits for the first signal and returns its exit code. Completes at once if the signal has arrived already.
    pub async fn came(&mut self) -> Exit {
        loop {
            if let Some(exit) = *self.0.borrow_and_update() {
                return exit;
            }
            if self.0.changed().await.is_err() {
                // Unreachable while the runtime exists: the task that receives signals never ends.
                std::future::pending::<()>().await;
            }
        }
    }
}

/// Whether a signal ends the process without a shutdown. A SIGHUP never does: when a terminal is closed, both the kernel and the shell send
/// one.
fn ends_at_once(ending: bool, signal: EndSignal) -> bool {
    ending && signal != EndSignal::HangUp
}

fn of(signal: EndSignal) -> Exit {
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
