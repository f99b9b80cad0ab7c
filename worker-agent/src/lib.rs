//! The worker-agent: owns one node's devices, lends slices of their memory, and runs chunks in executor processes.

pub mod executors;
pub mod ledger;
