//! Tests of the reconcilers and of the coordinators of bursts, on the embedded control plane with its schemas, including their logs, Events
//! and metrics.

mod admission;
mod agent;
mod coordinator;
mod harness;
mod intake;
mod leases;
mod metrics;
mod rejections;
mod streams;
