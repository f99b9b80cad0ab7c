//! Tests of executors as real processes: every chunk comes back in exactly one event, whatever happens to the process.

mod chunks;
mod failures;
mod harness;
mod losses;
mod processes;
