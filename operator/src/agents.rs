//! The worker agents from the operator's side: unary calls (`client`), the burst stream (`stream`), the transport of both
//! ([`transport`]), and the directory of workers and their liveness (`directory`).

mod client;
mod directory;
mod error;
pub(crate) mod stream;
pub mod transport;

pub use client::AgentClient;
pub use directory::{Directory, HEARTBEAT_LOST, STATUSES, Worker};
pub use error::{AgentError, StreamError};
pub use transport::Http2;
