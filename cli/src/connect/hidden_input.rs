//! A terminal that does not show its input while a token is pasted.

use std::{io, mem::MaybeUninit, ptr, sync::OnceLock};

use libc::{c_int, sigaction};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use sahasra_service::shutdown::is_ignored;

use crate::output;

/// Signals that end or stop the process, before which the terminal shows its input again.
const SIGNALS: [c_int; 5] = [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP, libc::SIGTSTP];

/// The terminal's modes, for signal handlers.
static MODES: OnceLock<Modes> = OnceLock::new();

struct Modes {
    shown: Termios,
    hidden: Termios,
}

/// Standard input, a terminal that shows its input again when this is dropped, and while the process is stopped.
pub(super) struct HiddenInput {
    /// Actions to restore, by their signals.
    former: Vec<(c_int, sigaction)>,
}

impl HiddenInput {
    pub(super) fn begin() -> io::Result<Self> {
        let shown = tcgetattr(io::stdin())?;
        let mut hidden = shown.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        let modes = MODES.get_or_init(|| Modes { shown, hidden });
        let mut input = Self { former: Vec::new() };
        for signal in SIGNALS {
            // An ignored signal stays ignored.
            if is_ignored(signal)? {
                continue;
            }
            input.former.push((signal, install(signal, &end_or_stop())?));
            if signal == libc::SIGTSTP {
                input.former.push((libc::SIGCONT, install(libc::SIGCONT, &go_on())?));
            }
        }
        output::say("Token:");
        tcsetattr(io::stdin(), OptionalActions::Flush, &modes.hidden)?;
        Ok(input)
    }
}

impl Drop for HiddenInput {
    fn drop(&mut self) {
        // The actions were there before.
        let restore = |(signal, action): &(c_int, sigaction)| drop(install(*signal, action));
        // First the one that hides the input.
        self.former.iter().rev().take(1).for_each(restore);
        set(|modes| &modes.shown);
        self.former.iter().for_each(restore);
    }
}

/// Action of a signal that ends or stops the process. It is reset when the signal arrives, so that sending it again has the default
/// outcome.
fn end_or_stop() -> sigaction {
    extern "C" fn handler(signal: c_int) {
        set(|modes| &modes.shown);
        // SAFETY: a call that a signal handler may make. The signal is blocked until the handler returns.
        unsafe { libc::raise(signal) };
    }
    action(handler, libc::SA_RESETHAND)
}

/// Action of the signal that lets a stopped process go on.
fn go_on() -> sigaction {
    extern "C" fn handler(_: c_int) {
        // As before, this cannot fail.
        let _ = install(libc::SIGTSTP, &end_or_stop());
        set(|modes| &modes.hidden);
    }
    action(handler, 0)
}

fn action(handler: extern "C" fn(c_int), flags: c_int) -> sigaction {
    // SAFETY: all fields are integers or pointers, for which zero is valid; it means an empty set of signals.
    let mut action: sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = flags | libc::SA_RESTART;
    action
}

/// Installs an action, and returns the one before.
fn install(signal: c_int, action: &sigaction) -> io::Result<sigaction> {
    let mut former = MaybeUninit::uninit();
    // SAFETY: sigaction(2) reads one structure and writes another. The handlers make system calls only, which they may.
    if unsafe { libc::sigaction(signal, ptr::from_ref(action), former.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: written by sigaction(2).
    Ok(unsafe { former.assume_init() })
}

/// Sets the modes of the terminal. A signal handler may call it.
fn set(mode: impl Fn(&Modes) -> &Termios) {
    if let Some(modes) = MODES.get() {
        // The terminal may be gone.
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, mode(modes));
    }
}
