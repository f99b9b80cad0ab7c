//! The worker-agent: owns one node's devices, lends slices of their memory, and runs chunks in executor processes.

pub mod agent;
pub mod api;
pub mod dispatch;
pub mod executors;
pub mod ledger;
pub mod metrics;
pub mod store;
