//! Conversion of SIGTERM, SIGINT and SIGHUP into a cancellation token.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndSignal {
    Interrupt,
    Terminate,
    /// The terminal was closed, or its connection was lost.
    HangUp,
}

impl EndSignal {
    pub fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
            Self::HangUp => "SIGHUP",
        }
    }
}

#[derive(Debug)]
pub struct EndSignals {
    /// Receivers; `None` for a signal that stays ignored.
    interrupt: Option<Signal>,
    terminate: Option<Signal>,
    hang_up: Option<Signal>,
}

impl EndSignals {
    /// Installs the signal handlers. SIGHUP stays ignored if it is ignored already: `nohup` starts a process that is to outlive its
    /// terminal that way. Must be called within a Tokio runtime.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: Some(signal(SignalKind::interrupt())?),
            terminate: Some(signal(SignalKind::terminate())?),
            hang_up: unless_ignored(SignalKind::hangup())?,
        })
    }

    /// Like [`EndSignals::listen`], but every signal that is ignored stays ignored: for a process that runs another program, which inherits
    /// that.
    pub fn listen_unless_ignored() -> io::Result<Self> {
        Ok(Self {
            interrupt: unless_ignored(SignalKind::interrupt())?,
            terminate: unless_ignored(SignalKind::terminate())?,
            hang_up: unless_ignored(SignalKind::hangup())?,
        })
    }

    pub async fn next(&mut self) -> EndSignal {
        tokio::select! {
            () = received(&mut self.interrupt) => EndSignal::Interrupt,
            () = received(&mut self.terminate) => EndSignal::Terminate,
            () = received(&mut self.hang_up) => EndSignal::HangUp,
        }
    }
}

fn unless_ignored(kind: SignalKind) -> io::Result<Option<Signal>> {
    match is_ignored(kind.as_raw_value())? {
        true => Ok(None),
        false => signal(kind).map(Some),
    }
}

async fn received(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Returns whether the process ignores a signal.
pub fn is_ignored(signal: libc::c_int) -> io::Result<bool> {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: sigaction(2) with a null pointer for the new action changes nothing, and writes the current action to `action`, which is
    // large enough and zeroed.
    let read = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    if read != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all fields are integers or pointers, for which zero is valid, or were written by sigaction(2).
    Ok(unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN)
}

/// Returns a token that the first SIGTERM, SIGINT or SIGHUP cancels. A SIGHUP that the process ignores, as under `nohup`, stays ignored.
/// Must be called within a Tokio runtime. Fails if the signal handlers cannot be installed.
pub fn on_signal() -> io::Result<CancellationToken> {
    let mut signals = EndSignals::listen()?;
    let token = CancellationToken::new();
    let cancelled = token.clone();
    tokio::spawn(async move {
        let signal = signals.next().await;
        tracing::info!(signal = signal.name(), "shutting down");
        cancelled.cancel();
    });
    Ok(token)
}
