//! Points at which tests let the process die, so that a crash between any two steps can be had at will.
//!
//! Without `--fail-at` nothing here does anything. With it the process sends itself SIGKILL right after the first such
//! step: no destructor runs, no connection is closed, exactly as when the kernel or a node takes it away.

use clap::ValueEnum;

/// A step of a burst after which the process may be told to die.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Step {
    /// The `VramLease` that says what is about to be acquired is written.
    Intent,
    /// An agent granted slices.
    Grant,
    /// Chunks were sent to an agent.
    Dispatch,
    /// A checkpoint is written.
    Checkpoint,
    /// The status says Complete or Failed.
    Completion,
}

/// Where this process is to die, if anywhere.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    at: Option<Step>,
}

impl Faults {
    /// Dies after the first `at`.
    pub fn at(at: Option<Step>) -> Self {
        Self { at }
    }

    /// That step was just done.
    pub fn reached(&self, step: Step) {
        if self.at == Some(step) {
            tracing::warn!(?step, "told to die here");
            let outcome = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            // Nothing runs on after a SIGKILL that was accepted.
            tracing::error!(?outcome, "could not die");
        }
    }
}
