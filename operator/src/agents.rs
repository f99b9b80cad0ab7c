//! The worker agents from the operator's side: unary calls ([`client`]), the burst stream ([`stream`]), the transport of both
//! ([`transport`]), and the directory of workers and their liveness ([`directory`]).

pub mod client;
pub mod directory;
pub mod stream;
pub mod transport;
mod watch_backoff;

pub use client::{AgentClient, AgentError};
pub use directory::{Directory, Worker};
pub use transport::Http2;
