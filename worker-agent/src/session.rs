//! What an agent and the executor of a session share: the [`board`], and how a connection is handed over ([`adopt`]).
//!
//! A session's executor is one process. The agent authorises a client's connection and hands its descriptor over; from then on
//! the process alone speaks to the client, and the agent sees of the session only what its board says.

pub mod adopt;
pub mod board;
