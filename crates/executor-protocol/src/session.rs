//! Handover of connections to, and status page of, an executor that holds a session.

pub mod adoption;
pub mod status_page;
