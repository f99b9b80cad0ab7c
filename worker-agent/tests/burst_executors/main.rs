//! Executors as real processes: every chunk returns in exactly one event, whatever happens to the process.

mod chunks;
mod failures;
mod harness;
mod losses;
mod processes;
