//! Sessions on an agent: the [`registry`] of them, and the [`process`] that serves each session.
//!
//! ```text
//!  client ─ HTTP/1.1 Upgrade ─► api::session_stream ─► registry ─► process (executor session)
//!                                  └───── the connection itself ── adopt ──►│
//!  operator ◄─ inventory ◄─ registry ◄────────── status page ───────────────┘
//! ```
//!
//! The executor of a session is one process. It starts when the first client connects: an unused session costs no process, and that client
//! receives the error when the start fails. The agent authorises a client's connection and passes its file descriptor to the process, which
//! from then on speaks to the client alone. Of a stream, the agent sees only what the process writes to the session's status page in shared memory.
//! TLS connections are the exception: the agent relays their bytes. A client on this machine gets memory that it shares with the process through the
//! [`memory_socket`](crate::api::memory_socket).

pub mod launch;
pub mod launcher;
pub mod process;
pub mod registry;
