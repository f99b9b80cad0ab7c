//! The executor: a sandboxed child process of the agent in which tenants' programs run on one device.
//!
//! [`command`] starts it as a process that runs chunks of bursts ([`burst`]) or that holds one session ([`session`]), after it has entered the
//! [`sandbox`]. Both kinds use a [`device`]: the CPU or a GPU; sessions for CUDA programs use a GPU as a queue of operations ([`gpu`]). The
//! process speaks to its agent through `sahasra-executor-protocol`. Nothing in this crate has credentials, speaks to the API server, or
//! opens a connection.

mod assigned;
mod burst;
mod command;
mod device;
mod gpu;
mod process;
pub mod sandbox;
mod session;

pub use command::main;
