//! Tests of the agent from its clients' side: a real process with real executors on the CPU backend, used over a socket.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod agent_process;
mod api_server;
mod bursts;
mod certificates;
mod coordinator;
mod loss;
mod programs;
mod registration;
mod sessions;
mod shared_memory;
mod shutdown;
mod tls;
mod unary;
