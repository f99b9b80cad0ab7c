//! Exit codes of the program.

use std::process::ExitCode;

/// Outcome of a command, ordered by severity. Of several outcomes the most severe one decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[must_use]
pub enum Exit {
    #[default]
    Success,
    /// A burst failed, a kernel does not run, or an error occurred on this machine.
    Failed,
    /// The command line, a manifest or a kernel is invalid: nothing ran.
    Refused,
    /// A burst needs devices that this pool does not have.
    Unplaceable,
    /// Slices were still leased when the command ended.
    StillLent,
    TimedOut,
    Interrupted,
    Terminated,
    HungUp,
    /// The exit code of a program that this one has run.
    Program(u8),
}

pub(crate) const CODES_OF_EXEC: &str = "\
Exit codes:
  that of the program (128 and the signal's number if a signal ended it), or
  1    the session could not be created or deleted
  2    invalid command line
  3    no device had room for the session within --wait
  126  the program could not be started
  127  the program was not found
  130  Ctrl-C before or after the program (143: SIGTERM, 129: SIGHUP)";

pub(crate) const CODES_OF_CONNECT: &str = "\
Exit codes:
  0    connected
  1    the server does not answer, is another than the token's, or does not accept the token
  2    invalid command line or token
  130  Ctrl-C (other signals: 128 and the signal's number)";

pub(crate) const CODES_OF_UP: &str = "\
Exit codes:
  0    stopped by a signal (Ctrl-C, SIGTERM, SIGHUP), all slices released
  1    failed to start or to continue
  2    invalid command line
  4    slices were still allocated at the end";

pub(crate) const CODES: &str = "\
Exit codes:
  0    every burst is complete
  1    a burst failed, or an error on this machine
  2    invalid command line, manifest or kernel
  3    a burst needs devices that this pool does not have
  4    slices were still allocated at the end
  124  --timeout passed
  130  Ctrl-C (143: SIGTERM, 129: SIGHUP), all slices released";

impl Exit {
    pub fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failed => 1,
            Self::Refused => 2,
            Self::Unplaceable => 3,
            Self::StillLent => 4,
            Self::TimedOut => 124,
            Self::Interrupted => 130,
            Self::Terminated => 143,
            Self::HungUp => 129,
            Self::Program(code) => code,
        }
    }

    /// Prints the reason on standard error and returns the outcome.
    pub fn because(self, reason: &str) -> Self {
        crate::output::complain(reason);
        self
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}
