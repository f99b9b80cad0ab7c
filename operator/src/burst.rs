//! A burst: from a `BurstJob` to counted results.
//!
//! The modules here that decide are pure: [`index_set`], [`account`] (which chunk is where), [`aggregate`] (what the
//! results say), [`layout`] (how a chunk's outputs lie in a record), [`checkpoint`] (what survives a crash), [`window`] (how
//! much a device is given at once), [`budget`] (how often the API server is written to), [`validate`] and [`status`].
//!
//! [`mod@reconcile`] starts a [`coordinator`] for each job; [`mod@observe`] and [`objects`] speak with the API server.

pub mod account;
pub mod aggregate;
pub mod budget;
pub mod checkpoint;
pub mod coordinator;
pub mod exact_sum;
pub mod index_set;
pub mod layout;
pub mod objects;
pub mod observe;
pub mod reconcile;
pub mod status;
pub mod validate;
pub mod window;
