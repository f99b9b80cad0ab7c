//! Session executors as processes. The tests act as the agent and the client, over socket pairs.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod client;
mod compression;
mod connections;
mod engines;
mod harness;
mod ptx;
mod questions;
mod shared_memory;
mod xla;
