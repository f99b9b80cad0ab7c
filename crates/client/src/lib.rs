//! Client of a GPU session: tensors that live on a device of the cluster, and programs that run on them there.
//!
//! ```text
//! caller ── put, execute, download … ──► Core (pure) ──► queue ──► link ──► connection ──► session executor
//!        ◄── Pending answers ─────────── Core        ◄──────────── link ◄──
//! ```
//!
//! - A call puts its operation into a queue under a lock and returns. The client chooses the numbers of result tensors, so no call waits
//!   for an answer. One task writes the queued operations, many at once. Another task reads the answers, and reads payloads directly into
//!   the buffer that the caller receives. A thread that waits for an answer runs these tasks itself.
//! - `core` keeps the operations that the executor has not processed. A connection that breaks is replaced within the grace period;
//!   nothing is lost or executed twice. `core` uses no connection and no clock.
//! - Tensors may be compressed on slow connections: [`Compression`]. The link measures the rate of the connection and lets another thread
//!   encode the next part while one is being sent.
//! - Errors of operations are reported by the next [`Session::synchronise`] or [`Tensor::download`]. The error that ends a session is
//!   returned by every call.
//! - [`Gateway`] is the client of the REST API: it creates sessions, waits for their device, and deletes them. [`Connection`] is the one that
//!   the user has connected to.

mod connection;
mod core;
mod credentials;
mod element;
mod error;
mod link;
mod pending;
mod rest;
mod runtime;
mod session;
mod sharing;
mod state;
mod target;
mod transport;

pub use connection::{Connection, SERVER_NAME, Trust};
pub use credentials::Token;
pub use element::{array_bytes, element_bytes};
pub use error::{Error, Failure, Loss};
pub use pending::{Pending, spawn};
pub use rest::{CudaSession, Gateway, condition, named, session_end};
pub use sahasra_memory::shared::{PinnedMemory, Slot, SlotPool};
pub use sahasra_memory::{Filling, OutOfMemory, Region};
pub use sahasra_wire::session::compression::Mode as Compression;
pub use sahasra_wire::session::{Compiled, FailureCode, Format, RejectionCode, Shape, Stats, Welcome};
pub use session::{Argument, Program, Session, Tensor, Traffic};
pub use state::Arrived;
pub use target::{Options, Target};
pub use transport::{check_authorities, gateway_url, read_authorities};

pub use crate::core::Array;
