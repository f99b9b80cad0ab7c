//! The reconciler and the coordinators of bursts on the embedded control plane, with its schemas.

mod admission;
mod agent;
mod coordinator;
mod harness;
