//! Sessions on an agent: which there are, how a client gets in, and the process that serves it.
//!
//! ```text
//!  client ─ HTTP/1.1 Upgrade ─► stream ─ access? ─► sessions ─► process (executor session)
//!                                  └── the connection itself ── adopt ──►│
//!  operator ◄─ inventory ◄─ sessions ◄──────────── board ────────────────┘
//! ```
//!
//! A session's executor is one process, started when the first client comes: a session that nobody uses costs no process, and
//! whoever comes first hears why one does not start. The agent authorises a client's connection and hands its descriptor over;
//! from then on the process alone speaks to the client, and the agent sees of the session what its board says. Only what TLS protects
//! goes on passing through the agent, which relays it.

pub mod adopt;
pub mod board;
pub mod launch;
pub mod process;
mod relay;
pub mod sessions;
pub mod stream;
