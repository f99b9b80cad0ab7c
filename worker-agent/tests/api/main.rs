//! The agent as its clients see it: a real process with real executors on the CPU engine, spoken to over a socket.

#![allow(missing_docs)]

mod agent_process;
mod bursts;
mod coordinator;
mod loss;
mod programs;
mod shutdown;
mod unary;
