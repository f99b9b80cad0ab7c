//! How the program ends, as scripts see it.

use std::process::ExitCode;

/// One way to end. The worst of several decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exit {
    /// Everything that was asked for is done.
    #[default]
    Success,
    /// A burst failed, a kernel does not run, or something on this machine went wrong.
    Failed,
    /// Usage, a manifest or a kernel is wrong: nothing ran.
    Refused,
    /// A burst needs what this pool will never have.
    Unplaceable,
    /// Slices were still lent at the end.
    StillLent,
    /// `--timeout` passed.
    TimedOut,
    /// SIGINT.
    Interrupted,
    /// SIGTERM.
    Terminated,
}

/// As `sahasra up --help` lists them.
pub const CODES_OF_UP: &str = "\
Exit codes:
  0    it was told to end (Ctrl-C, SIGTERM) and every slice was given back
  1    it did not come up, or cannot go on
  2    the command line is wrong
  4    slices were still lent at the end";

/// As `sahasra run --help` lists them.
pub const CODES: &str = "\
Exit codes:
  0    every burst is complete
  1    a burst failed, or something on this machine went wrong
  2    the command line, a manifest or a kernel is wrong
  3    a burst needs what this pool does not have
  4    slices were still lent at the end
  124  --timeout passed
  130  Ctrl-C (143: SIGTERM); every slice was given back first";

impl Exit {
    /// The code.
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
        }
    }

    /// The worse of two.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        self.max(other)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}
