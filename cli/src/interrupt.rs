//! Ctrl-C and SIGTERM: the first signal starts a shutdown that releases all slices, the second ends the process at once.

use std::io;

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

use crate::{exit::Exit, output};

/// Receives the first SIGINT or SIGTERM.
#[derive(Clone, Debug)]
pub struct Interrupt(watch::Receiver<Option<Exit>>);

impl Interrupt {
    /// Installs the signal handlers. Executors end with this process, however it ends.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn listen() -> io::Result<Self> {
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let (told, hears) = watch::channel(None);
        tokio::spawn(async move {
            loop {
                let exit = tokio::select! {
                    _ = interrupt.recv() => Exit::Interrupted,
                    _ = terminate.recv() => Exit::Terminated,
                };
                if told.send_replace(Some(exit)).is_some() {
                    output::say("ended at once: executors end with this process");
                    std::process::exit(i32::from(exit.code()));
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
