//! The worker-agents as the operator sees them: calls to them ([`client`]), the burst stream ([`stream`]), what carries
//! both ([`transport`]), and who there is and whether they live ([`directory`]).

pub mod client;
pub mod directory;
pub mod stream;
pub mod transport;
mod watch_backoff;

pub use client::{AgentClient, AgentError};
pub use directory::{Directory, Worker};
pub use transport::Http2;
