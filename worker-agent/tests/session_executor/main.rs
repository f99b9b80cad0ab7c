//! Session executors as processes, each spoken to over a socket pair as the agent and a client would.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod client;
mod compression;
mod connections;
mod harness;
mod ptx;
mod questions;
mod xla;
