//! Protocol between the agent and its executors, the sandboxed processes that run tenants' programs. Both sides are the same binary, so
//! nothing here needs compatibility with other versions.
//!
//! [`burst`] has the messages and the status page of an executor that runs chunks, [`session`] the handover of connections and the status
//! page of one that holds a session. [`probe`] has the responses of short-lived processes that examine devices, plugins and the sandbox,
//! and [`program_cache`] the folders of compiled programs. Values from an executor are a tenant's own claims: the agent validates them.

pub mod burst;
pub mod clock;
pub mod probe;
pub mod program_cache;
pub mod session;
mod shared_page;
