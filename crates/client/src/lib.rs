//! A client of a GPU session: tensors that live on a device of the cluster, and programs that run on them there.
//!
//! ```text
//! caller ── put, execute, download … ──► Core (pure) ──► queue ──► link ──► connection ──► session executor
//!        ◄── Pending answers ─────────── Core        ◄──────────── link ◄──
//! ```
//!
//! - A call puts its operation into a queue under a lock and returns: names of results are chosen here, so that nothing is waited for.
//!   One task writes what the queue holds, many operations at once; one reads answers, and payloads straight into the buffer that the
//!   caller gets. A thread that waits for an answer runs these tasks itself.
//! - [`core`] keeps what the executor has not taken, so that a connection that breaks is replaced within the grace and nothing is lost or
//!   done twice. It knows no connection and no clock.
//! - What is slow to send may be compressed on its way: [`Compression`]. The link learns how fast the line is and asks a thread apart to
//!   encode the next part while one goes out.
//! - Errors of operations come with the next [`Session::synchronise`] or [`Tensor::download`]; what ends a session comes with every call.
//! - [`Gateway`] is the REST beside it: it creates sessions, waits for their device, and deletes them.

pub mod core;
mod credentials;
mod element;
mod error;
mod link;
mod pending;
mod rest;
mod runtime;
mod session;
mod transport;

pub use credentials::Token;
pub use element::{array_bytes, element_bytes};
pub use error::{Error, Failure, Loss};
pub use pending::Pending;
pub use rest::{Gateway, condition, session_end};
pub use runtime::spawn;
pub use sahasra_memory::{Filling, OutOfMemory, Region};
pub use sahasra_wire::session::compression::Mode as Compression;
pub use sahasra_wire::session::{Compiled, FailureCode, Figures, Format, RefusalCode, Shape, Welcome};
pub use session::{Argument, Options, Program, Session, Target, Tensor, Traffic};

pub use crate::core::Array;
