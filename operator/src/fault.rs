//! Fault injection: the points at which tests can crash the operator's process.
//!
//! Without `--failpoint` this module has no effect. With it, the process sends itself SIGKILL right after the given step happens for the
//! first time. No destructor runs and no connection is closed, exactly as when the kernel or the loss of a node kills the process.

use clap::ValueEnum;

/// A step of a burst after which the process can be made to crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Step {
    /// The `VramLease` is written, before any slice is acquired.
    Intent,
    /// An agent granted slices.
    Grant,
    /// Chunks were sent to an agent.
    Dispatch,
    /// A checkpoint is written.
    Checkpoint,
    /// The status `Complete` or `Failed` is written.
    Completion,
}

/// The step after which this process kills itself, if any.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    at: Option<Step>,
}

impl Faults {
    /// Kills the process right after step `at` happens for the first time; never, if `at` is `None`.
    pub fn at(at: Option<Step>) -> Self {
        Self { at }
    }

    /// Reports that `step` was just done. Kills the process if it is the configured step.
    pub fn reached(&self, step: Step) {
        if self.at == Some(step) {
            tracing::warn!(?step, "failpoint reached: killing the process");
            let outcome = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            // Reached only if the SIGKILL failed.
            tracing::error!(?outcome, "failed to kill the process");
        }
    }
}
